"""TreeScorer: trained trees in the place of a network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankgrad import files
from rankgrad.boosting.boosters import contributor, predictor
from rankgrad.models.trees import TreeModel
from rankgrad.threads import available


class TreeScorer(nn.Module):
    """Scores items with trees: ``scorer(features [..., n, f]) -> scores [..., n]``, on the CPU.

    Args:
        model: which library, and how it was trained.
        saved: the trees in the library's own format.
    """

    per_item = True

    def __init__(self, model: TreeModel, saved: bytes) -> None:
        super().__init__()
        self.model, self.saved = model, saved
        self._predict: Any = None

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """The scores of items; 0 for padding."""
        if self._predict is None:
            self._predict = predictor(self.model.name, self.saved, available())  # type: ignore[arg-type]
        flat = features.reshape(-1, features.shape[-1]).cpu().numpy()
        scores = torch.from_numpy(self._predict(flat)).float().to(features.device)
        scores = scores.reshape(features.shape[:-1])
        return scores if mask is None else scores.where(mask, 0.0)

    def contributions(self, features: Tensor) -> Tensor:
        """What each feature adds to the scores of items.

        The parts are TreeSHAP's (Lundberg et al. 2018), without the part that all items share: the
        parts of two items differ by as much as their scores.

        Args:
            features: ``[n, f]``.

        Returns:
            ``[n, f]`` in float64.
        """
        parts = contributor(self.model.name, self.saved, available())  # type: ignore[arg-type]
        return torch.from_numpy(parts(features.cpu().numpy())[:, :-1]).double()

    def write(self, folder: Path) -> str:
        """Write the trees into a folder; the name of the file."""
        files.write(folder / self.model.file, self.saved)
        return self.model.file

    @classmethod
    def read(cls, model: TreeModel, folder: Path, manifest: Mapping[str, Any]) -> TreeScorer:
        """What :meth:`write` wrote, compared with the checksum in the manifest."""
        return cls(model, files.read_part(folder / model.file, manifest))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_predict": None}  # a library's handle is of this process alone
