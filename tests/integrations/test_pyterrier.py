"""A pipeline of PyTerrier with a ranker in it; the candidates are in data frames, so no Java."""

import numpy as np
import pandas as pd
import pytest
from learnable import lists

pt = pytest.importorskip("pyterrier", reason="PyTerrier is not installed")

from rankgrad import Ranker, evaluate  # noqa: E402
from rankgrad.integrations.pyterrier import FeatureReranker  # noqa: E402


def candidates(count, seed, prefix):
    """Candidates in a random order with features, judgments of some, and the topics."""
    data = lists(count, seed)
    random = np.random.default_rng(seed)
    qids = np.repeat([f"{prefix}{at}" for at in range(count)], data.lengths)
    frame = pd.DataFrame({"qid": qids, "query": qids, "docno": [f"d{i}" for i in range(len(qids))]})
    frame["score"], frame["features"] = random.normal(size=len(qids)), list(data.features)
    frame["rank"] = frame.groupby("qid")["score"].rank(ascending=False).astype(int) - 1
    qrels = frame[["qid", "docno"]].assign(label=data.labels.astype(int))
    frame = frame.sample(frac=1, random_state=seed).reset_index(drop=True)
    return frame, qrels, frame[["qid", "query"]].drop_duplicates()


@pytest.fixture(scope="module")
def fitted():
    train, vali = candidates(60, 0, "a"), candidates(30, 1, "b")
    ranker = Ranker(epochs=25, learning_rate=0.01, device="cpu")
    judged = train[1][train[1].label > 0]  # others are not judged
    return FeatureReranker(ranker).fit(train[0], judged, vali[0], vali[1])


@pytest.mark.filterwarnings("ignore")  # PyTerrier uses what newer pandas warns of
def test_it_reranks_as_the_ranker_scores(fitted):
    frame, qrels, topics = candidates(30, 2, "c")
    first = pt.Transformer.from_df(frame)
    pipeline = first >> fitted
    found = pipeline(topics)
    assert len(found) == len(frame)
    scores = fitted.ranker.predict(np.stack(frame.features), frame.qid.to_numpy())
    own = frame.assign(own=scores).merge(found, on=["qid", "docno"])
    np.testing.assert_allclose(own["own"], own["score_y"], rtol=1e-6)
    for _, one in found.groupby("qid"):
        assert (np.diff(one.sort_values("rank").score) <= 0).all()
    table = pt.Experiment([first, pipeline], topics, qrels, ["ndcg_cut_10"])
    before, after = table["ndcg_cut_10"]
    assert after > before + 0.2
    rows = frame.merge(qrels, on=["qid", "docno"]).assign(own=scores).sort_values("qid")
    offsets = np.append(0, rows.groupby("qid").size().cumsum())
    exact = evaluate(
        rows.own.to_numpy(), rows.label.to_numpy(), offsets=offsets, metrics="ndcg_cut_10"
    )
    assert after == pytest.approx(exact.mean["ndcg@10(gain=linear)"], abs=1e-5)


def test_validation_chooses_the_epoch(fitted):
    assert set(fitted.ranker.evals_result_) == {"training", "valid_0"}
    assert fitted.ranker.best_score_ is not None


@pytest.mark.filterwarnings("ignore")  # PyTerrier uses what newer pandas warns of
def test_columns_and_empty_frames(fitted):
    frame, _, _ = candidates(2, 3, "d")
    empty = fitted(frame.iloc[:0])
    assert len(empty) == 0
    assert {"score", "rank"} <= set(empty.columns)
    assert (empty["score"].dtype, empty["rank"].dtype) == (float, int)
    assert fitted.transform_outputs(["qid", "docno", "features"])[-2:] == ["score", "rank"]


def test_wrong_frames():
    frame, qrels, _ = candidates(4, 3, "d")
    with pytest.raises(ValueError, match="no candidates"):
        FeatureReranker().fit(frame.iloc[:0], qrels)
    with pytest.raises(ValueError, match="judge a document twice"):
        FeatureReranker().fit(frame, pd.concat([qrels, qrels]))
    uneven = frame.assign(features=[f[: 2 + at % 2] for at, f in enumerate(frame.features)])
    with pytest.raises(ValueError, match="unequal numbers of features"):
        FeatureReranker().fit(uneven, qrels)
    scalars = frame.assign(features=[f[0] for f in frame.features])
    with pytest.raises(ValueError, match="one array per candidate"):
        FeatureReranker().fit(scalars, qrels)
    qids = {qid: number for number, qid in enumerate(qrels.qid.unique())}
    with pytest.raises(ValueError, match="judge none of the candidates"):
        FeatureReranker().fit(
            frame.assign(qid=[str(qids[qid]) for qid in frame.qid]),
            qrels.assign(qid=pd.Series([qids[qid] for qid in qrels.qid], dtype=object)),
        )
    for validation in ((frame, None), (None, qrels)):
        with pytest.raises(ValueError, match="both candidates and qrels"):
            FeatureReranker().fit(frame, qrels, *validation)


@pytest.mark.filterwarnings("ignore")  # PyTerrier uses what newer pandas warns of
@pytest.mark.parametrize("form", ["ltr", "regression"])
def test_a_ranker_is_a_learner_of_pyterriers_own(form):
    (train, qrels, _), (vali, others, _) = candidates(20, 0, "a"), candidates(10, 1, "b")
    ranker = Ranker(model="mlp(hidden=[8])", loss="mse", epochs=2, device="cpu")
    learned = pt.ltr.apply_learned_model(ranker, form=form)
    learned.fit(train, qrels, vali, others)
    assert ranker.n_lists_ == (20 if form == "ltr" else 1)
    frame, _, _ = candidates(10, 2, "c")
    found = frame.merge(learned(frame), on=["qid", "docno"])
    scores = ranker.predict(np.stack(frame.features))
    np.testing.assert_allclose(found["score_y"], scores, rtol=1e-6)
