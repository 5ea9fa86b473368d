"""The settings of a training run as options of commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rankgrad.training import Settings

_LEARNING, _STEPS, _MACHINE = "What is learned", "How it is learned", "Machine and logs"


def _option(help: str, default: str, panel: str, *names: str) -> Any:
    """An option whose default is that of the setting of its name.

    It is said again here because help must not wait for the settings to be imported.
    """
    return typer.Option(*names, help=help, show_default=default, rich_help_panel=panel)


Loss = Annotated[
    str | None,
    _option("See `rankgrad losses`.", "softmax", _LEARNING, "--loss", "-l"),
]
Model = Annotated[
    str | None,
    _option(
        "See `rankgrad models`.",
        "tabm(hidden=[64], members=8, share=nothing, dropout=0.3, in_list=[rank, score])",
        _LEARNING,
    ),
]
Metric = Annotated[
    str | None,
    _option(
        "The validation metric that chooses the best epoch and stops training.",
        "ndcg@10",
        _LEARNING,
        "--metric",
        "-m",
    ),
]
Metrics = Annotated[
    list[str] | None,
    _option(
        "Another metric to log; several times for several.",
        "ndcg@5, ndcg@10, ap, rr",
        _LEARNING,
    ),
]
Transforms = Annotated[
    list[str] | None,
    _option(
        "A transform of the features; several times for several, in order.",
        "drop_constant, quantile(output=uniform), standardize",
        _LEARNING,
        "--transform",
    ),
]
ListSize = Annotated[
    str | None,
    _option("Cut longer lists to so many items, drawn anew each epoch.", "none", _LEARNING),
]
Optimizer = Annotated[str | None, _option("adam, adamw, adagrad or sgd.", "adamw", _STEPS)]
LearningRate = Annotated[
    float | None, _option("At its highest.", "0.003", _STEPS, "--learning-rate", "--lr")
]
WeightDecay = Annotated[float | None, _option("Of the weights, not of biases.", "0.01", _STEPS)]
Schedule = Annotated[
    str | None,
    _option("constant, 'step(every=50, by=0.1)' or cosine.", "constant", _STEPS),
]
Epochs = Annotated[int | None, _option("At most.", "100", _STEPS)]
Patience = Annotated[
    str | None, _option("Stop after so many epochs without a better value.", "20", _STEPS)
]
Batching = Annotated[
    str | None,
    _option("By queries, by documents, or each query.", "queries", _STEPS),
]
BatchSize = Annotated[
    int | None, _option("Lists per step, over all devices together.", "32", _STEPS)
]
Documents = Annotated[
    int | None, _option("Items per step, where batching is by documents.", "8192", _STEPS)
]
Clip = Annotated[str | None, _option("The largest norm of a gradient.", "none", _STEPS)]
Average = Annotated[
    str | None,
    _option(
        "Decay per step of a moving average of the weights, which is what is kept.",
        "none",
        _STEPS,
    ),
]
Accumulate = Annotated[int | None, _option("Batches per step of the optimizer.", "1", _STEPS)]
Seed = Annotated[int | None, _option("Of everything random.", "0", _STEPS)]
Precision = Annotated[str | None, _option("32-true or bf16-mixed.", "32-true", _MACHINE)]
Device = Annotated[str | None, _option("auto, cpu or cuda.", "auto", _MACHINE)]
Devices = Annotated[int | None, _option("How many processes train together.", "1", _MACHINE)]
Graphs = Annotated[
    bool | None, _option("Replay steps that are alike as CUDA graphs.", "yes", _MACHINE)
]
Memory = Annotated[
    str | None,
    _option(
        "Bytes of features that may lie on the device; none is half of what is free.",
        "none",
        _MACHINE,
    ),
]
Tensorboard = Annotated[
    bool | None, _option("Also log for TensorBoard, in the run folder.", "no", _MACHINE)
]
Log = Annotated[
    list[str] | None,
    _option(
        "Where else epochs are logged: tensorboard, mlflow or wandb, with options as in "
        "'mlflow(experiment=ranking)' and 'wandb(project=ranking, mode=offline)'; several times "
        "for several.",
        "nowhere",
        _MACHINE,
    ),
]


def chosen(options: dict[str, Any], file: Path | None) -> Settings:
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
