"""Memory of the losses that are quadratic elsewhere."""

import torch
from torch.profiler import ProfilerActivity, profile

from rankgrad import losses


def peak_bytes(name: str, b: int, n: int) -> int:
    """The most that a forward and backward pass has allocated at a time."""
    scores, labels = torch.randn(b, n, requires_grad=True), torch.randint(0, 5, (b, n))
    loss = losses.get(name)
    loss(scores, labels).backward()
    scores.grad = None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        loss(scores, labels).backward()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def test_neural_ndcg_holds_at_most_three_buffers_per_list():
    b, n = 24, 200
    assert peak_bytes("neural_ndcg", b, n) < 3.5 * b * n * n * 4


def test_losses_without_n_by_n_tensors():
    n = 3000
    for name in (
        "approx_ndcg",
        "lapsum_ndcg",
        "pirank_ndcg@10",
        "ranknet",
        "lambdaloss@5",
        "listmle",
    ):
        assert peak_bytes(name, 1, n) < 0.8 * n * n * 4, name
