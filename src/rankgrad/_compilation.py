"""Numba compilation with an on-disk cache, which may be missing or damaged.

The parser and the CPU kernels use it. It belongs to neither package, as neither imports the other.
"""

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

_DIGEST = 16  # bytes of the checksum at the end of a file


def compile_cached(function: Function, **options: Any) -> Function:
    """``numba.njit(**options)(function)``, compiled once for all processes where that can be.

    Code that came with the package (:mod:`rankgrad._precompiled`) is used as it is. Other code is
    cached beside the source or in the user's cache folder. Where neither can be written, as in a
    read-only installation without a home, each process compiles for itself. A damaged cache is
    compiled again, with a warning. A cache of other sources is compiled again silently: compiled
    code contains the functions it calls, so the sources in the same folder, and one below, count
    too. Functions that it calls are compiled as part of it (:mod:`rankgrad._linking`).

    Args:
        function: what to compile.
        options: of ``numba.njit``, less ``cache``. Those of a function and of what it calls should
            differ in ``fastmath`` at most, as Numba compiles its own functions for each set.

    >>> compile_cached(lambda x: x + 1, nogil=True)(2)
    3
    """
    numba_options: dict[str, Any] = {"no_cfunc_wrapper": True, **options}  # C code calls none
    if _linking.AVAILABLE:
        numba_options["pipeline_class"] = _linking.EntryPointCompiler
    dispatcher: Any = numba.njit(**numba_options)(function)
    if not hasattr(dispatcher, "_cache"):  # NUMBA_DISABLE_JIT is set
        return cast(Function, dispatcher)
    dispatcher._compile_for_args = _without_garbage_collection(dispatcher._compile_for_args)
    with suppress(RuntimeError):  # there is no folder that can be written
        dispatcher._cache = _Cache(function)
    dispatcher._cache = _PackagedCode(function, dispatcher._cache)
    if _linking.AVAILABLE:
        _linking.make_entry_point(dispatcher, function, options)
    return cast(Function, dispatcher)


def _without_garbage_collection(compile_function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile without garbage collection, which takes a tenth of the time and frees little."""

    def compile_without_gc(*arguments: Any, **named: Any) -> Any:
        enabled = gc.isenabled()
        gc.disable()
        try:
            return compile_function(*arguments, **named)
        finally:
            if enabled:
                gc.enable()

    return compile_without_gc


class _PackagedCode:
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


class _Cache(FunctionCache):
    """Numba's cache of one function, in which an unreadable file counts as a missing one."""

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
        except (OSError, ValueError, pickle.PickleError, EOFError):
            self._forget()  # a full disk, or an index that cannot be replaced: go on without

    def _forget(self) -> None:
        """Start an empty index, so that the next process does not read the damaged file."""
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
                if pickle.load(file) == self._version:
                    _check(file.read())
        except FileNotFoundError:
            return {}
        return super()._load_index()

    def _load_data(self, name: str) -> Any:
        _check(Path(self._data_path(name)).read_bytes())
        return super()._load_data(name)  # pickle stops before the checksum


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()


def _check(content: bytes) -> None:
    if _checksum(content[:-_DIGEST]) != content[-_DIGEST:]:
        raise ValueError("wrong checksum")
