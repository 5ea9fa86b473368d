"""Rankers as folders with a model card, and on a stand-in for the Hugging Face Hub."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from learnable import lists
from torch import nn

from rankgrad import Ranker
from rankgrad.significance import bootstrap_interval

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def data():
    found = lists(30, 0)
    names = [f"feature|{at}" for at in range(found.features.shape[1])]
    X = pd.DataFrame(found.features, columns=names)
    return X, found.labels, np.repeat(found.qids, found.lengths)


@pytest.fixture(scope="module")
def ranker(data):
    X, y, qid = data
    small = Ranker(model="mlp(hidden=[4])", epochs=2, metrics=["ap"], device="cpu")
    return small.fit(X, y, qid, eval_set=(X, y), eval_qid=qid)


def test_a_folder_round_trip(ranker, data, tmp_path):
    X, y, qid = data
    evaluation = ranker.evaluate(X, y, qid, metrics=["ndcg@5(gain=linear)", "rr"])
    ranker.save_pretrained(
        tmp_path / "a", evaluation=evaluation, data="the lists", license="mit", repo_id="me/mine"
    )
    ranker.save_pretrained(tmp_path / "a", evaluation=evaluation, data="the lists")  # over it
    found = sorted(p.relative_to(tmp_path / "a").as_posix() for p in (tmp_path / "a").rglob("*"))
    weights = ["best", "best/model.json", "best/model.safetensors"]
    assert found == ["README.md", *weights, "ranker.json"]
    again = Ranker.from_pretrained(tmp_path / "a")
    assert again.get_params() == ranker.get_params()
    assert np.array_equal(again.predict(X, qid), ranker.predict(X, qid))
    assert again.score(X, y, qid=qid) == ranker.score(X, y, qid=qid)


def test_the_card_has_metrics_with_conventions_and_intervals(ranker, data, tmp_path):
    X, y, qid = data
    evaluation = ranker.evaluate(X, y, qid, metrics=["ndcg@5(gain=linear)", "rr(empty=skip)"])
    ranker.save_pretrained(tmp_path / "a", evaluation=evaluation, data="the lists", license="mit")
    card = huggingface_hub.ModelCard.load(tmp_path / "a" / "README.md")
    assert card.data.library_name == "rankgrad"
    assert card.data.license == "mit"
    first, second = card.data.eval_results
    spec = "ndcg@5(gain=linear)"
    assert (first.metric_type, second.metric_type) == (spec, "rr(empty=skip)")
    assert first.metric_value == evaluation[spec]
    assert first.dataset_name == "the lists"
    low, high = bootstrap_interval(evaluation.per_list[spec])
    assert first.metric_args == {"interval95": [low, high], "lists": 30}
    text = card.text
    row = f"| `{spec}` | {evaluation[spec]:.4f} | {low:.4f} to {high:.4f} |"
    for part in (row, "gain: y", "count 0 for ndcg@5", "are left out for rr", "mean over 30 lists"):
        assert part in text
    assert "`feature\\|0`" in text
    undefined = ranker.evaluate(X, 0 * y, qid, metrics=["rr(empty=skip)"])
    ranker.save_pretrained(tmp_path / "b", evaluation=undefined)
    assert "| `rr(empty=skip)` | undefined | - |" in (tmp_path / "b" / "README.md").read_text()
    ranker.save_pretrained(tmp_path / "b")
    without = (tmp_path / "b" / "README.md").read_text()
    assert f"validation data, which chose the epoch, ndcg@10 is {ranker.best_score_:.4f}" in without
    assert huggingface_hub.ModelCard(without).data.eval_results is None


class StandIn:
    """The Hub in a folder: what is uploaded is what is downloaded."""

    def __init__(self, place: Path) -> None:
        self.place, self.calls, self.real = place, [], huggingface_hub.HfApi

    def api(self, **options):
        self.calls.append(options)
        found = mock.create_autospec(self.real, instance=True)
        found.create_repo.side_effect = lambda repo_id, **options: SimpleNamespace(repo_id=repo_id)
        found.upload_folder.side_effect = self.upload
        return found

    def upload(self, *, repo_id, folder_path, allow_patterns, **options):
        self.calls.append(options)
        from huggingface_hub.utils import filter_repo_objects

        files = [p.relative_to(folder_path).as_posix() for p in Path(folder_path).rglob("*.*")]
        for name in filter_repo_objects(files, allow_patterns=allow_patterns):
            to = self.place / repo_id / name
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder_path / name, to)
        return SimpleNamespace(commit_url=f"hub://{repo_id}", pr_url=None)

    def download(self, repo_id, **options):
        """A folder of links, as the Hub's cache has them."""
        self.calls.append(options)
        to = self.place / "snapshot"
        for file in (self.place / repo_id).rglob("*.*"):
            link = to / file.relative_to(self.place / repo_id)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
        return str(to)


