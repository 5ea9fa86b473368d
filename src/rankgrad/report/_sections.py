"""The parts of the report's page that need no script: text and tables, as escaped HTML.

``_page`` puts each function's HTML in its place in ``page.html``.
"""

from __future__ import annotations

import html
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rankgrad import _reference
from rankgrad.results._comparison_tables import beats_the_best, differences_table, mark
from rankgrad.results._groups import INCIDENTAL, RunGroup, varying
from rankgrad.results.comparison import Comparison
from rankgrad.results.tables import BETTER, WORSE
from rankgrad.significance import Difference

_COMMANDS = 40  # shown, at most
_SINGULAR = {"queries": "query"}


def escape(text: object) -> str:
    """Text with HTML's special characters escaped, also for attributes."""
    return html.escape(str(text), quote=True)


def wrappable(text: str) -> str:
    """An escaped name that may wrap after punctuation, not within words."""
    return "<wbr>".join(map(escape, re.split(r"(?<=[_(,=×/])", text)))


def counted(number: int, plural: str) -> str:
    """A number with its noun, singular or plural.

    >>> from rankgrad.report._sections import counted
    >>> counted(1, "queries"), counted(1200, "runs")
    ('1 query', '1,200 runs')
    """
    return f"{number:,} {_SINGULAR.get(plural, plural[:-1]) if number == 1 else plural}"


def rivals(comparison: Comparison) -> list[RunGroup]:
    """The entries that are not references; references are shown, but not tested."""
    return [entry for entry in comparison.entries if not entry.is_reference]


def headline(comparison: Comparison) -> str:
    """The result in a few sentences: the best ranker, and how sure its lead is."""
    n_runs = sum(len(entry.runs) for entry in comparison.entries)
    if not comparison.folds and comparison.evaluated:
        return (
            "Nothing can be compared: every ranker lacks some of its runs. What is missing, and "
            "why, is under the table."
        )
    if not comparison.folds and not n_runs:
        return "Nothing can be compared: every run failed. The reasons are under the table."
    if not comparison.folds:
        subject = "The run cannot" if n_runs == 1 else f"None of the {n_runs} runs can"
        return (
            f"{subject} be compared yet: no evaluation was found. Make them with "
            "<code>rankgrad evaluate RUN DATA --save</code>."
        )
    metric = comparison.primary or comparison.metrics[0]
    best = comparison.best(metric)
    if best is None and all(comparison.entry(name).is_reference for name in comparison.complete):
        return "There is nothing to compare: only reference rankings were evaluated."
    if best is None:
        return f"There is nothing to compare: no ranker has a mean of {escape(metric)}."
    winner = (
        f"<strong>{escape(best)}</strong> has the "
        f"{'lowest' if comparison.lower_is_better(metric) else 'highest'} {escape(metric)}: "
        f"<strong>{comparison.mean(best, metric):.4f}</strong> "
        f"(95% interval {_range(comparison, best, metric)})."
    )
    return f"{winner} {_significance(comparison, metric)}{_other_metrics(comparison, metric)}"


def _significance(comparison: Comparison, metric: str) -> str:
    """Whether the lead of the best is significant, or who differs from the baseline."""
    tested = [d for d in comparison.differences(metric) if not math.isnan(d.corrected)]
    if not tested:
        return "There is nothing to test it against."
    if comparison.baseline is not None:
        return _against_baseline(comparison, tested)
    # One that is significantly better over lists is not beaten either; see beats_the_best.
    close = [escape(d.entry) for d in tested if d.better or not d.significant]
    n_beaten = len(tested) - len(close)
    if not close:
        others = "the other" if len(tested) == 1 else f"all of the other {len(tested)}"
        return f"It is significantly better than {others}."
    names = close[0] if len(close) == 1 else f"{', '.join(close[:-1])} and {close[-1]}"
    if len(close) > 4:
        names = f"{len(close)} of the other {len(tested)}"
    if not n_beaten:
        return f"Its lead over {names} is not significant."
    beaten = f"It is significantly better than {n_beaten} of the other {len(tested)}"
    return f"{beaten}; its lead over {names} is not significant."


