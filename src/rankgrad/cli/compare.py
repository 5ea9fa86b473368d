"""``rankgrad compare``: losses and models compared on the same data, with significance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from rankgrad._validation import DEFAULT_METRICS
from rankgrad.cli import _setting_options as options
from rankgrad.cli import compare_text
from rankgrad.cli._arguments import Metrics, Workers
from rankgrad.cli._errors import interrupted_run
from rankgrad.cli._printing import TableFormat, console, show_json, show_notes, show_results
from rankgrad.specs import split

if TYPE_CHECKING:
    from rankgrad.experiments.compare import Comparison, Networks, Plan, Progress
    from rankgrad.significance import Test


@options.settings_options(  # without settings of a single run, and those with an option below
    exclude=("loss", "model", "metric", "metrics", "holdout", "seed", "devices", "tensorboard")
)
def compare(
    data: Annotated[Path, typer.Argument(metavar="DATA")],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FOLDER")] = None,
    losses: str | None = None,
    models: str | None = None,
    lightgbm: bool = False,
    xgboost: bool = False,
    trees: Annotated[str | None, typer.Option(show_default=False)] = None,
    folds: str = "all",
    seeds: str = "1",
    tune: Annotated[int | None, typer.Option(min=1)] = None,
    metric: Metrics = None,
    validation_metric: str | None = None,
    workers: Workers = None,
    settings: Path | None = None,
    test: Annotated[str, typer.Option(metavar="[t|randomization]")] = "t",
    correction: Literal["holm", "bonferroni", "none"] = "bonferroni",
    sides: Annotated[int, typer.Option(min=1, max=2)] = 2,
    baseline: str | None = None,
    intervals: bool = False,
    format: TableFormat = "terminal",
    collection: str | None = None,
    topics: str | None = None,
    qrels: Path | None = None,
    interpolate: bool = False,
    max_length: str | None = None,
    json: bool = False,
    **setting_options: Any,
) -> None:
    """Compare losses and models on the same data, and say what is significant.

    Every loss, model, fold and seed is a run folder of its own; runs go side by side. The same
    command goes on after Ctrl-C or a crash, and with more losses, seeds or folds it makes only what
    is missing. The test lists are scored once, by the epoch that was best on validation. A run
    that fails is missing in the table, with its reason; then the exit code is 1.

    Inputs:
        data: A folder of train, vali and test, or of folds of these. For text, the candidates as a
            TREC run, with --collection; or a folder of `rankgrad text train`.

    Options:
        output: Where every run has its folder; the same command goes on with what is there.
            [default: for text runs that are there, their folder]
        validation_metric: What chooses the best epoch, and the best trial. [default: the first
            --metric, or that of --settings]
        settings: Settings that all share, in TOML; options override them. Nothing is then chosen by
            the data.

    What is compared:
        losses: Losses, commas between them. See `rankgrad losses`. [default: that of rankgrad
            train on these data]
        models: Models, commas between them; each with every loss. See `rankgrad models`. The name
            default stands for that of rankgrad train on these data, with its schedule, weight decay
            and optimizer, and its loss without --losses; for the other models nothing is chosen by
            the data. [default: default alone]
        lightgbm: Also LightGBM's ranker, tuned; alone, if neither --losses nor --models is given.
        xgboost: Also XGBoost's ranker, tuned; likewise.
        trees: Losses for boosted trees, commas between them: with LightGBM, or with those of
            --lightgbm and --xgboost that are given. Tuned as these are.
        folds: all, or some such as 1,2.
        seeds: How many, from 0 on; or which, such as 3,7.
        tune: Search learning rate and each loss's own options with this many trials on validation
            data, fold by fold. [default: no search]

    Significance and tables:
        test: The paired test on per-query values.
        correction: For the number of rankers.
        sides: 1 or 2.
        baseline: The ranker that all are tested against. [default: the best one]
        intervals: Show 95% bootstrap intervals.
        format: Of the table.

    Text, where DATA is a TREC run:
        collection: The documents, as `rankgrad text train` takes them.
        topics: The queries. [default: those of the collection]
        qrels: TREC judgments. [default: those of the collection]
        interpolate: Mix scores with those of the first stage; validation chooses the weight.
        max_length: Tokens per input. [default: the model's limit]

    \b
    Examples:
      rankgrad compare MQ2008 --losses "mse, ranknet, neural_ndcg@10" -o out
      rankgrad compare MQ2008 --losses "lambdaloss@5, approx_ndcg" --lightgbm --seeds 5 -o out
      rankgrad compare data --trees "lambdaloss@10, neural_ndcg@10" --lightgbm -o out
      rankgrad compare data --losses "softmax, smoothi_ndcg" --tune 20 -m ndcg@5 -o out
      rankgrad compare data --losses "mse, softmax" --models "default, context_aware" -o out
      rankgrad compare MQ2008 --losses "mse, ranknet" -o out --format latex --test randomization
      rankgrad compare bm25.run --collection cranfield/ --models MiniLM/ \\
          --losses "hinge, lambdaloss@10" --seeds 3 -o out
      rankgrad compare runs/text --baseline "first stage" --correction holm
    """  # noqa: D301
    from rankgrad.experiments import compare as experiment
    from rankgrad.metrics.evaluate import default_metrics

    text_only: dict[str, Any] = {"--topics": topics, "--qrels": qrels, "--max-length": max_length}
    text_only["--interpolate"] = interpolate or None
    for option, value in text_only.items():
        if collection is None and value is not None:
            raise ValueError(f"{option} is for text: it goes with --collection")
    significance = experiment.Significance(cast("Test", test), correction, 1 if sides == 1 else 2)
    if compare_text.is_text(data, collection):
        # Options that text does not have are passed, too: compare_text raises an error for them.
        # None means that the user did not pass the option.
        text_options = setting_options | {"settings": settings, "losses": losses, "models": models}
        text_options |= {"tune": tune, "max_length": max_length, "lightgbm": lightgbm or None}
        text_options |= {"xgboost": xgboost or None, "trees": trees, "workers": workers}
        text_options |= {"metric": metric, "validation_metric": validation_metric}
        text_options |= {"collection": collection, "topics": topics, "qrels": qrels}
        text_options |= {"interpolate": interpolate or None, "seeds": _parse_seeds(seeds)}
        text_options |= {"folds": None if folds == "all" else _parse_numbers("--folds", folds)}
        comparison = compare_text.compare(data, output, text_options)
        comparison = comparison.tested(significance, baseline)
        experiment.save(comparison)
        _finish(comparison, intervals, format, json)
        return
    if output is None:
        raise ValueError("-o is missing: the folder of all runs")
    if validation_metric is None and (metric or settings is None):
        validation_metric = (metric or DEFAULT_METRICS)[0]
    given = setting_options | {"loss": losses}
    explicit = {name for name, value in given.items() if value is not None}
    setting_options["metric"] = validation_metric
    shared = options.resolve_settings(setting_options, settings)
    metrics = tuple(metric or default_metrics(shared.metric))
    shared = type(shared)(**shared.model_dump() | {"metrics": metrics})
    tree_entries = _tree_entries(trees, lightgbm, xgboost)
    networks = _networks(losses, models, settings, only_trees=bool(tree_entries) and losses is None)
    plan = experiment.Plan(
        data,
        (*networks.entries(shared), *tree_entries),
        folds=_parse_folds(data, folds),
        seeds=_parse_seeds(seeds),
        metrics=metrics,
        settings=shared,
        tune=tune,
    )
    known_baseline = baseline if networks.have_names else None
    experiment.check(plan, output, workers=workers, baseline=known_baseline)
    if networks.need_data:
        chosen, notes = experiment.default_settings(data, shared, explicit)
        entries = (*networks.entries(shared, chosen, notes), *tree_entries)
        plan = replace(plan, entries=entries)
        if not any(entry.note for entry in entries):  # which a line under the table says
            show_notes(notes)
    try:
        with _progress(plan) as show:
            comparison = experiment.run(
                plan, output, workers=workers, on_change=show, how=significance, baseline=baseline
            )
    except KeyboardInterrupt:
        raise interrupted_run(output) from None
    _finish(comparison, intervals, format, json)


def _finish(comparison: Comparison, intervals: bool, format: TableFormat, json: bool) -> None:
    """Show the comparison; the exit code is 1 if runs are missing."""
    from rankgrad.results._comparison_tables import to_json

    if json:
        show_json(to_json(comparison))
    else:
        _show(comparison, intervals, format)
    if len(comparison.complete) < len(comparison.entries):
        raise typer.Exit(1)


def _networks(
    losses: str | None, models: str | None, settings: Path | None, only_trees: bool
) -> Networks:
    """The losses and models of networks.

    Args:
        losses: the value of --losses.
        models: the value of --models.
        settings: the file of settings, if there is one.
        only_trees: whether no network is compared unless there are models.
    """
    from rankgrad.experiments.compare import DEFAULT, Networks

    loss_specs, specs = _split("--losses", losses), _split("--models", models)
    if specs is None:
        return Networks(loss_specs, [] if only_trees else [DEFAULT if settings is None else None])
    if DEFAULT in specs and settings is not None:
        raise ValueError(
            f"with --settings nothing is chosen by the data, so there is no model {DEFAULT}: name "
            "the model, or give options in place of the file"
        )
    return Networks(loss_specs, specs)


def _tree_entries(losses: str | None, lightgbm: bool, xgboost: bool) -> list[Any]:
    """The libraries' own rankers, then each loss of --trees with each library.

    If neither library is asked for, the losses are trained with LightGBM.
    """
    from rankgrad.experiments.compare import TreeEntry

    entries = [TreeEntry("LightGBM", "lightgbm")] if lightgbm else []
    if xgboost:
        entries.append(TreeEntry("XGBoost", "xgboost"))
    kinds = [entry.kind for entry in entries] or ["lightgbm"]
    for loss in _split("--trees", losses) or []:
        entries += [TreeEntry(f"{loss} × {kind}", kind, loss=loss) for kind in kinds]
    return list(entries)


def _split(option: str, text: str | None) -> list[str] | None:
    """The specs in the value of an option; None without one."""
    try:
        return None if text is None else split(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _parse_folds(data: Path, text: str) -> tuple[int | None, ...]:
    """The value of --folds as folds of the data; ``(None,)`` for data without folds."""
    from rankgrad.experiments.compare import folds_of

    existing = folds_of(data)
    if text.strip() == "all":
        return existing
    folds = _parse_numbers("--folds", text)
    for fold in folds:
        if fold not in existing:
            listed = ", ".join(str(number) for number in existing if number is not None) or "none"
            raise ValueError(f"{data} has no fold {fold}. There are: {listed}")
    return folds


def _parse_seeds(text: str) -> tuple[int, ...]:
    """The value of --seeds: a single number is how many, several are the seeds themselves."""
    numbers = _parse_numbers("--seeds", text)
    if "," in text:
        return numbers
    if numbers[0] < 1:
        raise ValueError(f"--seeds is how many there are, at least 1; found {text}")
    return tuple(range(numbers[0]))


def _parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers from a text with commas between them; ``option`` is for the error."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise ValueError(f"{option} takes whole numbers with commas between, found {text!r}")
    return tuple(map(int, parts))


@contextmanager
def _progress(plan: Plan) -> Iterator[Callable[[Progress], None]]:
    """Give a function that shows progress on stderr while the runs of a plan are made.

    On a terminal it updates one live table; elsewhere it prints each event as a line.
    """
    err = console(stderr=True)
    if not err.is_terminal:
        yield lambda progress: None if progress.event is None else err.print(progress.event)
        return
    from rich.live import Live

    with Live(console=err, refresh_per_second=4, transient=True) as live:
        yield lambda progress: live.update(_progress_table(plan, progress))


def _progress_table(plan: Plan, progress: Progress) -> Any:
    """A rich table with a row for each entry."""
    from rich.table import Table
    from rich.text import Text

    metric = plan.metrics[0]
    table = Table()
    table.add_column("ranker", overflow="fold")
    table.add_column("runs", justify="right")
    table.add_column(Text(f"{metric} so far"), justify="right")
    table.add_column("state", overflow="fold")
    for row in progress.rows:
        mean = f"{row.means[metric]:.4f}" if metric in row.means else ""
        states = [f"{row.failed} failed"] if row.failed else []
        states += row.running
        if not row.running and row.done + row.failed >= row.total:
            states.append("done")
        cells = (row.entry, f"{row.done}/{row.total}", mean, "; ".join(states))
        table.add_row(*map(Text, cells))
    return table


def _show(comparison: Comparison, intervals: bool, format: TableFormat) -> None:
    """Print the table of means (CSV has only this one), of differences, and of tuned options."""
    from rankgrad.results._comparison_tables import differences_table, table, tuned_table

    show_results(table(comparison, intervals=intervals), format)
    if format == "csv":
        return
    for each in (differences_table(comparison, comparison.metrics[0]), tuned_table(comparison)):
        if each.rows:
            print()
            show_results(each, format)
    if format == "terminal":
        print(f"\nRuns, evaluations and comparison.json are in {comparison.folder}")
