"""``rankgrad evaluate``: exact metrics of a trained ranker, or of scores from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rankgrad.cli import _evaluate_trec as trec
from rankgrad.cli._arguments import Fold, check_run_folder, check_stdin, load
from rankgrad.cli._printing import show_json, show_notes, show_table
from rankgrad.cli.predict import open_ranker

if TYPE_CHECKING:
    from rankgrad.metrics import Evaluation

#: The options of each metric that JSON output lists under ``conventions``.
_CONVENTIONS = ("empty", "ties", "gain")


def evaluate(
    rankers: Annotated[list[Path], typer.Argument(metavar="RUN|SCORES...")],
    data: Annotated[Path, typer.Argument(metavar="DATA|QRELS")],
    split: str | None = None,
    fold: Fold = None,
    metric: Annotated[list[str] | None, typer.Option("--metric", "-m")] = None,
    device: str = "auto",
    per_list: bool = False,
    save: bool = False,
    complete: Annotated[bool, typer.Option("--complete", "-c")] = False,
    level: Annotated[int | None, typer.Option("--level", "-l", min=1)] = None,
    ties: Literal["trec_eval", "average"] | None = None,
    double: bool = False,
    test: Annotated[str | None, typer.Option(metavar="[t|randomization]")] = None,
    json: bool = False,
) -> None:
    """Evaluate a trained ranker, scores from anywhere, or TREC runs, with exact metrics.

    The last path decides what is evaluated. With data, each item has a score. With TREC judgments
    (QRELS), relevant documents that were not retrieved count, unjudged ones are not relevant, and
    equal scores rank as in trec_eval, so that the numbers are those of trec_eval.

    Inputs:
        rankers: A run folder of `rankgrad train`, or a file of scores: one per line, Parquet with a
            column 'score', or a TREC run; - is the standard input. Before QRELS, one TREC run or
            several.
        data: Data with labels: a LETOR/LibSVM file (also .gz, .bz2, .xz), a Parquet, Arrow or CSV
            file, a folder of Parquet parts, a store, a folder of splits or folds of these, or - for
            LETOR text on the standard input. Or TREC judgments: a text file whose first line has no
            features (its second column is not a pair such as qid:1), or the folder of Cranfield or
            CISI.

    Options:
        metric: A metric, such as ndcg@10, 'ndcg(empty=1)', nDCG@10 or P_5; may be given several
            times. See `rankgrad metrics`. [default: ndcg@5, ndcg@10, ap, rr, with the gain of RUN's
            metric where labels are too large for 2^y - 1; with QRELS nDCG@10, AP, RR, P@10, R@100]
        per_list: With --json, also the values of each list.
        save: Also keep the values of each list in the run folder for `rankgrad report`, under the
            name of the split (test, for a file); what is there by that name is replaced.
        complete: QRELS: average over all judged queries, those that are not in the run too.
        level: QRELS: the lowest grade that is relevant, in metrics of binary relevance.
            [default: 1]
        ties: QRELS: how equal scores rank: by document id, descending, as in trec_eval, or the mean
            over their orders. [default: trec_eval]
        double: QRELS: compare scores as float64; trec_eval has float32.
        test: QRELS: the paired test of several runs against the first, Holm-corrected. [default: t]

    \b
    Examples:
      rankgrad evaluate runs/neural MSLR-WEB30K --fold 1
      rankgrad evaluate runs/neural test.txt -m ndcg@10 -m 'ndcg@10(empty=1)'
      rankgrad evaluate lightgbm-scores.txt test.txt
      rankgrad evaluate scores.run test.parquet --json
      zcat test.txt.gz | rankgrad evaluate scores.txt -
      rankgrad evaluate runs/neural MSLR-WEB30K --fold 1 --save
      rankgrad evaluate bm25.run qrels.txt -m ndcg_cut_10 -m map -c
      rankgrad evaluate bm25.run reranked.run.gz qrels.txt -m nDCG@10 -m AP
    """  # noqa: D301
    if per_list and not json:
        raise ValueError("--per-list adds to JSON, not to a table: give --json too")
    trec_options = {"complete": complete, "level": level, "ties": ties, "double": double}
    if trec.is_qrels(data):
        _reject_options(f"{data} has TREC judgments", split=split, fold=fold, save=save)
        results = trec.evaluate_runs(rankers, data, metric, trec_options, test)
        return results.show_json(per_list) if json else results.show()
    _reject_options(f"{data} has no TREC judgments", **trec_options, test=test)
    if len(rankers) > 1:
        raise ValueError(
            f"several rankers at once are for TREC runs, and {data} has no TREC judgments: "
            "evaluate one after the other, or see `rankgrad compare`"
        )
    ranker = rankers[0]
    if save:
        check_run_folder(ranker, "values")
    check_stdin(ranker, data)
    import torch

    from rankgrad.data import _layout, _scores
    from rankgrad.metrics import metrics as known_metrics
    from rankgrad.metrics.evaluate import metrics_for
    from rankgrad.training._evaluations import EvaluatedLists, evaluate_scores

    metrics = [known_metrics.get(spec) for spec in metric or ()]
    if ranker.is_dir():
        dataset, model = open_ranker(ranker, data, split, fold, device)
        scores = model.predict(dataset.features, dataset.offsets)
    else:
        dataset = load(data, split, fold, ids="auto")
        scores = _scores.read(ranker, dataset)
    metrics = metrics or list(map(known_metrics.get, metrics_for(torch.tensor(dataset.labels))))
    result = evaluate_scores(scores, dataset, metrics)
    if save:
        evaluated = EvaluatedLists.of(scores, dataset, map(str, metrics), _labels(ranker, fold))
        evaluated.save(ranker, _layout.split_name(split or "test"))
    weighted = dataset.weights is not None
    if json:
        show_json(_summary(result, weighted, dataset.qids.tolist() if per_list else None))
    else:
        _show(result, weighted, title=f"{ranker} on {data}")
    show_notes(dataset.notes)


def _reject_options(reason: str, **options: Any) -> None:
    """Raise if one of the options was passed."""
    for name, value in options.items():
        if value is not None and value is not False:  # 0 is a fold
            raise ValueError(f"{reason}: leave out --{name}")


def _labels(run: Path, fold: int | None) -> dict[str, Any]:
    """What a run is in its experiment, for reports."""
    from rankgrad.training import RunFolder

    settings = RunFolder.open(run).settings
    labels = {"loss": settings.loss, "model": settings.model, "seed": settings.seed}
    return labels if fold is None else {**labels, "fold": fold}


def _summary(result: Evaluation, weighted: bool, qids: list[str] | None) -> dict[str, Any]:
    """The result for JSON, with the values of each list if ``qids`` is given.

    Args:
        result: the metrics.
        weighted: whether the data have item weights.
        qids: the query id of each list, or None.
    """
    return {
        "lists": result.lists,
        **trec.means_dict(result),
        "conventions": {
            str(metric): {key: getattr(metric, key) for key in _CONVENTIONS if hasattr(metric, key)}
            for metric in result.metrics
        },
        "item_weights": weighted,
        **({} if qids is None else trec.lists_dict(result, qids)),
    }


def _show(result: Evaluation, weighted: bool, title: str) -> None:
    """Print the metrics as a table; ``weighted`` says whether the data have item weights."""
    footer = [*result.conventions]
    if weighted:
        footer.append("items count by their weights in the data")
    show_table(trec.INTERVAL_COLUMNS, trec.interval_rows(result), title=title, footer=footer)