def _against_baseline(comparison: Comparison, tested: Sequence[Difference]) -> str:
    """How many rankers differ significantly from the baseline."""
    name, total = escape(comparison.baseline), len(tested)
    better = sum(d.significant and d.better for d in tested)
    worse = sum(d.significant and not d.better for d in tested)
    if comparison.how.sides == 1:
        return f"{better} of the other {total} are significantly better than the baseline {name}."
    return (
        f"{better + worse} of the other {total} differ significantly from the baseline {name}: "
        f"{better} better, {worse} worse."
    )


def _other_metrics(comparison: Comparison, primary: str) -> str:
    """A sentence for each other metric that would lead to another conclusion."""
    main_conclusion = _conclusion(comparison, primary)
    lines = []
    for metric in comparison.metrics:
        conclusion = _conclusion(comparison, metric)
        best = comparison.best(metric)
        if metric == primary or conclusion == main_conclusion or best is None:
            continue
        count = sum(d.significant for d in comparison.differences(metric))
        reference = "it" if comparison.baseline is None else "the baseline"
        differ = f"{count} differ{'s' * (count == 1)} significantly from {reference}"
        lines.append(f"by {escape(metric)}, {escape(best)} is best and {differ}")
    if not lines:
        return ""
    shown = "; ".join(lines[:3]) + ("; see the differences below" if len(lines) > 3 else "")
    return f' <span class="aside">{shown[0].upper()}{shown[1:]}.</span>'


def _conclusion(comparison: Comparison, metric: str) -> tuple[Any, ...]:
    """The best ranker by a metric, and the rankers that differ significantly.

    They differ from the baseline, or from the best ranker if there is no baseline.
    """
    tested = comparison.differences(metric)
    return comparison.best(metric), {(d.entry, d.better) for d in tested if d.significant}


def cards(comparison: Comparison) -> str:
    """The numbers under the headline."""
    competing = rivals(comparison)
    seeds = {seed for entry in competing for seed in entry.seeds} - {None}
    n_missing = sum(entry.n_missing for entry in comparison.entries)
    n_references = len(comparison.entries) - len(competing)
    numbers = [
        (len(competing), "rankers"),
        *([(n_references, "references")] if n_references else []),
        (sum(len(entry.runs) for entry in competing), "runs"),
        (len(comparison.queries) if comparison.folds else 0, "queries"),
        (len(comparison.folds), "folds"),
        (len(seeds), "seeds"),
        (n_missing, "missing runs"),
    ]
    return "".join(
        f'<div class="card{" warn" if name == "missing runs" and number else ""}">'
        f"<dt>{counted(number, name).split(' ', 1)[1]}</dt><dd>{number:,}</dd></div>"
        for number, name in numbers
    )


def columns(comparison: Comparison) -> list[str]:
    """The metrics, as columns of the comparison table; that of the headline is first."""
    return sorted(comparison.metrics, key=lambda metric: metric != comparison.primary)


def order(comparison: Comparison) -> list[RunGroup]:
    """The entries sorted by the metric of the headline, best first; those without a mean, last."""

    def key(entry: RunGroup) -> tuple[bool, float]:
        if comparison.primary is None or not comparison.has(entry.name, comparison.primary):
            return True, 0.0
        mean = comparison.mean(entry.name, comparison.primary)
        return False, mean if comparison.lower_is_better(comparison.primary) else -mean

    return sorted(comparison.entries, key=key)


