"""``rankgrad explain``: which features a ranker relies on, and why an item is above another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rankgrad.cli._arguments import Data, Fold, Run, check_run_folder
from rankgrad.cli._printing import (
    Number,
    interval_cell,
    progress_bar,
    show_json,
    show_notes,
    show_table,
    value_cell,
)
from rankgrad.cli.predict import open_ranker

if TYPE_CHECKING:
    from rankgrad.data import Dataset
    from rankgrad.explanations import Explanation, PairExplanation

#: The part of a difference of scores that comes from positions is printed only if it is larger:
#: otherwise it is a rounding error.
_MIN_SHOWN = 1e-6
_NETWORK_METHOD = "integrated gradients from the mean of the two items"
_TREE_METHOD = "TreeSHAP values of the upper item less those of the lower one"
#: Options of importance, which cannot be combined with --query.
_IMPORTANCE_OPTIONS = ("metric", "repeats", "permute", "sample", "queries", "seed")


def explain(
    ctx: typer.Context,
    run: Run,
    data: Data,
    split: str | None = None,
    fold: Fold = None,
    metric: Annotated[str | None, typer.Option("--metric", "-m")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    permute: Literal["within", "across"] = "within",
    sample: Annotated[int, typer.Option(min=1)] = 1000,
    queries: Annotated[int, typer.Option(min=0)] = 20,
    query: str | None = None,
    above: Annotated[int | None, typer.Option(min=1)] = None,
    below: Annotated[int | None, typer.Option(min=1)] = None,
    top: Annotated[int, typer.Option(min=1)] = 20,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: str = "auto",
    save: bool = False,
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    json: bool = False,
) -> None:
    """Say which features a ranker relies on, and why one item stands above another.

    Importance is permutation importance: by how many points the metric falls on each list when the
    values of a feature are permuted among the items of the list, with a 95% interval over lists.
    It says what the model uses, not what the data know: features that say the same share it.

    With --query: what each feature adds to the difference of the scores of two items, by
    integrated gradients from a point at which the two are the same item, or by TreeSHAP of
    boosted trees; the parts add up to the difference.

    Options:
        query: Explain pairs of items of this query instead, by its id.
        metric: The metric whose fall is measured. [default: that of RUN]
        repeats: Permutations of each feature.
        permute: Permute a feature among the items of each list, or across lists. Within is right
            for rankings: across, items get values that their query never has.
        sample: Take importance on at most this many lists, drawn.
        queries: Queries whose pairs are explained, for --save and -o.
        above: With --query: the upper item, its number in the list.
        below: With --query: the lower item, its number in the list.
        top: Features to print.
        seed: Of the permutations and draws.
        save: Keep it in the run folder, for the query inspector of `rankgrad report`.
        output: A new folder for importance.csv, importance.svg, pairs.csv and explanation.json.

    \b
    Examples:
      rankgrad explain runs/first MQ2008 --fold 1
      rankgrad explain runs/first MQ2008 --fold 1 --save && rankgrad report runs/first
      rankgrad explain runs/first MQ2008 --fold 1 --query 18219 --above 3 --below 7
      rankgrad explain runs/first test.txt -m 'ndcg@10(empty=skip)' -o explained
    """  # noqa: D301
    from rankgrad import explanations
    from rankgrad.training._fitted import TreeScorer

    if save:
        check_run_folder(run, "explanation")
    if output is not None and output.exists():
        raise FileExistsError(f"{output} is there already: name a new folder")
    if query is None and (above is not None or below is not None):
        raise ValueError("--above and --below name items of one query: give --query too")
    dataset, ranker = open_ranker(run, data, split, fold, device)
    if query is not None:
        if save or output is not None:
            raise ValueError("--query only prints: leave out --save and --output")
        _check_query_options(ctx)
        if (above is None) != (below is None):
            raise ValueError("give both --above and --below")
        items = None if above is None or below is None else (above - 1, below - 1)
        pair = explanations.explain_pair(ranker, dataset, query, items)
        is_tree = isinstance(ranker.network, TreeScorer)
        return _show_pair(pair, top, json, _TREE_METHOD if is_tree else _NETWORK_METHOD)
    with progress_bar("features", quiet=json) as update:
        explanation = explanations.explain(
            ranker,
            dataset,
            metric,
            repeats=repeats,
            permute=permute,
            sample=sample,
            lists=queries if save or output is not None else 0,  # pairs are saved, not printed
            seed=seed,
            on_feature=lambda done, total: update(completed=done, total=total),
        )
    if save:
        _save(explanation, run, data, split, fold)
    if output is not None:
        explanation.export(output)
    if json:
        show_json(explanation.to_dict())
    else:
        _show_importance(explanation, dataset, f"{run} on {data}", top)
    show_notes(dataset.notes)


def _check_query_options(ctx: typer.Context) -> None:
    """Raise if an option of importance was passed together with --query."""
    for name in _IMPORTANCE_OPTIONS:
        source = ctx.get_parameter_source(name)
        if source and source.name == "COMMANDLINE":
            raise ValueError(
                f"--{name} is an option of importance, and --query explains a pair: leave out one "
                "of the two"
            )


def _save(
    explanation: Explanation, run: Path, data: Path, split: str | None, fold: int | None
) -> None:
    """Save an explanation in its run folder; note if the report needs an evaluation to show it."""
    from rankgrad.data import _layout
    from rankgrad.training._evaluations import EVALUATIONS

    name = _layout.split_name(split or "test")
    explanation.save(run, name)
    if not (run / EVALUATIONS / name).is_dir():
        options = "" if fold is None else f" --fold {fold}"
        options += "" if name == "test" else f" --split {name}"
        note = f"`rankgrad report` shows it beside an evaluation, and {run} has none of {name}"
        show_notes([f"{note}: rankgrad evaluate {run} {data}{options} --save"])


def _show_importance(explanation: Explanation, dataset: Dataset, title: str, top: int) -> None:
    """Print the importance of features, the most important first."""
    importance = explanation.importance
    rows = [
        (name, value_cell(value, 2), interval_cell(low, high, 2), permuted)
        for name, value, low, high, permuted in explanation.importance_rows()[:top]
    ]
    metric, lists = importance.metric, importance.n_lists
    of_all = "" if lists == len(dataset) else f" of {len(dataset):,}"
    footer = [
        f"points are 100 times {metric}, which is {value_cell(importance.mean)} with all "
        "features as they are",
        f"means over {lists:,}{of_all} lists and {importance.repeats} permutations; intervals say "
        "how much a mean would move with other queries",
        "what the model relies on, not what the data know: features that say the same share it",
    ]
    n_undefined = importance.drops.shape[1] - lists  # drops are [features, sampled lists]
    if n_undefined:
        footer.append(f"{n_undefined:,} lists on which {metric} is undefined are left out")
    not_shown = len(importance.features) - len(rows)
    if not_shown > 0:
        footer.append(f"{not_shown} more features: --top, --json, or -o for all as CSV")
    columns = ("feature", f"fall of {metric}, points", "95% interval", "permuted")
    show_table(columns, rows, title=title, footer=footer)


def _show_pair(pair: PairExplanation, top: int, json: bool, method: str) -> None:
    """Print why one item of a query stands above another."""
    if json:
        return show_json(pair.to_dict())
    rows = [
        (name, f"{upper:.6g}", f"{lower:.6g}", f"{attribution:+.4f}")
        for name, upper, lower, attribution in pair.rows()[:top]
    ]
    others = pair.rows()[top:]
    if others:
        rows.append((f"{len(others)} others", "", "", f"{sum(row[3] for row in others):+.4f}"))
    if abs(pair.baseline) > _MIN_SHOWN:  # only models that use positions have such a part
        rows.append(("position in the list", "", "", f"{pair.baseline:+.4f}"))
    rows.append(("difference of scores", "", "", f"{pair.difference:+.4f}"))
    items = [f"item {item + 1}" for item in pair.items]
    descriptions = [
        f"{item} (label {label:g}, score {score:.4g})"
        for item, label, score in zip(items, pair.labels, pair.scores, strict=True)
    ]
    footer = [f"{method}; parts add up to the difference"]
    if pair.order == "tied with":
        footer.append(
            "both have one score: what speaks for either cancels out, and a ranking has them "
            "in the order of the data"
        )
    show_table(
        ("feature", *items, "adds"),
        [(feature, *map(Number, numbers)) for feature, *numbers in rows],
        title=f"query {pair.qid}: {descriptions[0]} {pair.order} {descriptions[1]}",
        footer=footer,
    )
