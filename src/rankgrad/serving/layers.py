"""FoldedLayers: layers behind features and columns of the list, without those of scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from rankgrad.compilation import compile_cached
from rankgrad.export.graph import OnnxGraph
from rankgrad.export.networks import add_behind_first, member_layers, side_by_side
from rankgrad.export.onnx_format import session
from rankgrad.models.tabm import TabMNet

_WEIGHTS = 1 << 20  # of first layers, from which adding rows takes longer than it spares


class FoldedLayers:
    r"""The layers of all members, of which scores in the list are no inputs.

    The score of a feature in its list is ``s = a x + b`` with one a and b for all items of the
    list, so ``x V + s W = x (V + a ∘ W) + b W``: the rows of the weights are added once for each
    list, which takes as long as some items, and the matrix product has fewer columns.

    Args:
        network: a :class:`~rankgrad.models.tabm.TabMNet` that takes in scores in the list.
        threads: of onnxruntime.
    """

    def __init__(self, network: TabMNet, threads: int = 1) -> None:
        layers, kinds = member_layers(network), network.in_list
        first = layers[0]
        assert isinstance(first, tuple)
        weight, bias = side_by_side(*first)
        blocks = weight.reshape(1 + len(kinds), -1, len(bias))  # of features, and of each kind
        at = 1 + kinds.index("score")
        self._features, self._scores = blocks[0].copy(), blocks[at].copy()
        self._weight = np.delete(blocks, at, 0).reshape(-1, len(bias))
        self._bias = bias[None].copy()
        self._free: list[np.ndarray] = []
        graph = OnnxGraph()
        hidden = graph.add("Gemm", "inputs", "weight", "bias")
        scores = add_behind_first(layers, graph, hidden)
        width = len(self._weight)
        shapes = {"weight": self._weight.shape, "bias": self._bias.shape}
        content = graph.part(scores, {"inputs": ["items", width], **shapes})
        self._run = session(content, threads, prepack=False).run

    @staticmethod
    def fits(network: nn.Module) -> bool:
        """Whether a network is of this kind, and small enough for it to take less time."""
        if not isinstance(network, TabMNet) or "score" not in network.in_list:
            return False
        first, *others = member_layers(network)
        return len(others) > 0 and isinstance(first, tuple) and first[0].size <= _WEIGHTS

    def __call__(self, inputs: np.ndarray, affine: np.ndarray) -> np.ndarray:
        """The scores of one list, ``[n]``.

        Args:
            inputs: features and what is derived of them but scores, ``[n, width - g]``.
            affine: a and b of each feature, ``[2, g]``.
        """
        weight = self._free.pop() if self._free else self._weight.copy()  # one for each thread
        bias = self._bias.copy()
        _fold(self._features, self._scores, affine, weight, bias[0])
        feeds = {"inputs": inputs, "weight": weight, "bias": bias}
        scores: np.ndarray = self._run(["scores"], feeds)[0][:, 0]
        self._free.append(weight)
        return scores


def _fold_weights(
    features: np.ndarray,
    scores: np.ndarray,
    affine: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
) -> None:
    for row in range(len(features)):
        factor, summand = affine[0, row], affine[1, row]
        for column in range(features.shape[1]):
            weight[row, column] = features[row, column] + factor * scores[row, column]
            bias[column] += summand * scores[row, column]


_fold: Callable[..., Any] = compile_cached(_fold_weights, nogil=True, fastmath={"contract"})
