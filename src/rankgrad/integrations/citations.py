"""citation: BibTeX entries of the papers of losses, for the model cards of text rankers."""

from __future__ import annotations

from importlib import resources

from rankgrad.losses import Loss

__all__ = ["citation"]

_FILE = resources.files("rankgrad.integrations").joinpath("citations.bib")
_ENTRIES = {
    entry.partition("{")[2].partition(",")[0]: entry
    for entry in _FILE.read_text(encoding="utf-8").rstrip().split("\n\n")
}
_GRADIENT_CACHING = _ENTRIES["gao2021scaling"]

#: The key of the paper by the beginning of a loss's name.
_PAPERS = {
    "neural_": "pobrotyn2021neuralndcg",
    "pirank_": "swezey2021pirank",
    "smoothi_": "thonet2022listwise",
    "approx_": "qin2010general",
    "lambdaloss": "wang2018lambdaloss",
    "margin_mse": "hofstatter2020improving",
}


def citation(*trained: Loss) -> str:
    """The BibTeX entries to cite for a model that was trained with gradient caching.

    Args:
        trained: the losses of the training.

    Returns:
        The entries of the losses' papers and of gradient caching.

    >>> "Hofst" in citation(losses.get("margin_mse"))
    True
    """
    names = [str(loss).removeprefix("gumbel_") for loss in trained]
    keys = [key for name in names for prefix, key in _PAPERS.items() if name.startswith(prefix)]
    papers = [_ENTRIES[key] for key in keys]
    return "\n\n".join(dict.fromkeys([*papers, _GRADIENT_CACHING]))
