"""``rankgrad text train``: trains cross-encoders on the candidates of a first stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankgrad.cli import _text_arguments as arguments
from rankgrad.cli._arguments import Run, TeacherLabels
from rankgrad.cli._errors import interrupted
from rankgrad.cli._printing import Number, progress_bar, show_json, show_notes, show_table
from rankgrad.cli._setting_options import read_settings, settings_options
from rankgrad.text._text_settings import TextSettings

if TYPE_CHECKING:
    from rankgrad.experiments._cross_validation import CrossValidation, OneRun
    from rankgrad.papers.protocol import Protocol
    from rankgrad.results.comparison import Comparison
    from rankgrad.text._candidates import Candidates

__all__ = ["settings_of", "train", "train_all"]


@settings_options(settings=TextSettings)
def train(
    run: Run,
    collection: str,
    output: Annotated[Path, typer.Option("--output", "-o")],
    topics: str | None = None,
    qrels: Path | None = None,
    field: arguments.Field = "title",
    depth: arguments.Depth = None,
    teacher: Path | None = None,
    teacher_labels: TeacherLabels = "shift",
    losses: Annotated[list[str] | None, typer.Option("--loss", "-l")] = None,
    folds: Annotated[int | None, typer.Option(min=3)] = None,
    chosen_folds: Annotated[list[int] | None, typer.Option("--fold")] = None,
    seeds: Annotated[int | None, typer.Option(min=1)] = None,
    interpolate: bool = False,
    protocol: str | None = None,
    settings: Path | None = None,
    prompt: Path | None = None,
    json: bool = False,
    **setting_options: Any,
) -> None:
    """Train text rankers by cross-validation, and test them on the fold they have not seen.

    Each query is in the test fold once; the next fold chooses the best epoch (and with
    --interpolate the weight of the first stage), the others are trained on. Every loss, fold and
    seed has its run folder in the output folder, beside the first stage's; `rankgrad report` makes
    a page of them. The same command again goes on where it was stopped.

    Options:
        output: The folder of all run folders.
        teacher: A TREC run of a better ranker, such as an LLM reranker's: train on it instead of
            the grades, or beside them, which evaluate as ever.
        losses: See `rankgrad losses`; several times to compare several. [default: softmax]
        folds: Of the cross-validation by query. [default: 5]
        chosen_folds: Train on this fold alone; may be given several times.
        seeds: Train with this many seeds, from 0. [default: 1]
        interpolate: Mix scores with those of the first stage; validation chooses the weight.
        protocol: Train as a paper's table says, such as smoothi_table2: its losses, settings,
            depth, folds and seeds; options override them.
        settings: Settings in TOML, as run folders have; options override them.

    \b
    Examples:
      rankgrad text train bm25.run --collection docs.jsonl --topics topics.tsv --qrels qrels \\
          --model bert-base-uncased --loss lambdaloss@10 -o runs/text
      rankgrad text train bm25.run --collection cranfield/ --model MiniLM/ -l hinge -l softmax \\
          --seeds 3 --interpolate -o runs/cranfield
      rankgrad text train bm25.run --collection robust04/ --topics topics.txt --qrels qrels.txt \\
          --protocol smoothi_table2 -o runs/robust
      rankgrad text train bm25.run --collection cranfield/ --model MiniLM/ --teacher llm.run \\
          --teacher-labels rank -l ranknet -o runs/distilled
      rankgrad text train bm25.run --collection cranfield/ --model MiniLM/ --teacher llm.run \\
          --teacher-weight 0.5 --teacher-loss margin_mse -l lambdaloss@10 -o runs/mixed
    """  # noqa: D301
    from rankgrad.data.trec import read_run
    from rankgrad.experiments._cross_validation import CrossValidation

    setting_options["prompt"] = arguments.read_prompt(prompt)
    paper = _get_protocol(protocol)
    resolved = settings_of(setting_options, settings, paper)
    if paper is not None and paper.text is not None:
        losses = losses or [row.losses[0] for row in paper.rows]
        folds, depth = folds or paper.text.folds, depth or paper.text.depth
    paper_seeds = paper.text.seeds if paper is not None and paper.text is not None else (0,)
    plan = CrossValidation(
        settings=resolved,
        losses=tuple(losses or [resolved.loss]),
        seeds=tuple(range(seeds)) if seeds else paper_seeds,
        folds=folds or 5,
        chosen_folds=None if chosen_folds is None else tuple(chosen_folds),
        interpolate=interpolate,
    )
    candidates = arguments.read_candidates(run, collection, topics, qrels, field=field, depth=depth)
    teacher_options = {setting_options["teacher_weight"], setting_options["teacher_loss"]}
    if teacher is None and teacher_options != {None}:
        raise ValueError("--teacher-weight and --teacher-loss need a teacher: give --teacher RUN")
    if teacher is not None:
        candidates = candidates.with_teacher(read_run(teacher), teacher_labels)
    empty = sum(int(n == 0) for n in candidates.lengths)
    if empty:
        show_notes([f"{empty} judged queries have no candidates: they count 0"])
    train_all(plan, candidates, output, quiet=json)
    _show(output, json)
    if paper is not None and not json:
        _show_published(paper)


def train_all(plan: CrossValidation, candidates: Candidates, output: Path, quiet: bool) -> None:
    """Make the runs of a plan, with a progress bar; Ctrl-C stops after the current step."""
    from rankgrad.experiments._cross_validation import cross_validate
    from rankgrad.text._training import Callbacks
    from rankgrad.training._processes import Interrupts

    with Interrupts() as interrupts, progress_bar("runs", quiet) as update:

        def watch(run: OneRun, runs_done: int, total: int) -> Callbacks:
            """The callbacks of one training; the progress bar counts all runs."""
            epochs, metric = run.settings.epochs, run.settings.metric
            description = f"{run.settings.loss}, fold {run.fold}, seed {run.settings.seed}"
            epochs_done, last_epoch = 0, ""

            def on_step(fraction: float) -> None:
                completed = runs_done + (epochs_done + fraction) / epochs
                update(description=description + last_epoch, total=total, completed=completed)

            def on_epoch(values: dict[str, float]) -> None:
                nonlocal epochs_done, last_epoch
                epochs_done = int(values["epoch"])
                value = values.get(metric, float("nan"))
                last_epoch = f"; epoch {epochs_done}/{epochs}: {metric} {value:.4f}"
                on_step(0.0)

            return Callbacks(on_epoch, on_step, lambda: interrupts.stop_requested)

        finished = cross_validate(plan, candidates, output, watch)
    if not finished:
        text = f"interrupted; {output} holds all that is needed: the same command goes on"
        raise interrupted(text)


def _get_protocol(name: str | None) -> Protocol | None:
    """The protocol of a paper's table about text, by its name."""
    from rankgrad.papers.protocol import protocols

    if name is None:
        return None
    tables = {key: table for key, table in protocols().items() if table.text is not None}
    if name not in tables:
        raise ValueError(f"there is no protocol of text {name!r}. There are: {', '.join(tables)}")
    return tables[name]


