import pytest
import torch
from kernel_harness import KINDS, FlatBatch, assert_matches

from rankgrad.kernels.ops import backend_kernel

pairs = backend_kernel("pairs", "cpu")


# spec: kind, k, sigma, gain, truncation, mu, half
LOSSES = {
    "ranknet(sigma=2.0)": ("ranknet", 0, 2.0, "exponential", "corrected", 10.0, False),
    "ranknet@4": ("ranknet", 4, 1.0, "exponential", "corrected", 10.0, False),
    "ranknet@4(ties=half)": ("ranknet", 4, 1.0, "exponential", "corrected", 10.0, True),
    "ranknet(ties=half)": ("ranknet", 0, 1.0, "exponential", "corrected", 10.0, True),
    "hinge(margin=0.7)": ("hinge", 0, 0.7, "exponential", "corrected", 10.0, False),
    "hinge@3": ("hinge", 3, 1.0, "exponential", "corrected", 10.0, False),
    "lambdarank(sigma=0.5)": ("lambdarank", 0, 0.5, "exponential", "corrected", 10.0, False),
    "lambdarank@3(gain=linear)": ("lambdarank", 3, 1.0, "linear", "corrected", 10.0, False),
    "lambdaloss": ("ndcg_loss2", 0, 1.0, "exponential", "corrected", 10.0, False),
    "lambdaloss@1": ("ndcg_loss2", 1, 1.0, "exponential", "corrected", 10.0, False),
    "lambdaloss@5": ("ndcg_loss2", 5, 1.0, "exponential", "corrected", 10.0, False),
    "lambdaloss@200": ("ndcg_loss2", 200, 1.0, "exponential", "corrected", 10.0, False),
    "lambdaloss@5(truncation=heuristic)": (
        "ndcg_loss2", 5, 1.0, "exponential", "heuristic", 10.0, False,
    ),
    "lambdaloss(scheme=ndcg_loss1)": (
        "ndcg_loss1", 0, 1.0, "exponential", "corrected", 10.0, False,
    ),
    "lambdaloss@5(scheme=ndcg_loss1)": (
        "ndcg_loss1", 5, 1.0, "exponential", "corrected", 10.0, False,
    ),
    "lambdaloss@5(scheme=ndcg_loss1, truncation=heuristic)": (
        "ndcg_loss1", 5, 1.0, "exponential", "heuristic", 10.0, False,
    ),
    'lambdaloss@5(scheme="ndcg_loss2++", mu=2.0)': (
        "ndcg_loss2++", 5, 1.0, "exponential", "corrected", 2.0, False,
    ),
    'lambdaloss@5(scheme="ndcg_loss2++", truncation=heuristic)': (
        "ndcg_loss2++", 5, 1.0, "exponential", "heuristic", 10.0, False,
    ),
    'lambdaloss(scheme="ndcg_loss2++", truncation=heuristic)': (
        "ndcg_loss2++", 0, 1.0, "exponential", "heuristic", 10.0, False,
    ),
}  # fmt: skip


def _of_metric(loss, kind, k, metric, truncation="corrected"):
    options = "" if loss == "lambdarank" else f", truncation={truncation}"
    threshold = 1.0 if metric == "arp" else 2.0
    spec = f"{loss}{f'@{k}' if k else ''}(metric={metric}, threshold={threshold}{options})"
    return spec, (kind, k, 1.0, "exponential", truncation, 10.0, False, metric, threshold)


LOSSES |= dict(
    _of_metric(loss, kind, k, metric)
    for loss, kind in (("lambdarank", "lambdarank"), ("lambdaloss", "ndcg_loss2"))
    for k in (0, 4)
    for metric in ("precision", "recall", "ap", "rr", "arp")
)
LOSSES |= dict(_of_metric("lambdaloss", "ndcg_loss2", 4, m, "heuristic") for m in ("recall", "arp"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_pairs(loss, kind):
    batch = FlatBatch.of_kind(kind)
    assert_matches(batch, pairs(*batch.arguments, *LOSSES[loss]), batch.reference(loss), 1e-9, 1e-9)


@pytest.mark.parametrize("kind", ["plain", "ragged", "weighted", "extreme"])
def test_float32(kind):
    batch = FlatBatch.of_kind(kind, torch.float32)
    found = pairs(*batch.arguments, *LOSSES["lambdaloss"])
    assert found[0].dtype == found[1].dtype == torch.float32
    assert_matches(batch, found, batch.reference("lambdaloss"), grad_atol=1e-12)


def test_alike_items_share_their_gradient():
    scores = torch.zeros(5)
    labels = torch.tensor([1.0, 0, 0, 0, 1])
    weights = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0])
    lists = scores, labels, None, weights, torch.tensor([0, 5]), 5
    _, grad_scores, _ = pairs(*lists, *LOSSES["lambdaloss"])
    assert (
        grad_scores[0] == grad_scores[4]
        and grad_scores[1] == grad_scores[3]
        and grad_scores[1] != grad_scores[2]
    )
