"""The simulated search log: what it promises about its numbers, and that its oracle is the best."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rankgrad
from rankgrad.data import synthetic
from rankgrad.data._dataset import Dataset
from rankgrad.metrics import evaluate

LABELS = [0.515, 0.325, 0.134, 0.019, 0.008]


@pytest.fixture(scope="module")
def log() -> Dataset:
    return synthetic.make(1000)


@pytest.fixture(scope="module")
def other() -> Dataset:
    return synthetic.make(1000, world="pointwise")


def column(dataset: Dataset, name: str) -> np.ndarray:
    assert dataset.feature_names is not None
    return dataset.features[:, dataset.feature_names.index(name)]


def list_numbers(dataset: Dataset) -> np.ndarray:
    return np.repeat(np.arange(len(dataset)), np.diff(dataset.offsets))


def ndcg(scores: np.ndarray, dataset: Dataset) -> float:
    metrics = ["ndcg@10"]
    return evaluate(scores, dataset.labels, offsets=dataset.offsets, metrics=metrics)["ndcg@10"]


def digest(dataset: Dataset) -> str:
    parts = (dataset.features, dataset.labels, dataset.offsets)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


class TestShape:
    def test_contract(self, log: Dataset) -> None:
        rows = log.offsets[-1]
        assert log.features.shape == (rows, 136) and log.features.dtype == np.float32
        assert log.features.flags.c_contiguous
        assert log.labels.shape == (rows,) and log.labels.dtype == np.float32
        assert log.offsets.dtype == np.int64 and len(log.offsets) == len(log) + 1 == 1001
        assert len(set(log.qids.tolist())) == 1000
        assert log.feature_names == synthetic.NAMES and len(set(synthetic.NAMES)) == 136

    def test_no_queries(self) -> None:
        empty = synthetic.make(0)
        assert len(empty) == 0 and empty.features.shape == (0, 136)
        assert synthetic.oracle(empty).shape == (0,)

    @pytest.mark.parametrize("features", [14, 15, 60, 135, 136, 140])
    def test_number_of_features(self, features: int, log: Dataset) -> None:
        other = synthetic.make(20, features=features)
        same = log.select(np.arange(20))
        assert other.n_features == features
        assert other.feature_names is not None and len(other.feature_names) == features
        np.testing.assert_array_equal(other.labels, same.labels)
        np.testing.assert_array_equal(synthetic.oracle(other), synthetic.oracle(same))
        for name in set(other.feature_names) & set(synthetic.NAMES):
            np.testing.assert_array_equal(column(other, name), column(same, name))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"queries": -1}, "queries must be a whole number of at least 0, found -1"),
            ({"queries": 2.5}, "queries must be a whole number"),
            ({"queries": 1, "seed": -3}, "seed must be a whole number of at least 0, found -3"),
            ({"queries": 1, "seed": True}, "seed must be a whole number"),
            ({"queries": 1, "features": 13}, "features must be a whole number of at least 14"),
            ({"queries": 1, "split": "dev"}, "one of 'train', 'vali', 'test'; found 'dev'"),
        ],
    )
    def test_bad_arguments(self, arguments: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            synthetic.make(**arguments)  # type: ignore[arg-type]

    def test_bad_size(self) -> None:
        with pytest.raises(ValueError, match="one of 'small', 'medium', 'web30k'; found 'huge'"):
            synthetic.splits("huge")


class TestDeterminism:
    def test_same_bytes(self) -> None:
        assert digest(synthetic.make(70, seed=3)) == digest(synthetic.make(70, seed=3))

    def test_same_bytes_in_another_process(self) -> None:
        code = (
            "import hashlib; from rankgrad.data import synthetic; d = synthetic.make(70, seed=3);"
            "parts = (d.features, d.labels, d.offsets);"
            "print(hashlib.sha256(b''.join(p.tobytes() for p in parts)).hexdigest())"
        )
        source = str(Path(rankgrad.__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", code]
        printed = subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout
        assert printed.strip() == digest(synthetic.make(70, seed=3))

    @pytest.mark.parametrize("queries", [1, 63, 64, 65, 300])
    def test_fewer_queries_are_a_prefix(self, queries: int, log: Dataset) -> None:
        fewer, rows = synthetic.make(queries), log.offsets[queries]
        np.testing.assert_array_equal(fewer.features, log.features[:rows])
        np.testing.assert_array_equal(fewer.labels, log.labels[:rows])
        np.testing.assert_array_equal(fewer.offsets, log.offsets[: queries + 1])
        np.testing.assert_array_equal(fewer.qids, log.qids[:queries])

    def test_seeds_and_splits_differ(self) -> None:
        chosen = [(seed, split) for seed in (0, 1, 2**70, 2**200) for split in synthetic.SPLITS]
        made = [synthetic.make(5, seed=seed, split=split) for seed, split in chosen]
        assert len({digest(dataset) for dataset in made}) == len(made)
        rows = np.concatenate([column(dataset, "body lmir.abs") for dataset in made])
        # Only copies of bodies within a list repeat this number: across sets nothing does.
        within = sum(len(np.unique(column(dataset, "body lmir.abs"))) for dataset in made)
        assert len(np.unique(rows)) > 0.99 * within

    def test_the_first_world_stays_as_it_is(self) -> None:
        """Published results are of it. Features may differ in their last bit among processors."""
        made = synthetic.make(100)
        parts = (made.labels.tobytes(), made.offsets.tobytes())
        assert hashlib.sha256(b"".join(parts)).hexdigest()[:16] == "54e77254b31b7ae6"
        np.testing.assert_allclose(synthetic.oracle(made).sum(), -7592.865319649628, rtol=1e-6)
        total = np.abs(made.features.astype(np.float64)).sum()
        np.testing.assert_allclose(total, 960693300.9873884, rtol=1e-6)


class TestStatistics:
    def test_labels_come_as_in_web30k(self, log: Dataset) -> None:
        shares = np.bincount(log.labels.astype(int), minlength=5) / len(log.labels)
        np.testing.assert_allclose(shares, LABELS, rtol=0.15, atol=0.003)

    def test_lengths_come_as_in_web30k(self) -> None:
        lengths = np.diff(synthetic.make(4000, features=14, seed=1).offsets)
        assert lengths.min() >= 1 and lengths.max() <= 1251
        assert 115 < lengths.mean() < 125
        assert 60 < lengths.std() < 95
        assert lengths.max() > 500 and np.quantile(lengths, 0.01) < 30

    def test_few_lists_have_nothing_relevant(self, log: Dataset) -> None:
        most = np.maximum.reduceat(log.labels, log.offsets[:-1])
        assert 0.015 < (most == 0).mean() < 0.05

    def test_finite(self, log: Dataset) -> None:
        assert np.isfinite(log.features).all()
        assert np.isfinite(synthetic.oracle(log)).all()

    def test_heavy_tails(self, log: Dataset) -> None:
        names = ["body length", "body sum tf", "inlinks", "clicks", "query clicks", "outlinks"]
        for name in names:
            values = column(log, name).astype(np.float64)
            assert values.max() > 15 * values.std(), name
        spread = log.features.max(0) - log.features.min(0)
        assert spread.max() > 1e6 and np.median(spread) < 1e3

    def test_kinds_of_columns(self, log: Dataset) -> None:
        constant = [n for n in synthetic.NAMES if np.ptp(column(log, n)) == 0]
        assert sorted(constant) == sorted(synthetic._EMPTY)
        zeros = (log.features == 0).mean(0)
        assert ((zeros > 0.5) & (zeros < 1)).sum() > 15
        for stream in synthetic._STREAMS:
            for kind in ("covered ratio", "vsm", "boolean", "sum tf/length"):
                values = column(log, f"{stream} {kind}")
                assert values.min() >= 0 and values.max() <= 1
            counts = column(log, f"{stream} sum tf")
            assert (counts == np.floor(counts)).all()

    def test_query_features_are_constant_within_a_list(self, log: Dataset) -> None:
        starts = log.offsets[:-1]
        differs = np.maximum.reduceat(log.features, starts) != np.minimum.reduceat(
            log.features, starts
        )
        always = {f"{stream} idf" for stream in synthetic._STREAMS} | set(synthetic._EMPTY)
        found = {name for name, any_list in zip(synthetic.NAMES, differs.any(0), strict=True)
                 if not any_list}  # fmt: skip
        assert found == always
        assert len(np.unique(column(log, "body idf"))) > 990

    def test_frequencies_are_consistent(self, log: Dataset) -> None:
        for stream in synthetic._STREAMS:
            least, mean, most, total = (
                column(log, f"{stream} {of} tf") for of in ("min", "mean", "max", "sum")
            )
            assert (least <= mean + 1e-4).all() and (mean <= most + 1e-4).all()
            assert (most <= total).all() and (total <= column(log, f"{stream} length")).all()

    def test_pages_have_copies(self, log: Dataset) -> None:
        rows = np.stack([list_numbers(log), column(log, "body lmir.abs")], 1)
        share = 1 - len(np.unique(rows, axis=0)) / len(rows)
        assert 0.08 < share < 0.15

    def test_splits_are_of_one_world(self) -> None:
        made = {split: synthetic.make(600, split=split) for split in synthetic.SPLITS}
        logs = [np.sign(d.features) * np.log1p(np.abs(d.features)) for d in made.values()]
        scale = logs[0].std(0) + 1e-6
        for other in logs[1:]:
            assert np.abs((other.mean(0) - logs[0].mean(0)) / scale).max() < 0.2
        qids = [set(dataset.qids.tolist()) for dataset in made.values()]
        assert not qids[0] & qids[1] and not qids[1] & qids[2] and not qids[0] & qids[2]

    def test_sizes(self) -> None:
        assert synthetic.SIZES["web30k"] == (18919, 6306, 6306)
        made = synthetic.splits()
        assert tuple(len(made[split]) for split in synthetic.SPLITS) == synthetic.SIZES["small"]
        assert made["vali"].checksum() == synthetic.make(300, split="vali").checksum()


class TestPointwiseWorld:
    def test_pages_are_the_same_and_labels_come_as_often(
        self, log: Dataset, other: Dataset
    ) -> None:
        np.testing.assert_array_equal(other.features, log.features)
        shares = np.bincount(other.labels.astype(int), minlength=5) / len(other.labels)
        np.testing.assert_allclose(shares, LABELS, rtol=0.15, atol=0.003)
        assert 0.1 < (other.labels != log.labels).mean() < 0.7

    def test_other_items_of_a_list_do_not_matter(self, other: Dataset) -> None:
        rows = np.arange(len(other.labels) + 1)
        alone = replace(other, offsets=rows, qids=rows[1:].astype(str))
        expected = synthetic.oracle(other, world="pointwise")
        np.testing.assert_array_equal(synthetic.oracle(alone, world="pointwise"), expected)

    def test_its_oracle_is_the_best(self, other: Dataset) -> None:
        best = ndcg(synthetic.oracle(other, world="pointwise"), other)
        assert 0.62 < best < 0.72
        assert ndcg(synthetic.oracle(other), other) < best - 0.05

    def test_unknown_world(self, log: Dataset) -> None:
        for call in (
            lambda: synthetic.make(1, world="x"),
            lambda: synthetic.oracle(log, world="x"),
        ):
            with pytest.raises(ValueError, match="world must be one of 'listwise', 'pointwise'"):
                call()


class TestOracle:
    def test_knows_nothing_but_the_features(self, log: Dataset) -> None:
        bare = replace(log, labels=np.zeros_like(log.labels), feature_names=None)
        np.testing.assert_array_equal(synthetic.oracle(bare), synthetic.oracle(log))

    def test_other_data_is_refused(self, log: Dataset) -> None:
        with pytest.raises(ValueError, match="no feature 'body length'"):
            synthetic.oracle(replace(log, feature_names=tuple(f"f{i}" for i in range(136))))
        with pytest.raises(ValueError, match="no feature"):
            synthetic.oracle(replace(log, features=log.features[:, :50], feature_names=None))

    def test_follows_its_items_and_lists(self, log: Dataset) -> None:
        random = np.random.default_rng(0)
        order = np.lexsort((random.random(len(log.labels)), list_numbers(log)))
        mixed = replace(log, features=log.features[order], labels=log.labels[order])
        expected = synthetic.oracle(log)
        np.testing.assert_allclose(synthetic.oracle(mixed), expected[order], atol=1e-9)
        backwards = log.select(np.arange(len(log))[::-1])
        lists = np.split(expected, log.offsets[1:-1])[::-1]
        np.testing.assert_allclose(synthetic.oracle(backwards), np.concatenate(lists), atol=1e-9)

    def test_context_matters(self, log: Dataset) -> None:
        some = log.select(np.flatnonzero(np.diff(log.offsets) >= 20)[:50])
        rows = np.arange(len(some.labels) + 1)
        alone = replace(some, offsets=rows, qids=rows[1:].astype(str))
        assert np.abs(synthetic.oracle(alone) - synthetic.oracle(some)).mean() > 0.3

    def test_labels_rise_with_the_utility(self, log: Dataset) -> None:
        order = np.argsort(synthetic.oracle(log))
        means = [part.mean() for part in np.array_split(log.labels[order], 20)]
        assert (np.diff(means) > 0).all()

    def test_no_disturbed_oracle_is_better(self) -> None:
        test = synthetic.make(500, split="test", features=14)
        scores = synthetic.oracle(test)
        best = ndcg(scores, test)
        noise = np.random.default_rng(0).standard_normal((3, len(scores)))
        assert all(ndcg(scores + 0.5 * each, test) < best for each in noise)
        assert ndcg(scores + 3 * noise[0], test) < best - 0.1


def test_models_differ_as_on_real_data() -> None:
    """Constant < linear < non-linear < non-linear with context < oracle, each by a margin."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import Ridge
    from threadpoolctl import threadpool_limits

    train, test = synthetic.make(200, features=30), synthetic.make(200, features=30, split="test")

    def trees(inputs: np.ndarray, others: np.ndarray) -> float:
        model = HistGradientBoostingRegressor(
            max_iter=40, learning_rate=0.2, early_stopping=False, random_state=0
        )
        with threadpool_limits(1):  # threads that wait for a busy core cost more than they save
            scores = model.fit(inputs, train.labels).predict(others)
        return ndcg(scores, test)

    x, x_test = (np.sign(d.features) * np.log1p(np.abs(d.features)) for d in (train, test))
    mean, scale = x.mean(0), x.std(0) + 1e-6
    constant = ndcg(np.zeros(len(test.labels)), test)
    linear_model = Ridge(100.0).fit((x - mean) / scale, train.labels)
    linear = ndcg(linear_model.predict((x_test - mean) / scale), test)
    deep = trees(x, x_test)
    context = trees(*(np.hstack([v, within_list(v, d)]) for v, d in ((x, train), (x_test, test))))
    best = ndcg(synthetic.oracle(test), test)
    assert 0.15 < constant < 0.3
    assert constant + 0.15 < linear
    assert linear + 0.04 < deep
    assert deep + 0.02 < context
    assert context + 0.02 < best
    assert 0.65 < best < 0.75


def within_list(values: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Each column standardized within its list."""
    starts, lengths = dataset.offsets[:-1], np.diff(dataset.offsets)[:, None]
    apart = values - np.repeat(np.add.reduceat(values, starts) / lengths, lengths[:, 0], axis=0)
    spread = np.sqrt(np.add.reduceat(apart * apart, starts) / lengths)
    return apart / (np.repeat(spread, lengths[:, 0], axis=0) + 1e-3)
