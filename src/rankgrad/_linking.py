"""Numba functions that are compiled as part of the functions that call them.

Numba optimizes every function by itself, emits machine code for it, and optimizes it again in each
function that calls it: on a kernel of 40 small functions that is most of the time of a first call.
Here a function that compiled code calls becomes LLVM IR only. The function that Python calls, the
entry point, is then optimized once, with all functions that it calls.

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

    _needed = (
        "_finalize_dynamic_globals",
        "_finalize_final_module",
        "_optimize_final_module",
        "_optimize_functions",
        "_set_compiled_object",
        "enable_object_caching",
    )
    AVAILABLE = all(hasattr(JITCodeLibrary, name) for name in _needed)
except ImportError:
    AVAILABLE = False


#: All entry points of this process, for ``tools/precompile.py``.
entry_points: WeakSet[Any] = WeakSet()
#: The level to compile for, an LLVM CPU name such as "x86-64-v3"; None for that of the host.
_requested_level: ContextVar[str | None] = ContextVar("level", default=None)


def make_entry_point(
    dispatcher: Any, function: Callable[..., Any], options: dict[str, Any]
) -> None:
    """Make a Numba dispatcher an entry point: Python calls it, compiled code links its IR.

    Args:
        dispatcher: what ``numba.njit`` returned for the function, with :class:`EntryPointCompiler`
            as its ``pipeline_class``.
        function: the Python function.
        options: of ``numba.njit``.
    """
    # Both classes have the same memory layout, so this is allowed; calls still run Numba's C code.
    dispatcher.__class__ = _EntryPoint
    # The first two are options that numba.njit adds.
    options = {"nopython": True, "boundscheck": None, **options}
    dispatcher.linked = _LinkedFunction(function, options)
    entry_points.add(dispatcher)


def machine_code(entry_point: Any, arguments: Any, level: str) -> bytes:
    """The code of an entry point for arguments of these types and a level, as archives hold it.

    The entry point has been called with such arguments. If this process compiled it for the level
    then, it is not compiled again.
    """
    result = entry_point.overloads[arguments]
    if level != host_level() or not isinstance(result.library, _EntryPointLibrary):
        token = _requested_level.set(level)
        try:
            result = entry_point._compiler.compile(arguments, None)
        finally:
            _requested_level.reset(token)
    return cast(bytes, dumps(result._reduce()))


if AVAILABLE:

    class _EntryPoint(CPUDispatcher):
        """A function for Python to call, and in ``linked`` the same for compiled code to call."""

        linked: Any

        def get_call_template(self, args: Any, kws: Any) -> Any:
            return self.linked.get_call_template(args, kws)

        def get_overload(self, sig: Any) -> Any:
            return self.linked.get_overload(sig)

    class _LinkedFunction(CPUDispatcher):
        """A function for compiled code to call. It has LLVM IR and no machine code."""

        def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
            super().__init__(
                function,
                targetoptions={"no_cfunc_wrapper": True, **options},
                pipeline_class=_LinkedCompiler,
            )

        def get_call_template(self, args: Any, kws: Any) -> Any:
            """Compile one version for variables and constants, whose types differ in Numba."""
            named = {name: unliteral(kind) for name, kind in kws.items()}
            return super().get_call_template(tuple(map(unliteral, args)), named)

        def add_overload(self, result: Any) -> None:
            """Register IR for callers to find by ``key``, in place of machine code."""
            key = object()
            self.targetctx.insert_user_function(key, result.fndesc, [result.library])
            # Callers look this field up, which otherwise holds the compiled function.
            self.overloads[tuple(result.signature.args)] = result._replace(entry_point=key)

    class _Codegen(JITCPUCodegen):
        """Numba's code generator, for a level in place of this CPU."""

        def __init__(self, level: str) -> None:
            self._level = level
            super().__init__("rankgrad")

        def _get_host_cpu_name(self) -> str:
            return self._level

        def _get_host_cpu_features(self) -> str:
            return TUNING.get(self._level, "")

    _codegen_for = functools.cache(_Codegen)

    class _Library(JITCodeLibrary):
        """IR of which no function is optimized by itself."""

        def _optimize_functions(self, module: Any) -> None:
            # All that Numba's method does, except for optimizing.
            module.data_layout = self._codegen._data_layout

    class _EntryPointLibrary(_Library):
        """IR that is optimized as a whole, compiled for a level, and loaded by Numba."""

        def __init__(self, host_codegen: Any, name: str) -> None:
            level = _requested_level.get() or host_level()
            super().__init__(_codegen_for(level) if level else host_codegen, name)
            self._host_codegen = host_codegen

        def _finalize_final_module(self) -> None:
            # Emit code for the level, then have Numba load it as if it came from its cache.
            self._machine_code = self._codegen._tm.emit_object(self._final_module)
            self._codegen = self._host_codegen
            self.enable_object_caching()
            self._set_compiled_object(self._machine_code)
            super()._finalize_final_module()

        def serialize_using_object_code(self) -> Any:
            """Machine code, and empty functions of the same names: its IR is never linked."""
            self._ensure_finalized()
            stubs = ir.Module()
            for function in self.get_defined_functions():
                empty = ir.Function(stubs, ir.FunctionType(ir.VoidType(), ()), function.name)
                ir.IRBuilder(empty.append_basic_block()).unreachable()
            bitcode = binding.parse_assembly(str(stubs)).as_bitcode()
            return self.name, "object", (self._machine_code, bitcode)

    class _LinkedLibrary(_Library):
        """IR that callers link, as it is."""

        def _optimize_final_module(self) -> None:
            pass

        def _finalize_final_module(self) -> None:
            self._finalize_dynamic_globals()
            self._finalized = True

    class _ChooseLibrary(AnalysisPass):
        """A pass that sets the library of the function being compiled only.

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
        library = _EntryPointLibrary

    @register_pass(mutates_CFG=False, analysis_only=True)
    class _StopAtIR(_ChooseLibrary):
        _name = "rankgrad_stop_at_ir"
        library = _LinkedLibrary

        def run_pass(self, state: Any) -> bool:
            state.flags.no_compile = True
            state.flags.no_cpython_wrapper = True
            return super().run_pass(state)

    class EntryPointCompiler(CompilerBase):
        """The compiler of entry points: Numba's passes, and ``choose`` after types are known."""

        choose: type[_ChooseLibrary] = _CompileAsWhole

        def define_pipelines(self) -> list[Any]:
            """The passes of Numba's nopython mode, with ``choose`` among them."""
            passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
            passes.add_pass_after(self.choose, AnnotateTypes)
            passes.finalize()
            return [passes]

    class _LinkedCompiler(EntryPointCompiler):
        choose = _StopAtIR
