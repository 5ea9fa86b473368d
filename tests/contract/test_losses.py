"""The contract of losses, for every loss in the registry."""

import pytest
import torch
from devices import DEVICE
from registry import clone, has_true_gradient, is_random, loss_specs, make_loss

from rankgrad import losses, sorting
from rankgrad.sorting import Gumbel

SPECS = loss_specs()
every_loss = pytest.mark.parametrize("spec", SPECS)
every_sure_loss = pytest.mark.parametrize("spec", [s for s in SPECS if not is_random(s)])

TIGHT = {"rtol": 1e-9, "atol": 1e-10}


def value_and_gradient(spec, scores, labels, mask=None, **more):
    scores = clone(scores)
    value = make_loss(spec, **more.pop("options", {}))(scores, labels, mask, **more)
    (gradient,) = torch.autograd.grad(value.sum(), scores)
    return value.detach(), gradient


@every_loss
def test_padded_equals_ragged(spec, example):
    width = 13
    flat, flat_gradient = value_and_gradient(
        spec, example.scores, example.labels, offsets=example.offsets
    )
    scores, labels, mask = example.padded(width, seed=width)
    padded, padded_gradient = value_and_gradient(spec, scores, labels, mask)
    torch.testing.assert_close(padded, flat, **TIGHT)
    torch.testing.assert_close(padded_gradient[mask], flat_gradient, **TIGHT)
    assert (padded_gradient[~mask] == 0).all()


@every_sure_loss
def test_a_list_in_a_batch_is_the_list_alone(spec, example):
    options = {"options": {"reduction": "none"}}
    together, gradient = value_and_gradient(
        spec, example.scores, example.labels, offsets=example.offsets, **options
    )
    bounds = example.offsets.tolist()
    for row, (scores, labels) in enumerate(example.lists):
        alone, alone_gradient = value_and_gradient(spec, scores, labels, **options)
        assert alone.shape == (1,)
        torch.testing.assert_close(together[row], alone[0], **TIGHT)
        here = gradient[bounds[row] : bounds[row + 1]]
        torch.testing.assert_close(here, alone_gradient, **TIGHT)


@every_sure_loss
def test_order_of_items_and_lists_does_not_matter(spec, example):
    if spec == "listmle":
        pytest.skip("ties are shuffled")
    scores, labels, mask = example.padded(9, seed=3)
    value, gradient = value_and_gradient(spec, scores, labels, mask)
    items = torch.stack([torch.randperm(9) for _ in range(len(scores))])
    rows = torch.randperm(len(scores))
    moved = [x.gather(1, items)[rows] for x in (scores, labels, mask)]
    moved_value, moved_gradient = value_and_gradient(spec, *moved)
    torch.testing.assert_close(moved_value, value, **TIGHT)
    torch.testing.assert_close(moved_gradient, gradient.gather(1, items)[rows], **TIGHT)


@every_loss
def test_reductions_agree(spec, example):
    arguments = (spec, example.scores, example.labels)
    each, _ = value_and_gradient(*arguments, offsets=example.offsets, options={"reduction": "none"})
    total, _ = value_and_gradient(*arguments, offsets=example.offsets, options={"reduction": "sum"})
    mean, _ = value_and_gradient(*arguments, offsets=example.offsets)
    torch.testing.assert_close(total, each.sum(), **TIGHT)
    left_out = left_out_lists(spec, example)
    assert (each[left_out] == 0).all()
    torch.testing.assert_close(mean, each.sum() / (len(each) - len(left_out)), **TIGHT)


def left_out_lists(spec, example):
    """Which lists of the example the issue says are left out of the mean."""
    name = spec.split("@")[0].split("(")[0]
    lists = example.lists
    empty = [row for row, (scores, _) in enumerate(lists) if len(scores) == 0]
    if name in ("mse", "rmse", "bce", "ordinal"):
        return empty
    single = [row for row, (scores, _) in enumerate(lists) if len(scores) < 2]
    if name in ("listnet", "listmle", "neuralsort_ce", "margin_mse"):
        return single
    pairs = ("ranknet", "hinge", "lambdarank", "lambdaloss", "ordered_logit")
    if name in pairs or "spearman" in name:
        same = [row for row, (_, labels) in enumerate(lists) if len(labels.unique()) < 2]
        return sorted({*single, *same})
    irrelevant = [row for row, (_, labels) in enumerate(lists) if not (labels >= 1).any()]
    return sorted({*single, *irrelevant})


@every_loss
def test_list_weights_are_a_weighted_mean(spec, example):
    weights = torch.rand(len(example.lists), dtype=torch.float64)
    each, _ = value_and_gradient(
        spec, example.scores, example.labels, offsets=example.offsets, options={"reduction": "none"}
    )
    mean, _ = value_and_gradient(
        spec, example.scores, example.labels, offsets=example.offsets, weights=weights
    )
    kept = torch.ones_like(weights)
    kept[left_out_lists(spec, example)] = 0
    torch.testing.assert_close(mean, (each * weights).sum() / (weights * kept).sum(), **TIGHT)


