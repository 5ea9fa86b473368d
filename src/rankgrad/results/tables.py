"""Tables of results: one object, printed for terminals, Markdown, LaTeX and CSV.

``_comparison_tables`` and :mod:`rankgrad.papers.reproduce` make tables; commands print them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rankgrad import _files
from rankgrad._validation import check_choice

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["BETTER", "WORSE", "Cell", "Table"]

_Format = Literal["markdown", "latex", "csv"]
WORSE, BETTER = "†", "‡"  # marks of significant differences

_LATEX = {  # how each character is written in LaTeX
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "×": r"$\times$",
    "±": r"$\pm$",
    WORSE: r"$^{\dagger}$",
    BETTER: r"$^{\ddagger}$",
}


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Args:
        text: what is shown.
        value: its number, which CSV prints with all digits.
        bold: whether it is the best of its column.
        mark: daggers after the text.
        missing: whether there is no value; a note under the table says why.
    """

    text: str
    value: float | None = None
    bold: bool = False
    mark: str = ""
    missing: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns, with lines under the table that say what the numbers mean.

    The first column names the row.

    >>> from rankgrad.results.tables import Cell, Table
    >>> table = Table(
    ...     columns=("loss", "ndcg@5"),
    ...     rows=(
    ...         (Cell("mse"), Cell("0.451", mark="†")),
    ...         (Cell("softmax"), Cell("0.470", bold=True)),
    ...     ),
    ...     notes=("† significantly worse",),
    ... )
    >>> print(table.to_markdown())
    | loss | ndcg@5 |
    |:--|--:|
    | mse | 0.451† |
    | softmax | **0.470** |
    <BLANKLINE>
    † significantly worse
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    title: str = ""
    #: Columns that get a column of marks in CSV even if no cell has a mark.
    marked: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"a row has {len(row)} cells under {len(self.columns)} columns: {row[0].text!r}"
                )

    def render(self, format: _Format) -> str:
        """The table as text in one of the formats.

        Args:
            format: ``"markdown"``, ``"latex"`` or ``"csv"``.

        Returns:
            The text.

        Raises:
            ValueError: the format is none of these.
        """
        writers = {"markdown": self.to_markdown, "latex": self.to_latex, "csv": self.to_csv}
        check_choice("format", format, tuple(writers))
        return writers[format]()

    def to_markdown(self) -> str:
        """A Markdown table, as GitHub renders it.

        Returns:
            The title, the table and its notes.
        """
        lines = [f"**{_markdown(self.title)}**", ""] if self.title else []
        lines.append(_markdown_row(map(_markdown, self.columns)))
        lines.append(_markdown_row([":--", *["--:"] * (len(self.columns) - 1)], ""))
        for row in self.rows:
            lines.append(_markdown_row(_markdown_cell(cell) for cell in row))
        if self.notes:
            # Two spaces at the end of a line keep the next one from joining it.
            lines += ["", "  \n".join(map(_markdown, self.notes))]
        return "\n".join(lines)

    def to_latex(self) -> str:
        """A LaTeX table, which needs the booktabs package.

        Returns:
            A ``table`` environment with the title as its caption.
        """
        lines = [r"\begin{table}", r"\centering"]
        if self.title:
            lines.append(rf"\caption{{{_latex(self.title)}}}")
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", r"\toprule"]
        lines += [_latex_row(map(_latex, self.columns)), r"\midrule"]
        lines += [_latex_row(_latex_cell(cell) for cell in row) for row in self.rows]
        lines += [r"\bottomrule", r"\end{tabular}"]
        if self.notes:
            notes = r" \\ ".join(map(_latex, self.notes))
            lines += ["", rf"\smallskip\parbox{{\linewidth}}{{\footnotesize {notes}}}"]
        return "\n".join([*lines, r"\end{table}"])

    def to_csv(self) -> str:
        """CSV with all digits of numbers, and marks in columns of their own.

        It has no notes: programs that read CSV would take them for rows.

        Returns:
            The header and a line for each row, without a newline at the end.
        """
        needs_mark_column = [
            column in self.marked or any(row[index].mark for row in self.rows)
            for index, column in enumerate(self.columns)
        ]
        header: list[str] = []
        for column, has_marks in zip(self.columns, needs_mark_column, strict=True):
            name = column or "line"  # what CSV calls a column without a heading
            header += [name, f"{name} mark"] if has_marks else [name]
        lines: list[list[str]] = [[] for _ in self.rows]
        for line, row in zip(lines, self.rows, strict=True):
            for cell, has_marks in zip(row, needs_mark_column, strict=True):
                text = cell.text if cell.value is None else repr(cell.value)
                line += ["" if cell.missing else text, *([cell.mark] if has_marks else [])]
        return _files.csv_text(header, lines).rstrip("\n")

    def to_rich(self) -> Group:
        """The table and its notes for a terminal, to be printed by rich.

        Returns:
            The table, then the text of each note.
        """
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        rich_table = RichTable(title=self.title or None, title_justify="left")
        # Numbers without a mark get spaces in its place, so that the digits of a column align.
        # Columns are padded here because rich's right alignment would drop these spaces.
        texts = [[cell.text for cell in row] for row in self.rows]  # [rows][columns]
        for index, column in enumerate(self.columns):
            mark_width = max((len(row[index].mark) for row in self.rows), default=0)
            for row, row_texts in zip(self.rows, texts, strict=True):
                row_texts[index] += row[index].mark.ljust(mark_width)
            width = max(map(len, [column, *(row_texts[index] for row_texts in texts)]))
            rich_table.add_column(Text(column.rjust(width) if index else column), overflow="fold")
            for row_texts in texts:
                row_texts[index] = row_texts[index].rjust(width) if index else row_texts[index]
        for row, row_texts in zip(self.rows, texts, strict=True):
            styles = ("bold" if cell.bold else "dim" if cell.missing else "" for cell in row)
            rich_table.add_row(*map(Text, row_texts, styles))
        return Group(rich_table, *(Text(note) for note in self.notes))


def _latex(text: str) -> str:
    r"""Text with LaTeX's special characters escaped.

    >>> from rankgrad.results.tables import _latex
    >>> print(_latex("neural_ndcg@10 †"))
    neural\_ndcg@10 $^{\dagger}$
    """
    return "".join(_LATEX.get(character, character) for character in text)


def _markdown(text: str) -> str:
    """Text in one line, with Markdown's special characters escaped."""
    return re.sub(r"([\\|*<])", r"\\\1", " ".join(text.splitlines()))


def _markdown_cell(cell: Cell) -> str:
    text, mark = _markdown(cell.text), _markdown(cell.mark)
    return f"**{text}**{mark}" if cell.bold else f"{text}{mark}"


def _latex_cell(cell: Cell) -> str:
    text = _latex(cell.text)
    return (rf"\textbf{{{text}}}" if cell.bold else text) + _latex(cell.mark)


def _markdown_row(cells: Iterable[str], space: str = " ") -> str:
    return f"|{space}" + f"{space}|{space}".join(cells) + f"{space}|"


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
