"""``rankgrad train``: from data to a run folder with a trained ranker in it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankgrad.cli.arguments import Data, Fold, Json, features_of
from rankgrad.cli.errors import stop
from rankgrad.cli.printing import console, show_json, show_notes, show_table

if TYPE_CHECKING:
    from rankgrad.data import Dataset
    from rankgrad.training import Fit, Settings

_LEARNING, _STEPS, _MACHINE = "What is learned", "How it is learned", "Machine and logs"


def _option(help: str, default: str, panel: str, *names: str) -> Any:
    """An option whose default is that of the setting of its name.

    It is said again here because help must not wait for the settings to be imported.
    """
    return typer.Option(*names, help=help, show_default=default, rich_help_panel=panel)


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
    loss: Annotated[
        str | None,
        _option("See `rankgrad losses`.", "softmax", _LEARNING, "--loss", "-l"),
    ] = None,
    model: Annotated[
        str | None,
        _option(
            "See `rankgrad models`.",
            "tabm(hidden=[64], members=8, share=nothing, dropout=0.3, in_list=[rank, score])",
            _LEARNING,
        ),
    ] = None,
    metric: Annotated[
        str | None,
        _option(
            "The validation metric that chooses the best epoch and stops training.",
            "ndcg@10",
            _LEARNING,
            "--metric",
            "-m",
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        _option(
            "Another metric to log; several times for several.",
            "ndcg@5, ndcg@10, ap, rr",
            _LEARNING,
        ),
    ] = None,
    transforms: Annotated[
        list[str] | None,
        _option(
            "A transform of the features; several times for several, in order.",
            "drop_constant, quantile(output=uniform), standardise",
            _LEARNING,
            "--transform",
        ),
    ] = None,
    list_size: Annotated[
        str | None,
        _option("Cut longer lists to so many items, drawn anew each epoch.", "none", _LEARNING),
    ] = None,
    optimizer: Annotated[
        str | None, _option("adam, adamw, adagrad or sgd.", "adamw", _STEPS)
    ] = None,
    learning_rate: Annotated[
        float | None, _option("At its highest.", "0.003", _STEPS, "--learning-rate", "--lr")
    ] = None,
    weight_decay: Annotated[
        float | None, _option("Of the weights, not of biases.", "0.01", _STEPS)
    ] = None,
    schedule: Annotated[
        str | None,
        _option("constant, 'step(every=50, by=0.1)' or cosine.", "constant", _STEPS),
    ] = None,
    epochs: Annotated[int | None, _option("At most.", "100", _STEPS)] = None,
    patience: Annotated[
        str | None, _option("Stop after so many epochs without a better value.", "20", _STEPS)
    ] = None,
    batching: Annotated[
        str | None,
        _option("By queries, by documents, or each query.", "queries", _STEPS),
    ] = None,
    batch_size: Annotated[
        int | None, _option("Lists per step, over all devices together.", "32", _STEPS)
    ] = None,
    documents: Annotated[
        int | None, _option("Items per step, where batching is by documents.", "8192", _STEPS)
    ] = None,
    clip: Annotated[str | None, _option("The largest norm of a gradient.", "none", _STEPS)] = None,
    average: Annotated[
        str | None,
        _option(
            "Decay per step of a moving average of the weights, which is what is kept.",
            "none",
            _STEPS,
        ),
    ] = None,
    accumulate: Annotated[
        int | None, _option("Batches per step of the optimiser.", "1", _STEPS)
    ] = None,
    seed: Annotated[int | None, _option("Of everything random.", "0", _STEPS)] = None,
    precision: Annotated[str | None, _option("32-true or bf16-mixed.", "32-true", _MACHINE)] = None,
    device: Annotated[str | None, _option("auto, cpu or cuda.", "auto", _MACHINE)] = None,
    devices: Annotated[
        int | None, _option("How many processes train together.", "1", _MACHINE)
    ] = None,
    memory: Annotated[
        str | None,
        _option(
            "Bytes of features that may lie on the device; none is half of what is free.",
            "none",
            _MACHINE,
        ),
    ] = None,
    tensorboard: Annotated[
        bool | None, _option("Also log for TensorBoard.", "no", _MACHINE)
    ] = None,
    json: Json = False,
) -> None:
    """Train a ranker and keep the best epoch in a run folder.

    DATA is a folder with train and vali in it, or training data with --vali beside it. Ctrl-C saves
    and says how to go on.

    \b
    Examples:
      rankgrad train MSLR-WEB30K --fold 1 -o runs/first
      rankgrad train train.txt --vali vali.txt --loss neural_ndcg@10 -o runs/neural
      rankgrad train data --loss lambdarank --model context_aware -o runs/b
      rankgrad train data --settings runs/b/settings.toml --seed 1 -o runs/b1
      rankgrad train data --resume -o runs/b1
    """  # noqa: D301
    from rankgrad.training import Settings, fit
    from rankgrad.training.trainer import check_run

    if resume and settings is not None:
        raise ValueError("--resume takes the settings of the run: leave out --settings")
    options = {name: value for name, value in locals().items() if name in Settings.model_fields}
    chosen = _settings(options, output / "settings.toml" if resume else settings)
    check_run(chosen, output, resume)
    training, validation = read(data, vali, fold)
    show_notes(training.notes)
    result = fit(chosen, training, validation, folder=output, resume=resume, quiet=json)
    if result.stopped == "interrupted":
        raise stop(f"interrupted and saved; to go on: {_resuming()}")
    if os.environ.get("RANK", "0") != "0":
        return  # under torchrun, the first process speaks for all
    if json:
        show_json(_facts(result, output))
    else:
        _show(result, output, data, fold)


def read(data: Path, vali: Path | None, fold: int | None) -> tuple[Dataset, Dataset | None]:
    """Training and validation data of the same features."""
    from rankgrad.data import load, load_splits, store

    if data.is_file() or store.is_store(data):
        training = load(data, fold=fold)
        validation = None if vali is None else load(vali, **features_of(training))
    else:
        found = load_splits(data, fold)
        if "train" not in found:
            raise ValueError(f"{data} has no train in it, only {', '.join(found)}")
        training, validation = found["train"], found.get("vali")
        if vali is not None:
            if validation is not None:
                raise ValueError(f"{data} has validation data in it: leave out --vali")
            validation = load(vali, **features_of(training))
    if validation is None:
        show_notes(["there is no validation data (--vali): the last epoch is kept, not the best"])
    return training, validation


def _settings(options: dict[str, Any], file: Path | None) -> Settings:
    """The options that were given, over a file of settings, over the defaults."""
    from rankgrad.training import Settings

    values: dict[str, Any] = {}
    if file is not None:
        if not file.is_file():
            raise FileNotFoundError(f"there are no settings at {file}")
        try:
            values = Settings.from_toml(file.read_text(encoding="utf-8")).model_dump()
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
    return Settings(
        **values | {name: value for name, value in options.items() if value is not None}
    )


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


def _facts(result: Fit, output: Path) -> dict[str, Any]:
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


def _show(result: Fit, output: Path, data: Path, fold: int | None) -> None:
    best = result.history[result.best_epoch - 1] if result.history else {}
    rows = [(name, f"{best[name]:.4f}") for name in result.settings.logged if name in best]
    if rows:
        show_table(("validation", f"epoch {result.best_epoch}"), rows)
    out = console()
    out.print(
        f"{len(result.history)} epochs in {result.seconds:.1f} seconds; the ranker of epoch "
        f"{result.best_epoch} is in {output / 'best'}"
    )
    out.print(f"Next: rankgrad evaluate {shlex.quote(str(output))} {_test_data(data, fold)}")


def _test_data(data: Path, fold: int | None) -> str:
    """How to name the data to evaluate on, which are never those that were trained on."""
    from rankgrad.data import layout, store

    if data.is_file() or store.is_store(data) or "test" not in layout.splits(data, fold):
        return "TEST_DATA"
    return shlex.quote(str(data)) + ("" if fold is None else f" --fold {fold}")
