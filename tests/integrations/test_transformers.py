"""ListLoss and CachedTrainer inside a real Hugging Face Trainer."""

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from tiny_models import bert, texts, tokenizer
from transformers import Trainer, TrainingArguments

from rankgrad import kernels, losses
from rankgrad.integrations.transformers import (
    CachedTrainer,
    ListCollator,
    ListLoss,
    ScheduleCallback,
)

QUERIES = texts(4, seed=9, max_length=3)
DOCUMENTS = [texts(5, seed=1), texts(5, seed=2), [], texts(5, seed=3)]
LABELS = [[0, 2, 1, 0, 0], [1, 1, 1, 1, 1], [], [3, 0, 0, 1, 0]]  # the second list ties


def trainer(kind, folder, **options):
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=options.pop("batch_size", 4),
        gradient_accumulation_steps=options.pop("accumulate", 1),
        max_steps=options.pop("steps", 1),
        optim="sgd",
        learning_rate=1.0,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        use_cpu=True,
        bf16=options.pop("bf16", False),
        disable_tqdm=True,
        report_to=[],
        save_strategy="no",
        remove_unused_columns=False,
    )
    columns = {"query": QUERIES, "documents": DOCUMENTS, "labels": LABELS}
    return kind(
        model=bert(options.pop("dropout", 0.0)),
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        eval_dataset=Dataset.from_dict(columns),
        data_collator=ListCollator(tokenizer(padding_side=options.pop("padding_side", "right"))),
        compute_loss_func=ListLoss(options.pop("loss", "neural_ndcg@10")),
        **options,
    )


def weights(trained):
    return {name: value.detach().clone() for name, value in trained.model.named_parameters()}


def test_lists_of_logits():
    loss = ListLoss("softmax")
    labels = torch.tensor([[1, 0, 2], [1, -100, -100], [0, 1, -100]])
    logits = torch.randn(3, 3)
    wanted = losses.get("softmax")(logits, labels.clamp(min=0), labels >= 0)
    padded = SimpleNamespace(logits=logits.reshape(9, 1))
    torch.testing.assert_close(loss(padded, labels), wanted)
    torch.testing.assert_close(loss({"logits": logits[labels >= 0]}, labels), wanted)
    found = loss(padded, labels, num_items_in_batch=torch.tensor(12))
    torch.testing.assert_close(found, wanted / 2)
    with pytest.raises(ValueError, match=r"gave 8 logits for labels of shape \[3, 3\] with 6"):
        loss(SimpleNamespace(logits=torch.zeros(8, 1)), labels)
    for shape in ((3, 3), (3, 2), ()):  # of which the first two have as many as there are items
        with pytest.raises(ValueError, match=r"shape \[documents, 1\], .*, found .*num_labels=1"):
            loss(SimpleNamespace(logits=torch.zeros(shape)), labels)
    with pytest.raises(ValueError, match=r"shape \[lists, items\], found none"):
        loss(padded, None)


def test_a_teachers_scores():
    labels = torch.tensor([[-3.0, 1.0, 2.0], [0.5, -7.0, -100.0]])
    outputs = SimpleNamespace(logits=torch.randn(6))
    found = ListLoss("margin_mse", teacher="shift")(outputs, labels)
    shifted = torch.tensor([[0.0, 4.0, 5.0], [7.5, 0.0, -100.0]])
    torch.testing.assert_close(found, ListLoss("margin_mse")(outputs, shifted))


