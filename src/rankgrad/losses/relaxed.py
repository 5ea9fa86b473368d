"""The center of the library: any metric through any relaxation of sorting is a loss.

    scores -> relaxation -> relaxed permutation or ranks -> metric -> loss = 1 - value

:class:`RelaxedMetric` is that product. :class:`GridLoss` names its cells:
``<relaxation>_<metric>@k``, and with the prefix ``gumbel_`` the stochastic form. The papers' losses
are cells of this grid.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import override

from rankgrad._shapes import Labels, ListMask, ListValues, Mask
from rankgrad._validation import as_temperature, check_choice
from rankgrad.kernels import KernelCall
from rankgrad.kernels._operators import ranks_ready, relaxed_metric
from rankgrad.lists import Lists
from rankgrad.losses._base import Loss, Reduction, declares_capturable, losses
from rankgrad.metrics import Metric, metrics
from rankgrad.metrics._base import Expectation, Route
from rankgrad.sorting import FAMILIES, Gumbel, Relaxation, Schedule, Tree, relaxations
from rankgrad.specs import Spec

__all__ = [
    "ApproxNDCG",
    "GridLoss",
    "NeuralNDCG",
    "PiRank",
    "RelaxedMetric",
    "SmoothI",
    "cell_classes",
    "cell_parts",
    "cell_route",
    "grid_losses",
    "grid_metrics",
    "losses",
]


@losses.register("relaxed")
class RelaxedMetric(Loss):
    """``1 - metric`` (``metric`` itself if lower is better), the sort replaced by a relaxation.

    It is undefined on lists without a relevant item and on lists of a single item.

    Args:
        metric: an object of :mod:`rankgrad.metrics`, or its spec, such as ``"ap@10"``.
        relaxation: an object of :mod:`rankgrad.sorting`, or its spec, such as ``"softsort"``.
        through: the relaxed ``"permutation"`` or ``"ranks"``; by default the relaxation's native
            form, if the metric goes through it.
        beta: through ranks, how sharply ranks are compared with the cutoff and each other, or a
            schedule (see :meth:`rankgrad.metrics.Metric.relaxed`).
        expect: for dcg and ndcg, the expected ``"gain"``, or the gain of the expected ``"label"``.
        reduction: over lists.

    >>> loss = RelaxedMetric("ap", "softsort(temperature=0.1)")
    >>> loss(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 1]))
    tensor(0.3463)
    """

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
        self.metric.check_relaxed(self.relaxation, through, expect)
        self._cached_call: tuple[tuple[Any, ...], KernelCall | None] | None = None

    @override
    def per_list(self, lists: Lists) -> tuple[ListValues, ListMask]:
        relaxation = self.relaxation.at(self.progress)
        value = self.metric.relax(relaxation, lists, self.through, self.now(self.beta), self.expect)
        defined = self.metric.relevant(lists) & (lists.lengths > 1)
        return value if self.metric.lower_is_better else 1 - value, defined

    @property
    @override
    def score_scale(self) -> float:
        return _score_scale(self.relaxation.at(self.progress))

    @override
    def check_labels(self, labels: Labels, mask: Mask | None) -> Labels:
        return self.metric.check_labels(labels, mask)

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        if torch.compiler.is_compiling():
            return self._find_kernel()
        # Finding the kernel takes longer than a small loss: it is cached until an option changes.
        state = (
            self.progress, self.relaxation, self.metric, self.through, self.beta, self.expect
        )  # fmt: skip
        if self._cached_call is None or self._cached_call[0] != state:
            self._cached_call = state, self._find_kernel()
        return self._cached_call[1]

    def _find_kernel(self) -> KernelCall | None:
        """The kernel at the present training progress, whether the device has it or not."""
        relaxation = self.relaxation.at(self.progress)
        metric = self.metric.kernel_options()
        kernel = relaxation.kernel() if relaxation.kernel_applies else None
        if metric is None or kernel is None:
            return None
        route = self.metric.check_relaxed(relaxation, self.through)
        return relaxed_metric(kernel, route, self.now(self.beta), self.expect, metric)

    @override
    def never_waits(self, lists: Lists) -> bool:
        if super().never_waits(lists):
            return True
        if not (self.kernel_applies and declares_capturable(self.metric)):
            return False
        relaxation = self.relaxation.at(self.progress)
        kernel = relaxation.kernel() if relaxation.kernel_applies else None
        return kernel is not None and ranks_ready(kernel, lists.flat.scores)

    @property
    @override
    def kernel_reduces(self) -> bool:
        # A kernel must not reduce over lists if there are noisy samples: their mean comes first.
        # The condition of the base class is repeated, as PyTorch 2.11 does not compile a property
        # of super().
        return self.reduction != "none" and not self.relaxation.stochastic

    @override
    def _values(self, lists: Lists, call: KernelCall | None) -> tuple[ListValues, ListMask]:
        if call is None or not self.relaxation.stochastic:
            return super()._values(lists, call)
        relaxation = self.relaxation.at(self.progress)
        samples = relaxation.sample_scores(lists.scores, lists.mask)  # [samples, b, n]
        values, defined = super()._values(lists.repeat(samples), call)
        return values.reshape(len(samples), -1).mean(0), defined.reshape(len(samples), -1)[0]


def _score_scale(relaxation: Relaxation) -> float:
    """The temperature of a relaxation, in units of the scores; 1 if it has none."""
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
        metric: a name in :func:`grid_metrics`.
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
        check_choice("metric", metric, tuple(grid_metrics(family)))
        parameters = _cell_options(family, metric, stochastic)
        for option in options:
            if option not in parameters:
                names = ", ".join(parameters)
                raise ValueError(f"{family}_{metric} has no option {option!r}: {names}")
        defaults = {name: parameter.default for name, parameter in parameters.items()}
        values = defaults | options
        if values["through"] == "ranks" and "expect" in values and "expect" not in options:
            values["expect"] = "gain"  # there is no gain of the expected label through ranks
        for name, value in values.items():  # so that 2 and 2.0 are the same loss
            if type(value) is int and isinstance(defaults[name], float):
                values[name] = float(value)
        relaxation = FAMILIES[family](**_accepted(FAMILIES[family], values))
        if stochastic:
            relaxation = Gumbel(relaxation, **_accepted(Gumbel, values))
        metric_class = metrics.factory(metric)
        k = getattr(metric_class, "loss_cutoff", None) if k is None else k
        super().__init__(
            metric_class(**_accepted(metric_class, values), k=k),
            relaxation,
            **_accepted(RelaxedMetric.__init__, values),
        )
        self.k = k
        self.cell = ("gumbel_" if stochastic else "") + f"{family}_{metric}"
        self._options = {name: value for name, value in values.items() if value != defaults[name]}
        if isinstance(relaxation, Gumbel) and relaxation.seed is not None:
            self._options["seed"] = relaxation.seed

    @property
    @override
    def spec(self) -> Spec:
        return Spec(self.cell, self.k, self._options)


class NeuralNDCG(GridLoss):
    """NDCG × NeuralSort with Sinkhorn scaling: ``neural_ndcg@k``.

    Pobrotyn and Białobrzeski eqs. 5 and 6.

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
    """NDCG × sigmoid ranks (Tang et al. eqs. 5-6, Qin et al. 2010): ``approx_ndcg@k``.

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
    """A metric × NeuralSort's top k rows: ``pirank_ndcg@k``, ``pirank_arp``.

    Swezey et al. eqs. 8 to 11.

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
    """A metric × smooth rank indicators: ``smoothi_ndcg@k``, ``smoothi_precision@k``, ...

    For NDCG the gain is that of the expected label, as the paper writes it.

    Args:
        k: cutoff.
        metric: ``"ndcg"``, ``"precision"``, ``"ap"``, or another of the grid.
        alpha: inverse temperature, or a schedule.
        delta: δ in (0, 0.5).
        stop_gradient: hold the products of earlier ranks constant in the backward pass.
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


def grid_metrics(family: str | None = None) -> list[str]:
    """The metrics that have a relaxed form.

    Args:
        family: only metrics that go through the native form of this relaxation, given by its name
            in the grid; None for all.

    Returns:
        Their names.

    >>> "ndcg" in grid_metrics("neural"), "spearman" in grid_metrics("neural")
    (True, False)
    """
    routes: dict[str, tuple[Route, ...]] = {
        name: getattr(metrics.factory(name), "routes", tuple)() for name in metrics.names()
    }
    if family is None:
        return [name for name in routes if routes[name]]
    native = FAMILIES[family]().forms[0]
    return [name for name in routes if native in routes[name]]


def grid_losses() -> list[str]:
    """The names of the grid's losses."""
    return [
        f"{prefix}{family}_{metric}"
        for family in FAMILIES
        for metric in grid_metrics(family)
        for prefix in ("", "gumbel_")
    ]


