"""A teacher's scores, or its order alone, as labels."""

import numpy as np
import pytest
import torch

from rankgrad import kernels, losses
from rankgrad.data.trec import RankedList
from rankgrad.text import MixedLoss, labels_from_run, teacher_labels
from rankgrad.text._candidates import Candidates

TEACHER = torch.tensor([-3.0, 2.5, 0.5, -1.0, 0.5])


def test_transforms():
    shifted = teacher_labels(TEACHER, "shift", temperature=2.0)
    torch.testing.assert_close(shifted, (TEACHER + 3) / 2)
    torch.testing.assert_close(teacher_labels(TEACHER, "minmax"), (TEACHER + 3) / 5.5)
    soft = teacher_labels(TEACHER, "softmax", temperature=0.5)
    torch.testing.assert_close(soft, (TEACHER / 0.5).softmax(0))
    ranks = 1 / teacher_labels(TEACHER, "rank")
    torch.testing.assert_close(ranks, torch.tensor([5.0, 1.0, 2.5, 4.0, 2.5]))
    assert teacher_labels(TEACHER.double()).dtype == torch.float64
    for how in ("shift", "minmax", "softmax", "rank"):
        unknown = teacher_labels([1.0, float("-inf"), 2.0], how)
        assert unknown[1] == 0 and unknown[2] > 0
        assert teacher_labels([4.0, 4.0], how).unique().numel() == 1
        assert teacher_labels([], how).shape == (0,)


def test_runs():
    order = ["d3", "d1", "d2"]
    assert (1 / labels_from_run(order, ["d1", "d2", "d3"])).tolist() == pytest.approx([2, 3, 1])
    assert labels_from_run(order, ["d9", "d3"]).tolist() == [0, 1]
    run = {"d1": -7.5, "d3": 2.0, "d8": 11.0}
    assert labels_from_run(run, ["d3", "d1", "d9"]).tolist() == [9.5, 0, 0]
    assert labels_from_run(run, ["d3", "d1", "d9"], "rank").tolist() == [1, 0.5, 0]
    close = {"d1": 1e9, "d2": 1e9 + 1}  # equal in float32
    assert labels_from_run(close, ["d1", "d2"]).tolist() == [0, 1]
    assert labels_from_run(close, ["d1", "d2"], "rank").tolist() == [0.5, 1]


def test_a_teacher_beside_the_grades():
    torch.manual_seed(0)
    scores, grades = torch.randn(9, requires_grad=True), torch.randint(3, (9,)).float()
    offsets, taught = torch.tensor([0, 4, 9]), teacher_labels(torch.randn(9))
    own = losses.get("approx_ndcg@3")(scores, grades, offsets=offsets)
    its = losses.get("margin_mse")(scores, taught, offsets=offsets)
    columns = torch.stack([grades, taught], -1)
    for weight in (0.0, 0.3, 1.0):
        mixed = MixedLoss("approx_ndcg@3", weight, "margin_mse")
        value = mixed(scores, columns, offsets=offsets)
        torch.testing.assert_close(value, (1 - weight) * own + weight * its)
    mixed.progress = 0.5
    assert (mixed.loss.progress, mixed.teacher_loss.progress) == (0.5, 0.5)
    twice = MixedLoss("gumbel_neural_ndcg(seed=1)")  # draws of its own for each of the two
    assert twice.loss is not twice.teacher_loss
    with pytest.raises(ValueError, match=r"labels must have shape \[9, 2\], .* found \[9\]"):
        mixed(scores, grades, offsets=offsets)


def test_losses_of_ones_own_are_mixed():
    class Doubled(type(losses.get("softmax"))):
        def forward(self, *args, **kwargs):
            return 2 * super().forward(*args, **kwargs)

    scores, grades = torch.tensor([0.0, 2.0, 1.0]), torch.tensor([0.0, 1.0, 0.0])
    columns = torch.stack([grades, grades], -1)
    plain = losses.get("softmax")(scores, grades)
    for mixed in (MixedLoss(Doubled()), MixedLoss(Doubled(), 0.5, Doubled())):
        torch.testing.assert_close(mixed(scores, columns), 2 * plain)
    torch.testing.assert_close(MixedLoss("softmax", 1.0, Doubled())(scores, columns), 2 * plain)


