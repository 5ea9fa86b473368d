"""The page: numbers, tables, script and style put together in one file that needs nothing else.

``rankgrad report`` calls :func:`write`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from rankgrad import _files
from rankgrad.extras import requires
from rankgrad.report import _per_query, _sections
from rankgrad.results._comparison_tables import number
from rankgrad.results._curves import curves, relaxed
from rankgrad.results._groups import add_failed, group
from rankgrad.results.comparison import Comparison, compare
from rankgrad.results.runs import ComparisonMetadata, FailedRun, find, read
from rankgrad.significance import Correction, Significance, Test

TITLE = "Ranking report"


def write(
    runs: Iterable[str | os.PathLike[str]], output: str | os.PathLike[str], **options: Any
) -> Comparison:
    r"""Read run folders and write the report of them, atomically.

    Args:
        runs: run folders, or folders with run folders in them.
        output: the file to write.
        options: the keyword arguments of :func:`build`.

    Returns:
        What the report compares.

    Raises:
        IsADirectoryError: ``output`` is a folder.
        FileNotFoundError: a folder of ``runs`` is not there.
        ValueError: there is no run folder, or ``metric`` or ``baseline`` was not evaluated.

    >>> import tempfile
    >>> from rankgrad import report
    >>> from rankgrad.experiments import compare
    >>> from rankgrad.training import Settings
    >>> settings = Settings(model="mlp(hidden=[])", transforms=[], epochs=1, device="cpu")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for split in ("train", "vali", "test"):
    ...         lines = "1 qid:1 1:1 2:0\n0 qid:1 1:0 2:1\n"
    ...         _ = Path(folder, f"{split}.txt").write_text(lines)
    ...     entries = [compare.NetworkEntry.of("softmax"), compare.NetworkEntry.of("mse")]
    ...     plan = compare.Plan(folder, entries, settings=settings)
    ...     _ = compare.run(plan, f"{folder}/runs", workers=0)
    ...     comparison = report.write([f"{folder}/runs"], f"{folder}/report.html")
    ...     page = Path(folder, "report.html").read_text()
    >>> comparison.names, "<title>Ranking report" in page
    (('mse', 'softmax'), True)
    """
    if Path(output).is_dir():
        raise IsADirectoryError(f"{output} is a folder: name the file to write")
    page, comparison = build(runs, **options)
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    _files.write(Path(output), page)
    return comparison


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
    """The page as text, and what it compares.

    Defaults are those of the ``rankgrad compare`` that made the runs, if there was one.

    Args:
        runs: run folders, or folders with run folders in them.
        part: the part of the data whose evaluations are compared, such as ``"test"``.
        metric: the metric of the headline; by default the one that chose the best epochs.
        baseline: the ranker to test the others against; by default that of ``rankgrad compare``,
            or the best of each metric.
        test: ``"t"`` or ``"randomization"``; by default that of ``rankgrad compare``, or ``"t"``.
        correction: ``"holm"``, ``"bonferroni"`` or ``"none"``; by default that of ``rankgrad
            compare``, or ``"bonferroni"``.
        title: the title of the page.

    Returns:
        The HTML, complete in itself, and the comparison it shows.

    Raises:
        FileNotFoundError: a folder of ``runs`` is not there.
        ValueError: there is no run folder, or ``metric`` or ``baseline`` was not evaluated.

    >>> import tempfile
    >>> from rankgrad import report
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report.build([folder])
    Traceback (most recent call last):
    ValueError: ... holds no run folder (a folder with run.json, as `rankgrad train` makes)
    """
    places = [Path(place) for place in runs]
    groups = group([read(path, part, items=False) for path in find(places)])
    saved = ComparisonMetadata.read(places)
    how = saved.how or Significance()
    comparison = compare(
        add_failed(groups, FailedRun.read(places)),
        primary=metric,
        baseline=baseline,
        default_baseline=saved.baseline,
        how=replace(how, test=test or how.test, correction=correction or how.correction),
    )
    blocks = {
        "title": _sections.escape(_title(title, saved)),
        "subtitle": _sections.escape(_subtitle(comparison, part, saved)),
        "headline": _sections.headline(comparison),
        "cards": _sections.cards(comparison),
        "meanings": _sections.meanings(comparison),
        "comparison": _sections.comparison_table(comparison),
        "footnotes": _sections.footnotes(comparison, part),
        "differences": _sections.differences(comparison),
        "missing": _sections.missing(comparison),
        "settings": _sections.settings(comparison.entries),
        "provenance": _sections.provenance(comparison.entries, part),
        "runs": _sections.runs(comparison.entries),
        "style": _packaged("page.css"),
        "script": _packaged("page.js"),
        "plotly": _plotly(),
        "data": _in_script(_data(comparison, part)),
    }
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: blocks[match[1]], _packaged("page.html"))
    return page, comparison


def _title(title: str, saved: ComparisonMetadata) -> str:
    """The heading: the caller's, or the default with the data set; marked if runs were quick."""
    heading = f"{title}: {saved.data}" if title == TITLE and saved.data else title
    return f"{heading} (quick)" if saved.quick else heading


