"""RankingLoss inside a real CrossEncoderTrainer, on a tiny random model."""

import gc
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from sentence_transformers.cross_encoder import (
    CrossEncoder,
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
)
from tiny_models import scorer, texts
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from rankgrad import losses
from rankgrad.integrations.sentence_transformers import RankingLoss

QUERIES = texts(4, seed=9, max_length=3)
DOCUMENTS = [texts(7, seed=1), texts(3, seed=2), [], texts(5, seed=3)]
LABELS = [[0, 2, 1, 0, 0, 1, 0], [1, 1, 1], [], [3, 0, 0, 1, 0]]  # the second list ties


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "encoder"
    scorer("encoder", 0.3).save_pretrained(place)
    return str(place)


def labels():
    return [torch.tensor(own) for own in LABELS]


def gradients(model):
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("spec", ["neural_ndcg@10", "lambdaloss@3", "margin_mse"])
def test_the_loss_is_that_of_all_scores(folder, spec):
    model = CrossEncoder(folder, device="cpu").eval()
    pairs = [(q, d) for q, own in zip(QUERIES, DOCUMENTS, strict=True) for d in own]
    scores = model(model.preprocess(pairs))["scores"].reshape(-1)
    offsets = torch.tensor([0, 7, 10, 10, 15])
    wanted = losses.get(spec)(scores, torch.cat(labels()), offsets=offsets)
    wanted.backward()
    gradient = gradients(model)
    for size in (4, None):
        found = RankingLoss(model, spec, mini_batch_size=size)([QUERIES, DOCUMENTS], labels())
        found.backward()
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradients(model), gradient, rtol=1e-4, atol=1e-6)