@every_loss
def test_item_weights_of_one_change_nothing_and_padding_does_not_matter(spec, example):
    plain, gradient = value_and_gradient(
        spec, example.scores, example.labels, offsets=example.offsets
    )
    ones, ones_gradient = value_and_gradient(
        spec,
        example.scores,
        example.labels,
        offsets=example.offsets,
        weights=torch.ones_like(example.scores),
    )
    torch.testing.assert_close(ones, plain, **TIGHT)
    torch.testing.assert_close(ones_gradient, gradient, **TIGHT)
    weights = torch.rand_like(example.scores)
    flat, _ = value_and_gradient(
        spec, example.scores, example.labels, offsets=example.offsets, weights=weights
    )
    scores, labels, padded_weights, mask = example.padded(11, 5, weights)
    padded, _ = value_and_gradient(spec, scores, labels, mask, weights=padded_weights)
    torch.testing.assert_close(padded, flat, **TIGHT)
    if not is_recall_of_whole_lists(spec):
        assert not torch.allclose(flat, plain)


def is_recall_of_whole_lists(spec):
    """It is 1, whatever the order and the weights."""
    return spec.endswith("_recall")


@pytest.mark.parametrize(
    "spec", [s for s in SPECS if not s.startswith("gumbel_") or s.endswith("_ndcg@3")]
)
def test_gradient_is_the_derivative(spec):
    # SmoothI holds its products constant on the way back, by design.
    options = {} if has_true_gradient(make_loss(spec)) else {"stop_gradient": False}
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(10, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 3, 1, 0, 2, 1, 0, 2, 1, 0])

    def fresh(x):
        return make_loss(spec, **options)(x, labels, offsets=[0, 5, 8, 10])

    assert torch.autograd.gradcheck(fresh, (scores,))


@every_loss
def test_no_nan_in_float32(spec):
    """Scores of 0, tiny and huge; labels graded, zero, equal; full, single and empty lists."""
    generator = torch.Generator().manual_seed(2)
    scale = torch.tensor([0.0, 1e-4, 1.0, 1e4]).repeat_interleave(12)[:, None]
    scores = scale * torch.randn(48, 10, generator=generator).clamp(-1, 1)
    labels = torch.randint(0, 5, (48, 10), generator=generator)
    labels[1::3] = 0
    labels[2::3] = 2
    mask = torch.rand(48, 10, generator=generator) > 0.3
    mask[::4] = True
    mask[1::4, 1:] = False
    mask[2::4] = False
    scores[24:28] = torch.tensor([1e4, -1e4]).repeat(5)  # ties at both ends
    value, gradient = value_and_gradient(spec, scores, labels, mask, options={"reduction": "none"})
    assert value.isfinite().all()
    assert gradient.isfinite().all()


@every_loss
def test_any_shape(spec):
    for shape in [(0,), (1,), (3, 0), (0, 4), (2, 1), (2, 3, 4)]:
        scores = torch.randn(shape, requires_grad=True)
        labels = torch.randint(0, 5, shape)
        value = make_loss(spec)(scores, labels)
        value.backward()
        assert value.shape == ()
        assert value.isfinite()
        assert scores.grad.isfinite().all()
        each = make_loss(spec, reduction="none")(scores, labels)
        assert each.shape == (shape[:-1] or (1,))
    for offsets in ([0], [0, 0, 0]):
        scores = torch.zeros(0, requires_grad=True)
        value = make_loss(spec)(scores, torch.zeros(0), offsets=offsets)
        value.backward()
        assert value == 0 and scores.grad.shape == (0,)


@every_loss
def test_only_undefined_lists_give_an_attached_zero(spec):
    scores = torch.randn(2, 3, requires_grad=True)
    mask = torch.tensor([[True, False, False], [False, False, False]])
    value = make_loss(spec)(scores, torch.zeros(2, 3), mask)
    value.backward()
    if spec.split("@")[0] not in ("mse", "rmse", "bce", "ordinal"):
        assert value == 0
        assert (scores.grad == 0).all()


@every_loss
def test_half_precision_is_computed_in_float32_and_float64_stays(spec):
    for dtype in (torch.bfloat16, torch.float16):
        scores = torch.randn(3, 6).to(dtype).requires_grad_()
        labels = torch.randint(0, 5, (3, 6))
        value = make_loss(spec)(scores, labels)
        value.backward()
        assert value.dtype == torch.float32
        assert scores.grad.dtype == dtype
        torch.testing.assert_close(value, make_loss(spec)(scores.detach().float(), labels))
    assert make_loss(spec)(torch.randn(5).double(), torch.arange(5)).dtype == torch.float64


