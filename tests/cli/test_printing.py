"""The tables that commands print."""

from __future__ import annotations

import pytest

from rankgrad.cli._printing import Number, show_table


def test_columns_are_aligned_by_the_type_of_their_cells(capsys: pytest.CaptureFixture[str]) -> None:
    """Names that look like numbers are text; ranges, blanks and "< 0.0001" may be numbers."""
    columns = ("feature", "column", "95% interval", "p value")
    rows = [
        ("1", 7, Number("-1.00 to 1.00"), Number("0.5000")),
        ("12", 1234, Number("-"), Number("")),
        ("3", 56, Number("0.25"), Number("< 0.0001")),
    ]
    show_table(columns, rows)
    lines = capsys.readouterr().out.splitlines()[3:-1]
    assert [[cell[1:-1] for cell in line.strip("│").split("│")] for line in lines] == [
        ["1      ", "     7", "-1.00 to 1.00", "  0.5000"],
        ["12     ", "  1234", "            -", "        "],
        ["3      ", "    56", "         0.25", "< 0.0001"],
    ]