def test_wrong_teachers_are_named():
    with pytest.raises(ValueError, match="item 1 is nan"):
        teacher_labels([1.0, float("nan")])
    with pytest.raises(ValueError, match=r"shape \[n\], found \[2, 2\]"):
        teacher_labels(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="transform must be one of 'shift', 'minmax'"):
        teacher_labels([1.0], "log")
    with pytest.raises(ValueError, match="transform must be 'rank', found 'shift'"):
        labels_from_run(["d1"], ["d1"], "shift")
    with pytest.raises(ValueError, match="a document twice"):
        labels_from_run(["d1", "d1"], ["d1"])


@pytest.mark.parametrize(
    ("spec", "transform"),
    [
        ("ranknet", "shift"),
        ("ranknet", "rank"),
        ("lambdaloss@3", "minmax"),
        ("lambdaloss@3", "rank"),
        ("listmle(seed=0)", "rank"),
        ("softmax", "softmax"),
        ("listnet", "shift"),
        ("margin_mse", "shift"),
    ],
)
def test_a_student_learns_the_teachers_order(spec, transform):
    loss, labels = losses.get(spec), teacher_labels(TEACHER, transform)
    scores = torch.zeros(5, requires_grad=True)
    optimizer = torch.optim.SGD([scores], lr=0.5)
    with kernels.using("eager"):  # nothing to compile
        for _ in range(60):
            optimizer.zero_grad()
            loss(scores, labels).backward()
            optimizer.step()
    learned = scores.detach()
    assert learned[[1, 2, 3, 0]].diff().max() < 0
    if spec == "margin_mse":  # its scale, too
        torch.testing.assert_close(learned.diff(), TEACHER.diff(), rtol=1e-3, atol=1e-3)
    if spec in ("softmax", "listnet"):
        torch.testing.assert_close(learned.softmax(0), TEACHER.softmax(0), rtol=0.1, atol=0.02)


def test_candidates_taught_by_a_run():
    run = {"q": RankedList.sort(["a", "b", "c"], [3.0, 2.0, 1.0])}
    lists = Candidates.of(run, dict.fromkeys("abc", "text"), {"q": "query"}, {"q": {"a": 2}})
    assert lists.targets.tolist() == [2.0, 0.0, 0.0]
    teacher = {"q": RankedList.sort(["c", "a"], [-1.0, -2.0])}
    assert labels_from_run(teacher["q"], ["a", "c"]).tolist() == [0.0, 1.0]
    taught = lists.with_teacher(teacher, "rank")
    assert taught.targets.tolist() == [0.5, 0.0, 1.0]
    assert taught.labels.tolist() == [2.0, 0.0, 0.0]
    assert taught.select(np.array([0])).targets.tolist() == [0.5, 0.0, 1.0]
    assert taught.checksum() != lists.checksum()
    numbered = Candidates.of({"7": run["q"]}, dict.fromkeys("abc", "text"), {"7": "query"})
    with pytest.raises(ValueError, match="'7' of the candidates is '007' in the teacher's run"):
        numbered.with_teacher({"007": run["q"]})


def test_lists_without_candidates_count_nothing():
    run = {"q": RankedList.sort(["a"], [1.0])}
    lists = Candidates.of(
        run, {"a": "text"}, {"q": "query", "z": "other"}, {"q": {"a": 1}, "z": {"b": 1}}
    )
    alone = lists.select(np.array([1]))
    assert alone.evaluate(np.empty(0), ["ndcg@10", "ap"]).values.mean == {"ndcg@10": 0.0, "ap": 0.0}
