import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchmetrics")

from integrations import gathered
from torchmetrics import MetricCollection

from rankgrad.integrations.torchmetrics import RankingMetric, _count_by_query, ranking_metrics

TESTS = Path(__file__).resolve().parents[1]


def test_two_processes_compute_what_one_does(tmp_path):
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", gathered.__file__, str(tmp_path), str(rank), "2"],
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors[-3000:]
    alone = gathered.compute([20], 0).compute().item()
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for values in found.values():
            assert values == pytest.approx([alone, alone], rel=1e-6)


def test_queries_without_relevant_items():
    passed = torch.tensor([0.4, 0.3, 0.2]), torch.tensor([0, 0, 1]), torch.tensor([4, 9, 9])
    values = {}
    for action in ("neg", "pos", "skip"):
        metric = RankingMetric("rr", action)
        metric.update(*passed)
        values[action] = metric.compute().item()
    assert values == {"neg": 0.25, "pos": 0.75, "skip": 0.5}
    metric = RankingMetric("rr", "error")
    metric.update(*passed)
    with pytest.raises(ValueError, match="query 4 has no relevant item, one of 1"):
        metric.compute()
    for name in ("opa", "kendall_tau", "spearman"):  # the item of query 4 is relevant, and alone
        metric = RankingMetric(name, "error")
        metric.update(passed[0], torch.tensor([1, 0, 1]), passed[2])
        with pytest.raises(ValueError, match=f"^{name} is undefined on query 4, one of 1 such"):
            metric.compute()
    metric = RankingMetric("rr", "skip")
    metric.update(passed[0][:1], passed[1][:1], passed[2][:1])
    assert metric.compute() == 0.0
    assert str(RankingMetric("rr(empty=1)").metric) == "rr(empty=1)"


@pytest.mark.parametrize("indexes", [[0, 0, 1], [1, 0, 1]])
def test_float64_stays(indexes):
    preds = torch.tensor([0.3, 0.2, 0.1], dtype=torch.float64)
    target = torch.tensor([0.7, 0.7, 0.7], dtype=torch.float64)
    metric = RankingMetric("rr(threshold=0.7)")  # 0.7 of float32 is less than 0.7
    metric.update(preds, target, torch.tensor(indexes))
    assert metric.compute() == 1


def test_graphs_are_not_stored_and_states_may_be_of_half_precision():
    preds = torch.tensor([0.3, 0.2, 0.1], requires_grad=True)
    metric = RankingMetric("rr")
    metric.update(preds, torch.tensor([0, 1, 1]), torch.tensor([1, 1, 0]))
    assert not metric.preds[0].requires_grad
    assert metric.set_dtype(torch.float16).compute() == 0.75


def test_items_of_other_devices_are_not_sorted_on_the_cpu():
    items = [torch.zeros(3, device="meta")]
    assert _count_by_query(items, items, items) is None


@pytest.mark.parametrize("scale", [1, 1 << 14, 1 << 40])
def test_queries_of_any_index_in_any_order(scale):
    generator = torch.Generator().manual_seed(0)
    indexes = torch.randint(-5, 20, (300,), generator=generator)
    passed = torch.rand(300, generator=generator), torch.randint(0, 3, (300,), generator=generator)
    apart, together = RankingMetric("ndcg"), RankingMetric("ndcg")
    apart.update(*passed, indexes * scale)
    order = indexes.argsort(stable=True)
    together.update(*(values[order] for values in passed), indexes[order])
    assert apart.compute() == together.compute()


def test_queries_whose_indexes_are_hashes_of_64_bits():
    high = 2**62 + 2**61  # from -high to high is more than 64 bits hold
    metric = RankingMetric("rr")
    metric.update(
        torch.tensor([0.3, 0.2, 0.1, 0.4, 0.5]),
        torch.tensor([0, 0, 1, 1, 0]),
        torch.tensor([high, high, high, -high, -high]),
    )
    assert metric.compute().item() == pytest.approx((1 / 3 + 1 / 2) / 2)


def test_a_collection_has_common_states():
    names = ["ndcg@3", "ap", "rr", "arp"]
    collection = MetricCollection({name: RankingMetric(name) for name in names})
    preds, target, indexes = gathered.data()
    for part in (slice(0, 9), slice(9, 20)):
        collection.update(preds[part], target[part], indexes[part])
    assert len(collection.compute_groups) == 1
    found = collection.compute()
    assert found["ndcg@3"] == gathered.compute([20], 0).compute()
    better = {name: collection[name].higher_is_better for name in names}
    assert better == {"ndcg@3": True, "ap": True, "rr": True, "arp": False}
    again = pickle.loads(pickle.dumps(collection["ap"]))
    assert again.compute() == found["ap"]


def test_a_collection_by_specs_and_what_is_shown():
    preds, target, indexes = gathered.data()
    found = ranking_metrics(["ndcg@3", "rbp(persistence=0.5)"], empty_target_action="skip")
    found.update(preds, target, indexes)
    assert list(found.compute()) == ["ndcg@3", "rbp(persistence=0_5)"]
    shown = repr(found["ndcg@3"])
    assert shown == "RankingMetric('ndcg@3(empty=skip)', empty_target_action='skip')"
    try:
        _, axis = found["ndcg@3"].plot()
        assert axis.get_title() == "ndcg@3(empty=skip)"
    except ModuleNotFoundError as error:
        assert "matplotlib" in str(error)


@pytest.mark.parametrize("metric", ["ndcg@5", "hits@3"])
def test_batches_of_any_size_give_what_one_does(metric):
    generator = torch.Generator().manual_seed(0)
    indexes = torch.randint(0, 20, (300,), generator=generator)
    passed = (
        torch.rand(300, generator=generator),
        torch.randint(0, 3, (300,), generator=generator),
        indexes,
    )
    one, several, ordered = (RankingMetric(metric) for _ in range(3))
    one.update(*passed)
    for batch in zip(*(values.split([0, 1, 120, 179]) for values in passed), strict=True):
        several.update(*batch)
    order = indexes.argsort(stable=True)
    for batch in zip(*(values[order].split(100) for values in passed), strict=True):
        ordered.update(*batch)
    assert one.compute() == several.compute() == ordered.compute()
    mixed = RankingMetric(metric)
    mixed.update(passed[0][:150].double(), passed[1][:150], indexes[:150])
    mixed.update(passed[0][150:], passed[1][150:], indexes[150:])
    assert mixed.compute().item() == pytest.approx(one.compute().item(), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "ndgc"}, "ndgc"),
        ({"empty_target_action": "drop"}, "empty_target_action must be one of"),
        ({"metric": "ap(empty=1)", "empty_target_action": "skip"}, "give one"),
        ({"ignore_index": "x"}, "ignore_index must be a whole number"),
        ({"aggregation": "sum"}, "aggregation must be one of"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        RankingMetric(**options)


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        (([0.1, 0.2], [1, 0], [0]), r"one shape, found \[2\], \[2\] and \[1\]"),
        (([1, 2], [1, 0], [0, 0]), "preds must be floating, found torch.int64"),
        (([0.1, 0.2], [1, 0], [0.0, 1.0]), "indexes must be whole numbers, found torch.float32"),
    ],
)
def test_wrong_items(passed, message):
    with pytest.raises(ValueError, match=message):
        RankingMetric("ap").update(*map(torch.tensor, passed))
    with pytest.raises(ValueError, match="indexes must say the query of each item"):
        RankingMetric("ap").update(*map(torch.tensor, passed[:2]))
