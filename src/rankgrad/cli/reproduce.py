"""``rankgrad reproduce``: runs the experiments of a paper's tables again, beside its numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rankgrad.cli._arguments import Workers
from rankgrad.cli._errors import interrupted_run
from rankgrad.cli._printing import TableFormat, console, show_json, show_results, show_table

if TYPE_CHECKING:
    from rankgrad.papers.protocol import Protocol
    from rankgrad.papers.reproduce import OnChange

_Paper = Literal["neuralndcg", "smoothi", "comparison", "lambdaloss_at_k", "pirank"]
_MAX_STATE = 70  # characters of the text beside a progress bar


def reproduce(
    paper: Annotated[_Paper | None, typer.Argument(metavar="PAPER", show_default=False)] = None,
    data: Annotated[Path | None, typer.Option(show_default=False)] = None,
    table: str | None = None,
    only: str | None = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER")] = Path("reproduced"),
    quick: bool = False,
    extra: bool = False,
    search: Annotated[bool, typer.Option("--search/--no-search")] = True,
    figures: bool = False,
    listed: Annotated[bool, typer.Option("--list")] = False,
    seeds: Annotated[int | None, typer.Option(min=1)] = None,
    workers: Workers = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    format: TableFormat = "terminal",
    json: bool = False,
) -> None:
    """Run a paper's tables under its own protocol, and print ours beside the published numbers.

    Data, splits, preprocessing, network, losses, metrics and the test of significance are the
    paper's; where it is silent, what was chosen is printed under the table. The same command goes
    on after Ctrl-C or a crash. Data sets that are not there are named with where to get them.

    Inputs:
        paper: Which paper; all for --list.

    Options:
        data: A data set the paper uses, or a folder with several of them.
        table: One table, such as smoothi_table1. [default: all of the paper]
        only: One data set, such as MQ2008. [default: all that are found]
        output: The folder of runs and tables.
        quick: A reduced version, to see that it runs: the table says so.
        extra: Also the rows of ours that are not in the paper.
        search: Among learning rates and variants, on validation data; else the first is taken.
        figures: The paper's figures instead of its tables.
        listed: What there is, which data it needs, and whether it is there.
        seeds: How many. [default: as the protocol says]
        device: auto is a GPU where there is one.
        format: Of the tables.

    \b
    Examples:
      rankgrad reproduce --list --data DATA
      rankgrad reproduce smoothi --data MQ2008 --quick
      rankgrad reproduce smoothi --data MQ2008 --only MQ2008 --extra -o out
      rankgrad reproduce comparison --data MQ2008 -o out --format markdown
      rankgrad reproduce neuralndcg --figures -o figures
    """  # noqa: D301
    from rankgrad.papers.protocol import protocols
    from rankgrad.papers.reproduce import RunOptions, run_tables

    tables = _choose_tables(paper, table)
    if listed:
        _show_list(tables or list(protocols().values()), data, json)
        return
    if paper is None:
        raise ValueError("say which paper, or --list for what there is")
    if figures:
        _write_figures(paper, data, output, quick, json)
        return
    options = RunOptions(quick, extra, seeds, search, {"device": device})
    try:
        with _progress() as show:
            results = run_tables(
                tables, data, output, options, only=only, workers=workers, on_change=show
            )
    except KeyboardInterrupt:
        raise interrupted_run(output) from None
    if json:
        show_json([result.to_json() for result in results])
    else:
        for result in results:
            if result.comparison is None:
                print(f"{result.title}: not run: {result.reason}\n", file=sys.stderr)
                continue
            show_results(result.table(), format)
            if format == "terminal":
                print()
        if format == "terminal":
            print(f"\nRuns and tables are in {output}")
    if any(result.comparison is not None and result.comparison.missing for result in results):
        raise typer.Exit(1)


def _choose_tables(paper: str | None, table: str | None) -> list[Protocol]:
    """The tables of a paper, or the one that is named; no tables without a paper."""
    from rankgrad.papers.protocol import of_paper

    if paper is None and table is not None:
        raise ValueError(f"say which paper has the table {table!r}: PAPER is missing")
    tables = [] if paper is None else of_paper(paper)
    if table is None:
        return tables
    matches = [protocol for protocol in tables if table in (protocol.name, protocol.table)]
    if not matches:
        names = ", ".join(protocol.name for protocol in tables)
        raise ValueError(f"there is no table {table!r}. There are: {names}")
    return matches


@contextmanager
def _progress() -> Iterator[OnChange]:
    """A function that shows progress: as bars on a terminal, else as a line per finished run."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    err = console(stderr=True)
    if not err.is_terminal:
        yield lambda title, progress: None if progress.event is None else err.print(progress.event)
        return
    with Progress(
        TextColumn("{task.description}", markup=False),  # specs have brackets
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} runs"),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(),
        console=err,
    ) as bars:
        tasks: dict[str, Any] = {}

        def show(title: str, progress: Any) -> None:
            total = sum(row.total for row in progress.rows)
            # Added here, not earlier: the column of counts cannot format an unknown total.
            if title not in tasks:
                tasks[title] = bars.add_task(title, total=total, state="")
            done = sum(row.done + row.failed for row in progress.rows)
            running = [f"{row.entry} {text}" for row in progress.rows for text in row.running]
            bars.update(
                tasks[title], completed=done, total=total, state="; ".join(running)[:_MAX_STATE]
            )

        yield show


def _show_list(tables: list[Protocol], data: Path | None, json: bool) -> None:
    """Print tables and figures, the data they need, and where these are."""
    from rankgrad.papers import _splits, figures

    if data is not None:
        _splits.check_exists(data)
    names = [dataset.name for table in tables for dataset in table.data]
    paths = {} if data is None else _splits.find(data, names)
    entries: list[tuple[Any, ...]] = []  # paper, name, what it is, data, their path, why not run
    for table in tables:
        what = f"{table.table}: {table.title}"
        for dataset in table.data:
            path, not_run = paths.get(dataset.name), table.not_run or dataset.not_run
            entries.append((table.paper, table.name, what, dataset.name, path, not_run))
    for figure in figures.FIGURES.values():
        if figure.paper in {table.paper for table in tables}:
            drawn_from = (figure.needs, "built in", None)
            entries.append((figure.paper, figure.name, figure.title, *drawn_from))
    columns = ("paper", "name", "what", "data")
    if json:
        keys = (*columns, "there", "not_run")
        show_json([dict(zip(keys, entry, strict=True)) for entry in entries])
        return
    rows, missing_notes, not_run_notes = [], [], []
    for paper, name, what, needed, path, not_run in entries:
        where = path or "not found"
        if not_run:
            where = "not run here"
            not_run_notes.append(f"{name} is not run here: {not_run}")
        elif not path:
            missing_notes.append(_splits.missing(needed, data))
        rows.append((paper, name, what, needed, where))
    show_table((*columns, "where"), rows, footer=dict.fromkeys([*missing_notes, *not_run_notes]))


def _write_figures(paper: str, data: Path | None, output: Path, quick: bool, json: bool) -> None:
    """Make the figures of a paper, and print the files written."""
    from rankgrad.papers import figures

    written = []
    for figure in figures.of_paper(paper):
        print(f"{figure.name}: {figure.title} ...", file=sys.stderr)
        written.append(figures.write(figure, output, data=data, quick=quick))
    if not written:
        raise ValueError(f"no figures of {paper} are made. There are: {', '.join(figures.FIGURES)}")
    if json:
        show_json([{key: str(path) for key, path in files.items()} for files in written])
        return
    for files in written:
        print(f"{files['html']}  (numbers in {files['csv'].name})")