def _cell_options(
    family: str, metric: str, stochastic: bool = False
) -> dict[str, inspect.Parameter]:
    """The options of a cell, with defaults: those of its relaxation, its metric and the loss."""
    factories: list[Callable[..., Any]] = [
        FAMILIES[family],
        metrics.factory(metric),
        RelaxedMetric.__init__,
    ]
    if stochastic:
        factories.insert(1, Gumbel)
    hidden = {"self", "k", "metric", "relaxation", "base", "empty", "ties", "_random"}
    options = {
        name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for factory in factories
        for name, parameter in inspect.signature(factory).parameters.items()
        if name not in hidden
    }
    if metric not in ("ndcg", "dcg"):
        del options["expect"]
    elif family == "smoothi":  # the SmoothI paper takes the gain of the expected label
        options["expect"] = options["expect"].replace(default="label")
    if (family, metric) == ("smoothi", "arp"):
        # SmoothI's indicators of low ranks still favor the top items. Relaxed ranks normalize them
        # over the ranks of each item.
        options["through"] = options["through"].replace(default="ranks")
    return options


def cell_classes(family: str, metric: str, stochastic: bool = False) -> list[Any]:
    """The classes and functions whose docstrings describe a cell's options.

    Args:
        family: the relaxation, by its name in the grid.
        metric: by name.
        stochastic: whether scores are noisy.

    Returns:
        Those of the metric, the relaxation, the noise (if stochastic) and the loss.
    """
    relaxation = FAMILIES[family]
    of_family: dict[str, list[Any]] = {"neural": [NeuralNDCG], "pirank": [PiRank, Tree]}
    classes: list[Any] = [metrics.factory(metric), type(relaxation()), *of_family.get(family, [])]
    classes.append(relaxation)  # the last, as it refers to the classes for some options
    if stochastic:
        classes.append(Gumbel)
    return [*classes, RelaxedMetric]


