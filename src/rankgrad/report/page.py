"""The page: numbers, tables, script and style put into one file that needs nothing else."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from rankgrad import files
from rankgrad.extras import requires
from rankgrad.report import queries, tables
from rankgrad.report.candidates import Candidate, add_failures, group
from rankgrad.report.comparison import Comparison, compare
from rankgrad.report.curves import curves, relaxed
from rankgrad.report.runs import Told, failures, find, read, told
from rankgrad.significance import Correction, Significance, Test

TITLE = "Ranking report"


def write(
    runs: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    part: str = "test",
    metric: str | None = None,
    baseline: str | None = None,
    test: Test | None = None,
    correction: Correction | None = None,
    title: str = TITLE,
) -> Comparison:
    """Read run folders and write the report of them, whole or not at all.

    Args:
        runs: run folders, or folders with run folders in them.
        output: the file to write.
        part: whose evaluations to compare.
        metric: that of the headline; by default the one that chose the best epochs.
        baseline: the candidate to test the others against; by default that of the comparison that
            made the runs, or the best of each metric.
        test: ``"t"`` or ``"randomization"``; by default that of the comparison, or ``"t"``.
        correction: ``"holm"``, ``"bonferroni"`` or ``"none"``; by default that of the comparison,
            or ``"bonferroni"``.
        title: of the page.
    """
    if Path(output).is_dir():
        raise IsADirectoryError(f"{output} is a folder: name the file to write")
    page, found = build(
        runs,
        part=part,
        metric=metric,
        baseline=baseline,
        test=test,
        correction=correction,
        title=title,
    )
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    files.write(Path(output), page)
    return found


def build(
    runs: Iterable[str | os.PathLike[str]],
    *,
    part: str = "test",
    metric: str | None = None,
    baseline: str | None = None,
    test: Test | None = None,
    correction: Correction | None = None,
    title: str = TITLE,
) -> tuple[str, Comparison]:
    """The page as text, and what it compares; see :func:`write`."""
    places = [Path(place) for place in runs]
    candidates = group([read(path, part) for path in find(places)])
    add_failures(candidates, failures(places))
    known = told(places)
    how = known.how or Significance()
    how = replace(how, test=test or how.test, correction=correction or how.correction)
    found = compare(candidates, metric=metric, baseline=baseline, usual=known.baseline, how=how)
    blocks = {
        "title": tables.escape(_title(title, known)),
        "subtitle": tables.escape(_subtitle(found, part, known)),
        "headline": tables.headline(found),
        "facts": tables.facts(found),
        "comparison": tables.comparison(found),
        "footnotes": tables.footnotes(found, part),
        "gaps": tables.gaps(found),
        "settings": tables.settings(candidates),
        "provenance": tables.provenance(candidates, part),
        "runs": tables.runs(candidates),
        "style": _own("page.css"),
        "script": _own("page.js"),
        "plotly": _plotly(),
        "data": _in_script(_data(found, candidates, part)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: blocks[match[1]], _own("page.html")), found


def _title(title: str, known: Told) -> str:
    """The heading, with the data set where nobody chose another, and whether it was quick."""
    named = f"{title}: {known.data}" if title == TITLE and known.data else title
    return f"{named} (quick)" if known.quick else named


def _subtitle(found: Comparison, part: str, known: Told) -> str:
    """What was compared on what."""
    reduced = ". A quick reproduction: reduced, not to be held against the paper's table"
    return _compared(found, part, known.data) + (reduced if known.quick else "")


def _compared(found: Comparison, part: str, data: str) -> str:
    names = [c.name for c, ok in zip(found.candidates, found.complete, strict=True) if ok]
    if not names:
        count = len(found.candidates)
        return f"{count} {tables.word('candidates', count)}{f' on {data}' if data else ''}"
    listed = ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:6])} and others"
    folds = f" of {len(found.parts)} folds" if len(found.parts) > 1 else ""
    named = tables.word("queries", len(found.qids))
    return f"{listed} on {len(found.qids):,} {part} {named}{folds}{f' of {data}' if data else ''}"


def _data(found: Comparison, candidates: list[Candidate], part: str) -> dict[str, Any]:
    """What the script draws."""
    metric = found.metrics[found.primary] if found.metrics else None
    against = found.against[found.primary] if found.metrics else None
    return {
        "candidates": [candidate.name for candidate in candidates],
        "complete": list(found.complete),
        "reference": [candidate.is_reference for candidate in candidates],
        "parts": list(found.part_names),
        "metrics": list(found.metrics),
        "lower": list(found.lower),
        "primary": found.primary,
        "against": against,
        "order": sorted(
            (c for c, ok in enumerate(found.complete) if ok),
            key=lambda c: tables.rank(found, c),
        ),
        "curves": curves(candidates),
        "relaxed": relaxed(candidates, metric),
        "changes": queries.changes(found),
        "lists": queries.lists(found, part),
    }


def _own(name: str) -> str:
    return resources.files("rankgrad.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    """Plotly's script, which its package brings along; the package itself need not be imported."""
    with requires("report"):
        place = resources.files("plotly") / "package_data" / "plotly.min.js"
    return place.read_text(encoding="utf-8").replace("</script", "<\\/script")


def _in_script(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
