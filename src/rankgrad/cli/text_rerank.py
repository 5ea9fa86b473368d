"""``rankgrad text rerank``: scores the candidates of a TREC run anew, with a text ranker.

The ranker is the best epoch of a run folder of ``rankgrad text train``, or a pretrained model.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rankgrad.cli import _text_arguments as arguments
from rankgrad.cli._arguments import Run
from rankgrad.cli._printing import show_notes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rankgrad.text._text_ranker import TextRanker
    from rankgrad.text._text_run import TextRun

__all__ = ["rerank"]


def rerank(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    run: Run,
    collection: str,
    output: Annotated[Path, typer.Option("--output", "-o")],
    topics: str | None = None,
    field: arguments.Field = "title",
    depth: arguments.Depth = None,
    interpolate: Annotated[str | None, typer.Option(metavar="WEIGHT")] = None,
    prompt: Path | None = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
    device: str = "auto",
    tag: str = "rankgrad",
    overwrite: bool = False,
) -> None:
    """Rerank the candidates of a run.

    Inputs:
        model: A run folder of `rankgrad text train`, a Hugging Face folder of a cross-encoder or of
            a causal language model that answers yes or no, or a name on the hub.

    Options:
        output: The TREC run to write, also .gz.
        interpolate: The weight of the first stage's scores, from 0 to 1, or 'chosen' for that of
            the run folder. [default: scores of the model alone]
        batch_size: Documents at a time.
        precision: Of matrix products.
        tag: The name of the run.

    \b
    Examples:
      rankgrad text rerank runs/text/runs/softmax/fold1-seed0 bm25.run --collection docs.jsonl \\
          --topics topics.tsv -o reranked.run --interpolate chosen
      rankgrad text rerank cross-encoder/ms-marco-MiniLM-L6-v2 bm25.run --collection docs.tsv \\
          --topics queries.tsv -o reranked.run --depth 100
      rankgrad text rerank Qwen/Qwen3-Reranker-0.6B bm25.run --collection docs.tsv \\
          --topics queries.tsv -o reranked.run
    """  # noqa: D301
    from rankgrad import _files
    from rankgrad.data.trec import check_tag, read_run, write_run
    from rankgrad.text._interpolation import interpolate as interpolate_scores
    from rankgrad.text._text_run import TextRun, is_text_run
    from rankgrad.training import Settings
    from rankgrad.training._processes import accelerator

    _files.check_file_free(output, overwrite)
    check_tag(tag)
    text_run = TextRun.open(model) if is_text_run(Path(model)) else None
    weight = _parse_weight(interpolate, None if text_run is None else text_run.weight)
    candidates = arguments.read_candidates(
        run, collection, topics, qrels=None, field=field, depth=depth, judged=False
    )
    ranker = _load_ranker(model, text_run, prompt)
    ranker.to(accelerator(Settings(device=device)))  # type: ignore[arg-type]
    inputs = ranker.tokenize(*candidates.pairs())
    scores: NDArray[np.floating] = ranker.score(inputs, batch_size=batch_size, precision=precision)
    if weight is not None:
        scores = interpolate_scores(scores, candidates.first_stage, candidates.offsets, weight)
    write_run(output, candidates.run(scores, tag), overwrite=overwrite)
    n_without_topic = len(read_run(run)) - len(candidates)
    if n_without_topic:
        note = f"{n_without_topic} queries of {run} are left out: the topics do not have them"
        show_notes([note])
    n_trained_on = 0 if text_run is None else _count_trained_on(Path(model), candidates.qids)
    if n_trained_on:
        note = (
            f"{n_trained_on} of {len(candidates)} queries were trained or validated on by {model}: "
            "metrics of them are not test values, which `rankgrad compare` of its folder has"
        )
        show_notes([note])
    print(f"reranked {len(candidates.docids):,} documents of {len(candidates):,} queries: {output}")


def _load_ranker(model: str, text_run: TextRun | None, prompt: Path | None) -> TextRanker:
    """The best ranker of a run folder or, without a run folder, a pretrained model.

    Args:
        model: the folder or the name of the model.
        text_run: the run folder, if ``model`` is one.
        prompt: a file with another prompt for a pretrained causal language model.
    """
    from rankgrad.text._reading import Reading
    from rankgrad.text._text_ranker import TextRanker

    custom_prompt = arguments.read_prompt(prompt)
    if text_run is None:
        reading = None if custom_prompt is None else Reading(prompt=custom_prompt)
        return TextRanker.from_pretrained(model, reading, trained=True)
    if custom_prompt is not None:
        raise ValueError(f"--prompt: {model} has the prompt that it was trained with")
    return text_run.best()


def _count_trained_on(run_folder: Path, queries: Iterable[str]) -> int:
    """How many of the queries the ranker of a run folder was trained or validated on.

    In cross-validation, these are the queries that the runs of the other folds were tested on.
    The run folders of all folds are side by side, with names such as ``fold1-seed0``, and each has
    the queries it was tested on in its ``test.run``.
    """
    from rankgrad.data.trec import read_run

    run_folder = run_folder.resolve()
    seed = run_folder.name.partition("-")[2]
    tested_elsewhere: set[str] = set()
    for test_run in run_folder.parent.glob(f"fold*-{seed}/test.run"):
        if test_run.parent != run_folder:
            tested_elsewhere |= set(read_run(test_run))
    return len(tested_elsewhere & set(queries))


def _parse_weight(text: str | None, chosen: float | None) -> float | None:
    """The weight of the first stage's scores, from --interpolate; None without the option.

    Args:
        text: the value of the option: a number from 0 to 1, or ``chosen``.
        chosen: the weight that validation chose in training; None if it chose none.
    """
    if text is None:
        return None
    if text == "chosen":
        if chosen is None:
            raise ValueError(
                "--interpolate chosen: there is no weight, which `rankgrad text train "
                "--interpolate` chooses; give a number"
            )
        return chosen
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0  # outside of the range, so that the check below refuses it
    if not 0 <= weight <= 1:
        raise ValueError(f"--interpolate takes a number from 0 to 1, or 'chosen'; found {text!r}")
    return weight
