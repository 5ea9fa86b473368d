"""The parts of the page that need no script: text and tables, everything escaped."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rankgrad.report.candidates import ASIDE, Candidate, varying
from rankgrad.report.comparison import Comparison

_COMMANDS = 40  # shown, at most
_ONE = {
    "candidates": "candidate",
    "runs": "run",
    "queries": "query",
    "folds": "fold",
    "seeds": "seed",
    "gaps": "gap",
}


def escape(text: object) -> str:
    """Text for HTML, also within attributes."""
    return html.escape(str(text), quote=True)


def word(name: str, number: int) -> str:
    """The name of things in the plural, or of one.

    >>> from rankgrad.report.tables import word
    >>> word("queries", 1), word("queries", 2)
    ('query', 'queries')
    """
    return _ONE[name] if number == 1 else name


def headline(found: Comparison) -> str:
    """What was found, in a sentence or two."""
    runs = sum(len(candidate.runs) for candidate in found.candidates)
    if not found.metrics and any(candidate.evaluated for candidate in found.candidates):
        return (
            "Nothing can be compared: every candidate lacks some of its runs. What is missing, and "
            "why, is under the table."
        )
    if not found.metrics and not runs:
        return "Nothing can be compared: every run failed. The reasons are under the table."
    if not found.metrics:
        none = "The run cannot" if runs == 1 else f"None of the {runs} runs can"
        return (
            f"{none} be compared yet: no evaluation was found. Make them with "
            "<code>rankgrad evaluate RUN DATA --save</code>."
        )
    best = _leader(found)
    if best is None:
        return "There is nothing to compare: only reference rankings were evaluated."
    metric = found.metrics[found.primary]
    says = (
        f"<strong>{escape(found.candidates[best].name)}</strong> has the "
        f"{'lowest' if found.lower[found.primary] else 'highest'} {escape(metric)}: "
        f"<strong>{found.mean[best, found.primary]:.4f}</strong> "
        f"(95% interval {_range(found, best, found.primary)})."
    )
    return f"{says} {_verdict(found, best)}"


def _leader(found: Comparison) -> int | None:
    """The candidate with the best mean of the primary metric."""
    at = found.primary
    rivals = [
        c
        for c, own in enumerate(found.candidates)
        if found.complete[c] and not own.is_reference and found.has(c, at)
    ]
    sign = 1 if found.lower[at] else -1
    return min(rivals, key=lambda c: sign * found.mean[c, at]) if rivals else None


def _verdict(found: Comparison, best: int) -> str:
    p = found.p[:, found.primary]
    tested = [c for c in range(len(p)) if not math.isnan(p[c])]
    if not tested:
        return "There is nothing to test it against."
    if found.baseline is not None:
        name = escape(found.candidates[found.baseline].name)
        apart = sum(p[c] < found.how.level for c in tested)
        differ = (
            "are significantly better than"
            if found.how.sides == 1
            else ("differ significantly from")
        )
        return f"{apart} of {len(tested)} others {differ} the baseline {name}."
    alike = [escape(found.candidates[c].name) for c in tested if p[c] >= found.how.level]
    if not alike:
        others = "the other" if len(tested) == 1 else f"all {len(tested)} others"
        return f"It is significantly better than {others}."
    listed = alike[0] if len(alike) == 1 else f"{', '.join(alike[:-1])} and {alike[-1]}"
    if len(alike) > 4:
        listed = f"{len(alike)} of {len(tested)} others"
    rest = len(tested) - len(alike)
    ahead = f"It is significantly better than {rest} of {len(tested)} others; " if rest else ""
    start = "its" if rest else "Its"
    return f"{ahead}{start} lead over {listed} is not significant."


def facts(found: Comparison) -> str:
    """The cards under the headline."""
    runs = sum(len(candidate.runs) for candidate in found.candidates)
    # A ranking that was not trained has no seed, which is not one more seed.
    seeds = {seed for c in found.candidates for seed in c.seeds} - {None}
    gaps = sum(candidate.missing for candidate in found.candidates)
    cards = [
        ("candidates", len(found.candidates)),
        ("runs", runs),
        ("queries", len(found.qids)),
        ("folds", len(found.parts)),
        ("seeds", len(seeds)),
        ("gaps", gaps),
    ]
    return "".join(
        f'<div class="card{" warn" if name == "gaps" and number else ""}">'
        f"<dt>{word(name, number)}</dt>"
        f"<dd>{number:,}</dd></div>"
        for name, number in cards
    )


def comparison(found: Comparison) -> str:
    """The comparison table."""
    heads = [_head("candidate", "text", "none")]
    for at, metric in enumerate(found.metrics):
        arrow = " ↓" if found.lower[at] else ""
        heads.append(_head(metric + arrow, "number", "none", main=at == found.primary))
    heads += [_head("runs", "number", "none"), _head("seconds a run", "number", "none")]
    order = sorted(range(len(found.candidates)), key=lambda c: rank(found, c))
    rows = "".join(_row(found, c) for c in order)
    caption = "The mean of each metric over queries, with its 95% bootstrap interval."
    return (
        f'<table class="sortable" id="comparison"><caption>{caption}</caption>'
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{rows}</tbody></table>"
    )


def rank(found: Comparison, c: int) -> tuple[bool, float]:
    """By what candidates are sorted: the best of the primary metric first, gaps last."""
    if not found.metrics or not found.has(c, found.primary):
        return True, 0.0
    value = float(found.mean[c, found.primary])
    return False, value if found.lower[found.primary] else -value


def _head(text: str, kind: str, order: str, main: bool = False) -> str:
    main_class = ' class="main"' if main else ""
    return (
        f'<th scope="col" aria-sort="{order}" data-kind="{kind}"{main_class}>'
        f'<button type="button">{escape(text)}<span class="arrow" aria-hidden="true"></span>'
        "</button></th>"
    )


def _row(found: Comparison, c: int) -> str:
    candidate = found.candidates[c]
    notes = tags = ""
    if candidate.is_reference:
        tags += ' <span class="tag">reference</span>'
    if found.baseline == c:
        tags += ' <span class="tag">baseline</span>'
    if candidate.gaps:
        reason = "; ".join(candidate.gaps)
        more = f" (and {len(candidate.gaps) - 1} more)" if len(candidate.gaps) > 1 else ""
        notes += (
            f'<div class="gap" title="{escape(reason)}"><span aria-hidden="true">⚠</span> '
            f"{escape(candidate.gaps[-1])}{more}</div>"
        )
    under = "" if candidate.model in ("", candidate.name) else _small(candidate.model)
    there, total = len(candidate.evaluated), len(candidate.runs) + candidate.failed
    cells = [
        f'<th scope="row" data-value="{escape(candidate.name)}">'
        f'<span class="swatch" data-candidate="{c}" aria-hidden="true"></span>'
        f'<span class="name">{escape(candidate.name)}</span>{tags}{under}{notes}</th>',
        *(_cell(found, c, m) for m in range(len(found.metrics))),
        f'<td data-value="{there}">{there}{"" if there == total else f" of {total}"}</td>',
    ]
    seconds = [run.seconds for run in candidate.runs if run.seconds is not None]
    mean = sum(seconds) / len(seconds) if seconds else None
    cells.append(
        '<td data-value="">–</td>' if mean is None else f'<td data-value="{mean}">{mean:,.1f}</td>'
    )
    kind = ' class="reference"' if candidate.is_reference else ""
    return f"<tr{kind}>{''.join(cells)}</tr>"


def _cell(found: Comparison, c: int, m: int) -> str:
    if not found.has(c, m):
        reason = "; ".join(found.candidates[c].gaps)
        return f'<td data-value="" class="none" title="{escape(reason)}">gap</td>'
    value, p = found.mean[c, m], found.p[c, m]
    best = found.against[m] == c and found.baseline is None
    mark = title = ""
    if not math.isnan(p):
        title = f"p = {p:.4f} against {found.candidates[found.against[m] or 0].name}"
        if p < found.how.level:
            mark = f'<abbr class="dagger" title="{escape(title)}">†</abbr>'
    kinds = " ".join(["best"] * best + ["main"] * (m == found.primary))
    number = f"<strong>{value:.4f}</strong>" if best else f"{value:.4f}"
    return (
        f'<td data-value="{value}" class="{kinds}" title="{escape(title)}">{number}{mark}'
        f'<span class="interval">{_range(found, c, m)}</span></td>'
    )


def _range(found: Comparison, c: int, m: int) -> str:
    return f"{found.low[c, m]:.4f}–{found.high[c, m]:.4f}"


def _small(text: str) -> str:
    return f'<span class="under">{escape(text)}</span>'


def footnotes(found: Comparison, part: str) -> str:
    """How to read the table."""
    if not found.metrics:
        return ""
    other = "the best of its column"
    if found.baseline is not None:
        other = found.candidates[found.baseline].name
    corrected = ", corrected over the candidates of a column"
    if found.how.correction == "none":
        corrected = ""
    draws = f", {found.how.samples:,} draws" if found.how.test == "randomization" else ""
    lines = [
        f"† {_differs(found)} {other}: {found.how}, over {len(found.qids):,} queries (values "
        f"averaged over seeds{draws}){corrected}.",
        "Bold: best of its column. Intervals say how much a mean would move with other queries, "
        "not with other seeds.",
        f"Evaluated on {part}; {'; '.join(_conventions(found))}.",
    ]
    if len(found.parts) > 1:
        names = ", ".join(found.part_names)
        lines.append(
            f"Means are over {names} of each one's mean; intervals and tests take their queries "
            "together."
        )
    if found.empty:
        lines.append(
            f"{len(found.empty)} of the queries have no documents, such as {found.empty[0]}: they "
            "count as lists without relevant items."
        )
    return "".join(f"<li>{escape(line)}</li>" for line in lines)


def _differs(found: Comparison) -> str:
    """What the dagger says."""
    if found.how.sides == 2:
        return "differs significantly from"
    return f"significantly {'worse' if found.baseline is None else 'better'} than"


def _conventions(found: Comparison) -> list[str]:
    """What the evaluations say of themselves, less the counts where there are several parts."""
    if len(found.parts) == 1:
        return list(found.conventions)
    lines = [line for line in found.conventions if not re.fullmatch(r"mean over \d+ lists", line)]
    return [re.sub(r" \(up to \d+\)", "", line) for line in lines]


def gaps(found: Comparison) -> str:
    """All that is missing, with the reasons."""
    every = [(c.name, gap) for c in found.candidates for gap in c.gaps]
    if not every:
        return ""
    items = "".join(f"<li><strong>{escape(n)}</strong>: {escape(gap)}</li>" for n, gap in every)
    return (
        f'<aside class="gaps" aria-labelledby="gaps-title"><h3 id="gaps-title">Gaps</h3>'
        f"<p>What is missing is left out, never averaged over.</p><ul>{items}</ul></aside>"
    )


def settings(candidates: Sequence[Candidate]) -> str:
    """The settings that differ and those that are shared; boosted trees by themselves."""
    networks = [candidate for candidate in candidates if not candidate.is_tree]
    trees = [candidate for candidate in candidates if candidate.is_tree]
    if not any(run.settings for candidate in candidates for run in candidate.runs):
        return "<p>No run has settings.</p>"
    return _settings_of(networks, "networks" if trees else "candidates") + _tree_settings(trees)


def _tree_settings(trees: Sequence[Candidate]) -> str:
    """All settings of boosted trees, a row for each set of values that a fold was given."""
    rows = dict.fromkeys(
        (candidate.name, name.replace("values", "tuned values"), plain(value))
        for candidate in trees
        for run in candidate.runs
        for name, value in run.settings.items()
        if name not in ASIDE
    )
    columns, caption = ("candidate", "setting", "value"), "Settings of boosted trees."
    return table(columns, rows, caption) if rows else ""


def _settings_of(candidates: Sequence[Candidate], kind: str) -> str:
    """The settings of candidates of a kind that differ, and those that are shared."""
    every = [run.settings for c in candidates for run in c.runs if run.settings]
    if not every:
        return ""
    apart = [name for name in varying(every) if name not in ASIDE]
    shared = {k: v for k, v in every[0].items() if k not in (*apart, *ASIDE)}
    rows = []
    for candidate in candidates:
        cells = []
        for name in apart:
            values = dict.fromkeys(
                plain(run.settings[name]) for run in candidate.runs if name in run.settings
            )
            cells.append("; ".join(values) or "–")
        rows.append((candidate.name, *cells))
    return (
        table(("candidate", *apart), rows, f"Settings that differ between {kind}.")
        + f"<details><summary>Settings that all {kind} share</summary>"
        + table(("setting", "value"), [(k, plain(v)) for k, v in shared.items()], "Shared settings")
        + "</details>"
    )


def provenance(candidates: Sequence[Candidate], part: str) -> str:
    """Versions, data and commands of the runs."""
    runs = [run for candidate in candidates for run in candidate.runs]
    versions: dict[str, dict[str, int]] = {}
    data: dict[tuple[str, ...], int] = {}
    commands: dict[str, int] = {}
    for run in runs:
        for package, version in _mapping(run.facts.get("versions")).items():
            counts = versions.setdefault(str(package), {})
            counts[str(version)] = counts.get(str(version), 0) + 1
        for name, own in _mapping(run.facts.get("data")).items():
            about = [plain(_mapping(own).get(k, "–")) for k in ("lists", "items", "features")]
            _count(data, (str(name), *about, str(_mapping(own).get("checksum", "–"))))
        if run.evaluated is not None:
            found = run.evaluated
            lists, items = f"{len(found.qids):,}", f"{int(found.offsets[-1]):,}"
            _count(data, (part, lists, items, "–", found.checksum))
        if run.facts.get("command"):
            commands[str(run.facts["command"])] = commands.get(str(run.facts["command"]), 0) + 1
    packages = [
        (name, ", ".join(f"{v} ({n} {word('runs', n)})" if len(c) > 1 else v for v, n in c.items()))
        for name, c in versions.items()
    ]
    listed = "".join(f"<li><code>{escape(c)}</code></li>" for c in list(commands)[:_COMMANDS])
    more = len(commands) - _COMMANDS
    listed += f"<li>and {more} more</li>" if more > 0 else ""
    columns = ("part", "lists", "items", "features", "checksum", "runs")
    return (
        table(("package", "version"), packages, "Versions of what the runs were made with.")
        + table(columns, [(*k, n) for k, n in data.items()], "The data, by checksum.")
        + f"<h3>Commands</h3><ul class='commands'>{listed or '<li>none is known</li>'}</ul>"
    )


def runs(candidates: Sequence[Candidate]) -> str:
    """Every run folder."""
    rows = []
    for candidate in candidates:
        for run in candidate.runs:
            fold = run.labels.get("fold")
            rows.append(
                (
                    candidate.name,
                    "–" if fold is None else fold,
                    "–" if run.seed is None else run.seed,
                    len(run.history) or "–",
                    "–" if run.seconds is None else f"{run.seconds:,.1f}",
                    run.path,
                    "; ".join(run.gaps) or "evaluated",
                )
            )
    columns = ("candidate", "fold", "seed", "epochs", "seconds", "folder", "state")
    return table(columns, rows, "Every run folder that was read.", sortable=True)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    caption: str,
    sortable: bool = False,
) -> str:
    """A table in a box of its own that scrolls where it is too wide."""
    if sortable:
        heads = "".join(_head(column, "text", "none") for column in columns)
    else:
        heads = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    kind = ' class="sortable plain"' if sortable else ' class="plain"'
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table{kind}><caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def plain(value: Any) -> str:
    """A setting in words.

    >>> plain(True), plain(["a", 2]), plain(0.003), plain(12345), plain({"leaves": 7, "bins": 9})
    ('yes', 'a, 2', '0.003', '12,345', 'leaves 7, bins 9')
    """
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain(own)}" for name, own in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(counts: dict[tuple[str, ...], int], key: tuple[str, ...]) -> None:
    counts[key] = counts.get(key, 0) + 1
