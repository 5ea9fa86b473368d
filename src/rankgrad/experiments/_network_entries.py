"""Entries of networks: every loss with every model, or with that of ``rankgrad train``."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from rankgrad._quoting import quote
from rankgrad.experiments.plans import NetworkEntry
from rankgrad.models import models as known_models
from rankgrad.specs import Spec
from rankgrad.training import Settings, _settings

#: The name of the model, with its settings, that the data choose.
DEFAULT = "default"


@dataclass(frozen=True)
class Networks:
    """The losses and models of networks that are compared.

    Args:
        losses: specs; None for the loss of the settings.
        models: specs, among them ``DEFAULT``; None for the model of the settings.

    Raises:
        ValueError: a model is unknown.
    """

    losses: Sequence[str] | None
    models: Sequence[str | None]

    def __post_init__(self) -> None:
        known = [DEFAULT, *known_models.names()]
        for name in (Spec.parse(model).name for model in self.models if model is not None):
            if name not in known:
                near = difflib.get_close_matches(name.lower(), known, n=1)
                hint = f"Did you mean {near[0]!r}? " if near else ""
                listed = ", ".join(known)
                raise ValueError(f"unknown model {quote(name)}. {hint}There are: {listed}")
            if name == DEFAULT and DEFAULT not in self.models:
                raise ValueError(f"the model {DEFAULT} is what the data choose: it has no options")

    @property
    def need_data(self) -> bool:
        """Whether the data choose the settings of some entries."""
        return DEFAULT in self.models

    @property
    def have_names(self) -> bool:
        """Whether the names of all entries are known before the data have chosen."""
        return self.losses is not None or not self.need_data

    def entries(
        self, shared: Settings, chosen: Settings | None = None, notes: Sequence[str] = ()
    ) -> list[NetworkEntry]:
        """An entry for every loss with every model.

        Args:
            shared: the settings of all runs.
            chosen: those that the data choose; None if they have not chosen yet.
            notes: what says how they chose.

        Returns:
            The entries. Beside other models, those of ``DEFAULT`` have a note of what it is.
        """
        few_items = (
            f"model {shared.model}; the rules for {_settings.MANY_ITEMS:,} training items or more "
            "do not apply"
        )
        entries = []
        for model in self.models:
            is_default, has_others = model == DEFAULT, len(self.models) > 1
            settings = chosen if is_default and chosen is not None else shared
            options = {"model": settings.model if model is None or is_default else model}
            options |= settings.overrides(shared)
            note = (
                f"{DEFAULT}: {'; '.join(notes) or few_items}" if is_default and has_others else ""
            )
            for loss in self.losses if self.losses is not None else [settings.loss]:
                name = f"{loss} × {model}" if has_others else loss
                entries.append(NetworkEntry(name, {**options, "loss": loss}, note))
        return entries
