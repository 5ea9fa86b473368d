"""The centre of the library: any metric through any relaxation of sorting is a loss.

    scores -> relaxation -> relaxed permutation or ranks -> metric -> loss = 1 - value

Every cell of the grid has a name, ``<relaxation>_<metric>@k``, and with the prefix ``gumbel_`` a
stochastic form. The papers' losses are cells of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankgrad import kernels
from rankgrad.kernels import Fused
from rankgrad.lists import Lists, Reduction
from rankgrad.losses.base import Loss, losses
from rankgrad.metrics import Metric, metrics
from rankgrad.metrics.base import Expectation, Route
from rankgrad.options import check_choice
from rankgrad.sorting import FAMILIES, Gumbel, Relaxation, Schedule, relaxations
from rankgrad.sorting.schedules import as_temperature
from rankgrad.specs import Spec

GRID_METRICS = ("ndcg", "dcg", "precision", "recall", "ap", "rr", "err", "rbp", "arp")


@losses.register("relaxed")
class RelaxedMetric(Loss):
    """``1 - metric`` (``metric`` itself if lower is better), the sort replaced by a relaxation.

    Left out are lists without a relevant item, and lists of a single item.

    Args:
        metric: from :mod:`rankgrad.metrics`, or its spec.
        relaxation: from :mod:`rankgrad.sorting`, or its spec.
        through: the relaxed ``"permutation"`` or ``"ranks"``; by default what it gives first.
        beta: through ranks, how sharply ranks are compared with the cutoff and each other, or a
            schedule (see :meth:`rankgrad.metrics.Metric.relaxed`).
        expect: for dcg and ndcg, the expected ``"gain"``, or the gain of the expected ``"label"``.
        reduction: over lists.

    >>> loss = RelaxedMetric("ap", "softsort(temperature=0.1)")
    >>> loss(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 1]))
    tensor(0.3463)
    """

    name: ClassVar[str] = "relaxed"

    def __init__(
        self,
        metric: str | Spec | Metric = "ndcg",
        relaxation: str | Spec | Relaxation = "neural",
        *,
        through: Route | None = None,
        beta: float | Schedule = 1.0,
        expect: Expectation = "gain",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.metric = metrics.get(metric)
        self.relaxation = relaxations.get(relaxation)
        self.through: Route | None = through
        self.beta = as_temperature("beta", beta)
        self.expect: Expectation = expect
        check_choice("expect", expect, ("gain", "label"))
        self.metric.check_relaxed(self.relaxation, through)
        self._looked_up: tuple[tuple[Any, ...], Fused | None] | None = None

    def per_list(self, lists: Lists) -> tuple[Float[Tensor, " b"], Bool[Tensor, " b"]]:
        relaxation = self.relaxation.at(self.progress)
        value = self.metric.relax(relaxation, lists, self.through, self.now(self.beta), self.expect)
        defined = self.metric.relevant(lists) & (lists.lengths > 1)
        return value if self.metric.lower_is_better else 1 - value, defined

    @property
    def score_scale(self) -> float:
        return _score_scale(self.relaxation.at(self.progress))

    def check_labels(
        self, labels: Float[Tensor, " s"], mask: Bool[Tensor, " s"] | None
    ) -> Float[Tensor, " s"]:
        return self.metric.check_labels(labels, mask)

    def fused(self, lists: Lists) -> Fused | None:
        if torch.compiler.is_compiling():
            found = self._operation()
        else:  # looked up anew only if something has changed
            given = (
                self.progress, self.relaxation, self.metric, self.through, self.beta, self.expect
            )  # fmt: skip
            if self._looked_up is None or self._looked_up[0] != given:
                self._looked_up = given, self._operation()
            found = self._looked_up[1]
        if found is None or not kernels.ready(found.name, lists.slots.scores):
            return None
        return found

    def _operation(self) -> Fused | None:
        """The operation at the present progress, whether there is a twin of it or not."""
        relaxation = self.relaxation.at(self.progress)
        if self.through not in (None, relaxation.gives[0]):
            return None
        if not (relaxation.kernel_applies and self.metric.kernel_applies):
            return None
        metric = self.metric.linear_kernel()
        found = relaxation.fused(self.now(self.beta), self.expect)
        if metric is None or found is None:
            return None
        return Fused(found.name, (*found.options, *metric))


def _score_scale(relaxation: Relaxation) -> float:
    """The temperature of a relaxation in the scores' own units, 1 where there is none."""
    if hasattr(relaxation, "base"):
        return _score_scale(relaxation.base)
    for name in ("temperature", "strength"):
        if hasattr(relaxation, name):
            return float(getattr(relaxation, name))
    return 1 / float(getattr(relaxation, "alpha", 1.0))


