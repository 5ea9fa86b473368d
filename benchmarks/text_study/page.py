"""The page of results, made of the raw result alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from plan import BM25, CHOICES, CHOSEN, DECIDING, FOLDS, LAMBDA, LOSSES, SEEDS, UNTRAINED
from values import CollectionValues, load

from rankgrad.significance import Significance, correct

TITLES = {"cranfield": "Cranfield", "cisi": "CISI"}
ALONE, MIXED = 0, 1  # by the ranker's scores alone, and mixed with BM25's
LEVEL = 0.05


@dataclass(frozen=True)
class Row:
    """A way to rank: values ``[mixed, metric, Q]``, seeds averaged; NaN where there is none."""

    name: str
    values: np.ndarray
    validation: float = float("nan")
    seeds: np.ndarray | None = None  # means over queries, [seed, mixed, metric]

    @property
    def is_complete(self) -> bool:
        """Whether every query has a value by the scores alone."""
        return not bool(np.isnan(self.values[ALONE]).any())


def rows_of(found: CollectionValues) -> list[Row]:
    """The references, every loss, and the loss that each fold chooses on its validation queries."""
    rows = [Row(BM25, found.references[0]), Row(UNTRAINED, found.references[1])]
    means = _mean_of_seeds(found.values, 1)  # [loss, mixed, metric, Q]
    validation = _mean_of_seeds(found.validation, 1)  # [loss, fold]
    for at, name in enumerate(LOSSES):
        seeds = found.values[at].mean(-1)
        rows.append(Row(name, means[at], float(validation[at].mean()), seeds))
    if not np.isnan(validation).all(0).any():
        best = np.nanargmax(validation, 0)  # [fold]
        query = np.arange(len(found.qids))
        own = means[best[found.fold - 1], ..., query]  # [Q, mixed, metric]
        chosen = float(validation[best, np.arange(FOLDS)].mean())
        rows.append(Row(CHOSEN, np.moveaxis(own, 0, -1), chosen))
    return rows


def _mean_of_seeds(values: np.ndarray, axis: int) -> np.ndarray:
    """Without the runs that are missing; NaN where all are."""
    count = (~np.isnan(values)).sum(axis)
    with np.errstate(invalid="ignore"):
        return np.where(count, np.nansum(values, axis) / count, np.nan)


Test = tuple[str, int, str, int]  # a row alone or mixed, against another


def families(rows: list[Row]) -> dict[str, list[Test]]:
    """All tests of a collection; each family is corrected by itself."""
    names = [row.name for row in rows if row.name not in (BM25, UNTRAINED) and row.is_complete]
    both = [(name, how) for how in (ALONE, MIXED) for name in names]
    found = {
        "against BM25": [(*own, BM25, ALONE) for own in both],
        "against untrained": [(*own, UNTRAINED, ALONE) for own in both],
        "against untrained + BM25": [(name, MIXED, UNTRAINED, MIXED) for name in names],
    }
    if CHOSEN in names:
        found["chosen against"] = [(CHOSEN, how, name, how) for name, how in both if name != CHOSEN]
    return found


def p_values(rows: list[Row]) -> dict[str, dict[Test, tuple[float, float]]]:
    """Difference of nDCG@10 and p-value of every test: paired t, two-sided, Holm's correction."""
    by_name = {row.name: row for row in rows}
    found = {}
    for family, tests in families(rows).items():
        if not tests:
            continue
        differences = np.stack(
            [
                by_name[one].values[how, 0] - by_name[other].values[its, 0]
                for one, how, other, its in tests
            ],
            axis=1,
        ).astype(np.float64)
        p = correct(Significance().p_values(differences, better=True), "holm")
        pairs = zip(differences.mean(0).tolist(), np.asarray(p).tolist(), strict=True)
        found[family] = dict(zip(tests, pairs, strict=True))
    return found


