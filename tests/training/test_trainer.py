import json
import signal
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from learnable import lists
from rewritten import rewrite

import rankgrad
from rankgrad import losses
from rankgrad.training import RunFolder, Settings, fit
from rankgrad.training._absent_features import feature_presence
from rankgrad.training.trainer import Trainer

SMALL = {
    "model": "mlp(hidden=[8])",
    "epochs": 3,
    "batch_size": 8,
    "learning_rate": 0.01,
    "metrics": (),
    "device": "cpu",
}


def small(**options):
    return Settings(**SMALL | options)


@pytest.mark.parametrize("loss", ["approx_ndcg", "softmax", "lambdarank", "mse"])
def test_it_learns(loss, train, vali):
    test = lists(30, 2)
    done = fit(small(loss=loss, epochs=15, learning_rate=0.03), train, vali)
    scores = done.model.predict(test.features, test.offsets)
    assert rankgrad.evaluate(scores, test.labels, offsets=test.offsets)["ndcg@10"] > 0.75
    assert done.history[-1]["loss"] < done.history[0]["loss"]
    assert done.best_value == max(line["ndcg@10"] for line in done.history)


@pytest.mark.parametrize(
    "loss",
    [
        *(name for name in losses.names() if "_" not in name),
        "approx_precision",  # without a cutoff it does not depend on the scores
        "gumbel_neural_ndcg@3(seed=1)",
        "pirank_arp",
        "smoothi_ap@5",
    ],
)
def test_every_loss_trains(loss, train):
    done = fit(small(loss=loss, epochs=1), train.select(range(10)))
    assert np.isfinite(done.history[0]["loss"])


@pytest.mark.parametrize(
    "options",
    [
        {"batching": "documents", "documents": 64},
        {"batching": "query", "epochs": 1},
        {"list_size": 4},
        {"clip": 0.1, "accumulate": 3},
        {"precision": "bf16-mixed"},
        {"memory": 0},
        {"optimizer": "adagrad", "schedule": "step(every=1)"},
        {"model": "context_aware(fc=[8], ff=8, blocks=1)"},
        {"model": "tabm(hidden=[8], members=2, in_list=[rank], heads=1)"},
        {"transforms": []},
        {"model": "tabm(hidden=[8], members=3, dropout=0.3)", "average": 0.9},
    ],
    ids=str,
)
def test_options_train_and_the_reported_metric_is_that_of_the_model(options, train, vali):
    done = fit(small(**options), train, vali)
    scores = done.model.predict(vali.features, vali.offsets)
    exact = rankgrad.evaluate(scores, vali.labels, offsets=vali.offsets, metrics=["ndcg@10"])
    assert exact["ndcg@10"] == pytest.approx(done.best_value, abs=1e-5)


def test_the_same_again_and_pytorchs_random_numbers_untouched(train, vali):
    settings = small(model="mlp(hidden=[8], dropout=0.5)")
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    a, b = fit(settings, train, vali), fit(settings, train, vali)
    assert torch.equal(torch.rand(3), expected)
    for name, tensor in a.model.tensors().items():
        assert torch.equal(tensor, b.model.tensors()[name])
    c = fit(small(model="mlp(hidden=[8], dropout=0.5)", seed=1), train, vali)
    assert c.history[0]["loss"] != a.history[0]["loss"]


def test_the_loss_is_the_mean_over_lists_on_which_it_is_defined(train):
    empty = train.labels.copy()
    empty[: train.offsets[10]] = 0
    train = replace(train, labels=empty)
    settings = small(optimizer="sgd", learning_rate=1e-12, epochs=1)
    done = fit(settings, train)
    scores = done.model.predict(train.features, train.offsets)
    exact = losses.get(settings.loss)(scores, train.labels, offsets=train.offsets)
    assert done.history[0]["loss"] == pytest.approx(float(exact), abs=1e-5)


