"""``rankgrad train``: trains a ranker on data, and leaves it in a run folder."""

from __future__ import annotations

import datetime
import itertools
import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

import rankgrad
from rankgrad._locks import LockedError
from rankgrad.cli import _setting_options as options
from rankgrad.cli._arguments import Data, Fold, check_known_dataset, check_stdin, reading_options
from rankgrad.cli._errors import interrupted
from rankgrad.cli._printing import Number, console, show_json, show_notes, show_table

_HOLDOUT = 0.1  # the part of the lists that is held out where there is no validation data
_ATTEMPTS = 5  # at a default run folder that no other process takes first
_MIN_LISTS_FOR_HOLDOUT = 10  # with fewer, by default none is held out


@options.settings_options(defaults={"holdout": f"{_HOLDOUT} without validation data"})
def train(
    data: Data,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="RUN")] = None,
    vali: Path | None = None,
    fold: Fold = None,
    settings: Path | None = None,
    resume: bool = False,
    log: list[str] | None = None,
    json: bool = False,
    **setting_options: Any,
) -> None:
    """Train a ranker and keep the best epoch in a run folder.

    DATA is a folder with train and vali in it, or training data with --vali beside it; without
    validation data, a tenth of the lists is held out. Of a folder of folds, the first is trained
    on. Ctrl-C saves and says how to go on. Test data are not read: `rankgrad evaluate RUN DATA
    --save` does that, for `rankgrad report`.

    Options:
        output: The run folder. [default: runs/DATE-LOSS]
        vali: Validation data, where DATA is not a folder that has it.
        settings: Settings in TOML, such as RUN/settings.toml; options override them. Those that are
            missing have plain defaults; nothing is chosen by the data.
        resume: Go on with the run that RUN holds; with more --epochs also after its end.
        log: Where else epochs are logged: tensorboard, mlflow or wandb, with options as in
            'mlflow(experiment=ranking)' and 'wandb(project=ranking, mode=offline)'; several times
            for several. [default: nowhere]

    \b
    Examples:
      rankgrad train MQ2008
      rankgrad train MSLR-WEB30K --fold 2 -o runs/first
      rankgrad train train.txt --vali vali.txt --loss neural_ndcg@10 -o runs/neural
      rankgrad train data --loss lambdarank --model context_aware -o runs/b
      rankgrad train data --loss lambdaloss@10 --model "lightgbm(num_leaves=15)" -o runs/t
      rankgrad train data --loss lambdarank@10 --model "xgboost(label_gain=[0, 1, 5])" -o runs/x
      rankgrad train data --settings runs/b/settings.toml --seed 1 -o runs/b1
      rankgrad train data --resume -o runs/b1
      rankgrad train data --resume -o runs/b1 --epochs 150
      rankgrad train data --log 'mlflow(experiment=ranking)' --log wandb -o runs/b2
    """  # noqa: D301
    from rankgrad.training._fitting import check_data, check_run
    from rankgrad.training._loggers import loggers
    from rankgrad.training._settings import for_data
    from rankgrad.training._tree_fitting import for_trees

    check_stdin(data, vali)
    check_known_dataset(data)
    settings_file = _settings_file(output, settings) if resume else settings
    explicit = {name for name, value in setting_options.items() if value is not None}
    resolved = options.resolve_settings(setting_options, settings_file)
    # Settings from a file are taken as they are; defaults are adapted to the model and the data.
    if settings_file is None and "transforms" not in explicit:
        resolved = for_trees(resolved)
    on_epoch = [loggers.get(spec) for spec in log or ()]
    run = output or _new_run(resolved.loss)
    check_run(resolved, run, resume)
    is_default_loss = settings_file is None and "loss" not in explicit
    fold, notes = _choose_fold(data, fold, None if is_default_loss else resolved.loss)
    show_notes(notes)
    training, validation = _read_data(data, vali, fold, resolved)
    check_data(training, validation)
    show_notes(training.notes)
    if not (training.labels > 0).any():
        show_notes(["no item of the training lists has a label above 0: there is nothing to learn"])
    elif training.lengths.max() == 1:
        note = "no training list has more than one item, so there is no order to learn"
        show_notes([f"{note}: are these the right query ids (qid)?"])
    if validation is None:
        uses_default_holdout = settings_file is None and "holdout" not in explicit
        if uses_default_holdout and len(training) >= _MIN_LISTS_FOR_HOLDOUT:
            resolved = resolved.model_copy(update={"holdout": _HOLDOUT})
        show_notes([_validation_note(resolved.holdout, len(training))])
    if settings_file is None:
        resolved, notes = for_data(resolved, training, explicit)
        show_notes(notes)
        run = output or _new_run(resolved.loss)
    how: dict[str, Any] = {"resume": resume, "on_epoch": on_epoch, "quiet": json}
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            result = rankgrad.training.fit(resolved, training, validation, folder=run, **how)
            break
        except (FileExistsError, LockedError):
            if output is not None or not run.exists() or not attempts_left:
                raise
            run = _new_run(resolved.loss)  # another process has taken that name meanwhile
    if result.stopped == "interrupted":
        command = _resume_command(run, add_output=output is None)
        raise interrupted(f"interrupted and saved; to go on: {command}")
    if os.environ.get("RANK", "0") != "0":
        return  # under torchrun, only the first process prints
    if json:
        show_json(_summary(result, run))
    else:
        _show(result, run, data, fold)


