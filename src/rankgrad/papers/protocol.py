"""Protocols: how a paper made a table, and the numbers it prints, in one TOML file per table.

A file in ``protocols/`` states data, splits, preprocessing, model, optimizer, losses with
hyperparameters, metrics with conventions, the significance test and the published numbers. Where
the paper does not say how something was done, it states what was chosen here, and why. The classes
below are the sections of such a file. :mod:`.reproduce` runs it for ``rankgrad reproduce``, whose
options ``--quick`` and ``--extra`` are mentioned here.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rankgrad import significance
from rankgrad.data import catalog
from rankgrad.metrics import metrics as known_metrics
from rankgrad.specs import Spec
from rankgrad.text._text_settings import TextSettings
from rankgrad.training import Settings

__all__ = [
    "Cell",
    "Data",
    "Metric",
    "Protocol",
    "Row",
    "Significance",
    "Split",
    "of_paper",
    "protocols",
    "read",
]

_Fraction = Annotated[float, Field(gt=0, lt=1)]
_Count = Annotated[int, Field(ge=1)]
_NUMBER = re.compile(r"(-?\d+(?:\.(\d+))?)(.*)")


class _Section(BaseModel):
    """A section of a protocol's file; a key that its class does not have is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Split(_Section):
    """How the lists are divided, if the paper did not use the published parts as they are.

    Args:
        pool: whether to put all parts together before lists are drawn.
        test: the fraction of lists drawn for the test part; None for the published test part.
        vali: the fraction of the remaining training lists that is drawn for validation; None for
            the published validation part.
        repeats: how many times to draw; each drawing counts as a fold.
    """

    pool: bool = False
    test: _Fraction | None = None
    vali: _Fraction | None = None
    repeats: _Count = 1


class Data(_Section):
    """A data set of a table.

    Args:
        name: as in :data:`rankgrad.data.catalog.ENTRIES`, unless the set is not run.
        label: the paper's name for it.
        folds: to run; empty for a set without folds.
        seeds: the number of seeds for each fold.
        split: how the lists are divided; None for the published parts.
        list_limit: cut the lists of the validation and test parts to this many items, drawn at
            random; the setting ``list_size`` cuts those of the training part.
        test_lists: test on this many lists of the test part, drawn at random; None for all.
        settings: of training; they override those of the table.
        not_run: why this data set is not run; None if it is.
    """

    name: str
    label: str
    folds: tuple[int, ...] = ()
    seeds: _Count = 1
    split: Split | None = None
    list_limit: _Count | None = None
    test_lists: _Count | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    not_run: str | None = None


class Metric(_Section):
    """A column of the table.

    Args:
        name: as printed.
        spec: the metric with its conventions.
        shift: added to the labels before the metric is computed, as one paper's code does. Lists
            without a value before the shift have none after it.
        length: count only lists of this many items; None for all lists.
        printed: whether the paper prints it, or we added it for comparison.
    """

    name: str
    spec: str
    shift: int = 0
    length: _Count | None = None
    printed: bool = True

    @field_validator("spec")
    @classmethod
    def _canonical_spec(cls, spec: str) -> str:
        return str(known_metrics.get(spec))


class Row(_Section):
    """A row of the table: the best point of a grid, chosen on validation data.

    Args:
        name: as printed.
        losses: one, or several variants; each is combined with the grid.
        grid: the values to try of settings, and of options of the losses. Every combination is a
            point of the grid.
        settings: of training; they override those of the table and the data set.
        profile: a key of the table's ``profiles``, whose settings for a data set override all
            others.
        trees: ``lightgbm`` or ``xgboost`` in place of losses; ``settings`` are options of it.
        data: the data sets it is run on; empty for all.
        extra: whether we added it to the paper's rows; such rows are run only with ``--extra``.
        not_run: why this row is not run; None if it is.
    """

    name: str
    losses: tuple[str, ...] = ()
    grid: dict[str, tuple[float | int | str, ...]] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    profile: str | None = None
    trees: Literal["lightgbm", "xgboost"] | None = None
    data: tuple[str, ...] = ()
    extra: bool = False
    not_run: str | None = None