@pytest.mark.parametrize("loss", ["softmax", "neural_ndcg@5"])
def test_columns_derived_once_train_as_those_of_each_batch(loss, train, vali, monkeypatch):
    model = "tabm(hidden=[8], members=2, dropout=0.2, in_list=[rank, score])"
    once = fit(small(model=model, loss=loss), train, vali, others={"again": vali})
    assert once.history[0]["ndcg@10"] == once.history[0]["again ndcg@10"]
    monkeypatch.setattr("rankgrad.training.trainer._MAX_DERIVED", 0)
    each = fit(small(model=model, loss=loss), train, vali)
    for name, weights in once.model.tensors().items():
        torch.testing.assert_close(weights, each.model.tensors()[name], rtol=1e-4, atol=1e-5)
    scores = [done.model.predict(vali.features, vali.offsets) for done in (once, each)]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-3, atol=1e-4)


def test_weights_matter(train):
    weighted = lists(40, 0, weights=True)
    a, b = fit(small(), train), fit(small(), weighted)
    assert a.history[-1]["loss"] != b.history[-1]["loss"]


@pytest.mark.parametrize("loss", ["softmax", "softmax(reduction=sum)", "lambdarank"])
def test_accumulated_batches_make_one_step(loss, train, vali):
    # Of 19 lists, some have nothing to learn from; the last group has one batch, and that 3 lists.
    data = train.select(range(19))
    data.labels[: data.offsets[7]] = 0
    options = {"loss": loss, "optimizer": "sgd(momentum=0.5)", "schedule": "cosine", "clip": 1.0}
    a = fit(small(batch_size=8, **options), data, vali)
    b = fit(small(batch_size=4, accumulate=2, **options), data, vali)
    for one, other in zip(a.history, b.history, strict=True):
        assert {**one, "seconds": 0} == pytest.approx({**other, "seconds": 0}, rel=1e-5)
    for name, tensor in a.model.tensors().items():
        torch.testing.assert_close(tensor, b.model.tensors()[name])


def test_patience_and_best_epoch(train, vali):
    done = fit(small(epochs=50, patience=2, learning_rate=0.1), train, vali)
    values = [line["ndcg@10"] for line in done.history]
    assert done.stopped == "patience"
    assert done.best_epoch == int(np.argmax(values)) + 1 == len(values) - 2


def test_lower_is_better_where_it_is(train, vali):
    done = fit(small(metric="arp", epochs=5), train, vali)
    values = [line["arp"] for line in done.history]
    assert done.best_value == min(values)
    assert done.best_epoch == int(np.argmin(values)) + 1


def test_without_validation_the_last_epoch_is_taken(train):
    done = fit(small(), train)
    assert (done.best_epoch, done.best_value, done.stopped) == (3, None, "epochs")


def test_schedules_follow_training(train):
    seen = []

    class Spy(losses.Softmax):
        def per_list(self, passed):
            seen.append(self.progress)
            return super().per_list(passed)

    losses.losses.register("spy")(Spy)
    Spy.name = "spy"
    try:
        done = fit(small(loss="spy", batch_size=20, epochs=2, schedule="step(every=1)"), train)
    finally:
        del losses.losses._factories["spy"]
    assert seen == [0, 0.25, 0.5, 0.75]
    assert [line["learning_rate"] for line in done.history] == [0.01, 0.001]


def test_a_module_of_ones_own(train, vali):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(5, 1)
            self.members = [self.linear]  # which means nothing to the trainer

        def forward(self, features, mask):
            assert mask.shape == features.shape[:2]
            return self.linear(features).squeeze(-1)

    done = fit(small(epochs=10, learning_rate=0.1), train, vali, network=Own())
    assert done.best_value > 0.7

    class Wrong(Own):
        def forward(self, features, mask):
            return self.linear(features)

    with pytest.raises(ValueError, match="the network gives scores of shape"):
        fit(small(), train, network=Wrong())


