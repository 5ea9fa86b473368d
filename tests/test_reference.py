"""Every registered name has an entry in reference.toml, and every entry a registered name."""

import re
import tomllib
from pathlib import Path

import pytest

from rankgrad import losses, metrics, sorting
from rankgrad._reference import cell_entry, describe_options, entry
from rankgrad.cli._formulas import plain_formula
from rankgrad.losses.relaxed import cell_classes, cell_parts, cell_route, grid_losses
from rankgrad.specs import options_of

ROOT = Path(__file__).parents[1]
WRITTEN = tomllib.loads((ROOT / "src" / "rankgrad" / "reference.toml").read_text())
MEASURED, ELSEWHERE, NOISE = (WRITTEN.pop(table) for table in ("measured", "elsewhere", "noise"))


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
    lower = metrics.get(metric).lower_is_better
    noise = name.startswith("gumbel_")
    return cell_entry(family, metric, cell_route(family, metric), lower, noise)


def test_every_loss_of_the_grid_has_an_entry():
    for name in grid_losses():
        found = of_cell(name)
        noise = name.startswith("gumbel_")
        assert ("1 - " in found.formula[:90]) != name.endswith("arp"), name
        assert found.symbols and "docs/" in found.use and "\n\nThe relaxation: " in found.use, name
        assert (r"\mathrm{scale} \cdot g" in found.formula) == noise, name
        assert ("Bruch et al. 2020" in found.paper) == noise, name
        of_ndcg = name.endswith("_ndcg") and not noise
        assert bool(found.elsewhere) == (of_ndcg or name in ELSEWHERE), name
    assert set(ELSEWHERE) <= set(grid_losses())
    assert "approx_t12n(ap_metric)" in of_cell("approx_ap").elsewhere
    assert "0.0200" in of_cell("approx_ndcg").use
    assert r"\sum_r" in of_cell("neural_arp").formula
    assert r"\hat{r}_i" in of_cell("smoothi_arp").formula  # through ranks, by default


def test_figures_are_those_of_the_results():
    """What is said with a page of results is printed there, and pages that are named exist."""
    fields = [text for kind in WRITTEN.values() for e in kind.values() for text in e.values()]
    checked = 0
    for text in [*MEASURED.values(), *ELSEWHERE.values(), *NOISE.values(), *fields]:
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


def test_formulas_of_the_terminal_have_no_latex():
    written = [fields for kind in WRITTEN.values() for fields in kind.values()]
    keys = ("formula", "permutation", "ranks")
    for latex in [NOISE["formula"], *(each[key] for each in written for key in keys & each.keys())]:
        plain = plain_formula(latex)
        assert "\\" not in plain and plain.count("(") == plain.count(")"), latex
        # A command that is not known becomes its name: only these are words of formulas.
        assert not re.findall(r"frac|quad|underset|mathrm|hat|left|right|alpha|sum", plain), latex
    assert plain_formula(WRITTEN["losses"]["lambdaloss"]["formula"]) == (
        "Σ_{y_i > y_j} λ_ij log(1 + e^{-σ (s_i - s_j)}), λ_ij = (|G_i - G_j| / IDCG@k) δ_ij μ_ij"
    )
    assert plain_formula(WRITTEN["metrics"]["ndcg"]["ranks"]) == (
        "(1 / IDCG@k) Σ_i (c_i G_i / log_2(1 + r̂_i))"
    )
    assert plain_formula(WRITTEN["relaxations"]["fastsort"]["formula"]) == (
        "r̂ = argmin_{x ∈ 𝒫(n)} ‖x + s / strength‖²"
    )
