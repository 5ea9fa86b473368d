"""The families of relaxations in the names of the grid's losses, ``<family>_<metric>@k``.

A family is a relaxation, or a function here that combines several. Its arguments are the options
of its losses; :mod:`rankgrad.losses.relaxed` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rankgrad._validation import Schedule, check_flag
from rankgrad.sorting._base import Relaxation, relaxations
from rankgrad.sorting.exact import StraightThrough
from rankgrad.sorting.fastsort import FastSort
from rankgrad.sorting.lapsum import LapSum
from rankgrad.sorting.neuralsort import NeuralSort
from rankgrad.sorting.optimal_transport import OptimalTransport
from rankgrad.sorting.sigmoid import SigmoidRanks
from rankgrad.sorting.sinkhorn import Sinkhorn
from rankgrad.sorting.smoothi import SmoothI
from rankgrad.sorting.softsort import SoftSort
from rankgrad.sorting.tree import Tree


@relaxations.register("approx")
def approx(alpha: float | Schedule = 1.0) -> Relaxation:
    """Sigmoid ranks, as in ApproxNDCG.

    >>> print(approx(alpha=10.0))
    sigmoid(alpha=10.0)
    """
    return SigmoidRanks(alpha)


@relaxations.register("neural")
def neural(
    temperature: float | Schedule = 1.0,
    sinkhorn: bool = True,
    iterations: int = 30,
    tolerance: float = 1e-6,
    transposed: bool = False,
) -> Relaxation:
    """NeuralSort with Sinkhorn scaling, as in NeuralNDCG (Pobrotyn and Białobrzeski §4).

    Args:
        temperature: the temperature of :class:`NeuralSort`.
        sinkhorn: whether to scale; False gives NeuralSort itself.
        iterations: see :class:`Sinkhorn`.
        tolerance: see :class:`Sinkhorn`.
        transposed: see :class:`Sinkhorn`.

    >>> print(neural(temperature=0.5))
    sinkhorn(base=neuralsort(temperature=0.5))
    """
    check_flag("sinkhorn", sinkhorn)
    scaled = Sinkhorn(NeuralSort(temperature), iterations, tolerance, transposed)
    if sinkhorn:
        return scaled
    for name in ("iterations", "tolerance", "transposed"):
        if getattr(scaled, name) != getattr(Sinkhorn, name):
            raise ValueError(f"{name} is about the Sinkhorn scaling, which is off")
    return scaled.base


@relaxations.register("pirank")
def pirank(
    temperature: float | Schedule = 1.0,
    depth: int = 1,
    branching: Sequence[int] | None = None,
    keep: Sequence[int] | None = None,
    straight_through: bool = False,
) -> Relaxation:
    """NeuralSort's top rows, plain or by divide and conquer, as in PiRank (Swezey et al. §3).

    Args:
        temperature: the temperature of :class:`NeuralSort`.
        depth: see :class:`Tree`; 1 without ``branching`` is plain NeuralSort.
        branching: see :class:`Tree`.
        keep: see :class:`Tree`.
        straight_through: whether to wrap the relaxation in :class:`StraightThrough`.

    >>> print(pirank(depth=2, straight_through=True))
    straight_through(base=tree(depth=2))
    """
    check_flag("straight_through", straight_through)
    relaxation: Relaxation = NeuralSort(temperature)
    if branching is not None or depth != 1:
        # With branching, the default depth of 1 means that none was given.
        levels = None if branching is not None and depth == 1 else depth
        relaxation = Tree(relaxation, levels, branching, keep)
    elif keep is not None:
        raise ValueError("keep is for a tree: give depth or branching as well")
    return StraightThrough(relaxation) if straight_through else relaxation


#: The relaxations of the grid, by the names of its losses.
FAMILIES: dict[str, Callable[..., Relaxation]] = {
    "approx": approx,
    "fastsort": FastSort,
    "lapsum": LapSum,
    "neural": neural,
    "ot": OptimalTransport,
    "pirank": pirank,
    "smoothi": SmoothI,
    "softsort": SoftSort,
}


Factory = TypeVar("Factory", bound=Callable[..., Relaxation])


def register(name: str) -> Callable[[Factory], Factory]:
    """Register a relaxation, or a function that makes one, under a name.

    Every relaxed metric then has a loss through it, ``<name>_<metric>``: see "Add a relaxation" in
    CONTRIBUTING.md.

    Args:
        name: the name of the relaxation; it must not begin with a family or end with a metric.

    Returns:
        A decorator that returns what it registers.

    Raises:
        ValueError: the name is taken or not valid, or an option has no default.

    >>> register("gumbel_mine")
    Traceback (most recent call last):
    ValueError: the prefix gumbel_ is that of stochastic forms, found 'gumbel_mine'
    """
    if name.startswith("gumbel_"):
        raise ValueError(f"the prefix gumbel_ is that of stochastic forms, found {name!r}")

    def decorate(factory: Factory) -> Factory:
        try:
            relaxation = factory()
        except TypeError as error:
            raise ValueError(
                f"{name} must have a default for each of its options: {error}"
            ) from None
        if not isinstance(relaxation, Relaxation):
            raise ValueError(f"{name} must make a Relaxation, found {type(relaxation).__name__}")
        relaxations.register(name)(factory)
        FAMILIES[name] = factory
        return factory

    return decorate
