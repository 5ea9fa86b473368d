"""The names that trec_eval and ir_measures have for metrics, with the conventions of these tools.

- trec_eval's names are ``P_5``, ``recall.100``, ``map``, ``recip_rank`` and so on; ir_measures has
  ``P@5``, ``R@100``, ``AP``, ``RR``, ``AP(rel=2)@10``.
- Both tools take the linear gain in nDCG, so ``ndcg_cut_10`` and ``nDCG@10`` are
  ``ndcg@10(gain=linear)``.
- Case is ignored, with two exceptions. ``ndcg`` is our metric and ``nDCG`` theirs, and any other
  case, such as ``NDCG``, is an error. ``rbp`` is ours, and ``RBP`` theirs.
- A name that is also ours means our metric. So trec_eval's ``ndcg`` is written ``nDCG`` here, and
  its ``rbp`` is written with its parameter, as in trec_eval: ``rbp.p=0.9``.
- ``RBP(p=0.8, rel=1)`` has binary relevance, as in ir_measures. ``RBP(p=0.8)`` and ``rbp.p=0.8``
  have graded relevance, as in ir_measures and trec_eval.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

from rankgrad.specs import Spec

_LINEAR = {"gain": "linear"}
#: By another tool's name in lower case: our name, and the options that make it the same metric.
_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "map": ("ap", {}),
    "map_cut": ("ap", {}),
    "mrr": ("rr", {}),
    "ndcg_cut": ("ndcg", _LINEAR),
    "p": ("precision", {}),
    "r": ("recall", {}),
    "recip_rank": ("rr", {}),
    "set_p": ("precision", {}),
    "set_recall": ("recall", {}),
    "success": ("hits", {}),
}
#: By ir_measures' name of an option: our name.
_OPTIONS = {"rel": "threshold", "p": "persistence"}
_TREC_RBP = re.compile(r"rbp\.p=([0-9.]+)", re.I)
_TREC_CUTOFF = re.compile(r"(map_cut|ndcg_cut|p|recall|success)[_.](\d+)(\(.*)?", re.I | re.S)
#: ir_measures' order, ``AP(rel=2)@10``; in ours the cutoff is first, ``ap@10(threshold=2)``.
_OPTIONS_FIRST = re.compile(r"(\w+)(\([^()]*\))@(\d+)")


def parse(text: str, known: Container[str]) -> Spec:
    """The spec of a metric, by our name for it or another tool's.

    Args:
        text: the metric, such as ``ndcg@10``, ``ndcg_cut_10`` or ``AP(rel=2)@5``.
        known: our names of all metrics.

    Raises:
        ValueError: the case of ``ndcg`` is neither ours nor theirs, or the text is not a spec.

    >>> from rankgrad.metrics._other_names import parse
    >>> [str(parse(name, ["ap", "ndcg"])) for name in ("ndcg_cut_10", "nDCG@10", "AP(rel=2)@5")]
    ['ndcg@10(gain=linear)', 'ndcg@10(gain=linear)', 'ap@5(threshold=2)']
    """
    text = text.strip()
    if match := _TREC_CUTOFF.fullmatch(text):
        text = f"{match[1]}@{match[2]}{match[3] or ''}"
    elif match := _TREC_RBP.fullmatch(text):
        text = f"RBP(p={match[1]})"
    elif match := _OPTIONS_FIRST.fullmatch(text):
        text = f"{match[1]}@{match[3]}{match[2]}"
    spec = Spec.parse(text)
    lower = spec.name.lower()
    if spec.name in known:  # ours, as it is written
        return spec
    if lower == "rbp" and not {"rel", "threshold", "graded"} & set(spec.options):
        return Spec("rbp", spec.k, {"graded": True, **_our_options(spec)})
    if lower == "ndcg":
        if spec.name != "nDCG":
            cutoff = "" if spec.k is None else f"@{spec.k}"
            raise ValueError(
                f"{spec.name}{cutoff} may mean two things: ndcg{cutoff} has the gain 2^y - 1, "
                f"nDCG{cutoff} the gain y, as trec_eval has it; write one of these"
            )
        return Spec("ndcg", spec.k, {**_LINEAR, **_our_options(spec)})
    # An unknown name is kept: the registry of metrics raises the error.
    name, conventions = _NAMES.get(lower, (lower if lower in known else spec.name, {}))
    return Spec(name, spec.k, {**conventions, **_our_options(spec)})


def _our_options(spec: Spec) -> dict[str, Any]:
    """The options of a spec, by our names."""
    return {_OPTIONS.get(option, option): value for option, value in spec.options.items()}