def comparison_table(comparison: Comparison) -> str:
    """The comparison table."""
    heads = [_head("ranker", "text")]
    for metric in columns(comparison):
        arrow = " ↓" if comparison.lower_is_better(metric) else ""
        heads.append(_head(metric + arrow, "number", main=metric == comparison.primary))
    heads += [_head("runs", "number"), _head("seconds a run", "number")]
    # The caption states the model that most networks share; rows state their own if it differs.
    models = Counter(e.model for e in rivals(comparison) if e.model and not e.is_tree)
    shared_model, count = models.most_common(1)[0] if models else ("", 0)
    shared_model = shared_model if count > 1 else ""
    rows = "".join(_row(comparison, entry, shared_model) for entry in order(comparison))
    caption = "The mean of each metric over queries, with its 95% bootstrap interval."
    if shared_model:
        others = ", where nothing else is said" if len(models) > 1 else ""
        caption += f" Networks{others}: {shared_model}."
    return (
        f'<table class="sortable" id="comparison">{_caption(caption)}'
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _head(text: str, kind: str, main: bool = False) -> str:
    """A heading that sorts the table by its column when it is clicked.

    The first click sorts the ``kind`` "text" ascending, "number" descending.
    """
    main_class = ' class="main"' if main else ""
    return (
        f'<th scope="col" aria-sort="none" data-kind="{kind}"{main_class}>'
        f'<button type="button">{escape(text)}<span class="arrow" aria-hidden="true"></span>'
        "</button></th>"
    )


def _row(comparison: Comparison, entry: RunGroup, shared_model: str) -> str:
    """The row of an entry in the comparison table."""
    tags = notes = ""
    if entry.is_reference:
        tags += ' <span class="tag">reference</span>'
    if comparison.baseline == entry.name:
        tags += ' <span class="tag">baseline</span>'
    if entry.problems:
        more = f" (and {len(entry.problems) - 1} more)" if len(entry.problems) > 1 else ""
        notes = (
            f'<div class="problem"><span aria-hidden="true">⚠</span> '
            f"{escape(entry.problems[-1])}{more}</div>"
        )
    model = ""
    if entry.model not in ("", entry.name, shared_model):
        model = f'<span class="under">{wrappable(entry.model)}</span>'
    n_results, n_runs = entry.n_runs - entry.n_missing, entry.n_runs
    index = comparison.names.index(entry.name)
    cells = [
        f'<th scope="row" data-value="{escape(entry.name)}">'
        f'<span class="swatch" data-entry="{index}" aria-hidden="true"></span>'
        f'<span class="name">{wrappable(entry.name)}</span>{tags}{model}{notes}</th>',
        *(_cell(comparison, entry, metric) for metric in columns(comparison)),
        f'<td data-value="{n_results}">{n_results}'
        f"{'' if n_results == n_runs else f' of {n_runs}'}</td>",
    ]
    seconds = entry.seconds
    text = "–" if seconds is None else f"{seconds:,.1f}"
    cells.append(f'<td data-value="{"" if seconds is None else seconds}">{text}</td>')
    kind = ' class="reference"' if entry.is_reference else ""
    return f"<tr{kind}>{''.join(cells)}</tr>"


def _cell(comparison: Comparison, entry: RunGroup, metric: str) -> str:
    """The mean of an entry, with its dagger and its interval."""
    if not comparison.has(entry.name, metric):
        runs = comparison.runs[entry.name].values() if comparison.is_complete(entry.name) else ()
        evaluations = [run.evaluated for run in runs if run.evaluated is not None]
        is_evaluated = evaluations and all(metric in lists.metrics for lists in evaluations)
        return f'<td data-value="" class="none">{"undefined" if is_evaluated else "missing"}</td>'
    value, sign = comparison.mean(entry.name, metric), mark(comparison, entry.name, metric)
    best = comparison.best(metric) == entry.name
    dagger = ""
    if sign:
        kind = "better" if sign == BETTER else "worse"
        title = f"significantly {kind} than {comparison.reference(metric)}"
        dagger = f'<abbr class="dagger {kind}" title="{escape(title)}">{sign}</abbr>'
    classes = " ".join(["best"] * best + ["main"] * (metric == comparison.primary))
    number = f"<strong>{value:.4f}</strong>" if best else f"{value:.4f}"
    return (
        f'<td data-value="{value}" class="{classes}">{number}{dagger}'
        f'<span class="interval">{_range(comparison, entry.name, metric)}</span></td>'
    )


def _range(comparison: Comparison, name: str, metric: str) -> str:
    low, high = comparison.interval(name, metric)
    return f"{low:.4f}–{high:.4f}"


def meanings(comparison: Comparison) -> str:
    """A list of the metrics' families, with what each measures."""
    families = dict.fromkeys(re.split(r"[@(]", metric)[0] for metric in comparison.metrics)
    lines = [
        f"<li><b>{escape(name)}</b>: {escape(reference.meaning)}</li>"
        for name in families
        if (reference := _reference.entry("metrics", name)) is not None
    ]
    return f'<ul class="meanings">{"".join(lines)}</ul>' if lines else ""


def differences(comparison: Comparison) -> str:
    """Differences with p-values, a table for each metric; all but the first are folded."""
    tables = []
    for metric in columns(comparison):
        results = differences_table(comparison, metric)
        if results.rows:
            rows = [[cell.text for cell in row] for row in results.rows]
            lower = " (lower is better)" if comparison.lower_is_better(metric) else ""
            caption = "; ".join((results.title + lower, *results.notes))
            tables.append(table(results.columns, rows, caption, kind="plain tested"))
    if not tables:
        return '<p class="lead">There are no two rankers to test.</p>'
    more = "".join(tables[1:])
    label = "the other metric" if len(tables) == 2 else f"the other {len(tables) - 1} metrics"
    folded = f"<details><summary>Differences in {label}</summary>{more}</details>" if more else ""
    return tables[0] + folded


def footnotes(comparison: Comparison, part: str) -> str:
    """How to read the tables: the signs, the test, the conventions.

    ``part`` names the data that the rankers were evaluated on, such as "test".
    """
    if not comparison.folds:
        return ""
    reference = "the best of its column" if comparison.baseline is None else comparison.baseline
    corrected = ", corrected over the rankers of a column"
    if comparison.how.correction == "none":
        corrected = ""
    is_random = comparison.how.test == "randomization"
    samples = f", {comparison.how.samples:,} draws" if is_random else ""
    signs = f"{WORSE} significantly worse than {reference}"
    if comparison.baseline is not None and comparison.how.sides == 1:
        signs = f"{BETTER} significantly better than {reference}"
    elif comparison.baseline is not None or beats_the_best(comparison):
        signs = f"{signs}, {BETTER} significantly better"
    lines = [
        f"{signs}: {comparison.how}, over {len(comparison.queries):,} queries "
        f"(values averaged over seeds{samples}){corrected}.",
        "Bold: best of its column, references aside. Intervals say how much a mean would move with "
        "other queries, not with other seeds.",
        f"Evaluated on {part}; {'; '.join(comparison.conventions)}.",
    ]
    if len(comparison.folds) > 1:
        names = ", ".join(fold.name for fold in comparison.folds)
        lines.append(
            f"Means are over {names} of each one's mean; intervals and tests take their queries "
            "together."
        )
    empty = [qid for queries in comparison.without_documents.values() for qid in queries]
    if empty:
        lines.append(
            f"{len(empty)} of the queries have no documents, such as {empty[0]}: they count as "
            "lists without relevant items."
        )
    return "".join(f"<li>{escape(line)}</li>" for line in lines)


def missing(comparison: Comparison) -> str:
    """The problems of all entries, such as missing runs with their reasons."""
    items = "".join(
        f"<li><strong>{escape(entry.name)}</strong>: {escape(problem)}</li>"
        for entry in comparison.entries
        for problem in entry.problems
    )
    if not items:
        return ""
    return (
        '<aside class="problems" aria-labelledby="problems-title">'
        '<h3 id="problems-title">What is missing</h3>'
        "<p>A ranker that lacks a run is left out; no mean is taken over the rest.</p>"
        f"<ul>{items}</ul></aside>"
    )


def settings(entries: Sequence[RunGroup]) -> str:
    """The settings of networks, first those that differ, then the shared; then those of trees."""
    networks = [entry for entry in entries if not entry.is_tree]
    trees = [entry for entry in entries if entry.is_tree]
    if not any(run.settings for entry in entries for run in entry.runs):
        return "<p>No run has settings.</p>"
    return _settings_of(networks, "networks" if trees else "rankers") + _tree_settings(trees)


def _tree_settings(trees: Sequence[RunGroup]) -> str:
    """All settings of boosted trees, with a row for each value that a run has."""
    rows = dict.fromkeys(
        (entry.name, name.replace("values", "tuned values"), plain(value))
        for entry in trees
        for run in entry.runs
        for name, value in run.settings.items()
        if name not in INCIDENTAL
    )
    headings, caption = ("ranker", "setting", "value"), "Settings of boosted trees."
    return table(headings, rows, caption) if rows else ""


def _settings_of(entries: Sequence[RunGroup], kind: str) -> str:
    """The settings of entries that differ, and those that are shared; ``kind`` names them."""
    per_run = [run.settings for entry in entries for run in entry.runs if run.settings]
    if not per_run:
        return ""
    different = [name for name in varying(per_run) if name not in INCIDENTAL]
    shared = {k: v for k, v in per_run[0].items() if k not in (*different, *INCIDENTAL)}
    rows = []
    for entry in entries:
        cells = []
        for name in different:
            values = dict.fromkeys(
                plain(run.settings[name]) for run in entry.runs if name in run.settings
            )
            cells.append("; ".join(values) or "–")
        rows.append((entry.name, *cells))
    return (
        table(("ranker", *different), rows, f"Settings that differ between {kind}.")
        + f"<details><summary>Settings that all {kind} share</summary>"
        + table(("setting", "value"), [(k, plain(v)) for k, v in shared.items()], "Shared settings")
        + "</details>"
    )


def provenance(entries: Sequence[RunGroup], part: str) -> str:
    """The versions, data and commands that the runs were made with.

    ``part`` names the data that the rankers were evaluated on, such as "test".
    """
    versions: dict[str, Counter[str]] = defaultdict(Counter)
    data: Counter[tuple[str, ...]] = Counter()
    commands: dict[str, None] = {}
    for run in (run for entry in entries for run in entry.runs):
        for package, version in _mapping(run.metadata.get("versions")).items():
            versions[str(package)][str(version)] += 1
        for name, value in _mapping(run.metadata.get("data")).items():
            metadata = _mapping(value)
            sizes = [plain(metadata.get(k, "–")) for k in ("lists", "items", "features")]
            data[str(name), *sizes, str(metadata.get("checksum", "–"))] += 1
        if run.evaluated is not None:
            evaluated = run.evaluated
            lists, items = f"{len(evaluated.qids):,}", f"{int(evaluated.offsets[-1]):,}"
            data[part, lists, items, "–", evaluated.checksum] += 1
        if run.metadata.get("command"):
            commands.setdefault(str(run.metadata["command"]))
    packages = [
        (name, ", ".join(_version(counts, version) for version in counts))
        for name, counts in versions.items()
    ]
    shown = list(commands)[:_COMMANDS]
    items = "".join(f"<li><code>{escape(command)}</code></li>" for command in shown)
    if len(commands) > _COMMANDS:
        items += f"<li>and {len(commands) - _COMMANDS} more</li>"
    headings = ("part", "lists", "items", "features", "checksum", "runs")
    return (
        table(("package", "version"), packages, "Versions of what the runs were made with.")
        + table(headings, [(*k, n) for k, n in data.items()], "The data, by checksum.")
        + f"<h3>Commands</h3><ul class='commands'>{items or '<li>none is known</li>'}</ul>"
    )


def runs(entries: Sequence[RunGroup]) -> str:
    """A table of every run folder."""
    rows = []
    for entry in entries:
        for run in entry.runs:
            fold = run.labels.get("fold")
            rows.append(
                (
                    entry.name,
                    "–" if fold is None else fold,
                    "–" if run.seed is None else run.seed,
                    len(run.history) or "–",
                    "–" if run.seconds is None else f"{run.seconds:,.1f}",
                    run.path,
                    "; ".join(run.problems) or "evaluated",
                )
            )
    headings = ("ranker", "fold", "seed", "epochs", "seconds", "folder", "state")
    return table(headings, rows, "Every run folder that was read.", kind="sortable plain")


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str, kind: str = "plain"
) -> str:
    """A table in a box that scrolls if it is too wide; ``kind`` are its CSS classes."""
    if "sortable" in kind:
        heads = "".join(_head(column, "text") for column in columns)
    else:
        heads = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{wrappable(str(first))}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table class="{kind}">{_caption(caption)}<thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _caption(text: str) -> str:
    """A caption; the element inside stays in view when the table is scrolled."""
    return f"<caption><span>{escape(text)}</span></caption>"


def plain(value: Any) -> str:
    """A setting in words.

    >>> plain(True), plain(["a", 2]), plain(0.003), plain(12345), plain({"leaves": 7, "bins": 9})
    ('yes', 'a, 2', '0.003', '12,345', 'leaves 7, bins 9')
    """
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain(part)}" for name, part in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _version(counts: Mapping[str, int], version: str) -> str:
    """A version; if runs have several, with the number of runs that have it."""
    return f"{version} ({counted(counts[version], 'runs')})" if len(counts) > 1 else version


def _mapping(value: Any) -> Mapping[str, Any]:
    """A value of ``run.json`` that should be a mapping; {} if it is anything else."""
    return value if isinstance(value, dict) else {}