def test_divergence_is_said(train):
    with pytest.raises(ValueError, match=r"diverged in epoch 1.*learning_rate"):
        fit(small(loss="mse", optimizer="sgd", learning_rate=1e30), train)


def test_divergence_in_the_last_step_is_said(train, vali):
    settings = small(loss="softmax", optimizer="sgd", learning_rate=1e30, batch_size=len(train))
    with pytest.raises(ValueError, match=r"diverged in epoch 1.*learning_rate"):
        fit(settings, train, vali)


def test_bad_data_is_said(train):
    with pytest.raises(ValueError, match="no items in the training data"):
        fit(small(), train.select([]))
    with pytest.raises(ValueError, match="training data have 5 features, the validation data 4"):
        fit(small(), train, lists(features=4))
    named = replace(train, feature_names=tuple("abcde"))
    with pytest.raises(ValueError, match=r"feature 0 .* is 'a' in the training .* 'e' in the vali"):
        fit(small(), named, replace(train, feature_names=tuple("edcba")))
    with pytest.raises(ValueError, match="others must have names of their own, found 'vali'"):
        fit(small(), train, others={"vali": train})
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no GPU is found"):
            fit(small(device="cuda"), train)


@pytest.mark.parametrize("transforms", [(), ("standardize",)])
def test_an_infinite_feature_is_named(train, vali, tmp_path, transforms):
    features = vali.features.copy()
    features[vali.offsets[2], 3] = np.inf
    bad = replace(vali, features=features, feature_names=tuple("abcde"))
    says = f"infinite feature: feature 'd' at index 3 .* of item {vali.offsets[2]} .list 2, qid '2'"
    settings = small(transforms=transforms)
    with pytest.raises(ValueError, match=f"the validation data .* {says}"):
        fit(settings, train, bad, folder=tmp_path / "run")
    with pytest.raises(ValueError, match=f"the training data .* {says}"):
        fit(settings, bad, folder=tmp_path / "run")
    with pytest.raises(ValueError, match=f"the training data .* {says}"):
        fit(settings, bad, others={"training": vali}, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_fails_before_it_saves_leaves_no_folder(train, vali, tmp_path):
    def fail(line):
        raise RuntimeError("later")

    with pytest.raises(ValueError, match="diverged in epoch 1"):
        fit(
            small(loss="mse", optimizer="sgd", learning_rate=1e30),
            train,
            folder=tmp_path / "run",
        )
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError, match="later"):
        fit(small(), train, vali, folder=tmp_path / "run", on_epoch=fail)
    assert fit(small(), train, vali, folder=tmp_path / "run", resume=True).stopped == "epochs"


def test_the_model_knows_its_features(train, tmp_path):
    data = replace(train, feature_names=tuple("abcde"), zero_based=True)
    fit(small(epochs=1), data, folder=tmp_path / "run")
    model = RunFolder.open(tmp_path / "run").best()
    assert (model.feature_names, model.zero_based) == (tuple("abcde"), True)
    assert model.feature_presence == feature_presence(data)
    written_later = ("feature_names", "zero_based", "feature_presence")
    rewrite(tmp_path / "run" / "best" / "model.json", drop=written_later)
    model = RunFolder.open(tmp_path / "run").best()
    assert (model.feature_names, model.zero_based, model.feature_presence) == (None, None, None)


