"""``rankgrad demo``: what rankgrad does, shown on data it makes itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rankgrad.cli.arguments import Json
from rankgrad.cli.printing import console, show_json, show_table

if TYPE_CHECKING:
    from rankgrad.experiments.demo import Demo, Row

REPORT = "report.html"


def demo(
    size: Annotated[
        Literal["small", "medium", "web30k"],
        typer.Option(help="1,000 training queries for two cores; WEB10K's or WEB30K's for a GPU."),
    ] = "small",
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="A folder for the run folders and the report; an earlier demonstration's is "
            "replaced.",
        ),
    ] = Path("rankgrad-demo"),
    epochs: Annotated[int | None, typer.Option(help="At most, for each loss.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of the data and of everything random.", min=0)] = 0,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto is a GPU where there is one.")
    ] = "auto",
    json: Json = False,
) -> None:
    """Train one model with five losses on a simulated search log, and compare them.

    Pointwise, pairwise, likelihood and two direct metric losses, beside the best achievable, which
    is known because the data are simulated. No download, no GPU, under four minutes on two cores.
    At the end there is a report to open in a browser.

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
    total = experiment.settings_for(size, **options).epochs
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
            loss: bars.add_task(loss, total=total, start=False, value="")
            for loss in experiment.LOSSES
        }

        def show(loss: str, line: dict[str, float]) -> None:
            bars.start_task(tasks[loss])
            value = f"validation ndcg@10 {line['ndcg@10']:.4f}"
            bars.update(tasks[loss], completed=line["epoch"], value=value)
            if not err.is_terminal and line["epoch"] == total:
                err.print(f"{loss}: {value}")

        found = experiment.run(size, folder=output, on_epoch=show, **options)
    page = output / REPORT
    report.write([output], page, title="Five losses on a simulated search log")
    if json:
        show_json({**_summary(found), "report": str(page)})
    else:
        _show(found, size, page)


def _summary(found: Demo) -> dict[str, Any]:
    return {
        "rows": [
            {
                "loss": row.loss,
                "kind": row.kind,
                "mean": row.mean,
                "interval95": row.interval,
                "best_epoch": row.best_epoch,
                "seconds": row.seconds,
            }
            for row in found.rows
        ],
        "settings": found.settings.model_dump(mode="json", exclude={"loss"}),
        "conventions": found.conventions,
        "seconds": found.seconds,
    }


def _show(found: Demo, size: str, page: Path) -> None:
    test, settings = found.data["test"], found.settings
    names = list(found.rows[0].mean)
    show_table(
        ("loss", "kind", *names, "seconds"),
        [_cells(row, names) for row in found.rows],
        title=f"{len(test):,} test queries, {test.n_items:,} pages, {settings.model}",
        under=[
            f"± half the 95% bootstrap interval; {found.conventions[0]}",
            *found.conventions[1:],
            f"{found.seconds:.0f} seconds in all. The epoch with the best validation "
            f"{settings.metric} is taken.",
            "",
            "Next:",
            "  rankgrad train DATA --loss neural_ndcg@10 -o runs/first     on your own data",
            "  rankgrad evaluate runs/first DATA                           with exact metrics",
            "  rankgrad losses                                             what else there is",
            *_larger(size),
            "",
            f"The run folders and a report are in {page.parent}. Open the report in a browser:",
            f"  {page.resolve().as_uri()}",
        ],
    )


def _larger(size: str) -> list[str]:
    if size == "web30k":
        return []
    return ["  rankgrad demo --size web30k --device cuda                   the same at full size"]


def _cells(row: Row, names: list[str]) -> list[str]:
    values = [
        f"{row.mean[name]:.4f} ±{(row.interval[name].high - row.interval[name].low) / 2:.3f}"
        for name in names
    ]
    return [row.loss, row.kind, *values, "-" if row.seconds is None else f"{row.seconds:.1f}"]