def cell_route(family: str, metric: str) -> Route:
    """The form of the relaxation that the metric of a cell goes through by default.

    Args:
        family: the relaxation, by its name in the grid.
        metric: by name.

    Returns:
        ``"permutation"`` or ``"ranks"``.
    """
    through: Route | None = _cell_options(family, metric)["through"].default
    return through or FAMILIES[family]().forms[0]


def _accepted(factory: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that a factory accepts."""
    parameters = inspect.signature(factory).parameters
    return {name: value for name, value in values.items() if name in parameters}


def cell_parts(name: str) -> tuple[str, str] | None:
    """The relaxation and the metric of the loss of this name; None if it is not in the grid.

    Args:
        name: of a loss.

    Returns:
        Both names, or None.

    >>> cell_parts("gumbel_lapsum_rr")
    ('lapsum', 'rr')
    """
    plain = name.removeprefix("gumbel_")
    for family in FAMILIES:
        metric = plain.removeprefix(f"{family}_")
        if metric != plain and metric in grid_metrics(family):
            return family, metric
    return None


def _cell_factory(name: str) -> Callable[..., Loss] | None:
    """The factory of the loss of this name, whose signature has the cell's options.

    A deterministic cell that is a paper's loss is made by the class of that loss, if it has one.
    None if the name is not in the grid.
    """
    parts, stochastic = cell_parts(name), name.startswith("gumbel_")
    if parts is None:
        return None
    family, metric = parts
    paper_class: Any = {"pirank": PiRank, "smoothi": SmoothI}.get(family)
    class_options: dict[str, Any] = {} if paper_class is None else {"metric": metric}
    if metric == "ndcg" and paper_class is None:
        paper_class = {"neural": NeuralNDCG, "approx": ApproxNDCG}.get(family)

    def make(k: int | None = None, **options: Any) -> Loss:
        if paper_class is None or stochastic:
            return GridLoss(family, metric, k, stochastic, **options)
        loss: Loss = paper_class(k=k, **class_options, **options)
        return loss

    parameters = list(_cell_options(family, metric, stochastic).values())
    if getattr(metrics.factory(metric), "has_cutoff", True):
        cutoff = inspect.Parameter("k", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        parameters.insert(0, cutoff)
    make.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return make


losses.also(_cell_factory, grid_losses)
# If a name is unknown, these are suggested before others with the same ending.
losses.preferred = tuple(f"{family}_{m}" for family in ("approx", "neural") for m in grid_metrics())
