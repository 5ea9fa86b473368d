"""The study of the default: its pages are those of its results, and its tasks can be run."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "benchmarks" / "default_study"

TASKS = """
import choices, networks, candidates, plan, trees
from rankgrad.models import models
tasks = choices.tasks({})
assert len({task.key for task in tasks}) == len(tasks) > 60
for task in tasks:
    assert plan.Task.of(task.key) == task
    models.get(task.settings(task.losses[0], {}).model)
points = trees.points()
assert len(points) == trees.POINTS == len({str(point) for point in points})
"""


def run(*arguments):
    found = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 0, found.stderr


def test_the_pages_are_those_of_the_results(tmp_path):
    run(str(STUDY), "page", "-o", str(tmp_path / "simulated.md"))
    for name in (
        *("simulated.md", "simulated_trials.md", "simulated.svg"),
        *("other_data.md", "other_data.svg"),
    ):
        there = (ROOT / "docs/results" / name).read_text(encoding="utf-8")
        assert (tmp_path / name).read_text(encoding="utf-8") == there, name


def test_all_tasks_have_settings_and_keys():
    paths = [str(STUDY), str(STUDY.parent / "direct_study")]
    run("-c", f"import sys; sys.path += {paths!r}{TASKS}")
