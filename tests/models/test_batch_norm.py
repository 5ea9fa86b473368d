"""Batch normalization: real items only, right from the first batch, and across processes."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, nn

from rankgrad import models
from rankgrad.models import BatchNorm


def items(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=generator, dtype=torch.float64) * 3 + 1


def test_statistics_ignore_padding() -> None:
    torch.manual_seed(0)
    spec = "mlp(hidden=[8], batch_norm=after, input_norm=true)"
    padded, flat = (models.get(spec).build(4).double() for _ in range(2))
    flat.load_state_dict(padded.state_dict())
    features = torch.full((2, 5, 4), float("nan"), dtype=torch.float64)
    mask = torch.tensor([[True, False, True, False, True], [False, True, False, False, True]])
    features[mask] = items(5)
    torch.testing.assert_close(padded(features, mask)[mask], flat(items(5)))
    for name, value in padded.state_dict().items():
        torch.testing.assert_close(value, flat.state_dict()[name])


def test_padding_counts_for_nothing_where_it_is_scored_too() -> None:
    """As on a GPU, which would have to be waited for to find the real items."""
    torch.manual_seed(0)
    spec = "mlp(hidden=[8, 4], batch_norm=true, input_norm=true)"
    padded, flat = (models.get(spec).build(4).double() for _ in range(2))
    flat.load_state_dict(padded.state_dict())
    for batch in range(2):
        features = torch.full((2, 5, 4), float("nan"), dtype=torch.float64)
        mask = torch.tensor([[True, False, True, False, True], [False, True, False, False, True]])
        features[mask] = items(5, batch)
        scores, exact = padded.score_all(features, mask), flat(items(5, batch))
        torch.testing.assert_close(scores[mask], exact)
        assert (scores[~mask] == 0).all()
        weights = torch.arange(5.0).double()
        (scores[mask] * weights).sum().backward()
        (exact * weights).sum().backward()
        for one, other in zip(padded.parameters(), flat.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
        for name, value in padded.state_dict().items():
            torch.testing.assert_close(value, flat.state_dict()[name])
    padded.eval(), flat.eval()
    torch.testing.assert_close(padded.score_all(features, mask)[mask], flat(items(5, 1)))


def test_one_real_item_is_normalized_by_what_was_seen() -> None:
    norm, other = (BatchNorm(4, decay=0.9).double() for _ in range(2))
    for each in (norm, other):
        each(items(6))
    x, y = items(3, 3).requires_grad_(), items(1, 3).requires_grad_()
    y.data = x.data[:1]
    one, two = norm(x, torch.tensor([True, False, False]))[:1], other(y)
    torch.testing.assert_close(one, two)
    (one**3).sum().backward()
    (two**3).sum().backward()
    torch.testing.assert_close(x.grad[:1], y.grad)
    assert (x.grad[1:] == 0).all()
    assert all(torch.equal(value, other.state_dict()[k]) for k, value in norm.state_dict().items())


def test_training_output_and_gradient_are_those_of_torch() -> None:
    ours, theirs = BatchNorm(4, decay=0.9).double(), nn.BatchNorm1d(4).double()
    for norm in (ours, theirs):
        nn.init.uniform_(norm.weight, generator=torch.Generator().manual_seed(1))
    x, y = items(6).requires_grad_(), items(6).requires_grad_()
    one, two = ours(x), theirs(y)
    torch.testing.assert_close(one, two)
    (one**3).sum().backward()
    (two**3).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


def test_running_statistics_are_means_first_and_moving_later() -> None:
    norm = BatchNorm(4, decay=0.75).double()
    means = [items(6, seed).mean(0) for seed in range(6)]
    for seed in range(4):
        norm(items(6, seed))
    torch.testing.assert_close(norm.running_mean, torch.stack(means[:4]).mean(0))
    before = norm.running_mean.clone()
    norm(items(6, 4))
    torch.testing.assert_close(norm.running_mean, 0.75 * before + 0.25 * means[4])
    torch.testing.assert_close(
        BatchNorm(4, 0.999).double().train()(items(6)).mean(0), torch.zeros(4).double()
    )


def test_one_item_is_normalized_by_what_was_seen() -> None:
    norm = BatchNorm(4, decay=0.9).double()
    norm(items(6))
    state = {name: value.clone() for name, value in norm.state_dict().items()}
    single = norm(items(1, 3))
    assert all(torch.equal(value, state[name]) for name, value in norm.state_dict().items())
    torch.testing.assert_close(single, norm.eval()(items(1, 3)))
    assert norm.train()(items(0)).shape == (0, 4)


def _train(rank: int, folder: str, splits: list[list[int]]) -> None:
    """A few steps of one process on its part of each batch; rank 0 writes the outcome."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=len(splits[0])
    )
    try:
        norm = BatchNorm(4, decay=0.9).double()
        gradients = []
        for seed, split in enumerate(splits):
            first = sum(split[:rank])
            x = items(sum(split), seed)[first : first + split[rank]].clone().requires_grad_()
            (norm(x) ** 3).sum().backward()
            assert x.grad is not None
            gradients.append(x.grad)
        torch.save([gradients, norm.state_dict()], f"{folder}/{rank}.pt")
    finally:
        distributed.destroy_process_group()


def test_several_processes_are_as_one(tmp_path: Path) -> None:
    splits = [[5, 3], [0, 4], [1, 0], [1, 1], [6, 2]]
    spawn = multiprocessing.get_context("spawn")
    processes = [
        spawn.Process(target=_train, args=(rank, str(tmp_path), splits)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    assert [process.exitcode for process in processes] == [0, 0]
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]

    norm = BatchNorm(4, decay=0.9).double()
    for step, split in enumerate(splits):
        x = items(sum(split), step).requires_grad_()
        (norm(x) ** 3).sum().backward()
        together = torch.cat([part[0][step] for part in parts])
        torch.testing.assert_close(together, x.grad)
    for _, state in parts:
        for name, value in norm.state_dict().items():
            torch.testing.assert_close(state[name], value)


@pytest.mark.parametrize("preset", ["lambdaloss", "pirank", "smoothi"])
def test_presets_with_normalization_score_alike_in_training_and_after_one_batch(
    preset: str,
) -> None:
    """A long memory does not leave evaluation with statistics from before the first batch."""
    torch.manual_seed(0)
    net = models.get(preset).build(4).double()
    for dropout in net.modules():
        if isinstance(dropout, nn.Dropout):
            dropout.p = 0.0
    features = items(400)
    trained = net.train()(features)
    torch.testing.assert_close(net.eval()(features), trained, rtol=0.02, atol=0.02)


def test_the_number_of_batches_may_be_set_from_outside():
    norm, other = (BatchNorm(4, decay=0.9).double() for _ in range(2))
    for _ in range(3):
        norm(items(6))
    other(items(5))
    other.load_state_dict(norm.state_dict())
    batch = items(7)
    for each in (norm, other):
        each(batch)
    assert other.num_batches_tracked == 4
    assert torch.equal(other.running_mean, norm.running_mean)
    assert torch.equal(other.running_var, norm.running_var)
