"""Compiled code that comes with the package, so that a first call need not compile.

An archive holds the machine code of all kernels for one version of Python and one
microarchitecture level (x86-64-v3, v4 of the psABI); ``tools/precompile.py`` writes it. The name of
a member of the archive has a digest of all that its code depends on. So if the sources or the
version of Numba differ from those of the archive, the member is not found, and the kernel is
compiled on this machine, as it is without an archive. It is then compiled for the same level, so
on one machine the archive's code and code compiled there give the same bits.

Members are pickles, as in Numba's cache. Unpickling them adds no risk, because whoever can write an
archive can write the sources, too.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from llvmlite import binding

_config: Any = numba.config
FOLDER = Path(__file__).with_name("precompiled")

_AVX2 = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
#: Levels of x86-64, best first, with the CPU features that each needs, as LLVM names them.
LEVELS = {
    "x86-64-v4": (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "x86-64-v3": _AVX2,
}
#: LLVM prefers 256-bit vectors on v4; lambda losses are 8 % slower with them.
TUNING = {"x86-64-v4": "-prefer-256-bit"}


@functools.cache
def host_level() -> str | None:
    """The best of ``LEVELS`` that this CPU supports, or None.

    Also None if the user chose a CPU or its features for Numba (by the environment variables
    NUMBA_CPU_NAME, NUMBA_CPU_FEATURES or NUMBA_ENABLE_AVX).
    """
    if _config.CPU_NAME is not None or _config.CPU_FEATURES is not None or not _config.ENABLE_AVX:
        return None
    features = binding.get_host_cpu_features()
    supported = (name for name, needed in LEVELS.items() if all(map(features.get, needed)))
    return next(supported, None)


def archive_path(level: str) -> Path:
    """The path of a level's archive, which need not exist."""
    python = sys.implementation.cache_tag + getattr(sys, "abiflags", "")
    return FOLDER / f"{python}-{level}.zip"


def member_name(function: Callable[..., Any], arguments: Any, level: str) -> str:
    """The name of a function's code in an archive.

    Args:
        function: the Python function.
        arguments: the Numba types of its arguments; each signature is compiled separately.
        level: a key of ``LEVELS``.
    """
    key = (
        sources_digest(function.__code__.co_filename),
        numba.__version__,
        llvmlite.__version__,
        (_config.OPT, _config.BOUNDSCHECK, _config.USING_SVML),
        binding.get_process_triple(),
        archive_path(level).name,
        arguments,
    )
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest()
    return f"{function.__module__}.{function.__qualname__}-{digest}"


def read(function: Callable[..., Any], arguments: Any) -> bytes | None:
    """The pickled code of a function that came with the package, or None if there is none.

    Args:
        function: the Python function.
        arguments: the Numba types of its arguments.

    Raises:
        zipfile.BadZipFile: the archive is damaged.
    """
    level = host_level()
    if level is None or not archive_path(level).exists():
        return None
    # Opened each time: a process and its forks would share the position in an open file.
    with zipfile.ZipFile(archive_path(level)) as archive:
        try:
            return archive.read(member_name(function, arguments, level))
        except KeyError:
            return None


def sources_digest(path: str) -> str:
    """A digest of the Python sources in the folder of ``path`` and in its direct subfolders.

    It includes the modules that compile them: ``_compilation``, ``_linking`` and this one.
    """
    return _digest(str(Path(path).parent))


@functools.cache
def _digest(folder: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    compilers = (Path(__file__).with_name(f"{name}.py") for name in ("_compilation", "_linking"))
    sources = (*Path(folder).glob("*.py"), *Path(folder).glob("*/*.py"))
    for path in (*sorted(sources), *compilers, Path(__file__)):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