class Significance(_Section):
    """The paper's test of differences between rows.

    Args:
        test: a paired t-test, or a paired randomization test.
        against: the row that others are tested against: its name, or ``best`` of the column.
        sided: whether the test is one-sided or two-sided.
        level: below which a p-value is significant.
        correction: for the number of comparisons.
        worse: the paper's mark of a row that is significantly worse.
        better: the paper's mark of a row that is significantly better.
    """

    test: Literal["t", "randomization"] = "t"
    against: str = "best"
    sided: Literal["one", "two"] = "two"
    level: _Fraction = 0.05
    correction: Literal["none", "bonferroni", "holm"] = "none"
    worse: str = ""
    better: str = ""

    @property
    def how(self) -> significance.Significance:
        """The test as :func:`rankgrad.experiments.compare.run` takes it."""
        sides: Literal[1, 2] = 1 if self.sided == "one" else 2
        return significance.Significance(self.test, self.correction, sides, self.level)


_Named = TypeVar("_Named", Data, Row)


class _Choice(_Section):
    """What was chosen where the paper is silent or unclear, and why.

    Args:
        about: what the paper does not say.
        chosen: what is done here.
        why: the reason.
        data: the data sets it is about; empty for all.
        reduced: whether ``--quick`` does less than what was chosen.
    """

    about: str
    chosen: str
    why: str
    data: tuple[str, ...] = ()
    reduced: bool = False


class _Quick(_Section):
    """The numbers of folds, seeds, epochs and lists of each part that ``--quick`` runs."""

    folds: _Count = 1
    seeds: _Count = 1
    epochs: _Count = 5
    lists: _Count | None = None


@dataclass(frozen=True)
class Cell:
    """A printed number: its text, its value, how many decimals it has, and the marks after it.

    >>> Cell.of("0.412†")
    Cell(text='0.412†', value=0.412, decimals=3, marks='†')
    >>> Cell.of("-").value is None
    True
    """

    text: str
    value: float | None
    decimals: int
    marks: str

    @classmethod
    def of(cls, text: str) -> Cell:
        """Parse a cell; ``-`` is one that the paper leaves empty."""
        if text == "-":
            return cls(text, None, 0, "")
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no number with marks after it, nor '-'")
        return cls(text, float(match[1]), len(match[2] or ""), match[3])


class _Text(_Section):
    """How a table of text rankers is made, by ``rankgrad text train --protocol``.

    Args:
        depth: how many documents of the first stage are reranked for each query.
        folds: of the cross-validation over queries: one to test, one to validate, others to train.
        seeds: each loss is trained with each of them.
        field: the field of TREC topics that is the query.
        settings: of training; the losses are those of the rows.
    """

    depth: _Count
    folds: Annotated[int, Field(ge=3)]
    seeds: tuple[int, ...]
    field: Literal["title", "description", "narrative"] = "title"
    settings: dict[str, Any]


