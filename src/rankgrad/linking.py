"""Numba functions that are compiled as part of the functions that call them.

Numba optimizes every function by itself, emits machine code for it, and optimizes it again in each
function that calls it: on a kernel of 40 small functions that is most of the time of a first call.
Here a function that compiled code calls becomes LLVM IR only. What Python calls, the entry, is then
optimized once, as a whole.

This stands on parts of Numba that are not documented. Where a version of Numba lacks one of them,
:func:`compile_linked` is :func:`rankgrad.compilation.compile_cached`: slower to compile, no more.
"""

# mypy: disable-error-code="misc"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from rankgrad.compilation import compile_cached

Function = TypeVar("Function", bound=Callable[..., Any])

try:
    from numba.core.codegen import JITCodeLibrary
    from numba.core.compiler import CompilerBase, DefaultPassBuilder
    from numba.core.compiler_machinery import AnalysisPass, register_pass
    from numba.core.registry import CPUDispatcher
    from numba.core.typed_passes import AnnotateTypes
    from numba.core.types import unliteral

    _needed = ("_optimize_functions", "_optimize_final_module", "_finalize_final_module")
    AVAILABLE = all(hasattr(JITCodeLibrary, name) for name in _needed)
except ImportError:
    AVAILABLE = False


def compile_linked(function: Function, **options: Any) -> Function:
    """``numba.njit(**options)(function)``, compiled within each compiled function that calls it.

    Called from Python, it is an entry: compiled with all that it calls, and cached.

    Args:
        function: what to compile.
        options: of ``numba.njit``, less ``cache``. Those of an entry and of what it calls should
            differ in ``fastmath`` at most, as Numba compiles its own functions for each set.

    >>> increment = compile_linked(lambda x: x + 1)
    >>> compile_linked(lambda x: 2 * increment(x))(2)
    6
    """
    # Nothing calls these functions from C.
    compiler = {"pipeline_class": _EntryCompiler} if AVAILABLE else {}
    entry = compile_cached(function, no_cfunc_wrapper=True, **compiler, **options)
    if not AVAILABLE or not hasattr(entry, "py_func"):  # or NUMBA_DISABLE_JIT is set
        return entry
    made: Any = entry
    made.__class__ = _Entry  # of the same layout: Python calls it as it does Numba's own, in C
    made.linked = _Linked(function, {"nopython": True, "boundscheck": None, **options})
    return cast(Function, made)


if AVAILABLE:

    class _Entry(CPUDispatcher):
        """A function that Python calls, and in ``linked`` what compiled code calls."""

        linked: Any

        def get_call_template(self, args: Any, kws: Any) -> Any:
            return self.linked.get_call_template(args, kws)

        def get_overload(self, sig: Any) -> Any:
            return self.linked.get_overload(sig)

    class _Linked(CPUDispatcher):
        """A function for compiled code to call."""

        def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
            super().__init__(
                function,
                targetoptions={"no_cfunc_wrapper": True, **options},
                pipeline_class=_LinkedCompiler,
            )

        def get_call_template(self, args: Any, kws: Any) -> Any:
            """Compile once for variables and constants, for which Numba has types of their own."""
            kinds = {name: unliteral(kind) for name, kind in kws.items()}
            return super().get_call_template(tuple(map(unliteral, args)), kinds)

        def add_overload(self, result: Any) -> None:
            """Enter compiled IR for callers to find by ``key``, in place of a machine function."""
            key = object()
            self.targetctx.insert_user_function(key, result.fndesc, [result.library])
            self.overloads[tuple(result.signature.args)] = result._replace(entry_point=key)

    class _EntryLibrary(JITCodeLibrary):
        """IR that is optimized as a whole only, not each function by itself before."""

        def _optimize_functions(self, module: Any) -> None:
            module.data_layout = self._codegen._data_layout

    class _LinkedLibrary(_EntryLibrary):
        """IR to be linked into that of callers, as it is."""

        def _optimize_final_module(self) -> None:
            pass

        def _finalize_final_module(self) -> None:
            self._finalize_dynamic_globals()
            self._finalized = True

    class _ChooseLibrary(AnalysisPass):
        """Choose the library here, where the functions of Numba that are called do not see it."""

        library: type[_EntryLibrary]

        def __init__(self) -> None:
            AnalysisPass.__init__(self)

        def run_pass(self, state: Any) -> bool:
            state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
            return False

    @register_pass(mutates_CFG=False, analysis_only=True)
    class _CompileAsWhole(_ChooseLibrary):
        _name = "rankgrad_compile_as_whole"
        library = _EntryLibrary

        def run_pass(self, state: Any) -> bool:
            super().run_pass(state)
            state.library.enable_object_caching()
            return False

    @register_pass(mutates_CFG=False, analysis_only=True)
    class _StopAtIR(_ChooseLibrary):
        _name = "rankgrad_stop_at_ir"
        library = _LinkedLibrary

        def run_pass(self, state: Any) -> bool:
            state.flags.no_compile = True
            state.flags.no_cpython_wrapper = True
            return super().run_pass(state)

    class _EntryCompiler(CompilerBase):
        """Numba's own passes, with one of the above before the last."""

        choose: type[_ChooseLibrary] = _CompileAsWhole

        def define_pipelines(self) -> list[Any]:
            passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
            passes.add_pass_after(self.choose, AnnotateTypes)
            passes.finalize()
            return [passes]

    class _LinkedCompiler(_EntryCompiler):
        choose = _StopAtIR
