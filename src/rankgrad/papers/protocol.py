"""Protocols: what a paper did to get a table, and the table, in one TOML file each.

The files in ``protocols/`` say the data, splits, preprocessing, model, optimizer, losses
with hyper-parameters, metrics with conventions, the significance test, the published numbers as
printed, and where the paper is silent, what was chosen and why.
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

_Share = Annotated[float, Field(gt=0, lt=1)]
_Count = Annotated[int, Field(ge=1)]
_NUMBER = re.compile(r"(-?\d+(?:\.(\d+))?)(.*)")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Split(_Part):
    """How the lists are divided, where the paper did not take the parts as they come.

    Args:
        pool: put all parts together before anything is drawn.
        test: the share of lists drawn for the test part; None for the published one.
        vali: the share of the lists left for training that is drawn for validation.
        repeats: how many times to draw; each drawing counts as a fold.
    """

    pool: bool = False
    test: _Share | None = None
    vali: _Share | None = None
    repeats: _Count = 1


class Data(_Part):
    """A data set of a table.

    Args:
        name: in :data:`rankgrad.data.catalog.ENTRIES`, or of a set that is not read here.
        label: as the paper calls it.
        folds: those that are run; none where the set has none.
        seeds: how many for each fold.
        split: how the lists are divided again.
        list_limit: cut every list, in the test part too, to this many items drawn at random.
        test_lists: this many lists of the test part, drawn at random.
        settings: of training, beside those of the table.
        not_run: why this data set is not run.
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


class Metric(_Part):
    """A column of the table.

    Args:
        name: as printed.
        spec: the metric with its conventions.
        shift: added to the labels before the metric is computed, as one paper's code does. Which
            lists are empty is decided before.
        length: of the lists that count; None for all.
        printed: whether the paper prints it; others are ours, for comparison.
    """

    name: str
    spec: str
    shift: int = 0
    length: _Count | None = None
    printed: bool = True

    @field_validator("spec")
    @classmethod
    def _spec(cls, spec: str) -> str:
        return str(known_metrics.get(spec))


class Row(_Part):
    """A row of the table: points, of which the best on validation data is taken.

    Args:
        name: as printed.
        losses: one, or several variants.
        grid: settings, and options of the losses, with the values tried: every combination is a
            point.
        settings: of training, beside those of the table and the data set.
        profile: a name in the table's profiles.
        trees: ``lightgbm`` or ``xgboost`` in place of losses; the settings are options of it.
        data: the data sets it is run on; none for all.
        extra: whether it is ours, not the paper's; such rows are run when asked for.
        not_run: why this row is not run.
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


class Significance(_Part):
    """The paper's test of differences between rows.

    Args:
        against: ``best`` of the column, or the name of a row.
        sided: one or two.
        level: what a p-value must fall below.
        correction: for several comparisons.
        worse: the mark of a row significantly worse.
        better: the mark of a row significantly better.
    """

    test: Literal["t", "randomization"] = "t"
    against: str = "best"
    sided: Literal["one", "two"] = "two"
    level: _Share = 0.05
    correction: Literal["none", "bonferroni", "holm"] = "none"
    worse: str = ""
    better: str = ""

    @property
    def how(self) -> significance.Significance:
        """The test as comparisons take it."""
        sides: Literal[1, 2] = 1 if self.sided == "one" else 2
        return significance.Significance(self.test, self.correction, sides, self.level)


_Named = TypeVar("_Named", Data, Row)


class _Choice(_Part):
    """Where the paper is silent or unclear, what was chosen, and why.

    Args:
        data: the data sets it is about; none for all.
        reduced: whether it does not hold for ``--quick``, which has less of it.
    """

    about: str
    chosen: str
    why: str
    data: tuple[str, ...] = ()
    reduced: bool = False


class _Quick(_Part):
    """What ``--quick`` reduces."""

    folds: _Count = 1
    seeds: _Count = 1
    epochs: _Count = 5
    lists: _Count | None = None


@dataclass(frozen=True)
class Cell:
    """A number as printed: its value, its decimals and the marks after it.

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
        """Read a cell; ``-`` is one that the paper leaves empty."""
        if text == "-":
            return cls(text, None, 0, "")
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no number with marks after it, nor '-'")
        return cls(text, float(match[1]), len(match[2] or ""), match[3])


@dataclass(frozen=True)
class _GridPoint:
    """One way to get a row: a loss and settings beside those of the data set."""

    loss: str
    settings: Mapping[str, Any]


class _Text(_Part):
    """How a table of text rankers is made, by ``rankgrad text train --protocol``.

    Args:
        depth: points of the first stage for each query.
        folds: of the cross-validation by query.
        seeds: of all runs.
        field: of TREC topics that is the query.
        settings: of the text trainings; the losses are those of the rows.
    """

    depth: _Count
    folds: Annotated[int, Field(ge=3)]
    seeds: tuple[int, ...]
    field: Literal["title", "description", "narrative"] = "title"
    settings: dict[str, Any]