class GridLoss(RelaxedMetric):
    """A cell of the grid: a family of relaxations × a metric, deterministic or stochastic.

    Args:
        family: a name in :data:`rankgrad.sorting.FAMILIES`.
        metric: a name in ``GRID_METRICS``.
        k: the metric's cutoff.
        stochastic: add Gumbel noise to the scores.
        options: of the relaxation, the metric, the noise (``scale``, ``samples``, ``log_scores``,
            ``seed``) and of :class:`RelaxedMetric`.

    >>> print(GridLoss("neural", "rr", 10, temperature=0.5))
    neural_rr@10(temperature=0.5)
    """

    def __init__(
        self,
        family: str,
        metric: str,
        k: int | None = None,
        stochastic: bool = False,
        **options: Any,
    ) -> None:
        check_choice("family", family, tuple(FAMILIES))
        check_choice("metric", metric, GRID_METRICS)
        known = cell_options(family, metric, stochastic)
        for option in options:
            if option not in known:
                raise ValueError(f"{family}_{metric} has no option {option!r}: {', '.join(known)}")
        given = {name: options.get(name, parameter.default) for name, parameter in known.items()}
        for name, value in given.items():  # so that 2 and 2.0 are the same loss
            if type(value) is int and isinstance(known[name].default, float):
                given[name] = float(value)
        relaxation = FAMILIES[family](**_for(FAMILIES[family], given))
        if stochastic:
            relaxation = Gumbel(relaxation, **_for(Gumbel, given))
        made = metrics.maker(metric)
        super().__init__(
            made(**_for(made, given), k=k), relaxation, **_for(RelaxedMetric.__init__, given)
        )
        self.k = k
        self.cell = ("gumbel_" if stochastic else "") + f"{family}_{metric}"
        self._options = {
            name: value for name, value in given.items() if value != known[name].default
        }
        if isinstance(relaxation, Gumbel) and relaxation.seed is not None:
            self._options["seed"] = relaxation.seed

    @property
    def spec(self) -> Spec:
        return Spec(self.cell, self.k, self._options)


class NeuralNDCG(GridLoss):
    """NDCG × NeuralSort with Sinkhorn scaling (neuralndcg eqs. 5-6): ``neural_ndcg@k``.

    Args:
        k: cutoff.
        temperature: τ of NeuralSort, or a schedule.
        transposed: NeuralNDCG Transposed, eq. 6.
        sinkhorn: scale the permutation to be doubly stochastic.
        options: further ones of the cell, such as ``gain`` and ``reduction``.

    >>> NeuralNDCG(2, temperature=0.01)(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
    tensor(0.7246)
    """

    def __init__(
        self,
        k: int | None = None,
        *,
        temperature: float | Schedule = 1.0,
        transposed: bool = False,
        sinkhorn: bool = True,
        **options: Any,
    ) -> None:
        options |= {"temperature": temperature, "transposed": transposed, "sinkhorn": sinkhorn}
        super().__init__("neural", "ndcg", k, **options)


class ApproxNDCG(GridLoss):
    """NDCG × sigmoid ranks (comparison eqs. 5-6, Qin et al. 2010): ``approx_ndcg@k``.

    Args:
        k: cutoff, relaxed as in Qin et al. 2010 with the cut between the ranks k and k + 1 (see
            :meth:`rankgrad.metrics.Metric.relaxed`).
        alpha: inverse temperature of the sigmoids, or a schedule.
        beta: sharpness of the relaxed cutoff.
        options: further ones of the cell, such as ``gain`` and ``reduction``.

    >>> ApproxNDCG(alpha=10.0)(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
    tensor(0.3348)
    """

    def __init__(
        self,
        k: int | None = None,
        *,
        alpha: float | Schedule = 1.0,
        beta: float | Schedule = 1.0,
        **options: Any,
    ) -> None:
        super().__init__("approx", "ndcg", k, **options | {"alpha": alpha, "beta": beta})


