"""What commands print: tables for people, JSON for programs, notes on standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

    from rankgrad.results.tables import Table

TableFormat = Literal["terminal", "markdown", "latex", "csv"]
_WIDTH_WITHOUT_TERMINAL = 200  # columns: enough that nothing is cut off in files and pipes


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; without a terminal, wide enough for every table."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Console(stderr=stderr, width=width, highlight=False, markup=False)


@contextmanager
def progress_bar(task: str, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Show a progress bar on standard error, if that is a terminal.

    Args:
        task: the text beside the bar.
        quiet: show no bar on a terminal, either.

    Yields:
        The function that updates the bar: ``rich.progress.Progress.update`` of its task.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda **_: None
        return
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as bar:
        yield partial(bar.update, bar.add_task(task, total=None))


class Number(str):
    """The text of a numeric cell: a number, a range or a value with its error; ``-`` for none."""


def value_cell(value: float, digits: int = 4) -> Number:
    """The cell of a mean; ``undefined`` for NaN, the mean of a metric without any list."""
    return Number("undefined" if math.isnan(value) else f"{value:.{digits}f}")


def interval_cell(low: float, high: float, digits: int = 4) -> Number:
    """The cell of an interval; ``-`` if it is NaN."""
    return Number("-" if math.isnan(low) else f"{low:.{digits}f} to {high:.{digits}f}")


def show_json(value: Any) -> None:
    """Print a value as JSON; NaN and infinity become null."""
    print(json.dumps(_to_json(value), indent=2, ensure_ascii=False, allow_nan=False))


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    footer: Iterable[str] = (),
) -> None:
    """Print a table, and the lines of the footer under it.

    Args:
        columns: the heading of each column.
        rows: cells, which are shown as ``str`` of them. A column is right-aligned if all its cells
            are numbers or :class:`Number`.
        title: the line above the table.
        footer: the lines under it.
    """
    from rich.table import Table

    cells = [list(row) for row in rows]
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        is_numeric = cells and all(_is_number(row[index]) for row in cells)
        table.add_column(column, justify="right" if is_numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(str, row))
    out = console()
    out.print(table)
    for line in footer:
        out.print(line, soft_wrap=True)


def show_results(table: Table, format: TableFormat) -> None:
    """Print a table of results, and the notes on its numbers under it.

    CSV has no place for notes: they go to standard error.
    """
    if format == "terminal":
        console().print(table.to_rich())
        return
    print(table.render(format))
    for note in table.notes if format == "csv" else ():
        print(note, file=sys.stderr)


def show_notes(notes: Iterable[str]) -> None:
    """Print what the user should know about the data, on standard error."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def _is_number(cell: object) -> bool:
    return isinstance(cell, Number | int | float) and not isinstance(cell, bool)


def _to_json(value: Any) -> Any:
    """The value in types that JSON has: None for NaN and infinity, text for other objects."""
    if isinstance(value, dict):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)