class Protocol(_Part):
    """A table of a paper, and how it came about.

    Args:
        paper: one of the five.
        table: as the paper counts them.
        title: what the table shows.
        reference: the paper.
        url: where it is.
        scale: what metrics are multiplied by before they are printed.
        settings: of training, for all rows.
        profiles: further settings by data set, which rows refer to by name.
        published: by data set and row, the cells in the order of the printed metrics.
        findings: what a reader of the table should know.
        text: how the rankers of a table about text are trained.
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
        return _named(self.data, name, "data set")

    def row(self, name: str) -> Row:
        """The row of that name."""
        return _named(self.rows, name, "row")

    @property
    def printed(self) -> list[str]:
        """The names of the columns the paper prints."""
        return [metric.name for metric in self.metrics if metric.printed]

    def cell(self, data: str, row: str, metric: str) -> Cell | None:
        """What the paper prints there; None where it has no such row or column."""
        cells = self.published.get(data, {}).get(row)
        if cells is None or metric not in self.printed:
            return None
        return Cell.of(cells[self.printed.index(metric)])

    def rows_on(self, data: str, *, extra: bool = False) -> list[Row]:
        """The rows that a data set has; those of ours on demand."""
        rows = [row for row in self.rows if not row.data or data in row.data]
        return [row for row in rows if extra or not row.extra]

    def grid_points(self, data: str, row: str, *, search: bool = True) -> list[_GridPoint]:
        """Every loss of a row with every combination of its grid, and the settings of each.

        Without ``search`` the first loss with the first value of everything, alone.
        """
        found = self.row(row)
        settings = self.settings | self.dataset(data).settings | found.settings
        if found.profile is not None:
            settings |= self.profiles[found.profile].get(data, {})
        points = []
        for loss in found.losses:
            for values in itertools.product(*found.grid.values()):
                chosen = dict(zip(found.grid, values, strict=True))
                of_settings = {k: v for k, v in chosen.items() if k in Settings.model_fields}
                options = {k: v for k, v in chosen.items() if k not in of_settings}
                points.append(_GridPoint(_with(loss, options), settings | of_settings))
        return points if search else points[:1]

    def check(self) -> None:
        """Raise if the contents are wrong in a way that types do not show."""
        names = [data.name for data in self.data]
        for part in (names, [row.name for row in self.rows], [m.name for m in self.metrics]):
            twice = {name for name in part if part.count(name) > 1}
            if twice:
                raise ValueError(f"{min(twice)!r} is there twice")
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
            self.row(str(against))

    def _check_rows(self, names: Sequence[str]) -> None:
        for row in self.rows:
            at = f"rows.{row.name}"
            if row.profile is not None and row.profile not in self.profiles:
                raise ValueError(f"{at}: there is no profile {row.profile!r}")
            if not row.losses and row.trees is None and row.not_run is None:
                raise ValueError(f"{at} has neither losses nor trees, nor says why it is not run")
            for name in row.data:
                if name not in names:
                    raise ValueError(f"{at}: there is no data set {name!r}")
            for name in row.data or names:
                for point in self.grid_points(name, row.name):
                    try:
                        Settings(**dict(point.settings) | {"loss": point.loss})
                    except ValueError as error:
                        raise ValueError(f"{at} on {name}: {error}") from None

    def _check_text(self) -> None:
        if self.text is None:
            return
        for row in self.rows:
            try:
                TextSettings(**self.text.settings, loss=row.losses[0])
            except ValueError as error:
                raise ValueError(f"text.settings with rows.{row.name}: {error}") from None

    def _check_published(self, names: Sequence[str]) -> None:
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
    """A protocol from its file; an error names the file and the key.

    Args:
        path: of a TOML file; its name is that of the protocol.

    Returns:
        The protocol, checked.

    Raises:
        ValueError: the file is not TOML, or its contents are wrong.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path.name} is not TOML: {error}") from None
    try:
        protocol = Protocol(**values | {"name": path.stem})
        protocol.check()
    except ValidationError as error:
        raise ValueError(f"{path.name}: {'; '.join(map(_sentence, error.errors()))}") from None
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    return protocol


@cache
def protocols() -> Mapping[str, Protocol]:
    """All protocols that come with the package, by name.

    >>> protocols()["smoothi_table1"].cell("MQ2008", "SmoothI", "NDCG@5").text
    '0.477'
    """
    folder = resources.files("rankgrad.papers") / "protocols"
    with resources.as_file(folder) as place:
        return {path.stem: read(path) for path in sorted(place.glob("*.toml"))}


def of_paper(paper: str) -> list[Protocol]:
    """The protocols of a paper's tables.

    Args:
        paper: its name, such as ``neuralndcg``.

    Returns:
        Its protocols, by name.
    """
    return [protocol for protocol in protocols().values() if protocol.paper == paper]


def _with(loss: str, options: Mapping[str, Any]) -> str:
    """A loss with further options; ``k`` is its cutoff."""
    if not options:
        return loss
    spec = Spec.parse(loss)
    rest = {name: value for name, value in options.items() if name != "k"}
    return str(Spec(spec.name, options.get("k", spec.k), {**spec.options, **rest}))


def _named(parts: Sequence[_Named], name: str, kind: str) -> _Named:
    for part in parts:
        if part.name == name:
            return part
    listed = ", ".join(part.name for part in parts)
    raise ValueError(f"there is no {kind} {name!r}. There are: {listed}")


def _sentence(error: Mapping[str, Any]) -> str:
    """One finding of pydantic's, with the key it is about."""
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"there is no key {key}"
    if error["type"] == "missing":
        return f"{key} is missing"
    if error["type"] == "value_error":
        return f"{key}: {error['ctx']['error']}"
    return f"{key} {error['msg'].removeprefix('Input ')}, found {error['input']!r}"
