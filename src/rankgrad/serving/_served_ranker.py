"""ServedRanker: a fitted ranker that scores lists, if possible with onnxruntime.

``rankgrad serve`` builds one for each run folder, and ``_app`` answers requests with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rankgrad.data._dataset import names_of_features
from rankgrad.export._missing_values import takes_missing_values
from rankgrad.export._onnx_format import layers_to_onnx, session, to_onnx
from rankgrad.export._onnx_graph import NoFormError
from rankgrad.serving._categorical import CategoricalFeature, categorical_features
from rankgrad.serving._folded_layers import FoldedLayers
from rankgrad.training import FittedRanker
from rankgrad.training._fitted import TreeScorer
from rankgrad.training._preparation import Preparation

_FOLDED_LENGTH = 20  # the mean list length from which FoldedLayers takes less time than ONNX
_MAX_PADDED = 1 << 15  # items of a padded batch, padding included

#: Gives the scores ``[N]`` of items ``[N, f]`` in lists with offsets ``[B + 1]``.
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class ServedRanker:
    """A ranker under a name.

    Attributes:
        name: the name in URLs.
        model: the spec of the model.
        version: a digest of the weights.
        runtime: ``onnxruntime``; or ``rankgrad`` for trees and networks that have no ONNX form.
        per_item: whether an item's score depends on that item alone.
        missing: whether numerical features may be missing.
        feature_names: the names of the features, in the order of the columns.
        categorical: the categorical features by their columns.
        score: returns the scores ``[N]`` of items ``[N, f]`` and offsets ``[B + 1]``; list b is the
            items ``offsets[b]:offsets[b + 1]``.
    """

    name: str
    model: str
    version: str
    runtime: str
    per_item: bool
    missing: bool
    feature_names: tuple[str, ...]
    categorical: Mapping[int, CategoricalFeature]
    score: Score

    @classmethod
    def of(cls, ranker: FittedRanker, name: str, threads: int = 1) -> ServedRanker:
        """Prepare a ranker for serving: build its ONNX graph and compile its kernels.

        Args:
            ranker: a ranker of networks or trees.
            name: the name in URLs.
            threads: the number of threads that compute a batch.

        Returns:
            The ranker, ready for requests.
        """
        try:
            content = to_onnx(ranker)
            runtime, score = "onnxruntime", scorer(ranker, content, threads)
        except NoFormError:  # such as trees that split by categories
            content = b"".join(tensor.numpy().tobytes() for tensor in ranker.tensors().values())
            if isinstance(ranker.network, TreeScorer):
                content += ranker.network.saved
            runtime, score = "rankgrad", ranker.predict
        served = cls(
            name=name,
            model=ranker.settings.model,
            version=hashlib.blake2b(content, digest_size=8).hexdigest(),
            runtime=runtime,
            per_item=ranker.per_item,
            missing=takes_missing_values(ranker),
            feature_names=names_of_features(ranker),
            categorical=categorical_features(ranker.categories),
            score=score,
        )
        for count in (1, _FOLDED_LENGTH):  # a short and a long list compile all kernels
            served.score(np.zeros((count, ranker.n_features), np.float32), np.array([0, count]))
        return served

    @cached_property
    def required(self) -> np.ndarray:
        """Which features must not be missing, ``[f]``; a category may be, as it may be unknown."""
        required = np.full(len(self.feature_names), not self.missing)
        required[list(self.categorical)] = False
        return required

    def wrong_values(self, items: np.ndarray) -> np.ndarray:
        """Which values are infinite, or missing and required.

        Args:
            items: the features, ``[n, f]``.

        Returns:
            True on such values, ``[n, f]``.
        """
        invalid: np.ndarray = ~np.isfinite(items)
        return invalid if self.required.all() else invalid & (self.required | ~np.isnan(items))

    def described(self) -> dict[str, Any]:
        """The ranker in a response of ``/models``."""
        return {
            "name": self.name,
            "model": self.model,
            "version": self.version,
            "runtime": self.runtime,
            "per_item": self.per_item,
            "missing_values": self.missing,
            "feature_names": list(self.feature_names),
            "categories": {
                self.feature_names[column]: list(feature.names)
                for column, feature in self.categorical.items()
            },
        }


def scorer(ranker: FittedRanker, content: bytes, threads: int = 1) -> Score:
    """A function that scores flat lists with onnxruntime.

    Args:
        ranker: a ranker that has an ONNX form.
        content: its ONNX file. It is not used if a :class:`Preparation` can compute the inputs of
            the network: then only the network's layers run in onnxruntime.
        threads: the number of threads that compute a batch.
    """
    prepare = Preparation.of(ranker)
    if prepare is not None:
        return _prepared_scorer(ranker.network, prepare, threads)
    run = session(content, threads).run
    if ranker.per_item:
        return lambda items, offsets: run(["scores"], {"features": items[None]})[0][0]

    def score(items: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        if len(offsets) == 2:
            only_list: np.ndarray = run(["scores"], {"features": items[None]})[0][0]
            return only_list
        lengths, scores = np.diff(offsets), np.empty(len(items), np.float32)
        order = np.argsort(lengths, kind="stable")  # lists of similar length are padded together
        for lists in _batches(order, lengths):
            mask = np.arange(lengths[lists].max(initial=1)) < lengths[lists, None]
            rows = (offsets[lists, None] + np.arange(mask.shape[1]))[mask]
            features = np.zeros((*mask.shape, items.shape[1]), np.float32)
            features[mask] = items[rows]
            scores[rows] = run(["scores"], {"features": features, "mask": mask})[0][mask]
        return scores

    return score


def _prepared_scorer(network: Any, prepare: Preparation, threads: int) -> Score:
    """A function that scores flat lists: ``prepare`` computes the inputs of the network's layers.

    Long lists go through :class:`FoldedLayers`, where the network allows it. They are scored one at
    a time, and so are all lists if the network has attention.
    """
    run = session(layers_to_onnx(network, prepare.width), threads).run
    folded = FoldedLayers(network, threads) if FoldedLayers.fits(network) else None
    attends = getattr(network, "attention", None) is not None

    def score_inputs(items: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        inputs = {"inputs": prepare(items, offsets)}
        if attends:
            # Padded to a multiple of 8, as in FoldedLayers: copies of an item get equal scores
            inputs["inputs"] = np.pad(inputs["inputs"], ((0, -len(items) % 8), (0, 0)))
            inputs["mask"] = np.arange(len(inputs["inputs"]))[None] < len(items)
        scores: np.ndarray = run(["scores"], inputs)[0][: len(items), 0]
        return scores

    def score_list(items: np.ndarray) -> np.ndarray:
        if folded is not None:
            return folded(prepare.entries(items), len(items))
        return score_inputs(items, np.array([0, len(items)]))

    def score(items: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        is_folded = folded is not None and len(items) >= _FOLDED_LENGTH * (len(offsets) - 1)
        if not attends and not is_folded:
            return score_inputs(items, offsets)
        if len(offsets) == 2:
            return score_list(items)
        scores = np.empty(len(items), np.float32)
        for start, stop in pairwise(offsets):
            if start < stop:
                scores[start:stop] = score_list(items[start:stop])
        return scores

    return score


def _batches(order: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Split the indices ``order`` of lists, shortest first, into batches of bounded size.

    Args:
        order: ``[B]``, indices of lists.
        lengths: ``[B]``, the length of each list, by index.
    """
    batches: list[list[int]] = [[]]
    for b in order.tolist():
        if batches[-1] and (len(batches[-1]) + 1) * lengths[b] > _MAX_PADDED:
            batches.append([])
        batches[-1].append(b)
    return [np.array(lists) for lists in batches if lists]


def named_runs(runs: list[str]) -> dict[str, Path]:
    """Run folders by the names of their rankers: NAME of ``NAME=RUN``, else the folder's name.

    >>> from rankgrad.serving._served_ranker import named_runs
    >>> named_runs(["runs/first", "small=runs/second"])
    {'first': PosixPath('runs/first'), 'small': PosixPath('runs/second')}
    """
    folders: dict[str, Path] = {}
    for run in runs:
        name, equals, path = run.partition("=")
        folder = Path(path if equals else run)
        name = name if equals else folder.resolve().name
        if not name or not all(letter.isalnum() or letter in "._-" for letter in name):
            raise ValueError(
                f"the name {name!r} of a ranker must be of letters, digits, '.', '_' and '-': give "
                "another as NAME=RUN"
            )
        if name in folders:
            raise ValueError(f"two rankers are called {name!r}: name them, as NAME=RUN")
        folders[name] = folder
    return folders
