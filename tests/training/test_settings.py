from itertools import chain

import numpy as np
import pytest
import typer

from rankgrad.cli import app
from rankgrad.cli._setting_options import panels_of
from rankgrad.data import Dataset
from rankgrad.estimator import Ranker
from rankgrad.models import models
from rankgrad.training import Settings
from rankgrad.training._settings import for_data


def test_toml_brings_back_every_setting():
    settings = Settings(
        loss="neural_ndcg@10(temperature=exponential(start=10.0, end=0.1))",
        model="context_aware(fc=[8], ff=16)",
        metric="arp",
        metrics=["rr"],
        transforms=[],
        optimizer="sgd(momentum=0.9)",
        schedule="step(every=10)",
        patience=None,
        list_size=240,
        clip=1.5,
    )
    assert Settings.from_toml(settings.to_toml()) == settings
    assert 'patience = "none"' in settings.to_toml()
    assert settings.logged == ("arp", "rr")


def test_metrics_that_are_not_set_have_the_gain_of_the_metric():
    linear = Settings(metric="ndcg@10(gain=linear)")
    assert linear.metrics == ("ndcg@5(gain=linear)", "ndcg@10(gain=linear)", "ap", "rr")
    assert Settings.from_toml('metric = "dcg(gain=linear)"').metrics == linear.metrics
    assert Settings(metric="ap").metrics == Settings().metrics
    assert Settings(metric="ndcg(gain=linear)", metrics=["ndcg"]).metrics == ("ndcg",)
    assert Ranker(metric="ndcg(gain=linear)")._settings().metrics == linear.metrics
    assert Ranker(metric="ndcg(gain=linear)", metrics=["rr"])._settings().metrics == ("rr",)
    with pytest.raises(ValueError, match="valid dictionary or instance of Settings"):
        Settings.model_validate([1])