def _subtitle(comparison: Comparison, part: str, saved: ComparisonMetadata) -> str:
    """The rankers and the data that are compared; a warning if runs were quick."""
    warning = ". A quick reproduction: reduced, not to be held against the paper's table"
    warning = warning if saved.quick else ""
    names = [name for name in comparison.names if name in comparison.complete]
    if not names:
        count = _sections.counted(len(_sections.rivals(comparison)), "rankers")
        return f"{count}{f' on {saved.data}' if saved.data else ''}{warning}"
    # Up to 8 names are listed in full; of more, the first 6.
    listed = ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:6])} and others"
    folds = f" of {len(comparison.folds)} folds" if len(comparison.folds) > 1 else ""
    queries = _sections.counted(len(comparison.queries), "queries").replace(" ", f" {part} ")
    return f"{listed} on {queries}{folds}{f' of {saved.data}' if saved.data else ''}{warning}"


def _data(comparison: Comparison, part: str) -> dict[str, Any]:
    """The data that ``page.js`` draws.

    It names entries, metrics and folds once, and otherwise refers to them by index.
    """
    reference = comparison.reference(comparison.primary) if comparison.primary else None
    names = list(comparison.names)
    return {
        "entries": names,
        "reference": [entry.is_reference for entry in comparison.entries],
        "folds": [fold.name for fold in comparison.folds],
        "metrics": list(comparison.metrics),
        "lower": [comparison.lower_is_better(metric) for metric in comparison.metrics],
        "primary": comparison.metrics.index(comparison.primary) if comparison.primary else 0,
        "against": None if reference is None else names.index(reference),
        "baseline": None if comparison.baseline is None else names.index(comparison.baseline),
        "order": [
            names.index(entry.name)
            for entry in _sections.order(comparison)
            if entry.name in comparison.complete
        ],
        "seconds": [entry.seconds for entry in comparison.entries],
        "trees": [entry.is_tree for entry in comparison.entries],
        "means": [
            [_interval(comparison, name, metric) for name in names] for metric in comparison.metrics
        ],
        "differences": [_differences(comparison, metric) for metric in comparison.metrics],
        "curves": curves(comparison.entries),
        "relaxed": relaxed(comparison.entries, comparison.primary),
        "changes": _per_query.changes(comparison),
        "lists": _per_query.lists(comparison, part),
    }


def _interval(comparison: Comparison, name: str, metric: str) -> list[float | None] | None:
    """The mean of an entry and the ends of its interval; None if it has no mean."""
    if not comparison.has(name, metric):
        return None
    mean, interval = comparison.mean(name, metric), comparison.interval(name, metric)
    return [number(value) for value in (mean, *interval)]


def _differences(comparison: Comparison, metric: str) -> list[dict[str, Any]]:
    """The differences of entries from the one they are tested against, with p-values."""
    return [
        {
            "entry": comparison.names.index(d.entry),
            "difference": [number(value) for value in (d.difference, *d.interval)],
            "p": number(d.corrected),
            "significant": d.significant,
            "better": d.better,
        }
        for d in comparison.differences(metric)
    ]


def _packaged(name: str) -> str:
    """The text of a file of this package."""
    return resources.files("rankgrad.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    """Plotly's script, a file of its Python package, of which nothing else is used."""
    with requires("report"):
        script = resources.files("plotly") / "package_data" / "plotly.min.js"
    return script.read_text(encoding="utf-8").replace("</script", "<\\/script")


def _in_script(value: Any) -> str:
    """JSON that is safe within a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
