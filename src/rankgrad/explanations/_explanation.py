"""Explanation: why a ranker ranks a data set as it does.

``rankgrad explain`` calls :func:`explain`, exports the result as files for people, and with
``--save`` writes it into the run folder, for ``rankgrad report``::

    explanations/NAME/              NAME is the part of the data, such as test
        explanation.json            the metric, names of features, how they were permuted, qids
        drops.npy        [F, B]     of the metric, in points, by feature and list
        lists.npy        [Q]        the lists whose pairs are explained
        items.npy        [Q, K]     their first items as ranked: indices in the list; -1 for none
        values.npy       [Q, K, F]  the raw features of these items
        attributions.npy [Q, P, F]  of the pairs (0, 1), (0, 2), ..., (K - 2, K - 1) of ranks
        differences.npy  [Q, P]     of the scores of these pairs
        baselines.npy    [Q, P]     the part of the differences that no feature explains

F is the number of features, B of lists over which importance is computed, Q of lists whose pairs
are explained, K of their first ranks, and P = K (K - 1) / 2 of pairs of these ranks.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from rankgrad import _files, _schemas
from rankgrad._validation import check_whole
from rankgrad.data import Dataset
from rankgrad.explanations._attribution import pair_attributions
from rankgrad.explanations._importance import (
    Importance,
    ImportanceRow,
    Permute,
    Scope,
    permutation_importance,
)
from rankgrad.explanations._picture import picture
from rankgrad.metrics import Metric
from rankgrad.training import FittedRanker

FOLDER, METADATA = "explanations", "explanation.json"
_FORMAT, _VERSION = "rankgrad explanation", 1
_FIRST_ITEMS = 10  # of a list: among these, pairs in the wrong order are counted
#: One letter per axis of each array, as in the module's docstring.
_AXES = {
    "drops": "FB", "lists": "Q", "items": "QK", "values": "QKF", "attributions": "QPF",
    "differences": "QP", "baselines": "QP",
}  # fmt: skip


class _Metadata(TypedDict):
    """The contents of ``explanation.json``, without format and version; ``how`` are the scopes."""

    metric: str
    mean: float | None
    features: list[str]
    how: list[Scope]
    repeats: int
    seed: int
    qids: list[str]
    checksum: str


@dataclass(frozen=True)
class Explanation:
    """The importance of features, and why items of some lists stand above others.

    The letters of shapes are those of the module's docstring.

    Attributes:
        importance: of each feature over all lists.
        lists: ``[Q]`` the indices of the lists whose pairs are explained.
        qids: the Q query ids of these lists.
        items: ``[Q, K]`` the first items of each list as ranked, as indices in the list; -1 where
            there are fewer.
        values: ``[Q, K, F]`` the raw features of these items.
        attributions: ``[Q, P, F]`` what each feature adds to the difference of the scores of the
            ranks ``pairs(K)``; NaN where there is no such pair.
        differences: ``[Q, P]`` the score of the upper rank minus that of the lower one.
        baselines: ``[Q, P]`` the part of the differences that no feature explains.
        checksum: of the data.
    """

    importance: Importance
    lists: NDArray[np.int64]
    qids: tuple[str, ...]
    items: NDArray[np.int64]
    values: NDArray[np.float32]
    attributions: NDArray[np.float32]
    differences: NDArray[np.float32]
    baselines: NDArray[np.float32]
    checksum: str

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        return self.importance.features

    def save(self, run: str | os.PathLike[str], name: str = "test") -> None:
        """Write it into a run folder, for ``rankgrad report``; it replaces one of this name.

        Args:
            run: the run folder.
            name: of the explanation, such as the part of the data.
        """
        importance = self.importance
        metadata = {
            "format": _FORMAT,
            "version": _VERSION,
            "metric": importance.metric,
            "mean": _or_none(importance.mean),
            "features": importance.features,
            "how": importance.scopes,
            "repeats": importance.repeats,
            "seed": importance.seed,
            "qids": self.qids,
            "checksum": self.checksum,
        }
        fields = [key for key in _AXES if key != "drops"]
        arrays = {"drops": importance.drops} | {key: getattr(self, key) for key in fields}
        _schemas.write_arrays(Path(run) / FOLDER / name, METADATA, metadata, arrays)

    @classmethod
    def load(cls, run: str | os.PathLike[str], name: str = "test") -> Explanation:
        """Read what :meth:`save` wrote.

        Args:
            run: the run folder.
            name: of the explanation.

        Returns:
            The explanation.

        Raises:
            FileNotFoundError: the run has no explanation of this name.
        """
        folder = Path(run) / FOLDER / name
        if not _files.readable_path(folder).is_dir():
            raise FileNotFoundError(f"{run} has no explanation {name!r}")
        return _files.read_folder(folder, METADATA, cls._load)

    @classmethod
    def _load(cls, folder: Path) -> Explanation:
        """Read a folder; raises if the shapes of its arrays do not fit together."""
        remedy = "explain the run again"
        metadata = _schemas.read_versioned(folder / METADATA, _Metadata, _FORMAT, _VERSION, remedy)
        sizes = {"F": len(metadata["features"]), "Q": len(metadata["qids"])}
        arrays = {}
        for key, axes in _AXES.items():
            array = _schemas.read_array(folder / f"{key}.npy", metadata, "if", len(axes))
            # The first array with an axis sets its size; later arrays must agree.
            sizes = dict(zip(axes, array.shape, strict=True)) | sizes
            if array.shape != tuple(sizes[axis] for axis in axes):
                raise _files.damaged(folder / f"{key}.npy", "its shape is wrong")
            if key == "items":
                sizes["P"] = len(pairs(sizes["K"]))
            arrays[key] = array
        return cls(
            importance=Importance(
                metric=metadata["metric"],
                mean=float("nan") if metadata["mean"] is None else metadata["mean"],
                features=tuple(metadata["features"]),
                scopes=tuple(metadata["how"]),
                drops=arrays.pop("drops"),
                repeats=metadata["repeats"],
                seed=metadata["seed"],
            ),
            qids=tuple(metadata["qids"]),
            checksum=metadata["checksum"],
            **arrays,
        )

    def importance_rows(self) -> list[ImportanceRow]:
        """A row for each feature, the most important first.

        It has the name, the drop, the ends of the drop's interval, and the scope of permutations.

        Returns:
            The rows.
        """
        importance = self.importance
        values, scopes = importance.values, importance.scopes
        return [
            ImportanceRow(self.features[f], float(values[f]), *importance.interval(f), scopes[f])
            for f in importance.order
        ]

    def pair_rows(self) -> Iterator[tuple[Any, ...]]:
        """A row for each feature of each pair, with the columns :attr:`PAIR_COLUMNS`.

        Returns:
            An iterator over the rows; pairs that a list is too short for have none.
        """
        for q, qid in enumerate(self.qids):
            for p, (upper, lower) in enumerate(pairs(self.items.shape[1])):
                if np.isnan(self.differences[q, p]):
                    continue
                items = self.items[q, upper] + 1, self.items[q, lower] + 1
                difference = float(self.differences[q, p])
                for f, feature in enumerate(self.features):
                    values = float(self.values[q, upper, f]), float(self.values[q, lower, f])
                    attribution = float(self.attributions[q, p, f])
                    yield qid, *items, difference, feature, *values, attribution

    #: The columns of :meth:`pair_rows`; items count from 1.
    PAIR_COLUMNS = (
        *("qid", "upper_item", "lower_item", "score_difference", "feature"),
        *("upper_value", "lower_value", "attribution"),
    )

    def to_dict(self) -> dict[str, Any]:
        """Everything except values of single lists and pairs, for JSON.

        Returns:
            The metric, the number of lists, the options, the rows of importance, and the explained
            queries.
        """
        importance = self.importance
        return {
            "metric": importance.metric,
            "mean": _or_none(importance.mean),
            "lists": importance.n_lists,
            "lists_left_out": importance.drops.shape[1] - importance.n_lists,
            "repeats": importance.repeats,
            "seed": importance.seed,
            "unit": f"points: 100 times {importance.metric}",
            "importance": [
                {name: _or_none(value) for name, value in row._asdict().items()}
                for row in self.importance_rows()
            ],
            "explained_queries": list(self.qids),
        }

    def export(self, folder: str | os.PathLike[str]) -> None:
        """Write ``importance.csv``, ``importance.svg``, ``pairs.csv`` and ``explanation.json``.

        Args:
            folder: where to write them; a folder that is not there yet, or is empty.
        """
        columns = ("feature", "drop_points", "low95", "high95", "permuted")
        rows = self.importance_rows()
        with _files.atomic_folder(Path(folder), replace=False) as path:
            _files.write(path / "importance.csv", _files.csv_text(columns, rows))
            _files.write(path / "importance.svg", picture(rows, self.importance.metric))
            _files.write(path / "pairs.csv", _files.csv_text(self.PAIR_COLUMNS, self.pair_rows()))
            _files.write_json(path / "explanation.json", self.to_dict())


def pairs(ranks: int) -> list[tuple[int, int]]:
    """The pairs of the first ranks, counting from 0; in a pair the upper rank is first.

    >>> from rankgrad.explanations._explanation import pairs
    >>> pairs(3)
    [(0, 1), (0, 2), (1, 2)]
    """
    return list(combinations(range(ranks), 2))


def explain(
    ranker: FittedRanker,
    data: Dataset,
    metric: str | Metric | None = None,
    *,
    repeats: int = 5,
    permute: Permute = "within",
    sample: int | None = None,
    lists: Sequence[int] | int = 20,
    top: int = 6,
    seed: int = 0,
    on_feature: Callable[[int, int], None] | None = None,
) -> Explanation:
    """Permutation importance over all lists, and attributions of the first items of some lists.

    Args:
        ranker: the trained ranker.
        data: test data with labels.
        metric: the spec of a metric, or a metric; None for that of the ranker's settings.
        repeats: as of :func:`~rankgrad.explanations.permutation_importance`.
        permute: as of :func:`~rankgrad.explanations.permutation_importance`.
        sample: compute the importance on at most this many lists, drawn at random; None for all.
        lists: whose pairs are explained: their indices, or their number. Of a number, half are the
            lists whose first items are most often in the wrong order, half are drawn from the
            others.
        top: explain the pairs of this many first items of each list.
        seed: of the permutations, and of drawing lists.
        on_feature: as of :func:`~rankgrad.explanations.permutation_importance`.

    Returns:
        The importance of each feature, and the attributions of the pairs of the chosen lists.

    Raises:
        ValueError: an option or the metric is not valid.

    >>> from rankgrad.data import Dataset
    >>> from rankgrad.training import FittedRanker, Settings
    >>> features = np.random.default_rng(0).random((6, 3), dtype=np.float32)
    >>> lists = Dataset(features, [0, 2, 1, 0, 1, 0], [0, 3, 6], ["a", "b"])
    >>> ranker = FittedRanker.new(Settings(), features)
    >>> explanation = explain(ranker, lists, lists=[1], top=2)
    >>> explanation.qids, explanation.attributions.shape
    (('b',), (1, 1, 3))
    """
    check_whole("top", top, least=0)
    if sample is not None:
        check_whole("sample", sample)
    if isinstance(lists, int | np.integer):
        lists = check_whole("lists", lists, least=0)
    elif wrong := [index for index in lists if not 0 <= index < len(data)]:
        raise ValueError(f"lists must be from 0 to {len(data) - 1}, found {wrong[0]}")
    random = np.random.default_rng(check_whole("seed", seed, least=0, most=math.inf))
    sampled = data
    if sample is not None and sample < len(data):
        sampled = data.select(np.sort(random.choice(len(data), sample, replace=False)))
    importance = permutation_importance(
        ranker, sampled, metric, repeats=repeats, permute=permute, seed=seed, on_feature=on_feature
    )
    scores = ranker.predict(data.features, data.offsets)
    chosen = _choose_lists(data, scores, lists, random) if isinstance(lists, int) else list(lists)
    rank_pairs = pairs(top)
    items = np.full((len(chosen), top), -1, np.int64)
    values = np.full((len(chosen), top, data.n_features), np.nan, np.float32)
    differences = np.full((len(chosen), len(rank_pairs)), np.nan, np.float32)
    baselines = differences.copy()
    attributions = np.full((*differences.shape, data.n_features), np.nan, np.float32)
    for q, list_index in enumerate(chosen):
        span = slice(data.offsets[list_index], data.offsets[list_index + 1])
        features = np.array(data.features[span])
        first = np.argsort(-scores[span], kind="stable")[:top]
        items[q, : len(first)], values[q, : len(first)] = first, features[first]
        # A list of fewer than ``top`` items has fewer pairs.
        present = [p for p, (_, lower) in enumerate(rank_pairs) if lower < len(first)]
        item_pairs = [(int(first[a]), int(first[b])) for a, b in rank_pairs if b < len(first)]
        result = pair_attributions(ranker, features, item_pairs)
        attributions[q, present], differences[q, present] = result.values, result.differences
        baselines[q, present] = result.baselines
    return Explanation(
        importance=importance,
        lists=np.array(chosen, np.int64),
        qids=tuple(str(data.qids[list_index]) for list_index in chosen),
        items=items,
        values=values,
        attributions=attributions,
        differences=differences,
        baselines=baselines,
        checksum=data.checksum(),
    )


def _choose_lists(
    data: Dataset, scores: NDArray[np.float32], count: int, random: np.random.Generator
) -> list[int]:
    """The indices of ``count`` lists to explain, ascending.

    Half of them have the most pairs in the wrong order, half are drawn; ``scores`` is ``[N]``. If
    fewer lists have pairs in the wrong order, more are drawn.
    """
    with_pairs = [b for b in range(len(data)) if data.lengths[b] > 1]
    errors = {b: _pair_error(data, scores, b) for b in with_pairs}
    worst = sorted((b for b in errors if errors[b] > 0), key=lambda b: -errors[b])[: count // 2]
    others = [b for b in with_pairs if b not in set(worst)]
    drawn = random.permutation(len(others))[: count - len(worst)]
    return sorted([*worst, *(others[index] for index in drawn)])


def _pair_error(data: Dataset, scores: NDArray[np.float32], b: int) -> float:
    """Among the first items of list b, the fraction of pairs of unequal labels in wrong order."""
    span = slice(data.offsets[b], data.offsets[b + 1])
    first = np.argsort(-scores[span], kind="stable")[:_FIRST_ITEMS]
    labels = np.asarray(data.labels[span])[first]
    upper, lower = np.triu_indices(len(labels), 1)
    unequal = (labels[upper] != labels[lower]).sum()
    return float((labels[upper] < labels[lower]).sum() / max(1, unequal))


def _or_none(value: Any) -> Any:
    """None for NaN, which is not JSON; other values as they are."""
    return None if value != value else value
