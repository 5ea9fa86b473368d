"""Items that were not retrieved: every metric against loops, which know them as a cutoff."""

import pytest
import reference
import torch

from rankgrad import metrics

PAIRS = ("opa", "kendall_tau", "spearman")


def draw(seed, tied):
    """A list of which the last items were not retrieved; their scores do not matter."""
    generator = torch.Generator().manual_seed(seed)
    n = int(torch.randint(1, 7, (), generator=generator))
    labels = torch.randint(0, 5, (n,), generator=generator).double()
    scores = torch.randn(n, generator=generator, dtype=torch.float64)
    if tied:
        scores = torch.randint(0, 3, (n,), generator=generator).double()
    retrieved = torch.rand(n, generator=generator) < 0.6
    return scores, labels, retrieved, torch.rand(n, generator=generator, dtype=torch.float64)


def expected(name, scores, labels, retrieved, k, w, ties):
    """Those that were not retrieved stand below all others, and past the cutoff."""
    below = torch.where(retrieved, scores, -9.0)
    m = int(retrieved.sum())
    if name in PAIRS:
        return reference.metric(name, below, labels, w=w, ties=ties)
    depth = m if k is None else min(k, m)

    def cut(metric):
        value = reference.metric(metric, below, labels, k=max(depth, 1), w=w, ties=ties)
        return value if depth else 0.0

    if name == "ndcg":
        gains = (torch.exp2(labels) - 1) * (1 if w is None else w)
        best = reference.metric("dcg", gains, labels, k=k, w=w, ties="stable")
        return cut("dcg") / best if best else 0.0
    if name == "precision":
        return cut("precision") * depth / (k or m or 1)
    if name == "arp":  # every rank past the cutoff is k + 1
        mass = labels if w is None else labels * w
        beyond = reference.metric("arp", below, labels, k=m, w=w, ties=ties) if m else m + 1
        inside = reference.metric("arp", below, labels, k=k, w=w, ties=ties)
        lost = float((mass * ~retrieved).sum() / mass.sum()) if mass.sum() else 0.0
        return (inside if k < m else beyond + lost * (k - m)) if mass.sum() else 0.0
    return cut(name)


@pytest.mark.parametrize("name", metrics.names())
@pytest.mark.parametrize("tied", [False, True])
def test_every_metric(name, tied):
    for seed in range(6):
        scores, labels, retrieved, weights = draw(seed, tied)
        for k in (None, 1, 3, 9) if name not in PAIRS else (None,):
            if name == "arp" and k is None:
                continue
            for w in (None, weights) if name not in ("kendall_tau", "spearman") else (None,):
                for ties in ("average", "stable") if name not in PAIRS else ("average",):
                    metric = metrics.get(name, k=k, ties=ties)
                    value = metric(scores, labels, weights=w, retrieved=retrieved).item()
                    wanted = expected(name, scores, labels, retrieved, k, w, ties)
                    assert value == pytest.approx(wanted, abs=1e-10), (seed, k, w, ties)


@pytest.mark.parametrize("name", metrics.names())
def test_padded_flat_and_alone(name):
    metric = metrics.get(f"{name}@9" if name == "arp" else name)
    drawn = [draw(seed, tied=True)[:3] for seed in range(6)]
    alone = [metric(s, y, retrieved=r).item() for s, y, r in drawn]
    scores, labels, retrieved = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    offsets = torch.tensor([0, *(len(s) for s, _, _ in drawn)]).cumsum(0)
    flat = metric(scores, labels, offsets=offsets, retrieved=retrieved)
    mask = torch.zeros(6, 8, dtype=torch.bool)
    padded = torch.full((6, 8), 7.0, dtype=torch.float64), torch.full((6, 8), 1.0), mask.clone()
    for row, parts in enumerate(drawn):
        places = slice(1, 1 + len(parts[0]))  # padding on both sides
        mask[row, places] = True
        for whole, part in zip(padded, parts, strict=True):
            whole[row, places] = part.to(whole)
    wide = metric(padded[0], padded[1].double(), mask, retrieved=padded[2])
    torch.testing.assert_close(flat, torch.tensor(alone, dtype=torch.float64))
    torch.testing.assert_close(wide, flat)
    both = metrics.evaluate(
        scores, labels, offsets=offsets, retrieved=retrieved, metrics=[metric, "ap"]
    )
    torch.testing.assert_close(both.per_list[str(metric)], flat)
    everything = metric(scores, labels, offsets=offsets, retrieved=torch.ones_like(retrieved))
    torch.testing.assert_close(everything, metric(scores, labels, offsets=offsets))


def test_padded_lists_of_no_items():
    scores, retrieved = torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.bool)
    assert metrics.get("ap(empty=1)")(scores, scores, retrieved=retrieved).tolist() == [1, 1]


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="retrieved must be True or False for each item"):
        metrics.get("ap")([1.0, 2.0], [0, 1], retrieved=[1, 0])
    with pytest.raises(ValueError, match="retrieved must be True or False for each item"):
        metrics.get("ap")([1.0, 2.0], [0, 1], retrieved=[True])
    with pytest.raises(ValueError, match=r"of shape \[1, 2\]; found torch.bool of shape \[2, 1\]"):
        metrics.get("ap")([[1.0, 2.0]], [[0, 1]], retrieved=[[True], [False]])
    with pytest.raises(ValueError, match="arp needs a cutoff"):
        metrics.get("arp")([1.0, 2.0], [0, 1], retrieved=[True, False])
