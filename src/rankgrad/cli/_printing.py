"""What commands print: tables for people, JSON for machines."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from rankgrad.results.tables import Table

_WIDE = 200  # columns without a terminal, so that nothing is cut off


def console(*, stderr: bool = False) -> Console:
    """Where text goes: as wide as the terminal, or wide enough for all text without a terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDE
    return Console(stderr=stderr, width=width, highlight=False, markup=False)


@contextmanager
def progress_bar(task: str, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A bar on the terminal, and the function that updates it; without a terminal it shows nothing.

    Args:
        task: what is done.
        quiet: show nothing on a terminal, either.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda **_: None
        return
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as bar:
        yield partial(bar.update, bar.add_task(task, total=None))


def show_json(value: Any) -> None:
    """Print a value as JSON; NaN and infinity become null."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    under: Iterable[str] = (),
) -> None:
    """Print a table with lines under it; columns of numbers are right-aligned."""
    from rich.table import Table

    texts = [[str(cell) for cell in row] for row in rows]
    table = Table(title=title, title_justify="left")
    for at, column in enumerate(columns):
        numeric = texts and all(_is_number(row[at]) for row in texts)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in texts:
        table.add_row(*row)
    out = console()
    out.print(table)
    for line in under:
        out.print(line, soft_wrap=True)


def show_results(table: Table) -> None:
    """Print a table of results, with what its numbers mean under it."""
    console().print(table.to_rich())


def show_csv(table: Table) -> None:
    """Print a table as CSV, which is rows alone; its notes go to standard error."""
    print(table.to_csv())
    for note in table.notes:
        print(note, file=sys.stderr)


def show_notes(notes: Iterable[str]) -> None:
    """Say on standard error what a person should know of the data."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def _is_number(text: str) -> bool:
    """Whether a cell is a number, a range of them, one with its error, or none."""
    return re.fullmatch(r"-|[+-]?[\d.,]+(( to |\s±)[+-]?[\d.,]+)?", text) is not None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(inside) for name, inside in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inside) for inside in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)