def _show_published(paper: Protocol) -> None:
    """Print the numbers of the paper's table."""
    for data, rows in paper.published.items():
        names = {row.name: row.losses[0] for row in paper.rows}
        show_table(
            ("published", *paper.printed),
            [(names[name], *map(Number, cells)) for name, cells in rows.items()],
            title=f"{paper.reference}, {paper.table}, {data}",
        )


def settings_of(
    options: dict[str, Any], file: Path | None, paper: Protocol | None = None
) -> TextSettings:
    """Settings from options, which override those of a file or a paper, which override defaults.

    Args:
        options: values by setting; None where the user has not passed the option.
        file: settings in TOML.
        paper: a protocol with settings.
    """
    overrides = {name: value for name, value in options.items() if value is not None}
    if file is not None and paper is not None:
        raise ValueError("--protocol has settings of its own: leave out --settings")
    if file is not None:
        return read_settings(TextSettings, file, **overrides)
    values = {} if paper is None or paper.text is None else dict(paper.text.settings)
    values |= overrides
    if "model" not in values:
        raise ValueError("--model is missing: a Hugging Face folder, or a name on the hub")
    return TextSettings(**values)


def _show(output: Path, json: bool) -> None:
    """Print the means of all rankers on the test folds, with p-values against the first stage."""
    from rankgrad.experiments._cross_validation import FIRST_STAGE
    from rankgrad.results._groups import group
    from rankgrad.results.comparison import compare
    from rankgrad.results.runs import find, read

    entries = group([read(path) for path in find([output])])
    comparison = compare(entries, default_baseline=FIRST_STAGE)
    rows = list(_rows(comparison))
    if json:
        show_json({"runs": str(output), "candidates": [dict(row) for row in rows]})
        return
    # A ranker whose runs are not complete lacks columns.
    name, *numbers = dict.fromkeys(column for row in rows for column in row)
    show_table(
        (name, *numbers),
        [(row[name], *(_number(row.get(column)) for column in numbers)) for row in rows],
        title=f"test, {len(comparison.queries)} queries",
        footer=[f"p: against the {FIRST_STAGE} ({comparison.how})", *comparison.conventions],
    )
    show_notes(f"{entry.name}: {text}" for entry in comparison.entries for text in entry.problems)
    show_notes(_weight_notes(output))
    print(f"Next: rankgrad report {output}")


def _weight_notes(output: Path) -> list[str]:
    """A note for each loss on the weights of the first stage, which validation chose."""
    from rankgrad.text._text_run import INTERPOLATION, TextRun

    weights_by_loss: dict[str, list[str]] = {}
    for path in sorted(output.glob(f"*/*/*/{INTERPOLATION}")):
        run = TextRun.open(path.parent)
        weights_by_loss.setdefault(run.settings.loss, []).append(f"{run.weight:g}")
    return [
        f"{loss}: weights of the first stage {', '.join(weights)}; its scores alone: `rankgrad "
        f"report {output} --part test-alone`"
        for loss, weights in weights_by_loss.items()
    ]


def _rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """The mean and the p-value of each metric that a ranker has, a row for each ranker."""
    for name in comparison.names:
        row: dict[str, Any] = {"candidate": name}
        for metric in comparison.metrics:
            if comparison.has(name, metric):
                row[metric] = comparison.mean(name, metric)
                difference = comparison.difference(name, metric)
                row[f"p ({metric})"] = "" if difference is None else difference.corrected
        yield row


def _number(value: float | str | None) -> Number:
    """A mean or a p-value of :func:`_rows` as a cell of the table; None is missing."""
    if value is None:
        return Number("-")
    return Number(value if isinstance(value, str) else f"{value:.4f}")