def test_pushed_and_loaded(ranker, data, tmp_path, monkeypatch):
    X, _, qid = data
    hub = StandIn(tmp_path)
    monkeypatch.setattr(huggingface_hub, "HfApi", hub.api)
    spec = mock.create_autospec(huggingface_hub.snapshot_download, side_effect=hub.download)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", spec)
    where = ranker.push_to_hub("me/ranker", private=True, token="secret", message="First")
    assert where == "hub://me/ranker"
    assert (hub.calls[0]["token"], hub.calls[1]["commit_message"]) == ("secret", "First")
    loaded = Ranker.from_pretrained("me/ranker", revision="main")
    assert hub.calls[2]["revision"] == "main"
    assert np.array_equal(loaded.predict(X, qid), ranker.predict(X, qid))
    card = (tmp_path / "me" / "ranker" / "README.md").read_text()
    assert 'Ranker.from_pretrained("me/ranker")' in card


@pytest.mark.parametrize("kind", ["lightgbm", "xgboost"])
def test_trees_are_pushed_and_loaded(kind, data, tmp_path, monkeypatch):
    pytest.importorskip(kind)
    X, y, qid = data
    hub = StandIn(tmp_path)
    monkeypatch.setattr(huggingface_hub, "HfApi", hub.api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.download)
    trees = Ranker(model=kind, epochs=2, transforms=[]).fit(X, y, qid)
    trees.push_to_hub("me/trees")
    with pytest.raises(ValueError, match=r"such as 'me/ranker', found '\./x': save_pretrained wr"):
        trees.push_to_hub("./x")
    loaded = Ranker.from_pretrained("me/trees")
    trees.save_pretrained(tmp_path / "saved")
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "| trees | 2 |" in card
    assert "| patience |" in card
    assert "optimizer" not in card  # a setting of networks
    assert np.array_equal(loaded.predict(X, qid), trees.predict(X, qid))


def test_a_network_of_ones_own(data, tmp_path):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LazyLinear(1)

        def forward(self, features, mask=None):
            return self.layer(features).squeeze(-1)

    X, y, qid = data
    network = Own()
    network(torch.zeros(1, X.shape[1]))
    ranker = Ranker(model=network, epochs=1, transforms=[], device="cpu").fit(X, y, qid)
    ranker.save_pretrained(tmp_path / "own")
    card = (tmp_path / "own" / "README.md").read_text()
    assert card.count("| model | `Own` |") == 2 and "tabm" not in card
    assert 'from_pretrained("FOLDER", model=Own(...))' in card
    again = Ranker.from_pretrained(tmp_path / "own", model=network)
    assert np.array_equal(again.predict(X, qid), ranker.predict(X, qid))


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'pip install "rankgrad\[hub\]"'):
        Ranker.from_pretrained("me/ranker")


def test_paths_without_a_saved_ranker(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # the Hub is not asked
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    for path in ("./missing", "../a/b", "~/missing", "file", "folder", tmp_path / "c", Path("d")):
        with pytest.raises(FileNotFoundError, match=f"no saved Ranker at {Path(path)}$"):
            Ranker.from_pretrained(path)


def test_something_else_is_never_replaced(ranker, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(FileExistsError, match="not a saved Ranker"):
        ranker.save_pretrained(tmp_path / "mine")
