"""``rankgrad demo``: trains with five losses on simulated data, and compares them.

The work is done by :mod:`rankgrad.experiments.demo`; this shows its progress and its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rankgrad.cli._printing import Number, console, show_json, show_table

if TYPE_CHECKING:
    from rankgrad.experiments.demo import Demo
    from rankgrad.results._groups import RunGroup
    from rankgrad.results.comparison import Comparison
    from rankgrad.training import FitResult

_REPORT = "report.html"


def demo(
    size: Literal["small", "medium", "web30k"] = "small",
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("rankgrad-demo"),
    epochs: Annotated[int | None, typer.Option(min=1)] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
) -> None:
    """Train one model with five losses on a simulated search log, and compare them.

    Pointwise, pairwise, likelihood and two direct metric losses, beside a reference row: the best
    achievable ranking, which is known because the data are simulated. No download. At size small:
    no GPU, under four minutes on two cores. At the end there is a report to open in a browser.

    Options:
        size: small: 1,000 training queries, for two cores; medium and web30k: as many as WEB10K
            and WEB30K have, for a GPU.
        output: A folder for the run folders and the report; an earlier demonstration's is replaced.
        epochs: The most epochs for each loss; by default, that of the size.
        seed: Of the data and of everything random.
        device: auto is a GPU where there is one.

    \b
    Examples:
      rankgrad demo
      rankgrad demo --size web30k --device cuda
      rankgrad demo --output runs/demo
    """  # noqa: D301
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from rankgrad import report
    from rankgrad.experiments import demo as experiment

    options: dict[str, Any] = {"seed": seed, "device": device}
    if epochs is not None:
        options["epochs"] = epochs
    settings = experiment.settings_for(size, **options)
    err = console(stderr=True)
    err.print(f"Simulating a search log ({size}) ...")
    with Progress(
        TextColumn("{task.description:<16}"),
        BarColumn(),
        TextColumn("epoch {task.completed:>2.0f}/{task.total:.0f}  {task.fields[value]}"),
        TimeElapsedColumn(),
        console=err,
    ) as bars:
        tasks = {
            loss: bars.add_task(loss, total=settings.epochs, start=False, value="")
            for loss in experiment.LOSSES
        }

        def on_start(loss: str) -> None:
            bars.start_task(tasks[loss])

        def on_epoch(loss: str, values: dict[str, float]) -> None:
            value = f"validation {settings.metric} {values[settings.metric]:.4f}"
            bars.update(tasks[loss], completed=values["epoch"], value=value)

        def on_fit(loss: str, fitted: FitResult) -> None:
            stopped_early = fitted.stopped == "patience"
            end = f", stopped early after epoch {len(fitted.history)}" if stopped_early else ""
            value = f"best validation {settings.metric} {fitted.best_value:.4f}{end}"
            bars.update(tasks[loss], value=value)
            bars.stop_task(tasks[loss])  # or its clock would go on while other losses train
            if not err.is_terminal:  # the bars are not shown
                err.print(f"{loss}: {value}")

        result = experiment.run(
            size, folder=output, on_start=on_start, on_epoch=on_epoch, on_fit=on_fit, **options
        )
    page = output / _REPORT
    report.write([output], page, title=f"{len(experiment.LOSSES)} losses on a simulated search log")
    if json:
        show_json({**_to_json(result), "report": str(page)})
    else:
        _show(result, size, page)


def _to_json(result: Demo) -> dict[str, Any]:
    from rankgrad.experiments.demo import BEST, LOSSES  # LOSSES: the kind of each loss, by its name

    comparison = result.comparison
    return {
        "rows": [
            {
                "loss": entry.name,
                "kind": LOSSES.get(entry.name, BEST),  # the reference row is not a loss
                "mean": {m: comparison.mean(entry.name, m) for m in comparison.metrics},
                "interval95": {m: comparison.interval(entry.name, m) for m in comparison.metrics},
                "best_epoch": entry.runs[0].best_epoch,
                "seconds": entry.seconds,
            }
            for entry in comparison.entries
        ],
        "settings": result.settings.model_dump(mode="json", exclude={"loss"}),
        "conventions": comparison.conventions,
        "seconds": result.seconds,
    }


def _show(result: Demo, size: str, page: Path) -> None:
    comparison, test, settings = result.comparison, result.data["test"], result.settings
    best_loss = comparison.best(settings.metric)
    full_size = _command_line("demo --size web30k --device cuda", "the same at full size")
    show_table(
        ("loss", "kind", *comparison.metrics, "seconds"),
        [_table_row(comparison, entry) for entry in comparison.entries],
        title=f"{len(test):,} test queries, {test.n_items:,} pages, {settings.model}",
        footer=[
            f"± half the 95% bootstrap interval; {comparison.conventions[0]}",
            *comparison.conventions[1:],
            f"{result.seconds:.0f} seconds in all. The epoch with the best validation "
            f"{settings.metric} is taken.",
            "",
            "list: the pages of one query; a ranker sorts each list by its scores",
            "metric: how good the order of a list is; 1 is the best order there is",
            "loss: what training makes smaller, and all that differs between the trained rows",
            "",
            f"{best_loss} did best here by {settings.metric}. Next:",
            _command_line("train DATA -o runs/first", "on your own data"),
            _command_line("evaluate runs/first DATA", "with exact metrics"),
            _command_line('compare DATA --losses "softmax, lambdaloss@10"', "which loss wins"),
            _command_line("losses", "what else there is"),
            *([] if size == "web30k" else [full_size]),
            "",
            "Which loss? Leave it to train: it takes softmax, or ordered_logit for grades on many",
            "items. lambdaloss@10 is as good for NDCG on thousands of lists. Direct losses lose on",
            "such data: most of their gradient is on the few items near the top. On small data of",
            "another kind some were ahead. What was measured, and why: docs/results/direct.md.",
            "",
            f"The run folders and a report are in {page.parent}. Open the report in a browser:",
            f"  {page.resolve().as_uri()}",
        ],
    )


def _command_line(command: str, purpose: str) -> str:
    return f"  rankgrad {command:<50} {purpose}"


def _table_row(comparison: Comparison, entry: RunGroup) -> Sequence[object]:
    from rankgrad.experiments.demo import LOSSES  # the kind of each loss, by its name

    values = []
    for metric in comparison.metrics:
        low, high = comparison.interval(entry.name, metric)
        values.append(f"{comparison.mean(entry.name, metric):.4f} ±{(high - low) / 2:.3f}")
    # JSON repeats the name of the reference row as its kind; the table says where it comes from.
    kind = LOSSES.get(entry.name, "reference: known, as the data are simulated")
    values.append("-" if entry.seconds is None else f"{entry.seconds:.1f}")
    return (entry.name, kind, *map(Number, values))
