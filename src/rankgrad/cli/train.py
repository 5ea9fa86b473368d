"""``rankgrad train``: from data to a run folder with a trained ranker in it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankgrad.cli import settings as options
from rankgrad.cli.arguments import Data, Fold, Json, check_stdin, features_of
from rankgrad.cli.errors import stop
from rankgrad.cli.printing import console, show_json, show_notes, show_table

if TYPE_CHECKING:
    from rankgrad.data import Dataset
    from rankgrad.training import FitResult


def train(
    data: Data,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="RUN", help="The run folder.", show_default=False),
    ],
    vali: Annotated[
        Path | None,
        typer.Option(help="Validation data, where DATA is not a folder that has it."),
    ] = None,
    fold: Fold = None,
    settings: Annotated[
        Path | None,
        typer.Option(help="Settings in TOML, such as RUN/settings.toml; options go before them."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run that RUN holds.")
    ] = False,
    loss: options.Loss = None,
    model: options.Model = None,
    metric: options.Metric = None,
    metrics: options.Metrics = None,
    transforms: options.Transforms = None,
    list_size: options.ListSize = None,
    optimizer: options.Optimizer = None,
    learning_rate: options.LearningRate = None,
    weight_decay: options.WeightDecay = None,
    schedule: options.Schedule = None,
    epochs: options.Epochs = None,
    patience: options.Patience = None,
    batching: options.Batching = None,
    batch_size: options.BatchSize = None,
    documents: options.Documents = None,
    clip: options.Clip = None,
    average: options.Average = None,
    accumulate: options.Accumulate = None,
    seed: options.Seed = None,
    precision: options.Precision = None,
    device: options.Device = None,
    devices: options.Devices = None,
    graphs: options.Graphs = None,
    memory: options.Memory = None,
    tensorboard: options.Tensorboard = None,
    log: options.Log = None,
    json: Json = False,
) -> None:
    """Train a ranker and keep the best epoch in a run folder.

    DATA is a folder with train and vali in it, or training data with --vali beside it. Ctrl-C saves
    and says how to go on. Test data are not looked at: `rankgrad evaluate RUN DATA --save` does
    that, for `rankgrad report`.

    \b
    Examples:
      rankgrad train MSLR-WEB30K --fold 1 -o runs/first
      rankgrad train train.txt --vali vali.txt --loss neural_ndcg@10 -o runs/neural
      rankgrad train data --loss lambdarank --model context_aware -o runs/b
      rankgrad train data --loss lambdaloss@10 --model "lightgbm(num_leaves=15)" -o runs/t
      rankgrad train data --settings runs/b/settings.toml --seed 1 -o runs/b1
      rankgrad train data --resume -o runs/b1
      rankgrad train data --log 'mlflow(experiment=ranking)' --log wandb -o runs/b2
    """  # noqa: D301
    from rankgrad.training import RunFolder, Settings, fit
    from rankgrad.training.fitting import check_data, check_run
    from rankgrad.training.loggers import loggers
    from rankgrad.training.tree_fitting import is_tree

    check_stdin(data, vali)
    if resume and settings is not None:
        raise ValueError("--resume takes the settings of the run: leave out --settings")
    given = {name: value for name, value in locals().items() if name in Settings.model_fields}
    if resume:
        settings = RunFolder.open(output).path / "settings.toml"
    chosen = options.chosen(given, settings)
    if is_tree(chosen) and settings is None and transforms is None:
        chosen = chosen.model_copy(update={"transforms": ()})  # trees need none
    called = [loggers.get(spec) for spec in log or ()]
    check_run(chosen, output, resume)
    training, validation = read(data, vali, fold)
    check_data(training, validation)
    show_notes(training.notes)
    if validation is None:
        show_notes(["there is no validation data (--vali): the last epoch is kept, not the best"])
    result = fit(
        chosen,
        training,
        validation,
        folder=output,
        resume=resume,
        on_epoch=called,
        quiet=json,
    )
    if result.stopped == "interrupted":
        raise stop(f"interrupted and saved; to go on: {_resuming()}")
    if os.environ.get("RANK", "0") != "0":
        return  # under torchrun, the first process speaks for all
    if json:
        show_json(_summary(result, output))
    else:
        _show(result, output, data, fold)


def read(data: Path, vali: Path | None, fold: int | None) -> tuple[Dataset, Dataset | None]:
    """Training and validation data of the same features."""
    from rankgrad.data import layout, load, load_pair, load_splits

    if layout.is_single(data):
        if vali is None or fold is not None:
            return load(data, fold=fold), None
        return load_pair(data, vali)
    found = load_splits(data, fold)
    if "train" not in found:
        raise ValueError(f"{data} has no train in it, only {', '.join(found)}")
    training, validation = found["train"], found.get("vali")
    if vali is not None:
        if validation is not None:
            raise ValueError(f"{data} has validation data in it: leave out --vali")
        validation = load(vali, **features_of(training))
    return training, validation


def _resuming() -> str:
    """The command that is running, with --resume, which takes the place of --settings."""
    from rankgrad.training.run import command

    words, kept = iter(command()), []
    for word in words:
        if word == "--settings":
            next(words, None)
        elif not word.startswith("--settings=") and word != "--resume":
            kept.append(word)
    return shlex.join([*kept, "--resume"])


def _summary(result: FitResult, output: Path) -> dict[str, Any]:
    return {
        "run": str(output),
        "best_epoch": result.best_epoch,
        "metric": result.settings.metric,
        "best_value": result.best_value,
        "epochs": len(result.history),
        "stopped": result.stopped,
        "seconds": result.seconds,
        "history": result.history,
    }


def _show(result: FitResult, output: Path, data: Path, fold: int | None) -> None:
    from rankgrad.training.tree_fitting import is_tree

    what = "tree" if is_tree(result.settings) else "epoch"
    best = result.history[result.best_epoch - 1] if result.history else {}
    rows = [(name, f"{best[name]:.4f}") for name in result.settings.logged if name in best]
    if rows:
        show_table(("validation", f"{what} {result.best_epoch}"), rows)
    out = console()
    count = len(result.history)
    out.print(
        f"{count} {what}{'' if count == 1 else 's'} in {result.seconds:.1f} seconds; the ranker of "
        f"{what} {result.best_epoch} is in {output / 'best'}"
    )
    out.print(f"Next: rankgrad evaluate {shlex.quote(str(output))} {_test_data(data, fold)}")


def _test_data(data: Path, fold: int | None) -> str:
    """How to name the data to evaluate on, which are never those that were trained on."""
    from rankgrad.data import layout

    if layout.is_single(data) or "test" not in layout.splits(data, fold):
        return "TEST_DATA"
    return shlex.quote(str(data)) + ("" if fold is None else f" --fold {fold}")