class Protocol(_Section):
    """A table of a paper, and how it was made.

    Args:
        paper: one of the five.
        table: its number in the paper, such as ``Table 1``.
        title: what the table shows.
        reference: the paper's authors, title and venue.
        url: of the paper.
        scale: by which metrics are multiplied before they are printed.
        not_run: why the table is not run; None if it is.
        settings: of training, for all rows.
        profiles: named groups of settings by data set, to which rows refer.
        data: the data sets.
        metrics: the columns.
        rows: in the paper's order.
        significance: the paper's test; None if it has none.
        quick: what ``--quick`` runs.
        choices: made here where the paper is silent.
        findings: what a reader of the table should know.
        text: how the rankers of a table about text are trained; None for other tables.
        published: by data set and row, the cells in the order of the printed metrics.
        name: of the file, without its suffix.
    """

    paper: Literal["neuralndcg", "smoothi", "comparison", "lambdaloss_at_k", "pirank"]
    table: str
    title: str
    reference: str
    url: str
    scale: float = 1.0
    not_run: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    profiles: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict)
    data: tuple[Data, ...]
    metrics: tuple[Metric, ...]
    rows: tuple[Row, ...]
    significance: Significance | None = None
    quick: _Quick = _Quick()
    choices: tuple[_Choice, ...]
    findings: tuple[str, ...] = ()
    text: _Text | None = None
    published: dict[str, dict[str, tuple[str, ...]]]
    name: str = ""

    def dataset(self, name: str) -> Data:
        """The data set of that name."""
        return _find(self.data, name, "data set")

    def row(self, name: str) -> Row:
        """The row of that name."""
        return _find(self.rows, name, "row")

    @property
    def printed(self) -> list[str]:
        """The names of the columns the paper prints."""
        return [metric.name for metric in self.metrics if metric.printed]

    def cell(self, data: str, row: str, metric: str) -> Cell | None:
        """What the paper prints for a metric; None if it has no such row or column."""
        cells = self.published.get(data, {}).get(row)
        if cells is None or metric not in self.printed:
            return None
        return Cell.of(cells[self.printed.index(metric)])

    def rows_on(self, data: str, *, extra: bool = False) -> list[Row]:
        """The rows of a data set; rows that we added only with ``extra``."""
        rows = [row for row in self.rows if not row.data or data in row.data]
        return [row for row in rows if extra or not row.extra]

    def grid_points(self, data: str, row: str, *, search: bool = True) -> list[dict[str, Any]]:
        """Every loss of a row with every combination of its grid, as settings of training.

        Without ``search``, only the first: the first loss with the first value of each option.
        """
        table_row = self.row(row)
        settings = self.settings | self.dataset(data).settings | table_row.settings
        if table_row.profile is not None:
            settings |= self.profiles[table_row.profile].get(data, {})
        points = []
        combinations = itertools.product(*table_row.grid.values())
        for loss, values in itertools.product(table_row.losses, combinations):
            point = dict(zip(table_row.grid, values, strict=True))
            in_training = {name: point[name] for name in point if name in Settings.model_fields}
            loss_options = {name: point[name] for name in point if name not in in_training}
            points.append(settings | in_training | {"loss": _with_options(loss, loss_options)})
        return points if search else points[:1]

    def check(self) -> None:
        """Raise if the contents are wrong in a way that types do not show."""
        names = [data.name for data in self.data]
        for section in (self.data, self.rows, self.metrics):
            section_names = [entry.name for entry in section]
            duplicates = {name for name in section_names if section_names.count(name) > 1}
            if duplicates:
                raise ValueError(f"{min(duplicates)!r} is there twice")
        for data in self.data:
            if data.not_run is None and self.not_run is None and data.name not in catalog.names():
                raise ValueError(
                    f"data: {data.name!r} is not in the catalog; there are "
                    f"{', '.join(catalog.names())}"
                )
        for choice in self.choices:
            for name in choice.data:
                if name not in names:
                    raise ValueError(f"choices.{choice.about}: there is no data set {name!r}")
        self._check_rows(names)
        self._check_text()
        self._check_published(names)
        against = None if self.significance is None else self.significance.against
        if against not in (None, "best"):
            self.row(str(against))  # raises if there is no such row

    def _check_rows(self, names: Sequence[str]) -> None:
        """Raise if a row names what does not exist, or its settings are wrong."""
        for row in self.rows:
            key = f"rows.{row.name}"
            if row.profile is not None and row.profile not in self.profiles:
                raise ValueError(f"{key}: there is no profile {row.profile!r}")
            if not row.losses and row.trees is None and row.not_run is None:
                raise ValueError(f"{key} has neither losses nor trees, nor says why it is not run")
            for name in row.data:
                if name not in names:
                    raise ValueError(f"{key}: there is no data set {name!r}")
            for name in row.data or names:
                try:
                    for settings in self.grid_points(name, row.name):
                        Settings(**settings)
                except ValueError as error:
                    raise ValueError(f"{key} on {name}: {error}") from None

    def _check_text(self) -> None:
        """Raise if the settings of text rankers are wrong."""
        if self.text is None:
            return
        for row in self.rows:
            for loss in row.losses:
                try:
                    TextSettings(**self.text.settings, loss=loss)
                except ValueError as error:
                    raise ValueError(f"text.settings with rows.{row.name}: {error}") from None

    def _check_published(self, names: Sequence[str]) -> None:
        """Raise if the published numbers are not one cell for each data set, row and metric."""
        if set(self.published) != set(names):
            raise ValueError(f"published has {', '.join(self.published)}, data {', '.join(names)}")
        for data, rows in self.published.items():
            expected = [row.name for row in self.rows_on(data)]
            if list(rows) != expected:
                raise ValueError(
                    f"published.{data} has the rows {', '.join(rows)}; expected "
                    f"{', '.join(expected)}"
                )
            for row, cells in rows.items():
                if len(cells) != len(self.printed):
                    raise ValueError(
                        f"published.{data}.{row} has {len(cells)} cells for "
                        f"{len(self.printed)} metrics"
                    )
                for cell in cells:
                    try:
                        Cell.of(cell)
                    except ValueError as error:
                        raise ValueError(f"published.{data}.{row}: {error}") from None