class PiRank(GridLoss):
    """A metric × NeuralSort's top k rows (pirank eqs. 8-11): ``pirank_ndcg@k``, ``pirank_arp``.

    Args:
        k: cutoff.
        metric: ``"ndcg"``, ``"arp"``, or another of the grid.
        temperature: τ of NeuralSort, or a schedule.
        depth: of the divide and conquer; 1 sorts the list at once.
        straight_through: the exact metric on the way forward.
        options: further ones of the cell, such as ``branching`` and ``reduction``.

    >>> PiRank(2, temperature=0.01)(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
    tensor(0.7246)
    """

    def __init__(
        self,
        k: int | None = None,
        *,
        metric: str = "ndcg",
        temperature: float | Schedule = 1.0,
        depth: int = 1,
        straight_through: bool = False,
        **options: Any,
    ) -> None:
        options |= {
            "temperature": temperature,
            "depth": depth,
            "straight_through": straight_through,
        }
        super().__init__("pirank", metric, k, **options)


class SmoothI(GridLoss):
    """A metric × smooth rank indicators (smoothi): ``smoothi_ndcg@k``, ``smoothi_precision@k``, ...

    For NDCG the gain is that of the expected label, as the paper writes it.

    Args:
        k: cutoff.
        metric: ``"ndcg"``, ``"precision"``, ``"ap"``, or another of the grid.
        alpha: inverse temperature, or a schedule.
        delta: δ in (0, 0.5).
        stop_gradient: hold the products of earlier ranks constant on the way back.
        options: further ones of the cell, such as ``gain`` and ``reduction``.

    >>> SmoothI(2, alpha=100.0)(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
    tensor(0.7246)
    """

    def __init__(
        self,
        k: int | None = None,
        *,
        metric: str = "ndcg",
        alpha: float | Schedule = 1.0,
        delta: float = 0.1,
        stop_gradient: bool = True,
        **options: Any,
    ) -> None:
        options |= {"alpha": alpha, "delta": delta, "stop_gradient": stop_gradient}
        super().__init__("smoothi", metric, k, **options)


NAMED: dict[tuple[str, str], type[GridLoss]] = {
    ("neural", "ndcg"): NeuralNDCG,
    ("approx", "ndcg"): ApproxNDCG,
    **{("pirank", metric): PiRank for metric in GRID_METRICS},
    **{("smoothi", metric): SmoothI for metric in GRID_METRICS},
}


def cell_options(
    family: str, metric: str, stochastic: bool = False
) -> dict[str, inspect.Parameter]:
    """The options of a cell with their defaults: its relaxation's, its metric's, and the loss's."""
    makers: list[Callable[..., Any]] = [
        FAMILIES[family],
        metrics.maker(metric),
        RelaxedMetric.__init__,
    ]
    if stochastic:
        makers.insert(1, Gumbel)
    hidden = {"self", "k", "metric", "relaxation", "base", "empty", "ties", "_random"}
    options = {
        name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for maker in makers
        for name, parameter in inspect.signature(maker).parameters.items()
        if name not in hidden
    }
    if metric not in ("ndcg", "dcg"):
        del options["expect"]
    elif family == "smoothi":  # as its paper writes it
        options["expect"] = options["expect"].replace(default="label")
    if (family, metric) == ("smoothi", "arp"):
        # Its indicators of low ranks still favour the top items, which as ranks of their own would
        # cost them; normalised over each item's ranks they say where it stands.
        options["through"] = options["through"].replace(default="ranks")
    return options


def _for(maker: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Those of the given options that this maker takes."""
    taken = inspect.signature(maker).parameters
    return {name: value for name, value in given.items() if name in taken}


def _register(family: str, metric: str, stochastic: bool) -> None:
    """Enter a cell under its name, with its options as the signature."""
    named: Callable[..., GridLoss] | None = None if stochastic else NAMED.get((family, metric))

    def make(k: int | None = None, **options: Any) -> Loss:
        if named is None:
            return GridLoss(family, metric, k, stochastic, **options)
        if named in (PiRank, SmoothI):
            options["metric"] = metric
        return named(k=k, **options)

    cutoff = inspect.Parameter("k", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    known = cell_options(family, metric, stochastic)
    make.__signature__ = inspect.Signature([cutoff, *known.values()])  # type: ignore[attr-defined]
    losses.register(("gumbel_" if stochastic else "") + f"{family}_{metric}")(make)


losses.preferred = tuple(f"{family}_{m}" for family in ("approx", "neural") for m in GRID_METRICS)
for _family in FAMILIES:
    for _metric in GRID_METRICS:
        _register(_family, _metric, stochastic=False)
        _register(_family, _metric, stochastic=True)
