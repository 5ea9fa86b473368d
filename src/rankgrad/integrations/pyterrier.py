"""FeatureReranker: a ranker as a PyTerrier transformer that reranks candidates by features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rankgrad.estimator import Ranker
from rankgrad.extras import requires

with requires("pyterrier"):
    import pyterrier
    from pyterrier.model import add_ranks

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["FeatureReranker"]

_Array = np.ndarray[Any, Any]


class FeatureReranker(pyterrier.Estimator):  # type: ignore[misc, unused-ignore]
    """Reranks the candidates of each query by their features.

    PyTerrier's own ``pt.ltr.apply_learned_model`` calls ``predict`` without queries, and by default
    ``fit`` too, so a model cannot read whole lists, as the default model of ``Ranker`` does. This
    transformer passes ``qid`` to both.

    Args:
        ranker: a ranker for :meth:`fit` to train, by default ``Ranker()``; or one that is trained
            already, such as ``Ranker.from_pretrained(...)``.

    Example::

        features = bm25 >> (pt.terrier.Retriever(index, wmodel="PL2") ** pt.text.scorer(...))
        pipeline = features >> FeatureReranker(Ranker("lambdaloss@10"))
        pipeline.fit(train_topics, qrels, valid_topics, qrels)
        pt.Experiment([bm25, pipeline], test_topics, qrels, ["ndcg_cut_10", "map"])
    """

    def __init__(self, ranker: Ranker | None = None) -> None:
        super().__init__()
        self.ranker = Ranker() if ranker is None else ranker

    def fit(
        self,
        topics_or_res_tr: DataFrame,
        qrels_tr: DataFrame,
        topics_or_res_va: DataFrame | None = None,
        qrels_va: DataFrame | None = None,
    ) -> FeatureReranker:
        """Train the ranker.

        The names of the parameters are those of ``pt.Estimator``. A pipeline passes candidates, the
        results of its earlier stages, also where a name says topics.

        Args:
            topics_or_res_tr: candidates with the columns ``qid``, ``docno`` and ``features``, an
                array per candidate.
            qrels_tr: judgments with the columns ``qid``, ``docno`` and ``label``; candidates
                without a judgment, or with a negative label, are not relevant.
            topics_or_res_va: candidates of validation queries, which choose the best epoch. There
                is no validation if this is None or has no rows.
            qrels_va: judgments of the validation queries.

        Returns:
            The reranker itself.

        Raises:
            ValueError: there are no candidates, or none of them is judged; a document is judged
                twice for a query; features are not one array per candidate, all of one length; or
                only one of the two arguments of validation is given.
        """
        if (topics_or_res_va is None) != (qrels_va is None):
            raise ValueError("validation needs both candidates and qrels")
        X, y, qid = self._training_data(topics_or_res_tr, qrels_tr)
        validation: dict[str, Any] = {}
        if topics_or_res_va is not None and qrels_va is not None and len(topics_or_res_va):
            eval_X, eval_y, eval_qid = self._training_data(topics_or_res_va, qrels_va)
            validation = {"eval_set": (eval_X, eval_y), "eval_qid": eval_qid}
        self.ranker.fit(X, y, qid, **validation)
        return self

    def transform(self, inp: DataFrame) -> DataFrame:
        """The candidates with new columns ``score`` and ``rank``; PyTerrier's ranks start at 0.

        Args:
            inp: candidates with the columns ``qid``, ``docno`` and ``features``, an array per
                candidate.

        Returns:
            A new frame of the candidates.
        """
        pyterrier.validate.result_frame(inp, extra_columns=["features"], context=self)
        scores = np.empty(0)
        if len(inp):
            scores = self.ranker.predict(_features(inp), inp["qid"].to_numpy()).astype(float)
        return add_ranks(inp.assign(score=scores))

    def transform_outputs(self, inp_cols: list[str]) -> list[str]:
        """The columns of the result of :meth:`transform`.

        Args:
            inp_cols: the columns of the candidates.

        Returns:
            These columns, with ``score`` and ``rank``.
        """
        return [*inp_cols, *(name for name in ("score", "rank") if name not in inp_cols)]

    def _training_data(self, results: DataFrame, qrels: DataFrame) -> tuple[_Array, _Array, _Array]:
        """Features ``[N, f]``, labels ``[N]`` and queries ``[N]`` of candidates."""
        pyterrier.validate.result_frame(results, extra_columns=["features"], context=self)
        if not len(results):
            raise ValueError("there are no candidates to learn from")
        labels = qrels[["qid", "docno", "label"]]
        if labels.duplicated(["qid", "docno"]).any():
            raise ValueError("qrels judge a document twice for one query")
        judged = results[["qid", "docno"]].merge(labels, on=["qid", "docno"], how="left")
        if judged["label"].isna().all():
            raise ValueError(
                "qrels judge none of the candidates; are qid and docno strings in one and numbers "
                "in the other?"
            )
        # Labels are clipped since some qrels of TREC mark spam by -2.
        y = judged["label"].fillna(0).clip(lower=0).to_numpy(dtype=np.float32)
        return _features(results), y, results["qid"].to_numpy()


def _features(results: DataFrame) -> _Array:
    """The features ``[N, f]`` of N candidates; their column ``features`` has arrays ``[f]``."""
    rows = [np.asarray(row, dtype=np.float64) for row in results["features"]]
    shapes = {row.shape for row in rows}
    if any(len(shape) != 1 for shape in shapes):
        raise ValueError(f"features must be one array per candidate, not of shape {sorted(shapes)}")
    if len(shapes) > 1:
        raise ValueError(f"candidates have unequal numbers of features: {sorted(shapes)}")
    return np.stack(rows)
