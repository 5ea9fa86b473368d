"""Numba compilation with an on-disk cache, which may be missing or damaged.

The LETOR parser and the CPU kernels use it. Their packages do not import each other, so it is in
neither of them.
"""

# Numba has no type hints, so its classes are Any for mypy.
# mypy: disable-error-code="misc"

from __future__ import annotations

import gc
import hashlib
import pickle
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.compiler import CompileResult

from rankgrad import _linking, _precompiled

Function = TypeVar("Function", bound=Callable[..., Any])

_CHECKSUM_SIZE = 16  # bytes, at the end of each file


def compile_cached(function: Function, **options: Any) -> Function:
    """``numba.njit(**options)(function)``, compiled once for all processes where that can be.

    Code that came with the package (:mod:`rankgrad._precompiled`) is used as it is. Other code is
    cached beside the source or in the user's cache folder. Where neither can be written, as in a
    read-only installation without a home, each process compiles for itself. A damaged cache is
    compiled again, with a warning. A cache written from other sources is compiled again silently.
    All sources in the function's folder and in the folders directly below it count, as compiled
    code contains the functions it calls (:mod:`rankgrad._linking`).

    Args:
        function: what to compile.
        options: of ``numba.njit``, less ``cache``. A function and those it calls should have the
            same options, except ``fastmath``: Numba compiles its internal functions again for
            each set of options.

    >>> compile_cached(lambda x: x + 1, nogil=True)(2)
    3
    """
    # No C code calls these functions, so they need no C wrapper.
    numba_options: dict[str, Any] = {"no_cfunc_wrapper": True, **options}
    # An entry point is a function that Python calls; what it calls is compiled into it.
    if _linking.AVAILABLE:
        numba_options["pipeline_class"] = _linking.EntryPointCompiler
    dispatcher: Any = numba.njit(**numba_options)(function)
    if not hasattr(dispatcher, "_cache"):  # NUMBA_DISABLE_JIT is set
        return cast(Function, dispatcher)
    dispatcher._compile_for_args = _without_garbage_collection(dispatcher._compile_for_args)
    with suppress(RuntimeError):  # no folder can be written: Numba's empty cache stays
        dispatcher._cache = _CheckedCache(function)
    dispatcher._cache = _PackagedFirstCache(function, dispatcher._cache)
    if _linking.AVAILABLE:
        _linking.make_entry_point(dispatcher, function, options)
    return cast(Function, dispatcher)


def _without_garbage_collection(compile_function: Callable[..., Any]) -> Callable[..., Any]:
    """``compile_function`` without garbage collection, a tenth of its time that frees little."""

    def compile_without_gc(*arguments: Any, **named: Any) -> Any:
        enabled = gc.isenabled()
        gc.disable()
        try:
            return compile_function(*arguments, **named)
        finally:
            if enabled:
                gc.enable()

    return compile_without_gc


class _PackagedFirstCache:
    """A cache that looks in the package's archive first, then in ``cache``."""

    def __init__(self, function: Callable[..., Any], cache: Any) -> None:
        self._function, self._cache = function, cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, signature: Any, context: Any) -> Any:
        try:
            code = _precompiled.read(self._function, signature)
            if code is not None:
                context.refresh()
                return CompileResult._rebuild(context, *pickle.loads(code))
        except Exception as error:  # unpickling damaged bytes raises anything
            warnings.warn(
                f"the compiled code in {_precompiled.FOLDER} is damaged ({type(error).__name__}): "
                "install rankgrad again; compiling until then",
                stacklevel=2,
            )
        return self._cache.load_overload(signature, context)


class _CheckedCache(FunctionCache):
    """Numba's cache of one function, for which damaged or outdated files are missing ones."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        sources = _precompiled.sources_digest(function.__code__.co_filename)
        stamp = self._impl.locator.get_source_stamp(), sources
        self._cache_file = _CheckedFiles(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, signature: Any, context: Any) -> Any:
        try:
            return super().load_overload(signature, context)
        except Exception as error:  # unpickling damaged bytes raises anything
            warnings.warn(
                f"the cache of compiled code in {self._cache_path} is damaged "
                f"({type(error).__name__}): compiling again",
                stacklevel=2,
            )
            self._forget()
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        try:
            super().save_overload(signature, data)
        except Exception:  # a full disk, or a damaged index, which raises anything
            self._forget()

    def _forget(self) -> None:
        """Start an empty index, which replaces a damaged one; do without a cache if that fails."""
        try:
            self._cache_file.flush()
        except OSError:
            self.disable()


class _CheckedFiles(IndexDataCacheFile):
    """Cache files with a checksum at their end: flipped bits in machine code would crash."""

    def __init__(self, folder: str, base: str, stamp: Any) -> None:
        # Numba's own files of that function have no checksums, so these have another name.
        super().__init__(folder, f"{base}.blake2b", stamp)

    def _dump(self, data: Any) -> bytes:
        content: bytes = super()._dump(data)
        return content + _checksum(content)

    def _load_index(self) -> Any:
        try:
            with open(self._index_path, "rb") as file:
                if pickle.load(file) == self._version:  # Numba ignores an index of another version
                    _check(file.read())
        except FileNotFoundError:
            return {}
        return super()._load_index()

    def _load_data(self, name: str) -> Any:
        _check(Path(self._data_path(name)).read_bytes())
        return super()._load_data(name)  # pickle stops before the checksum


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_CHECKSUM_SIZE).digest()


def _check(content: bytes) -> None:
    if _checksum(content[:-_CHECKSUM_SIZE]) != content[-_CHECKSUM_SIZE:]:
        raise ValueError("wrong checksum")
