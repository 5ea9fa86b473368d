"""Confidence intervals of means over lists, and tests of differences between rankers.

Values of a metric are given as one number per list; NaN marks a list on which the metric is
undefined. ``rankgrad compare``, ``evaluate`` and the report take all their statistics from here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from rankgrad._deprecation import renamed_attributes, renamed_value
from rankgrad._validation import check_between, check_choice, check_whole
from rankgrad.extras import requires

__all__ = [
    "SAMPLES",
    "Correction",
    "Difference",
    "Interval",
    "Significance",
    "Test",
    "bonferroni",
    "bootstrap_interval",
    "bootstrap_intervals",
    "check_same_queries",
    "correct",
    "difference_interval",
    "differences",
    "holm",
    "intervals",
    "paired_t_test",
    "randomization_test",
    "randomization_tests",
]

_Key = TypeVar("_Key", bound=Hashable)
_Alternative = Literal["two-sided", "less", "greater"]
Correction = Literal["holm", "bonferroni", "none"]
Test = Literal["t", "randomization"]
_FORMER_TESTS = {"randomisation": "randomization"}
SAMPLES = 100_000  # draws of signs: a p-value of 0.05 is then known to about 0.001

_CELLS = 1 << 24  # resampled counts in memory at a time


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def bootstrap_interval(
    values: Any, *, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> Interval:
    """The percentile bootstrap interval of the mean of a metric over lists.

    The lists are drawn anew with replacement ``samples`` times; the interval spans the middle
    ``level`` of the means. It says how much the mean would move with other queries, not with
    another training seed.

    Args:
        values: one per list; NaN marks lists that the metric leaves out.
        level: the share of means inside.
        samples: how many times to draw.
        seed: of the draws.

    Returns:
        The ends of the interval; NaN without lists.

    >>> from rankgrad.significance import bootstrap_interval
    >>> low, high = bootstrap_interval([0.0, 1.0] * 200)
    >>> 0.44 < low < 0.5 < high < 0.56
    True
    """
    array = np.asarray(values, np.float64)
    defined = array[~np.isnan(array)]
    ends = bootstrap_intervals(defined[:, None], level=level, samples=samples, seed=seed)
    return Interval(*ends[0].tolist())


def bootstrap_intervals(
    values: Any, *, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> NDArray[np.float64]:
    """:func:`bootstrap_interval` of several rankers on the same lists, which are drawn once.

    Args:
        values: ``[lists, rankers]``, without NaN.
        level: the share of means inside.
        samples: how many times to draw.
        seed: of the draws.

    Returns:
        The ends ``[rankers, 2]``; NaN where there is no list.

    Raises:
        ValueError: ``level`` or ``samples`` is out of range.

    >>> from rankgrad.significance import bootstrap_intervals
    >>> bootstrap_intervals([[0.0, 1.0], [0.0, 1.0]]).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    check_whole("samples", samples)
    if not 0 < level <= 1:
        raise ValueError(f"level must be above 0 and at most 1, found {level}")
    columns = np.asarray(values, np.float64)
    lists = len(columns)
    if not lists:
        return np.full((columns.shape[1], 2), np.nan)
    random = np.random.default_rng(seed)
    probabilities = np.full(lists, 1 / lists)
    batch = max(1, _CELLS // lists)
    # Each draw says how many times every list was drawn.
    means = [
        random.multinomial(lists, probabilities, min(batch, samples - start)) @ columns / lists
        for start in range(0, samples, batch)
    ]
    return np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2], axis=0).T


def paired_t_test(one: Any, other: Any, *, alternative: _Alternative = "two-sided") -> float:
    """The p-value of Student's paired t-test of the values of two rankers on the same lists.

    t = mean(d) / (sd(d) / √n) with d = one - other and n - 1 degrees of freedom.

    Args:
        one: the values of a ranker, one per list.
        other: the values of another on the same lists.
        alternative: ``"two-sided"``, or that ``one`` is ``"greater"`` or ``"less"``.

    Returns:
        The p-value.

    Raises:
        ValueError: the values are not of the same lists, or of fewer than two.

    >>> from rankgrad.significance import paired_t_test
    >>> round(paired_t_test([0.5, 0.7, 0.9, 0.6], [0.4, 0.5, 0.8, 0.6]), 4)
    0.0917
    """
    with requires("report"):
        from scipy.special import stdtr

    check_choice("alternative", alternative, get_args(_Alternative))
    differences = _paired_differences(one, other)
    n = len(differences)
    if n < 2:
        raise ValueError(f"a t-test needs two lists or more, found {n}")
    deviation = float(differences.std(ddof=1))
    mean = float(differences.mean())
    if deviation <= 1e-14 * abs(mean) or deviation == 0.0:
        # The difference is the same on every list, up to rounding.
        t = 0.0 if mean == 0 else np.inf * np.sign(mean)
    else:
        t = mean / (deviation / np.sqrt(n))
    return _p_value(float(stdtr(n - 1, -t)), float(stdtr(n - 1, t)), alternative)


