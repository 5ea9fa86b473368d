"""Slow, obviously-correct float64 references for ONE list: the oracle the fast code is tested with.

`s` and `y` are 1-D float64 tensors of the real items only: no mask, no batch. Loops over items,
pairs and ranks, written to read like the equation they cite; autograd gives the gradient wrt `s`.
Ranks are 1-based and rank 1 is the highest score. `w` holds per-item weights, or is None. Nothing
in this file may import rankgrad.

Papers: [PiRank] pirank.md, [NeuralNDCG] neuralndcg.md, [SmoothI] smoothi.md,
[LambdaLoss@K] lambdaloss_at_k.md, [Comparison] objective_comparison.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

# --------------------------------------------------------------------------------------------------
# Small shared pieces
# --------------------------------------------------------------------------------------------------


def _sum(terms: Sequence[Tensor], like: Tensor) -> Tensor:
    """Sum of 0-d tensors; the empty sum is 0 and stays attached to the graph of `like`."""
    total = 0.0 * like.sum()
    for term in terms:
        total = total + term
    return total


def _softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), exact in float64 (torch's softplus is linear from 20 on)."""
    return torch.logaddexp(torch.zeros_like(x), x)


def _descending(values: Sequence[float]) -> list[int]:
    """Indices by descending value, ties in input order."""
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


def _weights(w: Tensor | None, n: int) -> list[float]:
    return [1.0] * n if w is None else [float(v) for v in w]


