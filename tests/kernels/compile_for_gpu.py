"""Compile GPU kernels for sm_90 without a GPU, as far as TTIR, which checks all types.

Prints a line ``MODULE KERNEL ERROR`` for each specialization. Launches only compile, and results
are whatever memory holds.
"""

import collections
import functools
import importlib
import os
import pkgutil
from types import SimpleNamespace

os.environ.pop("TRITON_INTERPRET", None)

import torch
from registry import loss_specs
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction, create_function_from_signature

from rankgrad import losses
from rankgrad.inputs import unchecked_lists
from rankgrad.kernels import _backends, gpu, ops
from rankgrad.kernels.arguments import ExactMetric, FlatLists, PairOptions

TARGET = GPUTarget("cuda", 90, 32)
BACKEND = make_backend(TARGET)
FORMS = 2
#: Those whose kernels no other loss launches, with masks on long lists.
LONG = (
    *("approx_ap@3", "approx_ndcg", "lapsum_ndcg", "listmle", "neural_ap@3", "neural_ndcg@3"),
    *("mse", "ot_ap@3", "ot_ndcg", "pirank_ndcg@3", "smoothi_ndcg@3", "softmax", "softsort_ndcg"),
)


modules = {
    each.name.lstrip("_"): importlib.import_module(f"rankgrad.kernels.gpu.{each.name}")
    for each in pkgutil.iter_modules(gpu.__path__)
}
seen = collections.defaultdict(list)


@functools.cache
def binder(kernel):
    """Triton's function that binds and types the arguments of a kernel."""
    return create_function_from_signature(kernel.signature, kernel.params, BACKEND)


def compile_only(self, *arguments, grid, warmup, **options):
    """In place of a launch: compile if constants differ, until there are some forms of a kernel."""
    options = {**options, "debug": False, "instrumentation_mode": ""}
    bound, specialization, parsed = binder(self)(*arguments, **options)
    name = self.module.rsplit(".", 1)[1], self.fn.__name__
    form = [bound[param.name] for param in self.params if param.is_constexpr]
    if len(seen[name]) == FORMS or form in seen[name]:
        return
    seen[name].append(form)
    try:
        parsed, *signature = self._pack_args(BACKEND, options, bound, specialization, parsed)
        source, context = ASTSource(self, *signature), ir.context()
        ir.load_dialects(context)
        BACKEND.load_dialects(context)
        functions = BACKEND.get_codegen_implementation(parsed), BACKEND.get_module_map()
        stages = {}
        BACKEND.add_stages(stages, parsed, source.language)
        module = source.make_ir(TARGET, parsed, *functions, context)
        stages["ttir"](module, {})
        print(*name, flush=True)
    except Exception as error:
        print(*name, type(error).__name__, " ".join(str(error).split()), flush=True)


def batch(lists, n, masked):
    generator = torch.Generator().manual_seed(0)
    size = lists * n
    scores = torch.randn(size, generator=generator)
    labels = torch.randint(0, 5, (size,), generator=generator).float()
    mask = torch.ones(size, dtype=torch.bool) if masked else None
    weights = scores.abs() if masked else None
    return FlatLists(scores, labels, mask, weights, torch.arange(0, size + 1, n), n)


def compile_losses(specs, one):
    lists = unchecked_lists(*one[:2], offsets=one.offsets, max_length=one.max_length)
    for spec in specs:
        call = losses.get(spec).kernel(lists)
        if call is not None and _backends.has_kernel("cuda", ops.LOSSES[call.name][0], call.name):
            kernel = ops.backend_kernel(call.name, "gpu")
            getattr(kernel, "function", kernel)(*one, *call.options)


def compile_operators(one):
    scores, _, mask, _, offsets, max_length = one
    lists = scores, mask, offsets, max_length
    rows, smoothi = modules["permutation_rows"], modules["smoothi"]
    for operator in (
        rows.NeuralSortOperator(*lists, 10, 1.0),
        rows.SoftSortOperator(*lists, 10, 1.0),
        modules["sinkhorn"].SinkhornOperator(*lists, 10, 1.0, 3, 1e-3, False),
        smoothi.SmoothIOperator(*lists, 10, 1.0, 0.1),
        modules["ot"].OptimalTransportOperator(*lists, 10, 0.1, 3, 1e-3),
    ):
        operator.apply(scores)
        operator.apply(scores)
        operator.adjoint(scores, scores)
    for ranks in (
        modules["ranks"].SigmoidRanks(*lists, 1.0),
        modules["lapsum"].LapSumRanks(*lists, 1.0),
        modules["fastsort"].FastSortRanks(*lists, 1.0, False),
        smoothi.SmoothIRanks(*lists, 1.0, 0.1),
    ):
        ranks.adjoint(scores)


def compile_others(one):
    scores, labels, mask, weights, offsets, max_length = one
    values = scores[: offsets.numel() - 1]
    exact_metrics = [
        ExactMetric(metric, k, True, False, 1.0, 0.8)
        for metric in ("ndcg", "precision", "recall", "rbp", "arp", "ap", "rr", "err", "hits")
        for k in (0, 10)
    ]
    modules["metrics"].exact_metrics(one, exact_metrics)
    modules["value_check"].check_values(scores, labels, mask, weights, None)
    modules["reduce"].reduce(values, values > 0, None, True)
    modules["reduce"].scale_by_list(values, scores, offsets, max_length, values[0])
    rows = scores.view(-1, max_length)
    blocks = torch.zeros(rows.shape, dtype=torch.int64)
    modules["isotonic"].pool(rows, rows, blocks[:, 0], False)
    modules["isotonic"].block_sums(rows, blocks)
    for kind in ("lambdarank", "ndcg_loss2++"):
        options = PairOptions(kind, 10, 1.0, "exponential", "heuristic", 10.0)
        modules["pair_derivatives"].pair_derivatives(one, options)


def main():
    driver.set_active(SimpleNamespace(get_current_device=lambda: 0))
    modules["register_resident"].at_once = modules["sinkhorn"].at_once = lambda scores: 132
    JITFunction.run = compile_only
    for module in modules.values():
        for name, kernel in list(vars(module).items()):
            if type(kernel).__name__ == "CachedLauncher":
                setattr(module, name, kernel.jit)
    compile_losses(loss_specs(), batch(64, 240, False))
    compile_losses(LONG, batch(2, 17_000, True))
    for one in (batch(64, 240, False), batch(2, 17_000, True)):
        compile_operators(one)
        compile_others(one)


if __name__ == "__main__":
    main()
