"""What the contract tests run over: whatever is registered, with and without a cutoff."""

from typing import Any

import torch

from rankgrad import losses, metrics, sorting
from rankgrad.losses import Loss
from rankgrad.losses._base import losses as registry
from rankgrad.sorting import Gumbel, Relaxation, SmoothI
from rankgrad.specs import takes_cutoff

OPTIONS = [  # what defaults do not reach
    "fastsort_ndcg(regularization=entropic)",
    "lambdaloss@3(scheme=ndcg_loss1)",
    "lambdaloss@3(scheme=ndcg_loss2++)",
    "lambdaloss@3(metric=precision, truncation=heuristic)",
    "lambdarank@3(metric=ap)",
    "lambdarank(metric=rr)",
    "ndcg_bound@3(penalty=loglog)",
    "neural_ndcg@3(transposed=true)",
    "neural_ndcg(sinkhorn=false, gain=linear)",
    "ot_ndcg(through=ranks)",
    "pirank_ndcg@3(depth=2)",
    "pirank_ap@3(branching=[2, 3])",
    "ranknet@3(ties=half)",
    "smoothi_ndcg(expect=gain, through=ranks)",
    "softsort_ndcg@3(through=ranks)",
]


def loss_specs() -> list[str]:
    """Every loss, plain and @3 if it has a cutoff; stochastic cells of the grid @3 only."""
    specs = []
    for name in losses.names():
        cut = takes_cutoff(registry.factory(name))
        if not (cut and name.startswith("gumbel_")):
            specs.append(name)
        if cut:
            specs.append(f"{name}@3")
    return specs + OPTIONS


def metric_specs() -> list[str]:
    """Every metric, and @3 of those with a cutoff."""
    pairs = ("opa", "kendall_tau", "spearman")
    return metrics.names() + [f"{name}@3" for name in metrics.names() if name not in pairs]


def metrics_with_kernel() -> list[str]:
    """Every metric whose exact value a kernel computes."""
    return [name for name in metrics.names() if metrics.get(name).kernel not in (None, "spearman")]


def make_loss(spec: str, **options: Any) -> Loss:
    """A loss; a random one with a fixed seed, so that a fresh one repeats it."""
    if is_random(spec):
        options["seed"] = 7
        if spec.startswith("gumbel_"):
            options.setdefault("samples", 3)
    return losses.get(spec, **options)


def is_random(spec: str) -> bool:
    return spec.startswith(("gumbel_", "listmle"))


def has_true_gradient(loss: Loss) -> bool:
    """Whether autograd gives the derivative of the value, not of something else by design."""
    relaxation = getattr(loss, "relaxation", None)
    if isinstance(relaxation, Gumbel):
        relaxation = relaxation.base
    return not (isinstance(relaxation, SmoothI) and relaxation.stop_gradient)


def sharp(relaxation: type[Relaxation]) -> Relaxation:
    """A relaxation near its zero-temperature limit."""
    return relaxation(**relaxation.limit)


def relaxation_classes() -> list[type[Relaxation]]:
    return sorted({type(sorting.get(name)) for name in sorting.names()}, key=lambda c: c.__name__)


def clone(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone().requires_grad_()