def test_presets_are_spelled_out():
    assert Settings(model="comparison").model == "mlp(hidden=[5])"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"loss": "aprox_ndcg"}, "loss: unknown loss 'aprox_ndcg'. Did you mean 'approx_ndcg'?"),
        ({"loss": 'mse(reduction="none")'}, "loss: .* training takes mean or sum"),
        ({"model": "mlp(hidden=[0])"}, "model: each size in hidden"),
        ({"metric": "ndgc"}, "metric: unknown metric"),
        ({"transforms": ["zscore"]}, "transforms: unknown transform"),
        ({"optimizer": "adamm"}, "optimizer: unknown optimizer"),
        ({"schedule": "step(every=0)"}, "schedule: every must be a whole number"),
        ({"schedule": "cosine(warmup=-1)"}, "schedule: warmup must be a number of at least 0"),
        ({"schedule": "cosine(end=low)"}, "schedule: end must be a number of .* found 'low'"),
        ({"optimizer": "adagrad(initial=x)"}, "optimizer: initial must be a number of at least 0"),
        ({"optimizer": "sgd(nesterov=yes)"}, "optimizer: nesterov must be true or false"),
        ({"optimizer": "sgd(nesterov=true)"}, "optimizer: nesterov needs a momentum above 0"),
        ({"learning_rate": float("inf")}, "learning_rate should be a finite number, found inf"),
        ({"epochs": 0}, "epochs should be greater than or equal to 1, found 0"),
        ({"learning_rate": "fast"}, "learning_rate should be a valid number.* found 'fast'"),
        ({"batching": "lists"}, "batching should be 'queries', 'documents' or 'query'"),
        ({"learning_rat": 1.0}, "no setting 'learning_rat'. Did you mean 'learning_rate'"),
        ({"missing": -999}, "missing should be a valid tuple, found -999"),
        ({"self": 1}, "no setting 'self'"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(options, says):
    with pytest.raises(ValueError, match=says) as error:
        Settings(**options)
    assert "\n" not in str(error.value)


def test_settings_do_not_change():
    with pytest.raises(ValueError, match="frozen"):
        Settings().epochs = 3


def test_every_setting_has_a_place_and_a_text_in_the_help():
    assert [*chain(*panels_of(Settings).values())] == list(Settings.model_fields)
    options = typer.main.get_command(app).commands["train"].params
    shown = {option.name: option.help for option in options}
    for name, field in Settings.model_fields.items():
        assert " ".join(field.description.split()) in shown[name]


def test_broken_toml_says_so():
    with pytest.raises(ValueError, match="not TOML"):
        Settings.from_toml("loss = ")


def test_patience_by_name_or_number():
    assert Settings(patience="7").patience == Settings(patience=np.int64(7)).patience == 7
    assert Settings(patience="none").patience is None
    assert Settings.from_toml(Settings().to_toml()).patience == "auto"
    for wrong in ("soon", 0, True, 2.5):
        with pytest.raises(ValueError, match="patience: a whole number of at least 1, auto"):
            Settings(patience=wrong)
    order = [Settings(patience=given) for given in (19, "auto", 20, None)]
    for at, one in enumerate(order):
        assert [bool(other.extension(one)) for other in order] == [n > at for n in range(4)]


def lists(count, length):
    items = count * length
    features = np.random.default_rng(0).normal(size=(items, 2)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.float32)
    qids = np.arange(count).astype(str)
    return Dataset(features, labels, np.arange(0, items + 1, length), qids)


def test_small_is_the_default_of_settings():
    assert str(models.get("small")) == Settings().model


def test_few_items_leave_the_settings():
    settings, notes = for_data(Settings(), lists(499, 100), explicit=())
    assert settings == Settings() and not notes


@pytest.mark.parametrize(
    ("count", "length", "epochs", "model", "batch_size", "decay", "l1"),
    [
        (250, 200, 20, "medium", 4, 0.91, 0.3),
        (499, 101, 20, "medium", 4, 0.45, 0.3),
        (500, 100, 20, "medium", 8, 0.91, 0.3),
        (999, 51, 20, "medium", 8, 0.45, 0.3),
        (1000, 50, 20, "medium", 16, 0.91, 0.3),
        (2000, 30, 20, "medium", 32, 0.91, 0.22),
        (3000, 20, 20, "medium(heads=2)", 32, 0.6, 0.18),
        (10_001, 20, 10, "medium(heads=2)", 32, 0.36, 0.1),
        (10_001, 5, 10, "medium", 32, 0.36, 0.1),
    ],
)
def test_many_items_have_a_larger_model(count, length, epochs, model, batch_size, decay, l1):
    settings = Settings(seed=3, device="cpu")
    found, (note,) = for_data(settings, lists(count, length), explicit={"seed", "device"})
    assert found.model == str(models.get(model))
    assert (found.schedule, found.epochs, found.patience) == ("cosine", epochs, None)
    assert (found.seed, found.loss) == (3, "softmax")  # labels are 0 and 1
    assert note.startswith(f"{count * length:,} training items")
    assert f": model {model}, cosine" in note
    assert found.weight_decay == decay and f", weight decay {decay:g}, " in note
    assert found.batch_size == batch_size
    assert (f", batch size {batch_size}, " in note) == (batch_size != 32)
    assert found.optimizer == f"adamw(l1={l1})" and f", optimizer adamw(l1={l1}); " in note


@pytest.mark.parametrize(
    ("lengths", "list_size", "model"),
    [
        ([1500, *[20] * 2999], None, "medium(heads=2)"),
        ([1501, *[20] * 2999], None, "medium"),
        ([1501, *[20] * 2999], 100, "medium"),  # validation and prediction have whole lists
        ([40] * 3000, 20, "medium(heads=2)"),
        ([40] * 3000, 19, "medium"),
    ],
)
def test_very_long_and_short_lists_have_no_attention(lengths, list_size, model):
    features, offsets = np.zeros((sum(lengths), 1), np.float32), np.r_[0, np.cumsum(lengths)]
    data = Dataset(features, np.zeros(len(features)), offsets, np.arange(3000).astype(str))
    found, (note,) = for_data(
        Settings(device="cpu", list_size=list_size), data, explicit={"device"}
    )
    assert found.model == str(models.get(model))
    assert ("model=medium is without attention, model" in note) == ("heads" in model)


@pytest.mark.parametrize(
    ("labels", "options", "loss"),
    [
        ([0, 1, 2], {}, "ordered_logit"),
        ([0, 2, 5], {}, "ordered_logit(levels=6)"),
        ([0, 1, 1], {}, "softmax"),  # binary
        ([2, *[0, 1] * 14_999, 1], {}, "softmax"),  # but for two items of 60,000
        ([0, 1, 1.5], {}, "softmax"),  # no grades
        ([0, 1, 32], {}, "softmax"),  # too many levels
        ([0, 1, 31], {}, "softmax"),  # most of which do not occur
        ([0, 1, 2], {"metric": "ap"}, "ordered_logit"),  # whatever the metric
        ([0, 1, 2], {"list_size": 19}, "softmax"),  # short lists
        ([0, 1, 2], {"loss": "lambdaloss@10"}, "lambdaloss@10"),
    ],
)
def test_graded_labels_have_a_loss_of_all_grades(labels, options, loss):
    data = lists(500, 120)
    graded = Dataset(data.features, np.tile(labels, 60_000 // len(labels)), data.offsets, data.qids)
    found, (note,) = for_data(Settings(**options), graded, explicit=options)
    assert found.loss == loss and (f", loss {loss}, " in note) == loss.startswith("ordered")


def test_explicit_settings_are_unchanged():
    many = lists(500, 100)
    model = Settings(model="small")
    assert for_data(model, many, explicit={"model"}) == (model, [])
    constant, (note,) = for_data(Settings(schedule="constant"), many, explicit={"schedule"})
    assert constant == Settings(model="medium")
    assert "optimizer as without many items" in note
    found, (note,) = for_data(Settings(epochs=3, patience=2), many, {"epochs", "patience"})
    assert (found.epochs, found.patience, found.schedule) == (3, 2, "cosine")
    assert "cosine schedule of 3 epochs" in note
    # The batch size follows from the number of lists, weight decay from that of steps.
    assert (found.batch_size, found.weight_decay, found.optimizer) == (8, 1.0, "adamw(l1=0.3)")
    found, _ = for_data(Settings(epochs=200, learning_rate=0.01), many, {"epochs", "learning_rate"})
    assert (found.learning_rate, found.weight_decay) == (0.01, 0.027)
    cosine = Settings(schedule="cosine(warmup=1.0)")
    assert for_data(cosine, many, {"schedule"})[0].schedule == cosine.schedule
    assert for_data(cosine, many, {"schedule"})[0].epochs == 20
    medium, (note,) = for_data(Settings(model="medium"), lists(3000, 20), explicit={"model"})
    assert medium.model == str(models.get("medium")) and medium.schedule == "cosine"
    assert "model medium" not in note
    settings = Settings(weight_decay=0.05, device="cpu")
    settings, (note,) = for_data(settings, many, explicit={"weight_decay", "device"})
    assert (settings.epochs, settings.weight_decay) == (20, 0.05) and "decay" not in note
    settings = Settings(optimizer="sgd", device="cpu")
    settings, _ = for_data(settings, many, explicit={"optimizer", "device"})
    assert (settings.epochs, settings.weight_decay) == (20, Settings().weight_decay)
    settings, _ = for_data(Settings(accumulate=8, device="cpu"), lists(10_001, 5), {"accumulate"})
    assert settings.weight_decay == 1.0


@pytest.mark.parametrize(
    ("options", "decay"),
    [
        ({"batch_size": 16}, 1.0),
        ({"batching": "query"}, 0.11),
        ({"batching": "documents"}, 1.0),
        ({"batching": "documents", "documents": 1000}, 1.0),
        ({"batching": "documents", "documents": 100}, 0.11),
        ({"accumulate": 2}, 1.0),
        ({"devices": 2}, 1.0),
    ],
)
def test_explicit_batches_are_unchanged(options, decay):
    found, (note,) = for_data(Settings(**options), lists(500, 100), explicit=options)
    assert found.batch_size == options.get("batch_size", 32) and "batch size" not in note
    assert found.weight_decay == decay


def test_batches_of_several_processes_are_unchanged(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")  # as torchrun sets it
    assert for_data(Settings(), lists(500, 100), explicit=())[0].batch_size == 32


@pytest.mark.parametrize(("explicit", "expected"), [({}, "medium"), ({"model": "small"}, "small")])
def test_the_estimator_follows_the_rules(monkeypatch, capsys, explicit, expected):
    monkeypatch.setattr("rankgrad.training._settings.MANY_ITEMS", 20)
    data = lists(4, 5)
    ranker = Ranker(epochs=1, device="cpu", verbose=True, **explicit)
    ranker.fit(data.features, data.labels, group=data.lengths)
    assert ranker.model_.settings.model == str(models.get(expected))
    assert ("20 training items" in capsys.readouterr().out) == (expected == "medium")
