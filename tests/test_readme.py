"""The README fits a screen and its example runs; its tables' successors name what exists."""

import re
from pathlib import Path

from rankgrad import losses, metrics, sorting

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
GRID = (ROOT / "docs" / "explanation" / "grid.md").read_text()
CONVENTIONS = (ROOT / "docs" / "explanation" / "conventions.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def test_the_example_runs(capsys):
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(examples) == 1
    for code in examples:
        exec(compile(code, "README.md", "exec"), {})
    assert "ndcg@10" in capsys.readouterr().out


def test_it_fits_a_screen_and_its_links_lead_somewhere():
    assert len(README.splitlines()) <= 40
    assert len(re.sub(r"\]\([^)]*\)|<[^>]*>", "", README)) < 2_200  # 1,000 pixels at GitHub's width
    assert "make demo" in README and "make test" in README and "set_fit_request(qid=True)" in README
    links = re.findall(r"\]\(([^)#]+)", README)
    assert len(links) > 20
    for link in links:
        assert (ROOT / link).is_file(), link
    assert (ROOT / "docs" / "assets" / "report.png").stat().st_size < 200_000


def test_every_loss_and_metric_is_named():
    cells = {f"{f}_{m}" for f in sorting.FAMILIES for m in metrics.names()}
    beside = [n for n in losses.names() if n.removeprefix("gumbel_") not in cells]
    for name in {*beside, *sorting.FAMILIES, *metrics.names()} - {"relaxed"}:
        assert re.search(rf"`{name}(@k)?`", GRID), name
    for name in metrics.names():
        assert f"`{name}`" in CONVENTIONS, name


def test_the_layout_names_what_there_is():
    start = CONTRIBUTING.index("src/rankgrad/\n")
    layout = CONTRIBUTING[start : CONTRIBUTING.index("\nbenchmarks/  ")]
    source = ROOT / "src" / "rankgrad"
    for name in re.findall(r"^  (\S+)", layout, re.MULTILINE):
        assert (source / name).exists(), name
    folders = [f"{place.parent.name}/" for place in source.glob("*/__init__.py")]
    for name in [*folders, "hub.py"]:
        assert f"\n  {name} " in layout, name


def test_every_spec_on_a_page_is_one():
    found = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for spec in re.findall(
            r"`((?:lambdaloss|smoothi_ap|ndcg|gumbel|neural_ndcg)[@(][^`]*)`", page.read_text()
        ):
            registry = metrics if spec.startswith("ndcg") else losses
            registry = sorting if spec.startswith("gumbel(") else registry
            if "@k" not in spec:
                registry.get(spec)
                found += 1
    assert found > 40
