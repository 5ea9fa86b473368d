"""Every registered name has an entry in reference.toml, and every entry a registered name."""

import tomllib
from pathlib import Path

from rankgrad import losses, metrics, sorting
from rankgrad.losses.relaxed import grid_losses
from rankgrad.reference import entry

WRITTEN = tomllib.loads(
    (Path(__file__).parents[1] / "src" / "rankgrad" / "reference.toml").read_text()
)


def test_entries_are_those_of_the_registries():
    grid = set(grid_losses())
    assert set(WRITTEN["losses"]) == {name for name in losses.names() if name not in grid}
    assert set(WRITTEN["metrics"]) == set(metrics.names())
    assert set(WRITTEN["relaxations"]) == set(sorting.FAMILIES)


def test_an_entry_is_complete():
    for kind, entries in WRITTEN.items():
        for name in entries:
            found = entry(kind, name)
            assert (
                found.formula
                and found.paper.endswith(".")
                and found.use.endswith(".")
                and found.elsewhere.endswith(".")
            )
            assert found.cost.endswith(".")