@every_loss
def test_spec_round_trip(spec):
    loss = make_loss(spec)
    again = losses.get(str(loss))
    assert again == loss
    assert str(again) == str(loss)
    assert type(again) is type(loss)
    assert losses.get(losses.get(spec)) == losses.get(spec)


@pytest.mark.parametrize("spec", [s for s in SPECS if is_random(s)])
def test_same_seed_same_bytes(spec, example):
    runs = []
    for _ in range(2):
        loss = make_loss(spec)
        runs.append(
            [loss(example.scores, example.labels, offsets=example.offsets) for _ in range(2)]
        )
    assert torch.equal(torch.stack(runs[0]), torch.stack(runs[1]))
    generator = torch.Generator().manual_seed(7)
    options = {"seed": generator, **({"samples": 3} if spec.startswith("gumbel_") else {})}
    given = losses.get(spec, **options)(example.scores, example.labels, offsets=example.offsets)
    assert torch.equal(given, runs[0][0])


@every_sure_loss
def test_a_step_against_the_gradient_lowers_the_loss(spec):
    generator = torch.Generator().manual_seed(4)
    scores = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 5, (3, 7), generator=generator)
    value, gradient = value_and_gradient(spec, scores, labels)
    if gradient.abs().max() < 1e-12:
        # Precision and recall of a whole list do not depend on its order.
        assert any(word in spec for word in ("precision", "recall"))
        assert "@" not in spec
        return
    moved, _ = value_and_gradient(spec, scores - 1e-4 * gradient / gradient.norm(), labels)
    assert moved < value


@every_sure_loss
def test_items_that_nothing_tells_apart_share_their_gradient(spec):
    if "depth" in spec or "branching" in spec or spec == "listmle":
        pytest.skip("deals tied items to blocks, or shuffles them")
    scores = torch.tensor([[1.0, 0.0, 1.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([[2.0, 0.0, 2.0, 0.0, 0.0, 1.0]])
    _, gradient = value_and_gradient(spec, scores, labels)
    torch.testing.assert_close(gradient[0, 0], gradient[0, 2], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(gradient[0, 1], gradient[0, 3], rtol=1e-6, atol=1e-9)


@every_sure_loss
def test_a_constant_score_has_something_to_learn(spec):
    labels = torch.tensor([[0.0, 3.0, 1.0, 0.0, 2.0]])
    _, gradient = value_and_gradient(spec, torch.zeros(1, 5, dtype=torch.float64), labels)
    whole = any(word in spec for word in ("precision", "recall")) and "@" not in spec
    tree = "depth" in spec or "branching" in spec  # sorts its blocks first, which ties leave open
    if not whole and not tree:
        assert gradient[0, 1] < 0
        assert gradient[0, 1] < gradient[0, 0]


@pytest.mark.parametrize("family", sorting.FAMILIES)
@pytest.mark.parametrize("metric", ["ndcg", "arp"])
def test_a_stochastic_loss_is_the_plain_one_of_noisy_scores(family, metric, example):
    scores, labels, mask = example.padded(9, seed=6)
    loss = losses.get(f"gumbel_{family}_{metric}@3", seed=5, samples=4, reduction="none")
    noise = Gumbel(seed=5, samples=4).sample_scores(torch.where(mask, scores, 0.0), mask)
    plain = losses.get(f"{family}_{metric}@3", reduction="none")
    each = torch.stack([plain(noisy, labels, mask) for noisy in noise])
    torch.testing.assert_close(loss(scores, labels, mask), each.mean(0), **TIGHT)


@pytest.mark.parametrize(
    "spec",
    ["approx_ndcg", "lapsum_ap", "neural_ndcg", "ot_rr", "ranknet", "smoothi_err", "softsort_ap"],
)
def test_a_second_derivative_is_refused_not_wrong(spec):
    scores = torch.randn(4, requires_grad=True)
    value = make_loss(spec)(scores, torch.arange(4))
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(value, scores, create_graph=True)


@pytest.mark.parametrize("spec", ["neural_ndcg", "ot_arp", "approx_ap", "pirank_ndcg@3(depth=2)"])
def test_autocast_does_not_reach_inside(spec):
    scores, labels = torch.randn(3, 12), torch.randint(0, 5, (3, 12))
    outside, gradient = value_and_gradient(spec, scores, labels)
    scores = clone(scores)
    with torch.autocast(DEVICE, torch.bfloat16):
        inside = make_loss(spec)(scores, labels)
    (inside_gradient,) = torch.autograd.grad(inside, scores)
    assert torch.equal(inside, outside)
    assert torch.equal(inside_gradient, gradient)


def test_equal_losses_are_two_modules():
    pair = torch.nn.ModuleList([losses.get("mse"), losses.get("mse")])
    assert pair[0] == pair[1]
    assert len(list(pair.children())) == 2