def _settings_file(run: Path | None, settings: Path | None) -> Path:
    """The file of settings in the run that is resumed."""
    from rankgrad.training.run import SETTINGS, RunFolder

    if run is None:
        raise ValueError("--resume needs the run to go on with: -o RUN")
    if settings is not None:
        raise ValueError("--resume takes the settings of the run: leave out --settings")
    return RunFolder.open(run).path / SETTINGS


def _new_run(loss: str) -> Path:
    """The path of a new run folder, named by the date and the loss."""
    from rankgrad.experiments.plans import folder_name
    from rankgrad.training._processes import launched

    if launched():
        raise ValueError("several processes need the same run folder: give -o RUN")
    name = f"{datetime.date.today()}-{folder_name(loss)}"
    numbered = (Path("runs", name if n == 1 else f"{name}-{n}") for n in itertools.count(1))
    return next(path for path in numbered if not path.exists())


def _choose_fold(data: Path, fold: int | None, loss: str | None) -> tuple[int | None, list[str]]:
    """The fold to train on, and notes. By default it is the first one, which a note says."""
    from rankgrad.data import _layout

    if fold is not None or _layout.is_single(data):
        return fold, []
    folds = list(_layout.folds(data))
    if not folds:
        return None, []
    losses = [] if loss is None else ["--losses", loss]
    command = shlex.join(["rankgrad", "compare", str(data), *losses, "-o", "runs/folds"])
    return folds[0], [
        f"{data} has the folds {', '.join(map(str, folds))}: training on fold {folds[0]}. --fold "
        f"{folds[-1]} takes another; for all of them: {command}"
    ]


def _validation_note(holdout: float, lists: int) -> str:
    """What happens without validation data."""
    if holdout == 0:
        return "there is no validation data (--vali): the last epoch is kept, not the best"
    return (
        f"there is no validation data (--vali): {holdout:g} of the {lists} lists, drawn by the "
        "seed, are held out and choose the best epoch (--holdout 0 trains on all of them)"
    )


def _read_data(
    data: Path, vali: Path | None, fold: int | None, settings: rankgrad.training.Settings
) -> tuple[rankgrad.data.Dataset, rankgrad.data.Dataset | None]:
    """Read training and validation data with the same features."""
    from rankgrad.data import _layout, load, load_pair, load_splits

    load_options = settings.load_options
    if _layout.is_single(data):
        if vali is None or fold is not None:
            return load(data, fold=fold, **load_options), None
        return load_pair(data, vali, **load_options)
    splits = load_splits(data, fold, **load_options)
    if "train" not in splits:
        raise ValueError(f"{data} has no train in it, only {', '.join(splits)}")
    training, validation = splits["train"], splits.get("vali")
    if vali is not None:
        if validation is not None:
            raise ValueError(f"{data} has validation data in it: leave out --vali")
        validation = load(vali, missing=settings.missing, **reading_options(training))
    return training, validation


def _resume_command(run: Path, add_output: bool) -> str:
    """The command that is running, with --resume in place of --settings."""
    from rankgrad.training.run import command

    arguments, resumed = iter(command()), []
    for argument in arguments:
        if argument == "--settings":
            next(arguments, None)  # its value
        elif not argument.startswith("--settings=") and argument != "--resume":
            resumed.append(argument)
    return shlex.join([*resumed, *(["-o", str(run)] if add_output else []), "--resume"])


def _summary(result: rankgrad.training.FitResult, run: Path) -> dict[str, Any]:
    return {
        "run": str(run),
        "best_epoch": result.best_epoch,
        "metric": result.settings.metric,
        "best_value": result.best_value,
        "epochs": len(result.history),
        "stopped": result.stopped,
        "seconds": result.seconds,
        "history": result.history,
    }


def _show(result: rankgrad.training.FitResult, run: Path, data: Path, fold: int | None) -> None:
    from rankgrad.training._tree_fitting import is_tree

    unit = "tree" if is_tree(result.settings) else "epoch"
    best = result.history[result.best_epoch - 1] if result.history else {}
    rows = [(name, Number(f"{best[name]:.4f}")) for name in result.settings.logged if name in best]
    if rows:
        show_table(("validation", f"{unit} {result.best_epoch}"), rows)
    out = console()
    count = len(result.history)
    out.print(
        f"{count} {unit}{'' if count == 1 else 's'} in {result.seconds:.1f} seconds; the ranker of "
        f"{unit} {result.best_epoch} is in {run / 'best'}"
    )
    out.print(f"Next: rankgrad evaluate {shlex.quote(str(run))} {_test_data(data, fold)}")


def _test_data(data: Path, fold: int | None) -> str:
    """The test data as arguments of ``rankgrad evaluate``; a placeholder if there are none."""
    from rankgrad.data import _layout

    if _layout.is_single(data) or "test" not in _layout.splits(data, fold):
        return "TEST_DATA"
    return shlex.quote(str(data)) + ("" if fold is None else f" --fold {fold}")