def randomization_test(
    one: Any,
    other: Any,
    *,
    alternative: _Alternative = "two-sided",
    samples: int = SAMPLES,
    seed: int = 0,
) -> float:
    """The p-value of the paired randomization (sign-flip) test of two rankers on the same lists.

    If the rankers were equally good, each difference d might as well have the other sign. The
    p-value is the share of random signs, with the observed ones among them, whose mean difference
    is at least as high as observed, (1 + #{mean(±d) >= mean(d)}) / (1 + samples), or at least as
    low; two-sided, it is twice the smaller of the two. It is never 0.

    Args:
        one: the values of a ranker, one per list.
        other: the values of another on the same lists.
        alternative: ``"two-sided"``, or that ``one`` is ``"greater"`` or ``"less"``.
        samples: how many times signs are drawn. If the n differences other than 0 have no more than
            ``samples`` combinations of signs, 2^n, each combination is tried once instead.
        seed: of the draws.

    Returns:
        The p-value.

    Raises:
        ValueError: the values are not of the same lists.

    >>> from rankgrad.significance import randomization_test
    >>> randomization_test([0.5, 0.7, 0.9, 0.6], [0.4, 0.5, 0.8, 0.6])
    0.25
    """
    differences = _paired_differences(one, other)[:, None]
    p = randomization_tests(differences, alternative=alternative, samples=samples, seed=seed)
    return float(p[0])


def randomization_tests(
    differences: Any,
    *,
    alternative: _Alternative = "two-sided",
    samples: int = SAMPLES,
    seed: int = 0,
) -> NDArray[np.float64]:
    """:func:`randomization_test` of several rankers against one; signs are drawn once for all.

    Args:
        differences: of each ranker from the one, ``[lists, rankers]``; NaN marks lists left out.
        alternative: ``"two-sided"``, or that differences are ``"greater"`` or ``"less"`` than 0.
        samples: how many times signs are drawn.
        seed: of the draws.

    Returns:
        The p-values, ``[rankers]``.

    >>> from rankgrad.significance import randomization_tests
    >>> randomization_tests([[0.1, 0.0], [0.2, 0.0], [0.1, 0.0], [0.0, 0.0]]).tolist()
    [0.25, 1.0]
    """
    check_choice("alternative", alternative, get_args(_Alternative))
    check_whole("samples", samples)
    array = np.asarray(differences, np.float64)
    values = np.nan_to_num(array[~np.isnan(array).all(1)])
    nonzero = (values != 0).sum(0)  # per ranker: the sign of a difference of 0 changes nothing
    # Combinations of signs are numbered in int64.
    is_exact = (nonzero < 63) & (2.0**nonzero <= samples)
    p = np.ones(values.shape[1])
    for i in np.flatnonzero(is_exact):
        column = values[values[:, i] != 0, i]
        p[i] = _sign_test_p_values(column[:, None], 2 ** len(column), True, seed, alternative)[0]
    if not is_exact.all():
        p[~is_exact] = _sign_test_p_values(values[:, ~is_exact], samples, False, seed, alternative)
    return p


def bonferroni(p_values: Any) -> NDArray[np.float64]:
    """P-values of m tests times m, which bounds the chance of any false finding among the tests.

    Args:
        p_values: of all tests, ``[m]``.

    Returns:
        The corrected p-values, in the same order.

    >>> from rankgrad.significance import bonferroni
    >>> bonferroni([0.01, 0.04, 0.5]).tolist()
    [0.03, 0.12, 1.0]
    """
    p = np.asarray(p_values, np.float64)
    return np.minimum(1.0, p * len(p))


