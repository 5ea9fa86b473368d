"""BibTeX entries of the papers that losses come from, for model cards."""

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

_PAPERS = {  # by the beginning of a loss's name
    "neural_": "pobrotyn2021neuralndcg",
    "pirank_": "swezey2021pirank",
    "smoothi_": "thonet2022listwise",
    "approx_": "qin2010general",
    "lambdaloss": "wang2018lambdaloss",
    "margin_mse": "hofstatter2020improving",
}


def citation(*trained: Loss) -> str:
    """The entries to cite for losses trained with gradient caching.

    Args:
        trained: the losses.

    Returns:
        BibTeX entries of their papers and of gradient caching.

    >>> "Hofst" in citation(losses.get("margin_mse"))
    True
    """
    names = [str(loss).removeprefix("gumbel_") for loss in trained]
    keys = [key for name in names for start, key in _PAPERS.items() if name.startswith(start)]
    papers = [_ENTRIES[key] for key in keys]
    return "\n\n".join(dict.fromkeys([*papers, _GRADIENT_CACHING]))
