import pytest
import torch
from learnable import lists

from rankgrad.data import store
from rankgrad.experiments.compare import NetworkEntry, Plan
from rankgrad.training import Settings

SETTINGS = Settings(
    model="mlp(hidden=[8])", epochs=2, batch_size=16, metric="ndcg@5", metrics=(), device="cpu"
)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as workers have it
    yield
    torch.set_num_threads(before)


def write_folds(place, folds=(1, 2)):
    """Folds of small splits, in stores."""
    for fold in folds:
        splits = {"train": lists(24, 10 * fold), "vali": lists(10, 10 * fold + 1)}
        store.write_splits(splits | {"test": lists(12, 10 * fold + 2)}, place / f"Fold{fold}")
    return place


@pytest.fixture(scope="session")
def folds(tmp_path_factory):
    return write_folds(tmp_path_factory.mktemp("data"))


@pytest.fixture
def plan(folds):
    """A function of what differs from a small plan."""

    def make(**options):
        entries = tuple(map(NetworkEntry.of, ("mse", "softmax")))
        default = {
            "data": folds,
            "entries": entries,
            "folds": (1, 2),
            "metrics": ("ndcg@5", "ap"),
            "settings": SETTINGS,
        }
        return Plan(**default | options)

    return make