def test_a_teacher_beside_the_labels():
    examples = [
        {"query": "word1", "documents": ["word2", "word3"], "labels": [1, 0], "teacher": [5, -1]},
        {"query": "word5", "documents": ["word4"], "labels": [1], "teacher": [-3]},
        {"query": "word5", "documents": [], "labels": [], "teacher": []},
    ]
    labels = ListCollator(tokenizer(), teacher="teacher")(examples)["labels"]
    assert labels.tolist() == [
        [[1, 5], [0, -1]],
        [[1, -3], [-100, -100]],
        [[-100, -100], [-100, -100]],
    ]
    outputs = SimpleNamespace(logits=torch.randn(6))
    loss = ListLoss("softmax", teacher="shift", teacher_weight=0.5, teacher_loss="margin_mse")
    own = ListLoss("softmax")(outputs, labels[..., 0])
    its = ListLoss("margin_mse", teacher="shift")(outputs, labels[..., 1])
    torch.testing.assert_close(loss(outputs, labels), (own + its) / 2)
    # Trainer counts every label that is not padding.
    count = (labels != -100).sum()
    torch.testing.assert_close(loss(outputs, labels, count), (own + its) / 2)
    with pytest.raises(ValueError, match=r"shape \[lists, items, 2\], found \[3, 2\]"):
        loss(outputs, labels[..., 0])
    with pytest.raises(ValueError, match="has 2 documents and 1 teacher"):
        ListCollator(tokenizer(), teacher="teacher")([{**examples[0], "teacher": [1]}])


def test_batches():
    with pytest.raises(
        ValueError, match="max_length must be a whole number of at least 5, found 2"
    ):
        ListCollator(tokenizer(), max_length=2)  # a pair has three special tokens
    made = ListCollator(tokenizer())
    examples = [
        {"query": "word1", "documents": ["word2", "word3 word4"], "labels": [1, 0]},
        {"query": "word5", "documents": [], "labels": []},
    ]
    batch = made(examples)
    assert batch["labels"].tolist() == [[1, 0], [-100, -100]]
    assert batch["input_ids"].shape == (2, 6)
    batch = made(examples[1:] * 2)
    assert batch["labels"].tolist() == [[-100], [-100]]
    assert ListLoss("softmax")(SimpleNamespace(logits=torch.zeros(2)), batch["labels"]) == 0
    with pytest.raises(ValueError, match="the query 'word1' has 2 documents and 1 labels"):
        made([{**examples[0], "labels": [1]}])


@pytest.mark.parametrize(
    ("bf16", "padding_side"), [(False, "right"), (True, "right"), (False, "left")]
)
def test_both_trainers_make_the_same_step(tmp_path, bf16, padding_side):
    """With padding on the left, too, after which tokens have later positions."""
    options = {"bf16": bf16, "padding_side": padding_side}
    plain = trainer(Trainer, tmp_path, **options)
    before = weights(plain)
    plain.train()
    cached = trainer(CachedTrainer, tmp_path, **options, mini_batch_size=4)
    cached.train()
    moved = max((value - before[name]).abs().max() for name, value in weights(plain).items())
    assert moved > 0.05
    near = {"rtol": 2e-2, "atol": 2e-2 * moved.item()} if bf16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(weights(cached), weights(plain), **near)
    both = [made.evaluate()["eval_loss"] for made in (plain, cached)]
    assert both[0] == pytest.approx(both[1], rel=1e-2 if bf16 else 1e-4)


@pytest.mark.parametrize("kind", [Trainer, CachedTrainer])
def test_accumulated_batches_are_one_batch(tmp_path, kind):
    """Lists of equal length, all of them defined for the loss: so weights by documents agree."""
    options = {"loss": "listnet", "mini_batch_size": 3} if kind is CachedTrainer else {}
    whole = trainer(kind, tmp_path, **{"loss": "listnet", **options})
    whole.train()
    parts = trainer(kind, tmp_path, **{"loss": "listnet", **options}, batch_size=1, accumulate=4)
    parts.train()
    torch.testing.assert_close(weights(parts), weights(whole), rtol=1e-4, atol=1e-5)


def test_schedules_follow_training(tmp_path):
    made = trainer(Trainer, tmp_path, steps=4, loss="approx_ndcg(alpha=linear(start=1, end=9))")
    loss, seen = made.compute_loss_func.loss, []
    made.add_callback(ScheduleCallback(loss))
    plain = loss.forward
    loss.forward = lambda *passed, **named: seen.append(loss.progress) or plain(*passed, **named)
    with kernels.using("eager"):  # nothing to compile
        made.train()
    assert seen == [0.0, 0.25, 0.5, 0.75]


def test_a_cached_trainer_needs_a_loss():
    with pytest.raises(ValueError, match="needs compute_loss_func"):
        CachedTrainer(model=bert())
