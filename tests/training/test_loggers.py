"""Epochs in TensorBoard, MLflow and Weights & Biases, each without a network."""

import json
import sys
import time

import pytest
from learnable import lists

from rankgrad import Ranker
from rankgrad.training import Settings, fit
from rankgrad.training._loggers import Logger, MLflow, TensorBoard, WandB, loggers

LINEAR = "ndcg@10(empty=skip, gain=linear)"
SETTINGS = Settings(
    model="mlp(hidden=[8])", epochs=2, batch_size=8, metrics=(LINEAR,), device="cpu"
)
TAGS = {
    *("train/loss", "train/learning_rate", "train/seconds", "val/ndcg@10", f"val/{LINEAR}"),
    *("other/ndcg@10", f"other/{LINEAR}"),
}


def train(logger, folder=None, **options):
    """Two epochs, the values of which are given."""
    data = lists(40, 0), lists(20, 1)
    given = {"others": {"other": lists(10, 2)}, "on_epoch": logger, "folder": folder}
    return fit(SETTINGS, *data, **given | options).history


class StoppedError(Exception):
    pass


def stop_after_first(line):
    if line["epoch"] == 1:
        raise StoppedError


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    history = train(TensorBoard(folder=str(tmp_path / "events")))
    by_setting = fit(
        Settings(**SETTINGS.model_dump() | {"tensorboard": True}),
        lists(40, 0),
        folder=tmp_path / "run",
    ).history
    for folder, lines, tags in (
        ("events", history, TAGS),
        ("run", by_setting, {"train/loss", "train/learning_rate", "train/seconds"}),
    ):
        events = EventAccumulator(str(tmp_path / folder))
        events.Reload()
        assert set(events.Tags()["scalars"]) == tags
        logged = [(event.step, event.value) for event in events.Scalars("train/loss")]
        assert logged == [(n + 1, pytest.approx(line["loss"])) for n, line in enumerate(lines)]


def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    logger = MLflow(experiment="losses", run="first", uri=uri)
    with pytest.raises(StoppedError):
        train([logger, stop_after_first], tmp_path / "run")
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("losses").experiment_id
    (failed,) = client.search_runs([experiment])
    assert failed.info.status == "FAILED"
    history = train(logger, tmp_path / "run", resume=True)
    (run,) = client.search_runs([experiment])  # resumed, in the same run
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert run.data.params == {k: str(v) for k, v in SETTINGS.model_dump().items()}
    assert {"train/loss", "val/ndcg-at-10", "other/ndcg-at-10"} < set(run.data.metrics)
    assert "val/ndcg-at-10_empty_skip_gain_linear" in run.data.metrics
    for name, tag in (("ndcg@10", "val/ndcg-at-10"), ("loss", "train/loss")):
        logged = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, tag)]
        assert logged == [(n + 1, pytest.approx(line[name])) for n, line in enumerate(history)]


def records(content):
    """The records of a file of Weights & Biases: a header, then blocks as LevelDB's logs have."""
    block, at, parts = 1 << 15, 7, b""
    while at + 7 <= len(content):
        if block - at % block < 7:  # no space for another header
            at += block - at % block
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


def records_to_the_end(file):
    """Once the last is there: another process writes, and may do so after a run is finished."""
    from wandb.proto.wandb_internal_pb2 import Record

    until = time.monotonic() + 30
    while True:
        found = [Record.FromString(data) for data in records(file.read_bytes())]
        if any(record.HasField("exit") for record in found) or time.monotonic() > until:
            return found
        time.sleep(0.05)


def test_wandb(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path))
    history = train(WandB(project="losses", mode="offline"), tmp_path / "run")
    (file,) = (tmp_path / "run").glob("wandb/offline-run-*/run-*.wandb")
    rows, config = [], {}
    for record in records_to_the_end(file):
        if record.HasField("history"):
            items = record.history.item
            row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
            rows.append((record.history.step.num, row))
        if record.HasField("run"):
            config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
    assert config["loss"] == SETTINGS.loss
    assert [step for step, _ in rows] == [1, 2]
    assert set(rows[0][1]) >= TAGS
    for (_, row), line in zip(rows, history, strict=True):
        assert row["val/ndcg@10"] == pytest.approx(line["ndcg@10"])
    assert wandb.run is None  # nothing is left open


@pytest.mark.parametrize(
    ("spec", "package", "extra"),
    [
        ("tensorboard(folder=x)", "torch.utils.tensorboard", "tensorboard"),
        ("mlflow", "mlflow", "mlflow"),
        ("wandb", "wandb", "wandb"),
    ],
)
def test_what_is_missing_is_named_with_its_install_line(spec, package, extra, monkeypatch):
    logger = loggers.get(spec)
    assert str(logger) == spec
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf'pip install "rankgrad\[{extra}\]"'):
        logger.start(SETTINGS, None)


def test_an_estimator_logs_too():
    data, seen = lists(10, 0), []
    ranker = Ranker(model="mlp(hidden=[4])", epochs=2, device="cpu")
    ranker.fit(data.features, data.labels, group=data.lengths, on_epoch=[seen.append, seen.append])
    assert [line["epoch"] for line in seen] == [1, 1, 2, 2]
    assert [line["loss"] for line in seen[::2]] == ranker.evals_result_["training"]["loss"]


def test_wrong_use():
    with pytest.raises(ValueError, match="tensorboard needs a folder"):
        train(TensorBoard())
    with pytest.raises(ValueError, match="mode must be one of"):
        WandB(mode="of")
    with pytest.raises(ValueError, match="mlflow was not started"):
        MLflow()({"epoch": 1})


def test_loggers_before_one_that_does_not_start_are_finished():
    finished = []

    class Own(Logger):
        name = "own"

        def start(self, settings, folder):
            pass

        def finish(self, failed):
            finished.append(failed)

    with pytest.raises(ValueError, match="tensorboard needs a folder"):
        train([Own(), TensorBoard()])
    assert finished == [True]