def value_table(rows: list[Row], tests: Mapping[str, Mapping[Test, tuple[float, float]]]) -> str:
    """Means with marks for what differs significantly."""
    lines = [
        "| | validation nDCG@10 | nDCG@10 | AP | nDCG@10 + BM25 | AP + BM25 |",
        "|:--|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = [shown(row.name), "" if np.isnan(row.validation) else f"{row.validation:.3f}"]
        for how in (ALONE, MIXED):
            for metric in (0, 1):
                cells.append(_cell(row, how, metric, tests))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(
    row: Row, how: int, metric: int, tests: Mapping[str, Mapping[Test, tuple[float, float]]]
) -> str:
    mean = row.values[how, metric].mean()
    if np.isnan(mean):
        return ""
    text = f"{mean:.3f}"
    known = None if row.seeds is None else row.seeds[:, how, metric]
    if known is not None and (~np.isnan(known)).sum() > 1:
        text += f" ± {np.nanstd(known, ddof=1):.3f}"
    if metric == 0:
        for mark, family, other, its in (
            ("ᵇ", "against BM25", BM25, ALONE),
            ("ᵘ", "against untrained", UNTRAINED, ALONE),
        ):
            gap, p = tests.get(family, {}).get((row.name, how, other, its), (0.0, 1.0))
            text += f"{'-' * (gap < 0)}{mark}" if p < LEVEL else ""
    return text


def test_table(rows: list[Row], tests: Mapping[str, Mapping[Test, tuple[float, float]]]) -> str:
    """Every difference with its corrected p-value."""
    columns = (
        ("− BM25", "against BM25", lambda name: (name, ALONE, BM25, ALONE)),
        ("+ BM25 − BM25", "against BM25", lambda name: (name, MIXED, BM25, ALONE)),
        ("− untrained", "against untrained", lambda name: (name, ALONE, UNTRAINED, ALONE)),
        ("+ BM25 − untrained", "against untrained", lambda name: (name, MIXED, UNTRAINED, ALONE)),
        (
            "+ BM25 − (untrained + BM25)",
            "against untrained + BM25",
            lambda name: (name, MIXED, UNTRAINED, MIXED),
        ),
        ("chosen − it", "chosen against", lambda name: (CHOSEN, ALONE, name, ALONE)),
        ("the same + BM25", "chosen against", lambda name: (CHOSEN, MIXED, name, MIXED)),
    )
    lines = [
        f"| | {' | '.join(title for title, _, _ in columns)} |",
        f"|:--|{'--:|' * len(columns)}",
    ]
    for row in rows:
        if row.name in (BM25, UNTRAINED):
            continue
        cells = [shown(row.name)]
        for _, family, test in columns:
            found = tests.get(family, {}).get(test(row.name))
            cells.append("" if found is None else f"{found[0]:+.3f} ({_p(found[1])})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.9995 else "1"


def shown(name: str) -> str:
    """Specs as code."""
    return f"`{name}`" if name in LOSSES and name != LAMBDA else name


def findings(title: str, rows: list[Row], found: CollectionValues) -> list[str]:
    """What the loss chosen on validation is worth, in sentences."""
    tests, by_name = p_values(rows), {row.name: row for row in rows}
    if CHOSEN not in by_name:
        return [f"- **{title}**: not all folds have a run of every loss."]
    counts = np.bincount(
        np.nanargmax(_mean_of_seeds(found.validation, 1), 0), minlength=len(LOSSES)
    )
    folds = [f"{shown(loss)} on {n}" for loss, n in zip(LOSSES, counts, strict=True) if n]
    lines = [f"- **{title}**: validation chooses {', '.join(folds)} of {FOLDS} folds."]
    for how, suffix in ((ALONE, "alone"), (MIXED, "with BM25")):
        parts = []
        for other, family in ((BM25, "against BM25"), (UNTRAINED, "against untrained")):
            gap, p = tests[family][CHOSEN, how, other, ALONE]
            parts.append(_sentence(gap, p, "BM25" if other == BM25 else "the untrained encoder"))
        if how == MIXED:
            gap, p = tests["against untrained + BM25"][CHOSEN, MIXED, UNTRAINED, MIXED]
            parts.append(_sentence(gap, p, "the untrained encoder with BM25"))
        rivals = {k[2]: v for k, v in tests["chosen against"].items() if k[1] == how}
        below = {name: v for name, v in rivals.items() if v[0] < 0}
        worst = min(below, key=lambda name: below[name][0]) if below else None
        if worst is None:
            parts.append("above every single loss")
        else:
            gap, p = below[worst]
            parts.append(_sentence(gap, p, f"the best single loss, {shown(worst)}"))
        lines.append(f"  What it chooses is, {suffix}: {'; '.join(parts)}.")
    return lines


def _sentence(gap: float, p: float, other: str) -> str:
    sure = "" if p < LEVEL else "not "
    word = "better" if gap >= 0 else "worse"
    shown_p = f"p {_p(p)}" if p < 0.001 else f"p = {_p(p)}"
    return f"{sure}significantly {word} than {other} ({gap:+.3f}, {shown_p})"


def recipes(found: CollectionValues) -> str:
    """What each fold chose, and the validation values that it chose by."""
    lines = [
        f"| recipe: {', '.join(map(shown, DECIDING))} | "
        + " | ".join(f"fold {fold}" for fold in range(1, FOLDS + 1))
        + " |",
        f"|:--|{'--:|' * FOLDS}",
    ]
    for row, choice in enumerate(CHOICES):
        cells = []
        for fold in range(FOLDS):
            own = found.choices[row, :, fold]
            text = ", ".join("" if np.isnan(value) else f"{value:.3f}" for value in own)
            cells.append(f"**{text}**" if found.chosen[fold] == row else text)
        lines.append(f"| {choice} | {' | '.join(cells)} |")
    return "\n".join(lines)


def missing(found: CollectionValues) -> list[str]:
    """Runs that diverged, and those that were not made."""
    lines = []
    total = len(SEEDS) * FOLDS
    for at, loss in enumerate(LOSSES):
        diverged = int((found.best_epoch[at] == -1).sum())
        absent = total - diverged - int((~np.isnan(found.validation[at])).sum())
        if diverged:
            lines.append(f"- {shown(loss)}: {diverged} of {total} runs ended in NaN.")
        if absent:
            lines.append(f"- {shown(loss)}: {absent} of {total} runs were not made.")
    return lines


def write(raw: Path, output: Path) -> None:
    """Write the page: ``page.md`` with what is found in its places."""
    said, collections = [], []
    for name, found in load(raw).items():
        rows = rows_of(found)
        said += findings(TITLES[name], rows, found)
        collections += collection(TITLES[name], rows, found)
    with np.load(raw, allow_pickle=False) as file:
        recipe = json.dumps(json.loads(str(file["recipe"])), indent=1)
    text = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")
    parts = {"findings": "\n".join(said), "collections": "\n".join(collections), "recipe": recipe}
    for place, part in parts.items():
        text = text.replace(f"<{place}>", part.strip())
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")


def collection(title: str, rows: list[Row], found: CollectionValues) -> list[str]:
    """The tables of a collection."""
    tests, absent = p_values(rows), missing(found)
    return [
        f"## {title}",
        "",
        f"{len(found.qids)} queries with judgments. Validation nDCG@10 by which each fold chose "
        "its recipe, the chosen one in bold:",
        "",
        recipes(found),
        "",
        "Test values:",
        "",
        value_table(rows, tests),
        "",
        *([*absent, ""] if absent else []),
        "Differences of nDCG@10, and their p-values after Holm's correction:",
        "",
        test_table(rows, tests),
        "",
    ]
