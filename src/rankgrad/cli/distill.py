"""``rankgrad distill``: trains a small student on the scores of a trained ranker, its teacher."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankgrad.cli import _setting_options as options
from rankgrad.cli._arguments import Data, Fold, Run, TeacherLabels, load
from rankgrad.cli._errors import interrupted
from rankgrad.cli._printing import Number, show_json, show_notes, show_table
from rankgrad.cli.predict import load_ranker

if TYPE_CHECKING:
    from rankgrad.data import Dataset
    from rankgrad.export._distillation import QualityLoss
    from rankgrad.training import FittedRanker

#: The settings of the student that have an option.
_SETTINGS = (
    *("loss", "model", "metric", "transforms", "epochs", "patience", "learning_rate"),
    *("batch_size", "seed", "device"),
)
#: What the help says of defaults that differ from those of ``rankgrad train``.
_DEFAULTS = {
    "loss": "listnet",
    "model": "mlp(hidden=[64, 32])",
    "metric": "that of RUN",
    "transforms": "impute(fill=0, indicator=false), drop_constant, standardize, which every format "
    "takes; none for trees",
}


@options.settings_options(*_SETTINGS, defaults=_DEFAULTS)
def distill(
    run: Run,
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="RUN2")],
    vali: Path | None = None,
    test: Path | None = None,
    fold: Fold = None,
    teacher_labels: TeacherLabels = "shift",
    temperature: float = 1.0,
    json: bool = False,
    **overrides: Any,
) -> None:
    """Train a student on the scores of a trained ranker, and say what is lost.

    Search engines score one item at a time, and most of them know plain perceptrons or trees only.
    A student is such a ranker, trained listwise on the scores that a better one, the teacher, gives
    the training lists. The labels of validation data choose its best epoch; on test data it is
    compared with its teacher, list by list.

    Options:
        output: The student's run folder.
        vali: Validation data, where DATA is a file.
        test: Test data, where DATA is a file.
        temperature: Divides the teacher's scores, with shift and softmax.

    \b
    Examples:
      rankgrad distill runs/first MQ2008 --fold 1 -o runs/student
      rankgrad distill runs/first data --model "mlp(hidden=[64, 32])" -o runs/student
      rankgrad distill runs/first data --model "lightgbm(num_leaves=31)" -o runs/trees
      rankgrad distill runs/first train.txt --vali vali.txt --test test.txt -o runs/student
      rankgrad export runs/student --format solr -o model.json
    """  # noqa: D301
    from rankgrad.export._distillation import distill, metrics_of, student_settings
    from rankgrad.training._fitting import check_run

    teacher = load_ranker(run)
    options = {name: value for name, value in overrides.items() if value is not None}
    settings = student_settings(**metrics_of(teacher) | options)
    check_run(settings, output, resume=False)
    splits = _read_splits(data, vali, test, fold, teacher)
    try:
        result = distill(
            teacher,
            splits,
            settings,
            labels=teacher_labels,
            temperature=temperature,
            folder=output,
            quiet=json,
        )
    except KeyboardInterrupt:
        raise interrupted(f"interrupted; there is no student in {output}") from None
    split, quality_losses = result.measured_on, result.losses
    n_lists = len(splits[split])
    if json:
        metrics = [asdict(quality_loss) for quality_loss in quality_losses]
        show_json({"run": str(output), "on": split, "lists": n_lists, "metrics": metrics})
    else:
        _show(quality_losses, f"{output}, a student of {run}, on {split}", n_lists)
        print(f"Next: rankgrad export {shlex.quote(str(output))} -o model.onnx")
    if split == "vali":
        show_notes(["there is no test data: validation data chose the student, which flatters it"])


def _read_splits(
    data: Path, vali: Path | None, test: Path | None, fold: int | None, teacher: FittedRanker
) -> dict[str, Dataset]:
    """Read the splits of a folder, or up to three files, with the features of the teacher."""
    from rankgrad.data import _layout

    if _layout.is_single(data):
        paths = {"train": data, "vali": vali, "test": test}
        files = {name: path for name, path in paths.items() if path is not None}
        return {name: load(path, fold=fold, like=teacher) for name, path in files.items()}
    if vali is not None or test is not None:
        raise ValueError(f"{data} is a folder of splits: leave out --vali and --test")
    return {name: load(data, name, fold, teacher) for name in _layout.splits(data, fold)}


def _show(quality_losses: list[QualityLoss], title: str, n_lists: int) -> None:
    """Print a table of teacher and student, with a row for each metric."""
    from rankgrad.results._comparison_tables import p_value

    rows = [
        (
            row.metric,
            Number(f"{row.teacher:.4f}"),
            Number(f"{row.student:.4f}"),
            Number(f"{row.difference:+.4f}"),
            Number(f"{row.interval.low:+.4f} to {row.interval.high:+.4f}"),
            Number(p_value(row.p)),
        )
        for row in quality_losses
    ]
    columns = ("metric", "teacher", "student", "difference", "95% interval", "p")
    note = f"{n_lists} lists; p of the two-sided paired randomization test, uncorrected"
    show_table(columns, rows, title=title, footer=[note])