def _tensor(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _depth(n: int, k: int | None) -> int:
    """How many ranks a cutoff k leaves of a list (or matrix) with n of them."""
    return n if k is None else min(k, n)


# --------------------------------------------------------------------------------------------------
# 1a. Relaxed permutations: rows = ranks, columns = items
# --------------------------------------------------------------------------------------------------


def _neuralsort_logits(s: Tensor, temperature: float) -> Tensor:
    """((n + 1 - 2i) s_j - sum_m |s_j - s_m|) / temperature, the logits of [NeuralNDCG] eq. 3."""
    n = len(s)
    spread = [_sum([(s[j] - s[m]).abs() for m in range(n)], s) for j in range(n)]
    rows = []
    for i in range(1, n + 1):
        row = [((n + 1 - 2 * i) * s[j] - spread[j]) / temperature for j in range(n)]
        rows.append(torch.stack(row))
    return torch.stack(rows)


def neuralsort(s: Tensor, temperature: float) -> Tensor:
    """[NeuralNDCG] eq. 3 = [PiRank] eq. 12: row i = softmax(((n+1-2i) s - A_s 1)/temperature)."""
    return torch.softmax(_neuralsort_logits(s, temperature), dim=1)


def sinkhorn(
    P: Tensor, iterations: int = 30, tolerance: float = 1e-6, transposed: bool = False
) -> Tensor:
    """scale(P) of [NeuralNDCG] eq. 5, footnote 2; transposed: scale(P^T)^T of eq. 6."""
    first, second = (1, 0) if transposed else (0, 1)
    for _ in range(iterations):
        P = P / _nonzero(P.sum(dim=first, keepdim=True))
        P = P / _nonzero(P.sum(dim=second, keepdim=True))
        rows = (P.sum(dim=1) - 1).abs().max()
        columns = (P.sum(dim=0) - 1).abs().max()
        if rows < tolerance and columns < tolerance:
            break
    return P


def _nonzero(total: Tensor) -> Tensor:
    if (total == 0).any():
        raise ValueError("a row or column of P underflowed to 0: the reference does not apply here")
    return total


def softsort(s: Tensor, temperature: float) -> Tensor:
    """SoftSort (Prillo & Eisenschlos 2020): row i is softmax_j(-|s_(i) - s_j| / temperature)."""
    rows = []
    for i in _descending(s.tolist()):
        row = [-(s[i] - s[j]).abs() / temperature for j in range(len(s))]
        rows.append(torch.softmax(torch.stack(row), dim=0))
    return torch.stack(rows)


def smoothi(s: Tensor, alpha: float, delta: float, stop_gradient: bool) -> Tensor:
    """[SmoothI] eq. 4: row r = softmax_j(alpha S_j prod_{l<r} (1-I_j^l-delta)), S = s - min(s)."""
    n = len(s)
    shifted = s - s.min()
    rows: list[Tensor] = []
    for _ in range(n):
        logits = []
        for j in range(n):
            product = torch.ones((), dtype=s.dtype)
            for earlier in rows:
                product = product * (1 - earlier[j] - delta)
            if stop_gradient:
                product = product.detach()
            logits.append(alpha * shifted[j] * product)
        rows.append(torch.softmax(torch.stack(logits), dim=0))
    return torch.stack(rows)


def exact(s: Tensor) -> Tensor:
    """The permutation matrix of the descending sort; tied items share their ranks uniformly."""
    values = s.tolist()
    P = torch.zeros(len(s), len(s), dtype=torch.float64)
    for i, value in enumerate(values):
        above = sum(other > value for other in values)
        tied = sum(other == value for other in values)
        for row in range(above, above + tied):
            P[row, i] = 1.0 / tied
    return P


def ot(s: Tensor, epsilon: float, iterations: int = 20000) -> Tensor:
    """Sinkhorn sort (Cuturi et al. 2019): P[r, i] = n * entropic plan[i, r], run to convergence."""
    n = len(s)
    if n == 1:
        return torch.ones(1, 1, dtype=torch.float64) + 0.0 * s.sum()
    x = torch.sigmoid((s - s.mean()) / torch.sqrt(((s - s.mean()) ** 2).mean() + 1e-6))
    targets = _tensor([(n - r) / (n - 1) for r in range(1, n + 1)])
    kernel = -((x[:, None] - targets[None, :]) ** 2) / epsilon  # items x ranks
    log_mass = -math.log(n)
    f, g = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    for _ in range(iterations):
        before = g
        f = log_mass - torch.logsumexp(kernel + g[None, :], dim=1)
        g = log_mass - torch.logsumexp(kernel + f[:, None], dim=0)
        if (g - before).detach().abs().max() < 1e-13:
            break
    plan = torch.exp(kernel + f[:, None] + g[None, :])
    return n * plan.T


def tree(s: Tensor, temperature: float, blocks: Sequence[int], k: int) -> Tensor:
    """[PiRank] eqs. 13-17 over the items in descending score order; [min(k, n), n], item order."""
    n = len(s)
    if math.prod(blocks) < n:
        raise ValueError(f"blocks {list(blocks)} hold {math.prod(blocks)} items, the list has {n}")
    order = _descending(s.tolist())
    one_hot = torch.eye(n, dtype=torch.float64)
    # A node is its list of (value Y_l, row P_l over the items); the leaves are eq. 13 with P = 1.
    nodes = {position: [(s[item], one_hot[item])] for position, item in enumerate(order)}
    for branching in blocks:
        candidates: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for position in sorted(nodes):
            candidates.setdefault(position // branching, []).extend(nodes[position])
        nodes = {parent: _merge(found, temperature, k) for parent, found in candidates.items()}
    return torch.stack([row for _, row in nodes[0]])


def _merge(
    candidates: list[tuple[Tensor, Tensor]], temperature: float, k: int
) -> list[tuple[Tensor, Tensor]]:
    """[PiRank] eqs. 14-16 at one node: NeuralSort the candidates, keep k values and rows."""
    values = torch.stack([value for value, _ in candidates])
    rows = torch.stack([row for _, row in candidates])
    Q = neuralsort(values, temperature)
    kept = []
    for level in range(min(k, len(candidates))):
        kept.append((Q[level] @ values, Q[level] @ rows))
    return kept


# --------------------------------------------------------------------------------------------------
# 1b. Relaxed ranks: one per item
# --------------------------------------------------------------------------------------------------


def sigmoid_ranks(s: Tensor, alpha: float) -> Tensor:
    """[Comparison] eq. 5: 1 + sum_{j != i} sigmoid(alpha (s_j - s_i))."""
    n = len(s)
    ranks = []
    for i in range(n):
        above = [torch.sigmoid(alpha * (s[j] - s[i])) for j in range(n) if j != i]
        ranks.append(1 + _sum(above, s))
    return torch.stack(ranks)


def _laplace_cdf(x: Tensor) -> Tensor:
    return 0.5 * torch.exp(x) if x < 0 else 1 - 0.5 * torch.exp(-x)


def lapsum(s: Tensor, temperature: float) -> Tensor:
    """LapSum ranks (Struski et al. 2025): 1/2 + sum_j F((s_j - s_i)/temperature), with j = i."""
    n = len(s)
    ranks = []
    for i in range(n):
        above = [_laplace_cdf((s[j] - s[i]) / temperature) for j in range(n)]
        ranks.append(0.5 + _sum(above, s))
    return torch.stack(ranks)


def fastsort(s: np.ndarray, strength: float, regularization: str = "l2") -> np.ndarray:
    """Blondel et al. 2020: project -s/strength (l2) or exp(-s/strength) (KL) on the permutahedron.

    Every face of the permutahedron of (1..n) is an ordered partition of the items whose first block
    sums to its largest values, the second to the next ones, and so on. The projection is the best
    feasible point among the projections on the faces' affine hulls. All are tried: n <= 6.
    """
    z = -np.asarray(s, dtype=np.float64) / strength
    best, best_cost = None, math.inf
    for partition in _ordered_partitions(range(len(z))):
        mu = _project_on_face(z, partition, regularization)
        cost = _projection_cost(mu, z, regularization)
        if cost < best_cost and _in_permutahedron(mu):
            best, best_cost = mu, cost
    assert best is not None
    return best


def _ordered_partitions(items: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    items = tuple(items)
    if not items:
        yield []
    for size in range(1, len(items) + 1):
        for block in itertools.combinations(items, size):
            rest = tuple(i for i in items if i not in block)
            for others in _ordered_partitions(rest):
                yield [block, *others]


def _project_on_face(
    z: np.ndarray, partition: list[tuple[int, ...]], regularization: str
) -> np.ndarray:
    mu = np.empty(len(z))
    largest = len(z)
    for block in partition:
        index = list(block)
        total = float(sum(largest - m for m in range(len(index))))
        largest -= len(index)
        if regularization == "l2":
            mu[index] = z[index] + (total - z[index].sum()) / len(index)
        elif regularization == "entropic":
            share = np.exp(z[index] - z[index].max())
            mu[index] = total * share / share.sum()
        else:
            raise ValueError(f"regularization {regularization!r} is neither 'l2' nor 'entropic'")
    return mu


def _projection_cost(mu: np.ndarray, z: np.ndarray, regularization: str) -> float:
    if regularization == "l2":
        return float(((mu - z) ** 2).sum())
    logs = np.log(np.where(mu > 0, mu, 1.0))  # 0 log 0 = 0
    return float(
        (mu * (logs - z)).sum()
    )  # KL(mu, exp z), up to terms constant on the permutahedron


def _in_permutahedron(mu: np.ndarray, tolerance: float = 1e-10) -> bool:
    n = len(mu)
    for size in range(1, n):
        bound = sum(n - m for m in range(size))
        for subset in itertools.combinations(range(n), size):
            if mu[list(subset)].sum() > bound + tolerance:
                return False
    return True


# --------------------------------------------------------------------------------------------------
# 2a. Exact metrics
# --------------------------------------------------------------------------------------------------

METRIC_DEFAULTS: dict[str, Any] = {
    "gain": "exponential",
    "threshold": 1.0,
    "max_grade": 4.0,
    "persistence": 0.8,
}


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    unknown = set(options) - set(METRIC_DEFAULTS)
    if unknown:
        raise TypeError(f"unknown metric options {sorted(unknown)}")
    return {**METRIC_DEFAULTS, **options}


def _gain(label: Any, kind: str) -> Any:
    """2^y - 1 or y; the label may be a float or a tensor."""
    if kind == "exponential":
        return 2.0**label - 1.0
    if kind == "linear":
        return label
    raise ValueError(f"gain {kind!r} is neither 'exponential' nor 'linear'")


def _gains(name: str, y: Tensor, options: dict[str, Any]) -> list[float]:
    """What one item contributes at its rank: a gain, a label, a stop probability or relevance."""
    labels = [float(v) for v in y]
    if name in ("dcg", "ndcg"):
        return [_gain(label, options["gain"]) for label in labels]
    if name == "arp":
        return labels
    if name == "err":
        top_grade = max(options["max_grade"], max(labels))
        return [(2.0**label - 1.0) / 2.0**top_grade for label in labels]
    return [1.0 if label >= options["threshold"] else 0.0 for label in labels]


def _mass(g: Sequence[float], w: Sequence[float]) -> float:
    """sum_i w_i g_i, 0 on a list without relevant items."""
    return sum(w_i * g_i for w_i, g_i in zip(w, g, strict=True))


# Each takes the gains g and the weights w of the items IN RANKED ORDER: g[r - 1] stands at rank r.


def _dcg(g: Sequence[float], w: Sequence[float], k: int | None) -> float:
    """[PiRank] eq. 5: sum_{r<=k} w_r g_r / log2(1 + r)."""
    return sum(w[r - 1] * g[r - 1] / math.log2(1 + r) for r in range(1, _depth(len(g), k) + 1))


def _ideal_dcg(g: Sequence[float], w: Sequence[float], k: int | None) -> float:
    """DCG@k of the best order: by descending weighted gain."""
    best = sorted((w_i * g_i for w_i, g_i in zip(w, g, strict=True)), reverse=True)
    return _dcg(best, [1.0] * len(best), k)


def _ndcg(g: Sequence[float], w: Sequence[float], k: int | None) -> float:
    """[PiRank] eq. 6."""
    return _dcg(g, w, k) / _ideal_dcg(g, w, k)


def _precision(g: Sequence[float], w: Sequence[float], k: int | None) -> float:
    """[SmoothI] eq. 1; divides by k even when the list is shorter."""
    found = sum(w[r - 1] * g[r - 1] for r in range(1, _depth(len(g), k) + 1))
    return found / (len(g) if k is None else k)


def _recall(g: Sequence[float], w: Sequence[float], k: int | None) -> float:
    return sum(w[r - 1] * g[r - 1] for r in range(1, _depth(len(g), k) + 1)) / _mass(g, w)


def _ap(g: Sequence[float], w: Sequence[float], k: int | None) -> float:
    """[SmoothI] eq. 2, over ranks <= k, divided by all the relevant items."""
    total = 0.0
    for rank in range(1, _depth(len(g), k) + 1):
        precision = sum(g[r - 1] for r in range(1, rank + 1)) / rank
        total += w[rank - 1] * g[rank - 1] * precision
    return total / _mass(g, w)


def _rr(g: Sequence[float], w: Sequence[float], k: int | None) -> float:
    """1 / rank of the first relevant item."""
    for r in range(1, _depth(len(g), k) + 1):
        if g[r - 1] > 0:
            return w[r - 1] / r
    return 0.0


def _hits(g: Sequence[float], w: Sequence[float], k: int | None) -> float:
    """1 if a relevant item is in the top k (times the weight of the first one)."""
    for r in range(1, _depth(len(g), k) + 1):
        if g[r - 1] > 0:
            return w[r - 1]
    return 0.0


def _err(g: Sequence[float], w: Sequence[float], k: int | None) -> float:
    """Chapelle et al. 2009: sum_r (1/r) R_r prod_{l<r} (1 - R_l)."""
    total, reach = 0.0, 1.0
    for r in range(1, _depth(len(g), k) + 1):
        total += w[r - 1] * g[r - 1] * reach / r
        reach *= 1.0 - g[r - 1]
    return total


def _rbp(g: Sequence[float], w: Sequence[float], k: int | None, persistence: float) -> float:
    """Moffat & Zobel 2008: (1 - p) sum_r p^(r-1) rel_r."""
    terms = [w[r - 1] * g[r - 1] * persistence ** (r - 1) for r in range(1, _depth(len(g), k) + 1)]
    return (1 - persistence) * sum(terms)


def _arp(g: Sequence[float], w: Sequence[float], k: int | None) -> float:
    """[PiRank] eq. 4; with a cutoff every item below it stands at rank k + 1."""
    total = 0.0
    for r in range(1, len(g) + 1):
        total += w[r - 1] * g[r - 1] * (r if k is None else min(r, k + 1))
    return total / _mass(g, w)


_RANKED: dict[str, Callable[..., float]] = {
    "dcg": _dcg,
    "ndcg": _ndcg,
    "precision": _precision,
    "recall": _recall,
    "ap": _ap,
    "rr": _rr,
    "err": _err,
    "rbp": _rbp,
    "arp": _arp,
    "hits": _hits,
}


def _of_order(
    name: str,
    order: Sequence[int],
    g: Sequence[float],
    w: Sequence[float],
    k: int | None,
    options: dict[str, Any],
) -> float:
    """The metric of the ranking that puts item order[r - 1] at rank r."""
    extra = {"persistence": options["persistence"]} if name == "rbp" else {}
    return _RANKED[name]([g[i] for i in order], [w[i] for i in order], k, **extra)


def _orders(s: Tensor, ties: str) -> Iterator[list[int]]:
    """Every order of the items by descending score (ties="average"), or the stable one."""
    scores = s.tolist()
    order = _descending(scores)
    if ties == "stable":
        yield order
        return
    if ties != "average":
        raise ValueError(f"ties {ties!r} is neither 'average' nor 'stable'")
    groups = [list(group) for _, group in itertools.groupby(order, key=lambda i: scores[i])]
    for choice in itertools.product(*(itertools.permutations(group) for group in groups)):
        yield [i for group in choice for i in group]


def metric(
    name: str,
    s: Tensor,
    y: Tensor,
    k: int | None = None,
    w: Tensor | None = None,
    ties: str = "average",
    empty: float = 0.0,
    **options: Any,
) -> float:
    """The exact metric; ties="average" is the plain mean over all orders of the tied items."""
    settings = _settings(options)
    weights = _weights(w, len(y))
    if name == "opa":
        return _opa(s.tolist(), y.tolist(), weights, empty)
    if name == "kendall_tau":
        return _kendall_tau(s.tolist(), y.tolist(), empty)
    if name == "spearman":
        return _spearman(s.tolist(), y.tolist(), empty)
    gains = _gains(name, y, settings)
    if _mass(gains, weights) == 0.0:
        return empty
    values = [_of_order(name, order, gains, weights, k, settings) for order in _orders(s, ties)]
    return sum(values) / len(values)


def _opa(s: list[float], y: list[float], w: list[float], empty: float) -> float:
    """Share of the pairs y_i > y_j with s_i > s_j; score ties count one half."""
    right = total = 0.0
    for i, j in _pairs(y):
        total += w[i]
        right += w[i] * (1.0 if s[i] > s[j] else 0.5 if s[i] == s[j] else 0.0)
    return right / total if total > 0 else empty


def _kendall_tau(s: list[float], y: list[float], empty: float) -> float:
    """Kendall's tau-b: (C - D) / sqrt((pairs untied in s) (pairs untied in y))."""
    difference = untied_s = untied_y = 0
    for i, j in itertools.combinations(range(len(s)), 2):
        sign_s = (s[i] > s[j]) - (s[i] < s[j])
        sign_y = (y[i] > y[j]) - (y[i] < y[j])
        difference += sign_s * sign_y
        untied_s += abs(sign_s)
        untied_y += abs(sign_y)
    return difference / math.sqrt(untied_s * untied_y) if untied_s * untied_y else empty


def _mean_rank(values: Sequence[float], i: int) -> float:
    """1 + how many are above, and half of those that are equal."""
    return 1 + sum((v > values[i]) + 0.5 * (v == values[i]) for v in values) - 0.5


def _spearman(s: list[float], y: list[float], empty: float) -> float:
    """The correlation of mean ranks."""
    if len(set(y)) < 2:
        return empty
    columns = [[_mean_rank(values, i) for i in range(len(values))] for values in (s, y)]
    a, b = ([rank - sum(ranks) / len(ranks) for rank in ranks] for ranks in columns)
    scale = math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))
    return sum(x * z for x, z in zip(a, b, strict=True)) / scale if scale else 0.0


def _pairs(y: Sequence[float]) -> Iterator[tuple[int, int]]:
    """All (i, j) with y_i > y_j."""
    for i in range(len(y)):
        for j in range(len(y)):
            if y[i] > y[j]:
                yield i, j


# --------------------------------------------------------------------------------------------------
# 2b. Relaxed metrics over a permutation matrix
# --------------------------------------------------------------------------------------------------


def relaxed_permutation(
    name: str,
    P: Tensor,
    y: Tensor,
    k: int | None = None,
    w: Tensor | None = None,
    expect: str = "gain",
    empty: float = 0.0,
    **options: Any,
) -> Tensor:
    """The metric with the gain at rank r replaced by (P g)_r, as in [PiRank] eqs. 8-9."""
    settings = _settings(options)
    gains, weights = _gains(name, y, settings), _weights(w, len(y))
    if _mass(gains, weights) == 0.0:
        return empty + 0.0 * P.sum()
    if expect == "label":
        if name not in ("dcg", "ndcg"):
            raise ValueError(f"expect='label' is defined for dcg and ndcg, not for {name}")
        gained = _gain_of_expected_label(P, y, w, settings["gain"])
    elif expect == "gain":
        gained = P @ _tensor([w_i * g_i for w_i, g_i in zip(weights, gains, strict=True)])
    else:
        raise ValueError(f"expect {expect!r} is neither 'gain' nor 'label'")
    depth = _depth(len(P), k)
    if name in ("rr", "err", "hits"):
        return _cascade(name, gained, P @ _tensor(gains), depth)
    if name == "ap":
        return _ap_permutation(gained, P @ _tensor(gains), depth) / _mass(gains, weights)
    if name == "arp":
        return _arp_permutation(gained, _mass(gains, weights), k)
    value = _sum([_discount(name, r, settings) * gained[r - 1] for r in range(1, depth + 1)], P)
    return value / _normalizer(name, gains, weights, k)


def _gain_of_expected_label(P: Tensor, y: Tensor, w: Tensor | None, kind: str) -> Tensor:
    """[SmoothI] NDCG@K^alpha: gain((P y)_r), times (P w)_r where there are weights."""
    gained: Tensor = _gain(P @ y, kind)
    return gained if w is None else gained * (P @ w)


def _discount(name: str, r: Any, options: dict[str, Any]) -> Any:
    """The weight of rank r in a metric linear in the gains; r may be an int or a tensor."""
    if name in ("dcg", "ndcg"):
        return math.log(2) / torch.log(1 + torch.as_tensor(r, dtype=torch.float64))
    if name == "rbp":
        persistence = options["persistence"]
        return (1 - persistence) * persistence ** (r - 1)
    if name in ("precision", "recall"):
        return 1.0
    raise ValueError(f"no relaxed value of {name!r}")


def _normalizer(name: str, g: list[float], w: list[float], k: int | None) -> float:
    """What a metric that is linear in the gains is divided by."""
    if name == "ndcg":
        return _ideal_dcg(g, w, k)
    if name == "precision":
        return float(len(g) if k is None else k)
    if name == "recall":
        return _mass(g, w)
    return 1.0


def _cascade(name: str, gained: Tensor, stops: Tensor, depth: int) -> Tensor:
    """sum_r (1/r) (P wR)_r prod_{l<r} (1 - min((P R)_l, 1)); hits has 1 in place of 1/r."""
    terms = []
    reach = torch.ones((), dtype=torch.float64)
    for r in range(1, depth + 1):
        terms.append(gained[r - 1] * reach / (1 if name == "hits" else r))
        reach = reach * (1 - torch.clamp(stops[r - 1], max=1.0))
    return _sum(terms, gained)


def _ap_permutation(gained: Tensor, relevant: Tensor, depth: int) -> Tensor:
    """[SmoothI] AP^alpha: sum_K (P w rel)_K (1/K) sum_{r<=K} (P rel)_r."""
    terms = []
    for rank in range(1, depth + 1):
        precision = _sum([relevant[r - 1] for r in range(1, rank + 1)], relevant) / rank
        terms.append(gained[rank - 1] * precision)
    return _sum(terms, gained)


def _arp_permutation(gained: Tensor, mass: float, k: int | None) -> Tensor:
    """[PiRank] eq. 11; with a cutoff the mass not found in the top k stands at rank k + 1."""
    depth = _depth(len(gained), k)
    inside = _sum([gained[r - 1] for r in range(1, depth + 1)], gained)
    total = _sum([r * gained[r - 1] for r in range(1, depth + 1)], gained)
    if k is not None:
        total = total + (k + 1) * (mass - inside)
    return total / mass


# --------------------------------------------------------------------------------------------------
# 2c. Relaxed metrics over ranks
# --------------------------------------------------------------------------------------------------


def relaxed_ranks(
    name: str,
    rho: Tensor,
    y: Tensor,
    k: int | None = None,
    w: Tensor | None = None,
    beta: float = 1.0,
    empty: float = 0.0,
    **options: Any,
) -> Tensor:
    """The metric with item i at rank rho_i, relaxed inside the top k: see `_inside`."""
    settings = _settings(options)
    gains, weights = _gains(name, y, settings), _weights(w, len(y))
    mass = _mass(gains, weights)
    if mass == 0.0:
        return empty + 0.0 * rho.sum()
    inside = [_inside(rho_i, k, beta) for rho_i in rho]
    places, rho = rho, rho if k is None else rho.clamp(max=k + 0.75)  # of which discounts are taken
    if name == "arp":
        return _arp_ranks(rho, gains, weights, inside, k) / mass
    if name == "ap":
        return _ap_ranks(places, rho, gains, weights, inside, beta) / mass
    if name == "rr":
        return _rr_ranks(places, rho, gains, weights, inside, beta)
    if name == "err":
        return _err_ranks(places, rho, gains, weights, inside, beta)
    terms = []
    for i in range(len(rho)):
        terms.append(weights[i] * gains[i] * inside[i] * _discount(name, rho[i], settings))
    return _sum(terms, rho) / _normalizer(name, gains, weights, k)


def _inside(rho_i: Tensor, k: int | None, beta: float) -> Tensor:
    """Qin et al. 2010's truncation function, past the cutoff a power of the distance instead."""
    if k is None:
        return torch.ones_like(rho_i)
    d = rho_i - k - 0.5
    return torch.sigmoid(-beta * d) if d <= 0 else 0.5 * (1 + d / 4) ** (-2 * beta)


def _arp_ranks(
    rho: Tensor, g: list[float], w: list[float], inside: list[Tensor], k: int | None
) -> Tensor:
    """sum_i w_i y_i (inside_i rho_i + (1 - inside_i) (k + 1))."""
    terms = []
    for i in range(len(rho)):
        rank = rho[i] if k is None else inside[i] * rho[i] + (1 - inside[i]) * (k + 1)
        terms.append(w[i] * g[i] * rank)
    return _sum(terms, rho)


def _ap_ranks(
    places: Tensor, rho: Tensor, g: list[float], w: list[float], inside: list[Tensor], beta: float
) -> Tensor:
    """sum_i w_i rel_i inside_i (1 + sum_{j != i} rel_j sigmoid(beta (rho_i - rho_j))) / rho_i."""
    n = len(rho)
    terms = []
    for i in range(n):
        above = [g[j] * torch.sigmoid(beta * (places[i] - places[j])) for j in range(n) if j != i]
        terms.append(w[i] * g[i] * inside[i] * (1 + _sum(above, rho)) / rho[i])
    return _sum(terms, rho)


def _rr_ranks(
    places: Tensor, rho: Tensor, g: list[float], w: list[float], inside: list[Tensor], beta: float
) -> Tensor:
    """sum_i softmax over the relevant items of (-beta rho)_i * w_i inside_i / rho_i."""
    relevant = [i for i in range(len(rho)) if g[i] > 0]
    first = torch.softmax(torch.stack([-beta * places[i] for i in relevant]), dim=0)
    terms = [first[m] * w[i] * inside[i] / rho[i] for m, i in enumerate(relevant)]
    return _sum(terms, rho)


def _err_ranks(
    places: Tensor, rho: Tensor, g: list[float], w: list[float], inside: list[Tensor], beta: float
) -> Tensor:
    """sum_i w_i R_i inside_i/rho_i exp(sum_{j != i} sigmoid(beta (rho_i - rho_j)) log(1 - R_j))."""
    n = len(rho)
    terms = []
    for i in range(n):
        passed = [
            torch.sigmoid(beta * (places[i] - places[j])) * math.log(1 - g[j])
            for j in range(n)
            if j != i
        ]
        terms.append(w[i] * g[i] * inside[i] / rho[i] * torch.exp(_sum(passed, rho)))
    return _sum(terms, rho)


# --------------------------------------------------------------------------------------------------
# 3a. Pointwise losses
# --------------------------------------------------------------------------------------------------


def _mse(s: Tensor, y: Tensor, w: list[float]) -> Tensor:
    """[PiRank] eq. 1."""
    return _sum([w[i] * (s[i] - y[i]) ** 2 for i in range(len(s))], s) / len(s)


def _rmse(s: Tensor, y: Tensor, w: list[float], levels: int = 5) -> Tensor:
    """[NeuralNDCG] sec. 5.4: sqrt(mean (levels sigmoid(s) - y)^2), with gradient 0 at error 0."""
    errors = [w[i] * (levels * torch.sigmoid(s[i]) - y[i]) ** 2 for i in range(len(s))]
    mean = _sum(errors, s) / len(s)
    return torch.sqrt(mean) if mean > 0 else mean


def _binary_cross_entropy(logit: Tensor, positive: bool) -> Tensor:
    """-log sigmoid(logit) for a positive, -log(1 - sigmoid(logit)) for a negative."""
    return _softplus(-logit) if positive else _softplus(logit)


def _bce(s: Tensor, y: Tensor, w: list[float], threshold: float = 1.0) -> Tensor:
    """Mean over items of the cross entropy of sigmoid(s_i) against 1[y_i >= threshold]."""
    terms = [w[i] * _binary_cross_entropy(s[i], bool(y[i] >= threshold)) for i in range(len(s))]
    return _sum(terms, s) / len(s)


def _ordinal(s: Tensor, y: Tensor, w: list[float], levels: int = 5) -> Tensor:
    """Mean over items of sum_{l=1}^{levels-1} BCE(sigmoid(s_i - (l - levels/2)), 1[y_i >= l])."""
    terms = []
    for i in range(len(s)):
        for level in range(1, levels):
            logit = s[i] - (level - levels / 2)
            terms.append(w[i] * _binary_cross_entropy(logit, bool(y[i] >= level)))
    return _sum(terms, s) / len(s)


# --------------------------------------------------------------------------------------------------
# 3b. Pairwise losses
# --------------------------------------------------------------------------------------------------


def _ranking(s: Tensor, y: Tensor) -> list[int]:
    """Items by descending score, score ties with the less relevant first, then in input order."""
    scores, labels = s.tolist(), y.tolist()
    return sorted(range(len(scores)), key=lambda i: (-scores[i], labels[i], i))


def _ranks(s: Tensor, y: Tensor) -> list[int]:
    """pi_i of [LambdaLoss@K] eq. 1 under `_ranking`."""
    ranks = [0] * len(s)
    for position, item in enumerate(_ranking(s, y)):
        ranks[item] = position + 1
    return ranks


def _one_inside(pi_i: int, pi_j: int, k: int | None) -> bool:
    """1[pi_i <= k or pi_j <= k]; true without a cutoff."""
    return k is None or pi_i <= k or pi_j <= k


def _ranknet(
    s: Tensor,
    y: Tensor,
    w: list[float],
    k: int | None = None,
    sigma: float = 1.0,
    ties: str = "skip",
) -> Tensor:
    """[LambdaLoss@K] eq. 6; ties="half" adds the equal labels with target probability 1/2."""
    if ties not in ("skip", "half"):
        raise ValueError(f"ties {ties!r} is neither 'skip' nor 'half'")
    pi = _ranks(s, y)
    terms = []
    for i, j in _pairs(y.tolist()):
        if _one_inside(pi[i], pi[j], k):
            terms.append(w[i] * _softplus(-sigma * (s[i] - s[j])))
    for i, j in itertools.combinations(range(len(s)), 2):
        if ties == "half" and y[i] == y[j] and _one_inside(pi[i], pi[j], k):
            d = sigma * (s[i] - s[j])
            terms.append(0.5 * w[i] * _softplus(-d) + 0.5 * w[j] * _softplus(d))
    return _sum(terms, s)


def _hinge(
    s: Tensor, y: Tensor, w: list[float], k: int | None = None, margin: float = 1.0
) -> Tensor:
    """sum over y_i > y_j of max(0, margin - (s_i - s_j)); @k as in RankNet."""
    pi = _ranks(s, y)
    terms = []
    for i, j in _pairs(y.tolist()):
        if _one_inside(pi[i], pi[j], k):
            terms.append(w[i] * torch.relu(margin - (s[i] - s[j])))
    return _sum(terms, s)


def _margin_mse(s: Tensor, y: Tensor, w: list[float]) -> Tensor:
    """Hofstaetter et al. 2020: the mean over pairs of ((s_i - s_j) - (y_i - y_j))^2."""
    pairs = list(itertools.combinations(range(len(s)), 2))
    terms = [(w[i] + w[j]) / 2 * ((s[i] - s[j]) - (y[i] - y[j])) ** 2 for i, j in pairs]
    return _sum(terms, s) / max(len(pairs), 1)


# --------------------------------------------------------------------------------------------------
# 3c. Listwise losses
# --------------------------------------------------------------------------------------------------


def _softmax(s: Tensor, y: Tensor, w: list[float]) -> Tensor:
    """[LambdaLoss@K] eq. 7: -sum_i y_i log softmax(s)_i."""
    total = torch.logsumexp(s, dim=0)
    return _sum([-w[i] * y[i] * (s[i] - total) for i in range(len(s))], s)


def _listnet(s: Tensor, y: Tensor, w: list[float]) -> Tensor:
    """Cao et al. 2007, top one: -sum_i softmax(y)_i log softmax(s)_i."""
    target = torch.softmax(y, dim=0)
    total = torch.logsumexp(s, dim=0)
    return _sum([-w[i] * target[i] * (s[i] - total) for i in range(len(s))], s)


def _ndcg_bound(
    s: Tensor,
    y: Tensor,
    w: list[float],
    k: int | None = None,
    penalty: str = "log",
    gain: str = "exponential",
) -> Tensor:
    """sum_i G_i phi(sum_j exp(s_j - s_i)) / ideal DCG@k, phi(r) = log r or log(1 + log r)."""
    n = len(s)
    gains = [
        w[i] * (2 ** float(y[i]) - 1 if gain == "exponential" else float(y[i])) for i in range(n)
    ]
    best = sorted(gains, reverse=True)[: _depth(n, k)]
    ideal = sum(g / math.log2(1 + r) for r, g in enumerate(best, start=1))
    terms = []
    for i in range(n):
        bound = _sum([torch.exp(s[j] - s[i]) for j in range(n)], s)
        phi = torch.log(bound) if penalty == "log" else torch.log(1 + torch.log(bound))
        terms.append(gains[i] * phi / ideal)
    return _sum(terms, s)


def _ordered_logit(s: Tensor, y: Tensor, w: list[float], levels: int = 5) -> Tensor:
    """sum_{l=1}^{levels-1} min_c sum_i w_i BCE(sigmoid(s_i - c), 1[y_i >= l]), c by bisection."""
    scores, n = s.tolist(), len(s)
    terms = []
    for level in range(1, levels):
        above = [bool(y[i] >= level) for i in range(n)]
        if all(above) or not any(above):
            continue  # the infimum is 0, at an infinite c
        wanted = sum(w[i] for i in range(n) if above[i])
        low, high = min(scores) - 60, max(scores) + 60
        for _ in range(200):
            c = (low + high) / 2
            inside = sum(w[i] / (1 + math.exp(c - scores[i])) for i in range(n))
            low, high = (c, high) if inside > wanted else (low, c)
        terms += [w[i] * _binary_cross_entropy(s[i] - low, above[i]) for i in range(n)]
    return _sum(terms, s)


def _listmle(s: Tensor, y: Tensor, w: list[float], ties: str = "stable") -> Tensor:
    """Xia et al. 2008: -sum_r log(exp s_(r) / sum_{l>=r} exp s_(l)), items by descending label."""
    if ties != "stable":
        raise ValueError(f"the reference has ties='stable' only, not {ties!r}")
    order = _descending(y.tolist())
    terms = []
    for r, item in enumerate(order):
        remaining = torch.stack([s[j] for j in order[r:]])
        terms.append(w[item] * (torch.logsumexp(remaining, dim=0) - s[item]))
    return _sum(terms, s)


def _listap(s: Tensor, y: Tensor, w: list[float], bins: int = 25, threshold: float = 1.0) -> Tensor:
    """Revaud et al. 2019: 1 - sum_m prec_m rec_m over soft histograms of sigmoid(s); w as in AP."""
    n = len(s)
    rel = [1.0 if y[i] >= threshold else 0.0 for i in range(n)]
    mass = _mass(rel, w)
    if mass == 0.0:
        return 0.0 * s.sum()
    x = torch.sigmoid(s)
    width = 1.0 / (bins - 1)
    terms = []
    positives = everything = torch.zeros((), dtype=s.dtype)
    for m in range(bins):
        member = [torch.relu(1 - (x[i] - (1 - m * width)).abs() / width) for i in range(n)]
        positives = positives + _sum([rel[i] * member[i] for i in range(n)], s)
        everything = everything + _sum(member, s)
        recalled = _sum([w[i] * rel[i] * member[i] for i in range(n)], s) / mass
        if everything > 0:
            terms.append(positives / everything * recalled)
    return 1 - _sum(terms, s)


def _neuralsort_ce(
    s: Tensor, y: Tensor, w: list[float], k: int | None = None, temperature: float = 1.0
) -> Tensor:
    """[NeuralNDCG] sec. 4.2: mean over ranks of -sum_j P*_rj log P_rj, P* the exact sort of y."""
    target = exact(y)
    log_p = torch.log_softmax(_neuralsort_logits(s, temperature), dim=1)
    depth = _depth(len(s), k)
    terms = []
    for r in range(depth):
        for j in range(len(s)):
            if target[r, j] > 0:
                terms.append(-w[j] * target[r, j] * log_p[r, j])
    return _sum(terms, s) / depth


# --------------------------------------------------------------------------------------------------
# 3d. Lambda losses
# --------------------------------------------------------------------------------------------------


def _log_discount(r: int) -> float:
    """D(r) = log2(1 + r)."""
    return math.log2(1 + r)


def swap_cost(
    metric_name: str, s: Tensor, y: Tensor, i: int, j: int, k: int | None = None, **options: Any
) -> float:
    """|change of metric@k when items i and j swap places in the current ranking|, by swapping."""
    settings = _settings(options)
    ones = [1.0] * len(y)
    gains = _gains(metric_name, y, settings)
    if _mass(gains, ones) == 0.0:
        return 0.0
    order = _ranking(s, y)
    swapped = [{i: j, j: i}.get(item, item) for item in order]
    before = _of_order(metric_name, order, gains, ones, k, settings)
    after = _of_order(metric_name, swapped, gains, ones, k, settings)
    return abs(after - before)


def delta_lambdarank(pi_i: int, pi_j: int, k: int | None = None) -> float:
    """[LambdaLoss@K] eq. 12; without k eq. 11."""
    at_i = 1 / _log_discount(pi_i) if k is None or pi_i <= k else 0.0
    at_j = 1 / _log_discount(pi_j) if k is None or pi_j <= k else 0.0
    return abs(at_i - at_j)


def delta_lambdaloss(pi_i: int, pi_j: int) -> float:
    """[LambdaLoss@K] eq. 13."""
    gap = abs(pi_i - pi_j)
    return abs(1 / _log_discount(gap) - 1 / _log_discount(gap + 1))


def correction(pi_i: int, pi_j: int) -> float:
    """mu_ij of [LambdaLoss@K] eq. 17."""
    return 1 / (1 - 1 / _log_discount(max(pi_i, pi_j)))


def truncation_factor(pi_i: int, pi_j: int, k: int | None, truncation: str) -> float:
    """What eq. 13 is multiplied by at a cutoff: eq. 16 (corrected) or eq. 15 (heuristic)."""
    if truncation not in ("corrected", "heuristic"):
        raise ValueError(f"truncation {truncation!r} is neither 'corrected' nor 'heuristic'")
    if k is None:
        return 1.0
    if truncation == "heuristic":
        return 1.0 if _one_inside(pi_i, pi_j, k) else 0.0
    return correction(pi_i, pi_j) if pi_i > k or pi_j > k else 1.0


def _weighted_ranknet(
    s: Tensor, y: Tensor, w: list[float], sigma: float, weight: Callable[[int, int], float]
) -> Tensor:
    """sum over y_i > y_j of weight_ij log(1 + exp(-sigma (s_i - s_j)))."""
    terms = []
    for i, j in _pairs(y.tolist()):
        terms.append(w[i] * weight(i, j) * _softplus(-sigma * (s[i] - s[j])))
    return _sum(terms, s)


def _lambdarank(
    s: Tensor,
    y: Tensor,
    w: list[float],
    k: int | None = None,
    sigma: float = 1.0,
    metric: str = "ndcg",
    **options: Any,
) -> Tensor:
    """[LambdaLoss@K] sec. 5: RankNet weighted by the metric's change at a swap."""

    def weight(i: int, j: int) -> float:
        return swap_cost(metric, s, y, i, j, k, **options)

    return _weighted_ranknet(s, y, w, sigma, weight)


def lambdaloss_weight(
    s: Tensor,
    y: Tensor,
    i: int,
    j: int,
    k: int | None = None,
    truncation: str = "corrected",
    scheme: str = "ndcg_loss2",
    metric: str = "ndcg",
    mu: float = 10.0,
    **options: Any,
) -> float:
    """The weight of the pair y_i > y_j in LambdaLoss."""
    if metric in ("ap", "rr"):
        return swap_cost(metric, s, y, i, j, k, **options)
    settings = _settings(options)
    gains = _gains(metric, y, settings)
    ones = [1.0] * len(y)
    if _mass(gains, ones) == 0.0:
        return 0.0
    if metric == "arp":
        return abs(gains[i] - gains[j]) / sum(gains)
    pi = _ranks(s, y)
    if metric in ("precision", "recall"):
        return _set_weight(metric, gains, i, j, pi[i], pi[j], k, truncation)
    if metric != "ndcg":
        raise ValueError(f"lambdaloss has no metric {metric!r}")
    ideal = _ideal_dcg(gains, ones, k)
    return _ndcg_weight(gains, i, j, pi[i], pi[j], k, truncation, scheme, mu) / ideal


def _ndcg_weight(
    g: list[float],
    i: int,
    j: int,
    pi_i: int,
    pi_j: int,
    k: int | None,
    truncation: str,
    scheme: str,
    mu: float,
) -> float:
    """[LambdaLoss@K] eqs. 11-17 (Wang et al. 2018 for the schemes), before the ideal DCG."""
    factor = truncation_factor(pi_i, pi_j, k, truncation)
    delta = delta_lambdaloss(pi_i, pi_j) * factor
    if scheme == "ndcg_loss1":
        return g[i] / _log_discount(pi_i) * factor
    if scheme == "ndcg_loss2":
        return abs(g[i] - g[j]) * delta
    if scheme == "ndcg_loss2++":
        if truncation == "heuristic":
            rho = delta_lambdarank(pi_i, pi_j) * factor
        else:
            rho = delta_lambdarank(pi_i, pi_j, k)
        return abs(g[i] - g[j]) * (rho + mu * delta)
    raise ValueError(f"lambdaloss has no scheme {scheme!r}")


def _set_weight(
    metric: str,
    rel: list[float],
    i: int,
    j: int,
    pi_i: int,
    pi_j: int,
    k: int | None,
    truncation: str,
) -> float:
    """Precision and recall: the bound of eqs. 18-20 on rel_i 1[pi_i > k]; nothing without a k."""
    if k is None or (pi_i <= k and pi_j <= k):
        return 0.0
    delta = delta_lambdaloss(pi_i, pi_j) * truncation_factor(pi_i, pi_j, k, truncation)
    return abs(rel[i] - rel[j]) / (k if metric == "precision" else sum(rel)) * delta


def _lambdaloss(
    s: Tensor, y: Tensor, w: list[float], k: int | None = None, sigma: float = 1.0, **options: Any
) -> Tensor:
    """[LambdaLoss@K] eqs. 13-17: RankNet with the weights of `lambdaloss_weight`."""

    def weight(i: int, j: int) -> float:
        return lambdaloss_weight(s, y, i, j, k, **options)

    return _weighted_ranknet(s, y, w, sigma, weight)


# --------------------------------------------------------------------------------------------------
# 3e. One door to the losses
# --------------------------------------------------------------------------------------------------

_WITHOUT_CUTOFF: dict[str, Callable[..., Tensor]] = {
    "mse": _mse,
    "rmse": _rmse,
    "bce": _bce,
    "ordinal": _ordinal,
    "margin_mse": _margin_mse,
    "softmax": _softmax,
    "listnet": _listnet,
    "ordered_logit": _ordered_logit,
    "listmle": _listmle,
    "listap": _listap,
}
_WITH_CUTOFF: dict[str, Callable[..., Tensor]] = {
    "ranknet": _ranknet,
    "hinge": _hinge,
    "neuralsort_ce": _neuralsort_ce,
    "ndcg_bound": _ndcg_bound,
    "lambdarank": _lambdarank,
    "lambdaloss": _lambdaloss,
}


def loss(
    name: str, s: Tensor, y: Tensor, k: int | None = None, w: Tensor | None = None, **options: Any
) -> Tensor:
    """The loss of one list, a 0-d tensor; 0, attached to s, where there is nothing to learn."""
    weights = _weights(w, len(s))
    if name in _WITH_CUTOFF:
        return _WITH_CUTOFF[name](s, y, weights, k=k, **options)
    if k is not None:
        raise ValueError(f"the reference of {name!r} takes no cutoff")
    return _WITHOUT_CUTOFF[name](s, y, weights, **options)
