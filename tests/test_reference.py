"""Every registered name has an entry in reference.toml, and every entry a registered name."""

import re
import tomllib
from pathlib import Path

import pytest

from rankgrad import losses, metrics, sorting
from rankgrad.losses.relaxed import cell_classes, cell_parts, cell_route, grid_losses
from rankgrad.reference import cell_entry, describe_options, entry
from rankgrad.specs import options_of

ROOT = Path(__file__).parents[1]
WRITTEN = tomllib.loads((ROOT / "src" / "rankgrad" / "reference.toml").read_text())
MEASURED = WRITTEN.pop("measured")


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
            assert found.title or kind != "metrics"


def of_cell(name):
    family, metric = cell_parts(name)
    return cell_entry(
        family, metric, cell_route(family, metric), metrics.get(metric).lower_is_better
    )


def test_every_loss_of_the_grid_has_an_entry():
    for name in grid_losses():
        found = of_cell(name)
        assert found.formula.startswith("1 - ") != name.endswith("arp"), name
        assert found.symbols and "docs/" in found.use, name
        assert bool(found.elsewhere) == name.endswith("_ndcg"), name  # others' losses are of NDCG
    assert "0.0200" in of_cell("approx_ndcg").use
    assert r"\sum_r" in of_cell("neural_arp").formula
    assert r"\hat{r}_i" in of_cell("smoothi_arp").formula  # through ranks, by default


def test_figures_are_those_of_the_results():
    """What is said with a page of results is printed there, and pages that are named exist."""
    fields = [text for kind in WRITTEN.values() for e in kind.values() for text in e.values()]
    checked = 0
    for text in [*MEASURED.values(), *fields]:
        pages = [ROOT / page for page in re.findall(r"docs/[\w/-]+\.md", text)]
        printed = "".join(page.read_text() for page in pages)
        for number in re.findall(r"\b0\.\d{4}\b", text):
            assert number in printed, (number, text)
            checked += 1
    assert set(MEASURED) <= set(grid_losses())
    assert checked > 8


def test_every_option_of_a_cell_is_described():
    for name in grid_losses():
        said = describe_options(
            *cell_classes(*cell_parts(name), stochastic=name.startswith("gumbel_"))
        )
        assert all(said.get(option) for option in options_of(losses.losses.factory(name))), name


def test_formulas_are_mathml_without_a_rest(monkeypatch):
    """A command that the converter does not know stays as it is, with its backslash."""
    pytest.importorskip("latex2mathml")
    monkeypatch.syspath_prepend(ROOT / "tools" / "docs")
    from formulas import render_formulas

    for kind in WRITTEN.values():
        for name, fields in kind.items():
            for latex in {"formula", "permutation", "ranks"} & fields.keys():
                rendered = render_formulas(f"$$ {fields[latex]} $$")
                assert "<math" in rendered and "\\" not in rendered, name
