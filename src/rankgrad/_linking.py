"""Numba functions that are compiled as part of the functions that call them.

Numba optimizes every function by itself, emits machine code for it, and optimizes it again in each
function that calls it: on a kernel of 40 small functions that is most of the time of a first call.
Here a function that compiled code calls becomes LLVM IR only. What Python calls, the entry
point, is then optimized once, as a whole.

This relies on undocumented parts of Numba. Where a version lacks one,
:func:`rankgrad._compilation.compile_cached` works without it and compiles more slowly.
"""

# mypy: disable-error-code="misc"

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, cast
from weakref import WeakSet

from rankgrad._precompiled import TUNING, host_level

try:
    from llvmlite import binding, ir
    from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
    from numba.core.compiler import CompilerBase, DefaultPassBuilder
    from numba.core.compiler_machinery import AnalysisPass, register_pass
    from numba.core.registry import CPUDispatcher
    from numba.core.serialize import dumps
    from numba.core.typed_passes import AnnotateTypes
    from numba.core.types import unliteral

    _needed = ("_optimize_functions", "_optimize_final_module", "_finalize_final_module")
    AVAILABLE = all(hasattr(JITCodeLibrary, name) for name in _needed)
except ImportError:
    AVAILABLE = False


#: What Python calls, for ``tools/precompile.py``.
entries: WeakSet[Any] = WeakSet()
_level: ContextVar[str | None] = ContextVar("level", default=None)


def make_entry(dispatcher: Any, function: Callable[..., Any], options: dict[str, Any]) -> None:
    """Make a Numba dispatcher an entry point: Python calls it, compiled code links its IR.

    It is what ``numba.njit(**options)(function)`` returned.
    """
    # The class has the same layout: Python calls it as it does Numba's own, in C.
    dispatcher.__class__ = _Entry
    dispatcher.linked = _Linked(function, {"nopython": True, "boundscheck": None, **options})
    entries.add(dispatcher)


def machine_code(entry: Any, arguments: Any, level: str) -> bytes:
    """The code of an entry point for arguments of these types and a level, as archives hold it.

    The entry point has been called with such arguments. If this process compiled it for the level
    then, it is not compiled again.
    """
    result = entry.overloads[arguments]
    if level != host_level() or not isinstance(result.library, _EntryLibrary):
        token = _level.set(level)
        try:
            result = entry._compiler.compile(arguments, None)
        finally:
            _level.reset(token)
    return cast(bytes, dumps(result._reduce()))


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

    class _Codegen(JITCPUCodegen):
        """What optimizes and emits code for a level of CPUs."""

        def __init__(self, level: str) -> None:
            self._level = level
            super().__init__("rankgrad")

        def _get_host_cpu_name(self) -> str:
            return self._level

        def _get_host_cpu_features(self) -> str:
            return TUNING.get(self._level, "")

    _codegen = functools.cache(_Codegen)

    class _Library(JITCodeLibrary):
        """IR that is optimized as a whole only, not each function by itself before."""

        def _optimize_functions(self, module: Any) -> None:
            module.data_layout = self._codegen._data_layout

    class _EntryLibrary(_Library):
        """IR that becomes machine code for a level of CPUs, and is loaded by Numba like any."""

        def __init__(self, loader: Any, name: str) -> None:
            level = _level.get() or host_level()
            super().__init__(_codegen(level) if level else loader, name)
            self._loader = loader

        def _finalize_final_module(self) -> None:
            self._machine_code = self._codegen._tm.emit_object(self._final_module)
            self._codegen = self._loader
            self.enable_object_caching()
            self._set_compiled_object(self._machine_code)
            super()._finalize_final_module()

        def serialize_using_object_code(self) -> Any:
            """Machine code and, in place of its IR, the names in it: none links an entry point."""
            self._ensure_finalized()
            names = ir.Module()
            for function in self.get_defined_functions():
                empty = ir.Function(names, ir.FunctionType(ir.VoidType(), ()), function.name)
                ir.IRBuilder(empty.append_basic_block()).unreachable()
            bitcode = binding.parse_assembly(str(names)).as_bitcode()
            return self.name, "object", (self._machine_code, bitcode)

    class _LinkedLibrary(_Library):
        """IR to be linked into that of callers, as it is."""

        def _optimize_final_module(self) -> None:
            pass

        def _finalize_final_module(self) -> None:
            self._finalize_dynamic_globals()
            self._finalized = True

    class _ChooseLibrary(AnalysisPass):
        """A pass that sets the library of this function only.

        Numba's own functions that it calls keep theirs.
        """

        library: type[_Library]

        def __init__(self) -> None:
            AnalysisPass.__init__(self)

        def run_pass(self, state: Any) -> bool:
            state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
            return False

    @register_pass(mutates_CFG=False, analysis_only=True)
    class _CompileAsWhole(_ChooseLibrary):
        _name = "rankgrad_compile_as_whole"
        library = _EntryLibrary

    @register_pass(mutates_CFG=False, analysis_only=True)
    class _StopAtIR(_ChooseLibrary):
        _name = "rankgrad_stop_at_ir"
        library = _LinkedLibrary

        def run_pass(self, state: Any) -> bool:
            state.flags.no_compile = True
            state.flags.no_cpython_wrapper = True
            return super().run_pass(state)

    class EntryCompiler(CompilerBase):
        """Numba's own passes, with one of the above before the last."""

        choose: type[_ChooseLibrary] = _CompileAsWhole

        def define_pipelines(self) -> list[Any]:
            """The passes, as Numba asks for them."""
            passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
            passes.add_pass_after(self.choose, AnnotateTypes)
            passes.finalize()
            return [passes]

    class _LinkedCompiler(EntryCompiler):
        choose = _StopAtIR
