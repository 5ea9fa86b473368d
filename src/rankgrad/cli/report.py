"""``rankgrad report``: writes one HTML page about run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

import rankgrad
from rankgrad.cli._printing import show_notes


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...")],
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("report.html"),
    part: str = "test",
    metric: Annotated[str | None, typer.Option("--metric", "-m")] = None,
    baseline: str | None = None,
    test: Annotated[str | None, typer.Option(metavar="[t|randomization]")] = None,
    correction: Literal["holm", "bonferroni", "none"] | None = None,
    title: str = "Ranking report",
    overwrite: bool = False,
) -> None:
    """Write one page about runs: what won, by how much, how it learned, and on which queries.

    The page needs no network and no server: open it in a browser, or send it to someone. Runs are
    compared on their evaluations, which `rankgrad compare` makes, and `rankgrad evaluate RUN DATA
    --save`; those that have none are listed as missing.

    Inputs:
        runs: Run folders, or folders that hold run folders at any depth, such as those of `rankgrad
            compare`.

    Options:
        output: The page to write.
        part: Which evaluations to compare, by the part of the data.
        metric: The metric of the headline. [default: the one that chose the best epochs]
        baseline: The ranker that the others are tested against. [default: that of `rankgrad
            compare`, or the best, for each metric]
        test: The paired test on per-query values. [default: that of `rankgrad compare`, or t]
        correction: For the number of rankers. [default: that of `rankgrad compare`, or bonferroni]
        title: Of the page.

    \b
    Examples:
      rankgrad report runs/
      rankgrad report runs/mse runs/neural -o report.html --overwrite
      rankgrad report comparison/ --baseline lightgbm --metric ndcg@5
    """  # noqa: D301
    from rankgrad import _files
    from rankgrad.report._sections import counted, rivals

    if output.is_file() and not overwrite and not _files.is_written_in_place(output):
        raise FileExistsError(f"{output} is there already: give --overwrite to replace it")
    comparison = rankgrad.report.write(
        runs,
        output,
        part=part,
        metric=metric,
        baseline=baseline,
        test=cast("rankgrad.significance.Test | None", test),
        correction=correction,
        title=title,
    )
    competing = rivals(comparison)
    n_runs = sum(len(entry.runs) for entry in competing)
    counts = f"{counted(len(competing), 'rankers')}, {counted(n_runs, 'runs')}"
    if _files.is_written_in_place(output):  # the reader of a pipe gets the page alone
        typer.echo(f"{output}: {counts}", err=True)
    else:
        typer.echo(f"{output}: {counts}, {output.stat().st_size / 1e6:.1f} MB")
        typer.echo(f"Open it in a browser: {output.resolve().as_uri()}")
    show_notes(f"{entry.name}: {text}" for entry in comparison.entries for text in entry.problems)
