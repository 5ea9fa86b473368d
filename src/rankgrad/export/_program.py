"""to_program: a ranker as a program of ``torch.export``, which PyTorch runs without rankgrad."""

from __future__ import annotations

import io

import torch
from torch import Tensor, nn

from rankgrad.training import FittedRanker
from rankgrad.training._fitted import TreeScorer


class ScoringModule(nn.Module):
    """The transforms and the network of a ranker as one module.

    ``module(features [lists, items, n_features], mask [lists, items]) -> scores [lists, items]``.
    """

    def __init__(self, ranker: FittedRanker) -> None:
        super().__init__()
        self.transform, self.network = ranker.transform, ranker.network

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """The scores, 0 on padding; the features of padding are ignored."""
        zero_padded = features.where(mask[..., None], 0.0)
        scores: Tensor = self.network(self.transform(zero_padded), mask)
        return scores


def to_program(ranker: FittedRanker) -> bytes:
    """The ``.pt2`` file of a ranker, for ``torch.export.load(path).module()(features, mask)``.

    Args:
        ranker: a ranker whose model is a network, not trees.

    Returns:
        The bytes of the file. Of its program, the raw ``features`` are float32
        ``[lists, items, n_features]``, ``mask`` is boolean ``[lists, items]``, and the result is
        float32 ``[lists, items]``, 0 on padding.

    Raises:
        ValueError: the ranker is of trees.

    >>> from rankgrad.export import to_program
    >>> from rankgrad.training import FittedRanker, Settings
    >>> features = torch.rand(6, 2)
    >>> settings = Settings(model="mlp(hidden=[])", transforms=[])
    >>> content = to_program(FittedRanker.new(settings, features.numpy()))
    >>> module = torch.export.load(io.BytesIO(content)).module()
    >>> module(features[None], torch.ones(1, 6, dtype=torch.bool)).shape
    torch.Size([1, 6])
    """
    if isinstance(ranker.network, TreeScorer):
        raise ValueError("trees are no PyTorch program: export them with --format onnx")
    # Example inputs. torch.export would fix an axis of size 0 or 1 in the program.
    features, mask = torch.zeros(2, 3, ranker.n_features), torch.ones(2, 3, dtype=torch.bool)
    axes = {0: torch.export.Dim("lists", min=0), 1: torch.export.Dim("items", min=0)}
    module = ScoringModule(ranker).eval()
    with torch.no_grad():
        shapes = {"features": axes, "mask": axes}
        program = torch.export.export(module, (features, mask), dynamic_shapes=shapes, strict=False)
    content = io.BytesIO()
    torch.export.save(program, content)
    return content.getvalue()