def holm(p_values: Any) -> NDArray[np.float64]:
    """P-values of m tests corrected by Holm: the i-th smallest times m + 1 - i, made monotone.

    It bounds the same chance as :func:`bonferroni`, and finds at least as many differences.

    Args:
        p_values: of all tests, ``[m]``.

    Returns:
        The corrected p-values, in the same order.

    >>> from rankgrad.significance import holm
    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(1.0, adjusted)


def correct(p_values: Any, correction: Correction) -> NDArray[np.float64]:
    """P-values of several tests, corrected for their number.

    Args:
        p_values: of all tests, ``[m]``.
        correction: ``"holm"``, ``"bonferroni"`` or ``"none"``.

    Returns:
        The corrected p-values, in the same order.
    """
    check_choice("correction", correction, get_args(Correction))
    if correction == "none":
        return np.asarray(p_values, np.float64)
    return holm(p_values) if correction == "holm" else bonferroni(p_values)


@dataclass(frozen=True)
class Significance:
    """How differences are tested.

    Args:
        test: the paired ``"t"`` test or the paired ``"randomization"`` test, on per-list values.
        correction: for the number of entries that are compared with the same one, by metric.
        sides: 2, or 1 to test only whether an entry is worse than the best one, or better than the
            baseline.
        level: the level of significance.
        samples: how many times the randomization test draws signs.

    >>> from rankgrad.significance import Significance
    >>> print(Significance("randomization", "holm"))
    paired randomization test, two-sided, Holm correction, at 5%
    """

    test: Test = "t"
    correction: Correction = "bonferroni"
    sides: Literal[1, 2] = 2
    level: float = 0.05
    samples: int = SAMPLES

    def __post_init__(self) -> None:
        object.__setattr__(self, "test", renamed_value(self.test, _FORMER_TESTS))
        check_choice("test", self.test, get_args(Test))
        check_choice("correction", self.correction, get_args(Correction))
        check_choice("sides", self.sides, (1, 2))
        check_between("level", self.level, 0, 1)
        check_whole("samples", self.samples)

    def __str__(self) -> str:
        test = "paired t-test" if self.test == "t" else "paired randomization test"
        sides = "one-sided" if self.sides == 1 else "two-sided"
        name = {"holm": "Holm", "bonferroni": "Bonferroni"}.get(self.correction, "no")
        return f"{test}, {sides}, {name} correction, at {100 * self.level:g}%"

    def p_values(self, differences: Any, better: bool) -> NDArray[np.float64]:
        """The p-values ``[rankers]`` of differences of several rankers from one, not corrected.

        Args:
            differences: ``[lists, rankers]``, higher is better; NaN marks lists that are left out.
            better: of a one-sided test, whether it tests that rankers are better, or worse.
        """
        alternative: _Alternative = "greater" if better else "less"
        if self.sides == 2:
            alternative = "two-sided"
        if self.test == "randomization":
            return randomization_tests(differences, alternative=alternative, samples=self.samples)
        columns = np.asarray(differences, np.float64).T
        # Tested against 0 * c rather than 0, since both values of a left-out list must be NaN.
        return np.array([paired_t_test(c, 0 * c, alternative=alternative) for c in columns])


@dataclass(frozen=True)
class Difference:
    """How an entry differs from another, the reference, in a metric.

    Attributes:
        entry: the name of the entry.
        reference: the name of the reference.
        metric: the metric.
        difference: the mean over lists of entry - reference.
        interval: the 95% bootstrap interval of the difference.
        p_value: the p-value; NaN if the metric is defined on fewer than two lists.
        corrected: the p-value after correction for the number of entries.
        significant: whether the corrected p-value is below the level.
        better: whether the entry is better than the reference, significantly or not.
    """

    entry: str
    reference: str
    metric: str
    difference: float
    interval: Interval
    p_value: float
    corrected: float
    significant: bool
    better: bool


def intervals(values: Mapping[_Key, Any]) -> dict[_Key, Interval]:
    """95% bootstrap intervals of several means over lists.

    Lists are drawn once for all values that are defined on the same lists.

    Args:
        values: under each key, one value per list; NaN marks lists that are left out.

    Returns:
        The interval under each key.

    >>> from rankgrad.significance import intervals
    >>> intervals({"ap": [0.5, 0.5], "rr": [1.0, float("nan")]})
    {'ap': Interval(low=0.5, high=0.5), 'rr': Interval(low=1.0, high=1.0)}
    """
    arrays = {key: np.asarray(array, np.float64).ravel() for key, array in values.items()}
    keys_by_lists: dict[bytes, list[_Key]] = {}
    for key, array in arrays.items():
        keys_by_lists.setdefault(np.isnan(array).tobytes(), []).append(key)
    result: dict[_Key, Interval] = {}
    for keys in keys_by_lists.values():
        columns = np.stack([arrays[key] for key in keys], axis=1)
        ends = bootstrap_intervals(columns[~np.isnan(columns[:, 0])])
        result |= {key: Interval(*pair) for key, pair in zip(keys, ends.tolist(), strict=True)}
    return result


def differences(
    values: Mapping[str, Any],
    reference: str,
    metric: str,
    how: Significance,
    *,
    lower_is_better: bool = False,
    better: bool = False,
    ends: Mapping[str, Interval] | None = None,
) -> tuple[Difference, ...]:
    """Test every other entry against the reference, on the same lists.

    Args:
        values: of each entry, one per list; NaN marks lists that the metric leaves out.
        reference: the name of the entry that all others are tested against.
        metric: the name of the metric.
        how: the test.
        lower_is_better: whether lower values of the metric are better.
        better: of a one-sided test, whether it tests that entries are better than the reference,
            or worse.
        ends: the intervals of the differences by entry; None to compute them.

    Returns:
        A difference for each entry but the reference, in their order.

    >>> from rankgrad.significance import Significance, differences
    >>> values = {"bm25": [0.4, 0.5, 0.8, 0.6], "mse": [0.5, 0.7, 0.9, 0.6]}
    >>> (mse,) = differences(values, "bm25", "ap", Significance("randomization"))
    >>> round(mse.difference, 4), mse.p_value, mse.better
    (0.1, 0.25, True)
    """
    arrays = {name: np.asarray(array, np.float64) for name, array in values.items()}
    base = arrays.pop(reference)
    per_list = {name: array - base for name, array in arrays.items()}
    if not per_list:
        return ()
    columns = np.stack(list(per_list.values()), axis=1)
    sign = -1.0 if lower_is_better else 1.0
    lists = int((~np.isnan(columns).any(1)).sum())
    p = np.full(len(per_list), np.nan)
    corrected = p
    if lists > 1:
        p = how.p_values(sign * columns, better)
        corrected = correct(p, how.correction)
    ends = intervals(per_list) if ends is None else ends
    means = {name: float(np.nanmean(x)) if lists else np.nan for name, x in per_list.items()}
    return tuple(
        Difference(
            entry=name,
            reference=reference,
            metric=metric,
            difference=means[name],
            interval=ends[name],
            p_value=p_value,
            corrected=corrected_p,
            significant=corrected_p < how.level,
            better=sign * means[name] > 0,
        )
        for name, p_value, corrected_p in zip(per_list, p.tolist(), corrected.tolist(), strict=True)
    )


def difference_interval(
    one: Any, other: Any, *, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> Interval:
    """The bootstrap interval of the mean difference of two rankers on the same lists.

    Args:
        one: the values of a ranker, one per list.
        other: the values of another on the same lists.
        level: the share of means inside.
        samples: how many times to draw.
        seed: of the draws.

    Returns:
        The ends of the interval.

    Raises:
        ValueError: the values are not of the same lists.

    >>> from rankgrad.significance import difference_interval
    >>> low, high = difference_interval([0.5, 0.7, 0.9, 0.6], [0.4, 0.5, 0.8, 0.6])
    >>> 0 <= low < 0.1 < high <= 0.2
    True
    """
    differences = _paired_differences(one, other)
    return bootstrap_interval(differences, level=level, samples=samples, seed=seed)


def check_same_queries(
    one: Any, other: Any, *, names: tuple[str, str] = ("the first", "the second")
) -> None:
    """Raise if two rankers were not evaluated on the same queries; the message says what differs.

    Args:
        one: the query ids of a ranker, in the order of its values.
        other: the query ids of another.
        names: the names of the rankers, for the message.

    >>> from rankgrad.significance import check_same_queries
    >>> check_same_queries(["1", "2", "3"], ["1", "2"], names=("mse", "ranknet"))
    Traceback (most recent call last):
    ValueError: mse and ranknet were not evaluated on the same queries: 3 and 2 of them; only mse
    has '3'
    """
    first, second = [str(q) for q in np.asarray(one)], [str(q) for q in np.asarray(other)]
    if first == second:
        return
    problems = []
    if len(first) != len(second):
        problems.append(f"{len(first)} and {len(second)} of them")
    for name, qids, other_qids in ((names[0], first, set(second)), (names[1], second, set(first))):
        extra = list(dict.fromkeys(qid for qid in qids if qid not in other_qids))
        if extra:
            more = f" and {len(extra) - 3} more" if len(extra) > 3 else ""
            problems.append(f"only {name} has {', '.join(map(repr, extra[:3]))}{more}")
    if not problems:
        i = next(i for i in range(len(first)) if first[i] != second[i])
        problems.append(f"they come in another order: {first[i]!r} and {second[i]!r} at place {i}")
    raise ValueError(
        f"{names[0]} and {names[1]} were not evaluated on the same queries: {'; '.join(problems)}"
    )


def _paired_differences(one: Any, other: Any) -> NDArray[np.float64]:
    """One minus the other, without the lists that are NaN for both."""
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if one.shape != other.shape or one.ndim != 1:
        raise ValueError(
            f"paired tests need the values of both rankers on the same lists, found "
            f"{list(one.shape)} and {list(other.shape)}"
        )
    unpaired = np.isnan(one) != np.isnan(other)
    if unpaired.any():
        raise ValueError(
            f"paired tests need both values of each list: list {int(unpaired.argmax())} is left "
            f"out for one of them ({int(unpaired.sum())} such lists)"
        )
    differences: NDArray[np.float64] = (one - other)[~np.isnan(one)]
    return differences


def _sign_test_p_values(
    values: NDArray[np.float64], total: int, exact: bool, seed: int, alternative: _Alternative
) -> NDArray[np.float64]:
    """The p-values ``[rankers]`` of differences ``[lists, rankers]`` under sign flips.

    Args:
        values: the differences.
        total: how many combinations of signs are tried.
        exact: whether these are all combinations, or random ones.
        seed: the seed of random signs.
        alternative: the alternative of the test.
    """
    observed = values.sum(0)
    slack = 1e-12 * np.abs(values).sum(0)  # sums in another order round differently
    counts = np.zeros((2, values.shape[1]))  # sums at least as high, and at least as low
    for sums in _signed_sums(values, total, exact, seed):
        counts += (sums >= observed - slack).sum(0), (sums <= observed + slack).sum(0)
    fractions = counts / total if exact else (1 + counts) / (1 + total)
    p = [_p_value(float(above), float(below), alternative) for above, below in fractions.T]
    return np.array(p)


def _signed_sums(
    values: NDArray[np.float64], total: int, exact: bool, seed: int
) -> Iterator[NDArray[np.float64]]:
    """The sums of ``[lists, rankers]`` over lists, under all combinations of signs or random ones.

    They come in blocks ``[combinations, rankers]``, whose size bounds the memory.
    """
    random = np.random.default_rng(seed)
    lists = len(values)
    flipped: NDArray[np.integer[Any]]
    height = max(1, _CELLS // 8 // max(lists, 1))
    for start in range(0, total, height):
        rows = min(height, total - start)
        if exact:
            # Bit i of a combination's number is the sign of list i.
            numbers = np.arange(start, start + rows, dtype=np.int64)[:, None]
            flipped = (numbers >> np.arange(lists)) & 1
        else:
            packed = random.integers(0, 256, (rows, -(-lists // 8)), dtype=np.uint8)
            flipped = np.unpackbits(packed, axis=1, count=lists)  # a random bit for each list
        yield values.sum(0) - 2 * (flipped.astype(np.float64) @ values)


def _p_value(above: float, below: float, alternative: _Alternative) -> float:
    """The p-value from the chances of values at least as high, and at least as low, as observed."""
    if alternative == "greater":
        return min(1.0, above)
    return min(1.0, below if alternative == "less" else 2 * min(above, below))


__getattr__ = renamed_attributes(
    __name__,
    {"randomisation_test": "randomization_test", "randomisation_tests": "randomization_tests"},
)
