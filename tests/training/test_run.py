"""Run folders: one process at a time trains in one, and damage to any of its files is noticed."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest
from learnable import lists
from mutations import mutations
from rewritten import rewrite

from rankgrad import _files, _locks
from rankgrad.training import RunFolder, Settings, fit
from rankgrad.training._evaluations import EvaluatedLists

SETTINGS = Settings(
    loss="softmax", model="mlp(hidden=[4])", epochs=2, batch_size=8, metrics=(), device="cpu"
)
READERS = {
    "settings.toml": RunFolder.open,
    "run.json": lambda path: RunFolder.open(path).metadata,
    "metrics.jsonl": lambda path: RunFolder.open(path).history,
    "best": lambda path: RunFolder.open(path).best(),
    "last": lambda path: RunFolder.open(path).checkpoint(),
    "evaluations": EvaluatedLists.load,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    test = lists(6, 2)
    done = fit(SETTINGS, lists(12, 0), lists(6, 1), folder=path)
    scores = done.model.predict(test.features, test.offsets)
    EvaluatedLists.of(scores, test, ["ndcg@5", "rr"]).save(path)
    return path


@pytest.fixture
def run(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


def files_of(path):
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def test_a_run_consists_of_files_that_are_checked(run):
    assert len(files_of(run)) == 15  # another one needs a checksum and a reader above
    for name in files_of(run):
        READERS[name.split("/")[0]](run)


def test_no_damage_goes_unnoticed(run):
    silent = []
    for name in files_of(run):
        content = (run / name).read_bytes()
        for number, damaged in enumerate(mutations(content, 50)):
            (run / name).write_bytes(damaged)
            try:
                READERS[name.split("/")[0]](run)
            except (ValueError, OSError) as error:
                assert "damaged" in str(error), f"{name}: {error}"
            else:
                silent.append((name, number))
        (run / name).write_bytes(content)
    assert silent == []


@pytest.mark.parametrize("name", ["run.json", "best/model.json", "last/state.json"])
def test_runs_of_before_checksums_are_read(run, name):
    values = _files.read_json(run / name)
    del values["files"]
    _files.write(run / name, json.dumps(values))
    for read in READERS.values():
        read(run)


@pytest.mark.parametrize("data", [{"train": {}}, {"train": -1}, -1, {"train": {"lists": "3"}}])
def test_a_run_that_does_not_say_its_data_is_damaged(run, data):
    rewrite(run / "run.json", data=data)
    with pytest.raises(ValueError, match=r"run\.json is damaged \('data"):
        fit(SETTINGS, lists(12, 0), lists(6, 1), folder=run, resume=True)


def test_settings_are_those_of_the_checkpoint(run):
    text = (run / "settings.toml").read_text()
    (run / "settings.toml").write_text(text.replace("learning_rate = 0.0", "learning_rate = 0.1"))
    rewrite(run / "run.json")  # as if it were right
    changed = RunFolder.open(run).settings
    with pytest.raises(ValueError, match=r"settings.toml is damaged .* learning_rate: 0.1"):
        fit(changed, lists(12, 0), lists(6, 1), folder=run, resume=True)


def test_a_run_that_is_trained_is_not_resumed(run):
    data = lists(12, 0), lists(6, 1)
    refused = pytest.raises(_locks.LockedError, match=r"another process is training in .*run")
    with RunFolder.open(run).locked(), refused:
        fit(SETTINGS, *data, folder=run, resume=True)
    with RunFolder.open(run).locked(), refused:  # and not told to be there already
        fit(SETTINGS, *data, folder=run)
    fit(SETTINGS, *data, folder=run, resume=True)
    assert not (run / "run.lock").exists()


def test_of_two_that_start_at_once_one_trains(tmp_path, monkeypatch):
    both, check = threading.Barrier(2, timeout=60), RunFolder.check_new
    passed: list[object] = []

    def together(path):
        check(path)
        if len(passed) < 2:
            passed.append(both.wait())

    monkeypatch.setattr(RunFolder, "check_new", staticmethod(together))
    outcomes: list[object] = []

    def train():
        try:
            outcomes.append(fit(SETTINGS, lists(12, 0), lists(6, 1), folder=tmp_path / "run"))
        except FileExistsError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [outcome for outcome in outcomes if isinstance(outcome, str)]
    (said,) = errors
    assert said.startswith(f"another process has just started a run in {tmp_path / 'run'}: wait")
    assert len(RunFolder.open(tmp_path / "run").history) == 2
