"""Students learn from their teachers, and what they lose is measured."""

import numpy as np
import pytest
from learnable import lists as learnable

from rankgrad.data import Dataset
from rankgrad.export import distill, student_settings
from rankgrad.export._distillation import quality_losses, with_teacher_labels
from rankgrad.training import FittedRanker, Settings, fit


def test_a_student_learns_the_order_of_its_teacher():
    """Of a teacher that knows what the labels do not say."""
    data = learnable(60, features=4)
    teacher = FittedRanker.new(Settings(model="mlp(hidden=[])", transforms=()), data.features)
    settings = Settings(loss="listnet", model="mlp(hidden=[])", transforms=(), device="cpu")
    settings = settings.model_copy(update={"epochs": 60, "patience": None, "learning_rate": 0.1})
    student = fit(settings, with_teacher_labels(data, teacher)).model
    close = np.corrcoef(student.predict(data.features), teacher.predict(data.features))[0, 1]
    assert close > 0.999


def by_rank_in_list(count, seed):
    """Lists whose labels follow from where an item stands in its list, and from nothing else."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(count, 8, 2)) + 3 * random.normal(size=(count, 1, 2))
    ranks = features[:, :, 0].argsort(1).argsort(1)
    labels, offsets = (ranks >= 6).ravel(), np.arange(0, 8 * count + 1, 8)
    qids = [str(query) for query in range(count)]
    return Dataset(features.reshape(-1, 2).astype(np.float32), labels, offsets, qids)


@pytest.mark.parametrize(
    ("teacher", "student"),
    [
        ("tabm(hidden=[16], members=2, in_list=[rank])", "mlp(hidden=[1])"),
        ("tabm(hidden=[16], members=2, in_list=[rank])", "xgboost(max_leaves=2)"),
        ("lightgbm(num_leaves=7)", "lightgbm(num_leaves=2)"),
    ],
)
def test_what_a_student_loses_is_measured(teacher, student):
    """A student that is too small loses, and the test says so; one like the teacher does not."""
    data = {name: by_rank_in_list(60, at) for at, name in enumerate(("train", "vali", "test"))}
    settings = Settings(model=teacher, transforms=(), epochs=15, device="cpu")
    best = fit(settings, data["train"], data["vali"]).model
    small = student_settings(model=student, epochs=1, device="cpu")
    done = distill(best, data, small)
    lost = done.losses[0]
    assert lost.metric == "ndcg@10" and done.measured_on == "test" and done.student.per_item
    assert lost.difference == pytest.approx(lost.student - lost.teacher)
    assert lost.interval.low <= lost.difference <= lost.interval.high < 0 and lost.p < 0.001
    (same,) = quality_losses(best, best, data["test"], ["ndcg@10"])
    assert same.difference == 0 and same.p == 1


def test_without_a_loss_to_measure_on_nothing_is_trained(tmp_path):
    data = learnable(12)
    teacher = FittedRanker.new(Settings(), data.features)
    with pytest.raises(ValueError, match="measured on data it was not trained on"):
        distill(teacher, {"train": data}, folder=tmp_path / "student")
    with pytest.raises(ValueError, match="no train"):
        distill(teacher, {"test": data}, folder=tmp_path / "student")
    assert not (tmp_path / "student").exists()