def test_reading_the_best_model_changes_nothing(train, tmp_path):
    fit(small(epochs=1), train, folder=tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    expected = run.best().predict(train.features)
    (run.path / ".best.0123abcd.unfinished").mkdir()  # a trainer is writing the next one,
    run.best()
    assert (run.path / ".best.0123abcd.unfinished").is_dir()
    (run.path / "best").rename(run.path / ".best.0123abcd.replaced")  # and about to put it in place
    np.testing.assert_array_equal(run.best().predict(train.features), expected)
    assert {path.name for path in run.path.glob(".*")} == {
        ".best.0123abcd.unfinished",
        ".best.0123abcd.replaced",
    }


def test_the_run_folder(train, vali, tmp_path):
    lines = []
    done = fit(small(), train, vali, folder=tmp_path / "run", on_epoch=lines.append)
    run = RunFolder.open(tmp_path / "run")
    assert run.settings == done.settings
    assert run.history == done.history == lines
    assert run.metadata["data"]["train"]["checksum"] == train.checksum()
    assert {"rankgrad", "torch", "python"} <= set(run.metadata["versions"])
    assert run.metadata["command"]
    expected = done.model.predict(vali.features)
    np.testing.assert_array_equal(run.best().predict(vali.features), expected)
    assert not list((tmp_path / "run").glob(".*"))
    with pytest.raises(FileExistsError, match="is there already: resume it"):
        fit(small(), train, vali, folder=tmp_path / "run")


def test_resuming_a_finished_run_gives_its_result(train, vali, tmp_path):
    done = fit(small(), train, vali, folder=tmp_path / "run")
    again = fit(small(), train, vali, folder=tmp_path / "run", resume=True)
    assert again.history == done.history
    assert (again.best_epoch, again.stopped) == (done.best_epoch, done.stopped)
    np.testing.assert_array_equal(
        again.model.predict(vali.features), done.model.predict(vali.features)
    )


def test_a_run_may_go_on_without_graphs(train, vali, tmp_path):
    done = fit(small(), train, vali, folder=tmp_path / "run")
    again = fit(small(graphs=False), train, vali, folder=tmp_path / "run", resume=True)
    assert again.history == done.history


def test_resuming_with_something_else_is_refused(train, vali, tmp_path):
    fit(small(), train, vali, folder=tmp_path / "run")
    with pytest.raises(ValueError, match=r"other settings; learning_rate: 0\.5, not 0\.01"):
        fit(small(learning_rate=0.5), train, vali, folder=tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="the train data are not those"):
        fit(small(), vali, vali, folder=tmp_path / "run", resume=True)
    with pytest.raises(FileNotFoundError, match="is not there: nothing to resume"):
        fit(small(), train, vali, folder=tmp_path / "none", resume=True)
    with pytest.raises(ValueError, match="resume needs the folder"):
        fit(small(), train, vali, resume=True)


@pytest.mark.parametrize("batch_size", [8, 100], ids=["in an epoch", "after an epoch"])
def test_ctrl_c_saves_and_the_rest_is_the_same(train, vali, tmp_path, capsys, batch_size):
    settings = small(
        model="tabm(hidden=[8], members=2, dropout=0.5)",
        average=0.9,
        batch_size=batch_size,
        epochs=4,
    )

    def interrupt(line):
        if line["epoch"] == 2:
            signal.raise_signal(signal.SIGINT)

    whole = fit(settings, train, vali)
    first = fit(settings, train, vali, folder=tmp_path / "run", on_epoch=interrupt, quiet=False)
    assert first.stopped == "interrupted"
    assert "resume" in capsys.readouterr().err
    state = json.loads((tmp_path / "run" / "last" / "state.json").read_text())
    assert (state["epoch"], state["step"]) == ((2, 1) if batch_size == 8 else (3, 0))
    rest = fit(settings, train, vali, folder=tmp_path / "run", resume=True)
    assert rest.stopped == "epochs"
    for a, b in zip(whole.history, rest.history, strict=True):
        assert a | {"seconds": 0} == b | {"seconds": 0}
    for name, tensor in whole.model.tensors().items():
        assert torch.equal(tensor, rest.model.tensors()[name])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class OneMember(torch.nn.Module):
    per_item = True

    def __init__(self, net, member):
        super().__init__()
        self.net, self.member = net, member

    def forward(self, features, mask=None):
        return self.net.train()(features, mask)[self.member]


def test_every_member_has_its_own_loss(train):
    # Members that share nothing are trained as they would be alone, by a third of the gradient.
    def settings(rate):
        return small(
            model="tabm(hidden=[4], members=3, share=nothing)",
            loss="mse",
            optimizer="sgd",
            weight_decay=0.0,
            transforms=[],
            learning_rate=rate,
        )

    start = fit(settings(1e-30), train).model.network
    together = fit(settings(0.3), train).model.network.train()
    features = torch.from_numpy(train.features)
    assert not torch.allclose(together(features), start.train()(features))
    for member in range(3):
        alone = fit(settings(0.1), train, network=OneMember(deepcopy(start), member)).model.network
        torch.testing.assert_close(together(features)[member], alone(features))


@pytest.mark.parametrize("weights", [False, True])
def test_the_loss_of_members_is_their_mean(weights):
    train = lists(40, 0, weights=weights)
    settings = small(
        model="tabm(hidden=[8], members=4)", optimizer="sgd", learning_rate=1e-12, epochs=1
    )
    done = fit(settings, train)
    net = done.model.network.train()
    each = net(done.model.transform(torch.from_numpy(train.features)))
    passed = {"offsets": train.offsets, "weights": train.weights}
    exact = [losses.get(settings.loss)(scores, train.labels, **passed) for scores in each]
    assert done.history[0]["loss"] == pytest.approx(sum(exact).item() / 4, abs=1e-5)


def test_averaged_weights_are_validated_and_returned(train, vali):
    seen = []
    options = {"epochs": 4, "learning_rate": 0.05, "metric": "ap"}
    plain = fit(small(**options), train, vali)
    averaged = fit(small(average=0.9, **options), train, vali, on_epoch=seen.append)
    assert [line["loss"] for line in seen] == [line["loss"] for line in plain.history]
    assert [line["ap"] for line in seen] != [line["ap"] for line in plain.history]
    scores = averaged.model.predict(vali.features, vali.offsets)
    exact = rankgrad.evaluate(scores, vali.labels, offsets=vali.offsets, metrics=["ap"])
    assert exact["ap"] == pytest.approx(averaged.best_value, abs=1e-5)


@pytest.mark.parametrize(
    ("loss", "counts"), [("softmax", False), ("gumbel_approx_ndcg", False), ("mse", True)]
)
@pytest.mark.parametrize("batching", ["queries", "documents"])
def test_lists_without_a_loss_are_left_out_of_training(loss, counts, batching, monkeypatch):
    data = lists(24)
    labels = np.array(data.labels)
    empty = [3, 4, 11]
    for at in empty:
        labels[data.offsets[at] : data.offsets[at + 1]] = 0
    relevant = np.maximum.reduceat(labels, data.offsets[:-1]) > 0
    assert 0 < relevant.sum() < 24
    seen = []
    step = Trainer._step
    monkeypatch.setattr(
        Trainer,
        "_step",
        lambda self, batch, *rest: seen.extend(batch.lists.tolist()) or step(self, batch, *rest),
    )
    settings = Settings(loss=loss, batching=batching, epochs=1, batch_size=5, device="cpu")
    fit(settings, replace(data, labels=labels))
    assert sorted(seen) == (list(range(24)) if counts else np.flatnonzero(relevant).tolist())
    seen.clear()
    fit(settings, replace(data, labels=0 * labels))  # nothing to learn from: no error
    assert sorted(seen) == list(range(24))


def test_patience_is_short_at_first(train, vali):
    """Without a gain the first epoch stays the best: four more, if they are 60 steps."""
    stuck = {"epochs": 50, "optimizer": "sgd", "learning_rate": 1e-12, "patience": "auto"}
    done = fit(small(batch_size=2, **stuck), train, vali)
    assert (len(done.history), done.best_epoch, done.stopped) == (5, 1, "patience")
    done = fit(small(batch_size=40, **stuck), train, vali)
    assert (len(done.history), done.stopped) == (21, "patience")