def test_dropout_is_the_same_in_both_passes(folder):
    """Against one graph: mini-batches scored with a graph, in the order of RankingLoss."""
    model = CrossEncoder(folder, device="cpu").train()
    loss = RankingLoss(model, "softmax", mini_batch_size=4)
    torch.manual_seed(5)
    value = loss([QUERIES, DOCUMENTS], labels())
    value.backward()
    found = gradients(model)
    pairs = [(q, d) for q, own in zip(QUERIES, DOCUMENTS, strict=True) for d in own]
    order = sorted(range(15), key=lambda i: -sum(map(len, pairs[i])))
    torch.manual_seed(5)
    scores = torch.cat(
        [
            model(model.preprocess([pairs[i] for i in order[start : start + 4]]))["scores"][:, 0]
            for start in range(0, 15, 4)
        ]
    )[torch.tensor(order).argsort()]
    offsets = torch.tensor([0, 7, 10, 10, 15])
    losses.get("softmax")(scores, torch.cat(labels()), offsets=offsets).backward()
    torch.testing.assert_close(found, gradients(model), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("documents", [[["word1", "word2"]], [["word3"]], [[]], [["", ""]]])
def test_nothing_to_learn_is_a_zero_without_nan(folder, documents):
    model = CrossEncoder(folder, device="cpu").train()
    loss = RankingLoss(model, "neural_ndcg@10", mini_batch_size=1)
    tied = loss([["word1"], documents], [torch.ones(len(documents[0]))])
    irrelevant = loss([["word1"], documents], [torch.zeros(len(documents[0]))])
    assert irrelevant == 0
    (tied + irrelevant).backward()
    for gradient in gradients(model).values():
        assert gradient.isfinite().all()


def test_a_teachers_scores(folder):
    model = CrossEncoder(folder, device="cpu").eval()
    teacher = [torch.tensor(own) - 2.5 for own in LABELS]
    loss = RankingLoss(model, "margin_mse", teacher="shift")
    value = loss([QUERIES, DOCUMENTS], teacher)
    plain = RankingLoss(model, "margin_mse")([QUERIES, DOCUMENTS], labels())
    torch.testing.assert_close(value, plain)  # margins do not change with a constant
    assert loss.get_config_dict() == {
        "loss": "margin_mse",
        "mini_batch_size": 32,
        "teacher": "shift",
    }
    assert "Hofst" in loss.citation and "Gao, Luyu" in loss.citation


def test_a_teacher_beside_the_labels(folder):
    model = CrossEncoder(folder, device="cpu").eval()
    teacher = [[3.0 * y - 2.5 for y in own] for own in LABELS]
    grades, taught = labels(), [torch.tensor([3.0 * y for y in own]) for own in LABELS]

    def value(weight, columns=(QUERIES, DOCUMENTS, teacher)):
        loss = RankingLoss(
            model, "softmax", teacher="shift", teacher_weight=weight, teacher_loss="margin_mse"
        )
        return loss, loss(list(columns), grades)

    own = RankingLoss(model, "softmax")([QUERIES, DOCUMENTS], grades)
    its = RankingLoss(model, "margin_mse")([QUERIES, DOCUMENTS], taught)
    loss, mixed = value(0.25)
    torch.testing.assert_close(mixed, 0.75 * own + 0.25 * its)
    torch.testing.assert_close(value(1.0)[1], its)
    mixed.backward()
    assert loss.get_config_dict() == {
        "loss": "softmax",
        "mini_batch_size": 32,
        "teacher": "shift",
        "teacher_loss": "margin_mse",
        "teacher_weight": 0.25,
    }
    assert "Hofst" in loss.citation
    assert loss.citation.count("Gao, Luyu") == 1
    with pytest.raises(ValueError, match="below 1 needs a column of the teacher's scores"):
        value(0.5, (QUERIES, DOCUMENTS))
    with pytest.raises(ValueError, match=r"\[7, 3, 0, 4\] scores of the teacher"):
        value(0.5, (QUERIES, DOCUMENTS, [*teacher[:3], [0.0] * 4]))
    with pytest.raises(ValueError, match="has 3 input columns; it needs queries and documents"):
        RankingLoss(model)([QUERIES, DOCUMENTS, teacher], grades)
    with pytest.raises(ValueError, match="need a teacher, such as teacher='shift'"):
        RankingLoss(model, teacher_weight=0.5)
    with pytest.raises(ValueError, match="teacher_weight must be from 0 to 1, found 2"):
        RankingLoss(model, teacher="shift", teacher_weight=2)


def test_wrong_use_is_named(folder):
    with pytest.raises(ValueError, match="num_labels=1, found 2"):
        RankingLoss(SimpleNamespace(num_labels=2))
    model = CrossEncoder(folder, device="cpu")
    with pytest.raises(ValueError, match="mini_batch_size must be a whole number"):
        RankingLoss(model, mini_batch_size=0)
    with pytest.raises(ValueError, match="two input columns"):
        RankingLoss(model)([QUERIES], labels())
    with pytest.raises(ValueError, match="a column of labels, with a list for each query"):
        RankingLoss(model)([QUERIES, DOCUMENTS], torch.ones(4))
    with pytest.raises(ValueError, match=r"\[7, 3, 0, 5\] documents and \[7, 3, 0, 4\] labels"):
        RankingLoss(model)([QUERIES, DOCUMENTS], [*labels()[:3], torch.ones(4)])


def test_a_model_wrapped_by_ddp(folder, tmp_path):
    """The trainer swaps it in; its ``no_sync`` is used, and no list leaves it waiting."""
    model = CrossEncoder(folder, device="cpu").eval()
    loss = RankingLoss(model, "softmax", mini_batch_size=4)
    loss([QUERIES, DOCUMENTS], labels()).backward()
    wanted = gradients(model)
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1
    )
    try:
        wrapped = DistributedDataParallel(model).eval()
        wrapped.preprocess = model.preprocess
        loss.model = wrapped
        loss([QUERIES[2:3], DOCUMENTS[2:3]], labels()[2:3]).backward()
        assert all((gradient == 0).all() for gradient in gradients(model).values())
        loss([QUERIES, DOCUMENTS], labels()).backward()
        torch.testing.assert_close(gradients(model), wanted, rtol=1e-5, atol=1e-7)
    finally:
        # Were the wrapper's the last reference to the group, its end would wait, with the
        # interpreter locked, for threads that wait for the interpreter.
        loss.model, wrapped = model, None
        gc.collect()
        distributed.destroy_process_group()


@pytest.mark.parametrize("teacher", [None, "minmax"])
def test_a_training_run(teacher, tmp_path):
    """In bf16, with accumulated gradients, whose backward pass runs outside autocast."""
    scorer("encoder", dropout=0.0).save_pretrained(tmp_path / "start")
    model = CrossEncoder(str(tmp_path / "start"), device="cpu")
    columns = {"query": QUERIES, "docs": DOCUMENTS}
    columns |= {} if teacher is None else {"teacher": LABELS}
    dataset = Dataset.from_dict({**columns, "labels": LABELS})
    arguments = CrossEncoderTrainingArguments(
        output_dir=str(tmp_path / "run"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=8,
        learning_rate=5e-3,
        bf16=True,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        seed=3,
    )
    loss = RankingLoss(
        model,
        "neural_ndcg@10",
        mini_batch_size=4,
        teacher=teacher,
        teacher_weight=1.0 if teacher is None else 0.5,
    )
    trainer = CrossEncoderTrainer(
        model=model, args=arguments, train_dataset=dataset, eval_dataset=dataset, loss=loss
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.8 * before
    assert all(line["grad_norm"] < 1e3 for line in trainer.state.log_history if "loss" in line)
    trainer.save_model(str(tmp_path / "final"))
    card = (tmp_path / "final" / "README.md").read_text()
    assert "neural_ndcg@10" in card and "NeuralNDCG" in card