def read(path: Path) -> Protocol:
    """Read a protocol from its file.

    Args:
        path: of a TOML file; its stem is the name of the protocol.

    Returns:
        The protocol, checked.

    Raises:
        ValueError: the file is not TOML, or its contents are wrong; it names the key.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path.name} is not TOML: {error}") from None
    try:
        protocol = Protocol(**values | {"name": path.stem})
        protocol.check()
    except ValidationError as error:
        raise ValueError(f"{path.name}: {'; '.join(map(_describe, error.errors()))}") from None
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    return protocol


@cache
def protocols() -> Mapping[str, Protocol]:
    """All protocols that come with the package, by name.

    >>> protocols()["smoothi_table1"].cell("MQ2008", "SmoothI", "NDCG@5").text
    '0.477'
    """
    with resources.as_file(resources.files("rankgrad.papers") / "protocols") as files:
        return {path.stem: read(path) for path in sorted(files.glob("*.toml"))}


def of_paper(paper: str) -> list[Protocol]:
    """The protocols of a paper's tables.

    Args:
        paper: its name, such as ``neuralndcg``.

    Returns:
        Its protocols, sorted by name.
    """
    return [protocol for protocol in protocols().values() if protocol.paper == paper]


def _with_options(loss: str, options: Mapping[str, Any]) -> str:
    """The spec of a loss with further options; ``k`` is its cutoff."""
    if not options:
        return loss
    spec = Spec.parse(loss)
    others = {name: value for name, value in options.items() if name != "k"}
    return str(Spec(spec.name, options.get("k", spec.k), {**spec.options, **others}))


def _find(sections: Sequence[_Named], name: str, kind: str) -> _Named:
    """The section of a name; raises if there is none, with the names that exist."""
    for section in sections:
        if section.name == name:
            return section
    names = ", ".join(section.name for section in sections)
    raise ValueError(f"there is no {kind} {name!r}. There are: {names}")


def _describe(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors in words, with its key."""
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"there is no key {key}"
    if error["type"] == "missing":
        return f"{key} is missing"
    if error["type"] == "value_error":
        return f"{key}: {error['ctx']['error']}"
    return f"{key} {error['msg'].removeprefix('Input ')}, found {error['input']!r}"
