"""FoldedLayers: layers behind features, ranks and scores in the list, with a third less to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from rankgrad.compilation import compile_cached
from rankgrad.export.graph import OnnxGraph
from rankgrad.export.networks import add_activation, member_layers
from rankgrad.export.onnx_format import session
from rankgrad.models.tabm import TabMNet


class FoldedLayers:
    r"""One hidden layer of all members, of which scores in the list are no inputs.

    The score of a feature in its list is ``s = a x + b`` with one a and b for all items of the
    list, so ``x V + s W = x (V + a ∘ W) + b W``: the rows of the weights are added once for each
    list, which takes as long as some items, and the matrix product has a third fewer columns.

    Args:
        network: a :class:`~rankgrad.models.tabm.TabMNet` with columns of ranks and scores.
        threads: of onnxruntime.
    """

    def __init__(self, network: TabMNet, threads: int = 1) -> None:
        first, activation, second = member_layers(network)
        assert isinstance(first, tuple)
        assert isinstance(activation, nn.Module)
        assert isinstance(second, tuple)
        (weight, bias), (last, last_bias) = first, second
        members, width, size = weight.shape
        beside = weight.transpose(1, 0, 2).reshape(width, members * size)
        self._features, ranks, self._scores = np.ascontiguousarray(
            beside.reshape(3, width // 3, members * size), np.float32
        )
        self._bias = np.ascontiguousarray(bias.reshape(-1), np.float32)
        graph = OnnxGraph()
        hidden = graph.add("Gemm", "ranks", ranks, "bias", transA=1)
        hidden = graph.add("Gemm", "features", "weight", hidden, transA=1)
        hidden = add_activation(activation, graph, hidden)
        mean = last.reshape(members * size, 1) / members
        scores = graph.add("Gemm", hidden, mean, last_bias.mean((0, 1)))
        columns = {name: [width // 3, "items"] for name in ("features", "ranks")}
        weights = {"weight": [width // 3, members * size], "bias": [1, members * size]}
        self._run = session(graph.part(scores, {**columns, **weights}), threads).run

    @staticmethod
    def fits(network: nn.Module) -> bool:
        """Whether a network is of this kind."""
        if not isinstance(network, TabMNet) or network.in_list != ("rank", "score"):
            return False
        return len(member_layers(network)) == 3

    def __call__(self, inputs: np.ndarray, affine: np.ndarray) -> np.ndarray:
        """The scores of one list, ``[n]``.

        Args:
            inputs: features, then ranks, ``[2 g, n]``.
            affine: a and b of each feature, ``[2, g]``.
        """
        weight, bias = np.empty_like(self._features), self._bias[None].copy()
        _fold(self._features, self._scores, affine, weight, bias[0])
        count = len(inputs) // 2
        feeds = {
            "features": inputs[:count], "ranks": inputs[count:], "weight": weight, "bias": bias
        }  # fmt: skip
        scores: np.ndarray = self._run(["scores"], feeds)[0][:, 0]
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
