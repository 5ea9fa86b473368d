"""The README's example runs, and its tables name what exists."""

import re
from pathlib import Path

from rankgrad import losses, metrics, sorting

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_examples_run(capsys):
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(examples) == 4
    for code in examples:
        exec(compile(code, "README.md", "exec"), {})
    assert "ndcg@10" in capsys.readouterr().out


def test_every_loss_and_metric_is_named():
    cells = {f"{f}_{m}" for f in sorting.FAMILIES for m in metrics.names()}
    beside = [n for n in losses.names() if n.removeprefix("gumbel_") not in cells]
    for name in {*beside, *sorting.FAMILIES, *metrics.names()} - {"relaxed"}:
        assert re.search(rf"`{name}(@k)?`", README), name


def test_the_layout_names_what_there_is():
    layout = README[README.index("src/rankgrad/\n") : README.index("\nbenchmarks/  ")]
    source = Path(__file__).parents[1] / "src" / "rankgrad"
    for name in re.findall(r"^  (\S+)", layout, re.MULTILINE):
        assert (source / name).exists(), name
    folders = [f"{place.parent.name}/" for place in source.glob("*/__init__.py")]
    for name in [*folders, "hub.py"]:
        assert f"\n  {name} " in layout, name


def test_every_spec_in_it_is_one():
    for spec in re.findall(
        r"`((?:lambdaloss|smoothi_ap|ndcg|gumbel|neural_ndcg)[@(][^`]*)`", README
    ):
        registry = metrics if spec.startswith("ndcg") else losses
        registry = sorting if spec.startswith("gumbel(") else registry
        if "@k" not in spec:
            registry.get(spec)
