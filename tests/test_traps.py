"""Errors found in other implementations: each is a promise kept here (the numbers are theirs)."""

import itertools
import math

import pytest
import torch

from rankgrad import losses, metrics, sorting

PERFECT = torch.tensor([[3.0, 2.0, 1.0, 0.0], [9.0, 8.0, -50.0, -50.0]])
LABELS = torch.tensor([[3, 2, 1, 0], [1, 0, 0, 0]])
MASK = torch.tensor([[True] * 4, [True, True, False, False]])


class TestPadding:
    def test_several_noise_samples_do_not_mix_the_masks_of_lists(self):
        """Was 0.987 for a perfect ranking with near-zero noise."""
        loss = losses.get(
            "gumbel_neural_ndcg", temperature=1e-3, scale=1e-6, samples=8, seed=0, reduction="none"
        )
        torch.testing.assert_close(loss(PERFECT, LABELS, MASK), torch.zeros(2), atol=1e-4, rtol=0)

    def test_neuralsort_with_padding_in_the_middle(self):
        """Was 0.870 for 0.938."""
        scores, labels = torch.tensor([2.0, 0.5, 1.0]), torch.tensor([0, 1, 2])
        mask = torch.tensor([[True, False, True, False, True]])
        padded = torch.zeros(1, 5).masked_scatter(mask, scores)
        padded_labels = torch.zeros(1, 5).masked_scatter(mask, labels.float())
        loss = losses.get("neural_ndcg")
        torch.testing.assert_close(loss(padded, padded_labels, mask), loss(scores, labels))

    @pytest.mark.parametrize("straight_through", [False, True])
    def test_pirank_leaves_padding_out(self, straight_through):
        """Moved 0.277 -> 0.413 with five pads, and the top item's gradient changed sign."""
        loss = losses.get("pirank_ndcg@3", straight_through=straight_through)
        scores = torch.tensor([0.4, 0.1, 0.9, 0.3], requires_grad=True)
        labels = torch.tensor([1, 0, 0, 2])
        alone = loss(scores, labels)
        (gradient,) = torch.autograd.grad(alone, scores)
        wide = torch.cat([scores, torch.zeros(5)])
        mask = torch.arange(9) < 4
        padded = loss(wide, torch.cat([labels, torch.zeros(5)]), mask)
        torch.testing.assert_close(padded, alone)
        torch.testing.assert_close(torch.autograd.grad(padded, scores)[0], gradient)

    @pytest.mark.parametrize("name", ["listmle", "lambdaloss", "lambdarank", "smoothi_ndcg"])
    def test_padding_counts_nothing(self, name):
        """ListMLE: 0.26 alone, 1.47 padded; lambdas doubled; SmoothI fell from 0.83 to 0.35."""
        scores, labels = torch.randn(6), torch.tensor([2, 0, 1, 0, 3, 4])
        options = {"ties": "stable"} if name == "listmle" else {}
        loss = losses.get(name, **options)
        for pads in (3, 12):
            mask = torch.arange(6 + pads) < 6
            wide, wide_labels = (
                torch.cat([scores, torch.ones(pads)]),
                torch.cat([labels, torch.ones(pads)]),
            )
            torch.testing.assert_close(loss(wide, wide_labels, mask), loss(scores, labels))

    def test_evaluation_does_not_rank_the_padding(self):
        scores, labels = torch.tensor([0.1, 0.2, 9.0]), torch.tensor([1, 0, 4])
        mask = torch.tensor([True, True, False])
        assert metrics.get("rr")(scores, labels, mask) == 0.5


class TestNothingToLearn:
    @pytest.mark.parametrize("name", ["ranknet", "lambdaloss", "neural_ndcg", "softmax", "listap"])
    def test_a_batch_without_relevant_items_is_an_attached_zero(self, name):
        scores = torch.randn(2, 4, requires_grad=True)
        value = losses.get(name)(scores, torch.zeros(2, 4))
        value.backward()
        assert value == 0
        assert (scores.grad == 0).all()

    def test_rmse_at_zero_error(self):
        scores = torch.zeros(2, requires_grad=True)
        value = losses.get("rmse")(scores, torch.tensor([2.5, 2.5]))
        value.backward()
        assert value == 0
        assert (scores.grad == 0).all()

    def test_the_rule_for_empty_lists_moves_the_mean_and_is_printed(self):
        scores, labels = torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([[1, 0], [0, 0]])
        for empty, mean in ((0, 0.5), (1, 1.0), ("skip", 1.0)):
            table = metrics.evaluate(scores, labels, metrics=[metrics.NDCG(empty=empty)])
            assert next(iter(table.mean.values())) == mean
            assert ("left out" if empty == "skip" else f"count {empty}") in str(table)

    def test_reciprocal_rank_is_per_list_and_of_the_first_relevant(self):
        scores = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
        labels = torch.tensor([[0, 1, 4], [0, 0, 0]])
        assert metrics.get("rr")(scores, labels).tolist() == [0.5, 0.0]


class TestTruncation:
    @pytest.mark.parametrize("name", ["lambdarank@2", "lambdaloss@2", "ranknet@2", "neural_ndcg@2"])
    def test_a_relevant_item_below_the_cutoff_has_a_gradient(self, name):
        scores = torch.tensor([4.0, 3.0, 2.0, 1.0], requires_grad=True)
        losses.get(name)(scores, torch.tensor([0, 0, 0, 1])).backward()
        assert scores.grad[3] < 0

    def test_lambdaloss_weighs_pairs_past_the_cutoff_and_lambdarank_does_not(self):
        labels = torch.tensor([0, 0, 0, 1])
        scores = torch.tensor([4.0, 3.0, 2.0, 1.0], requires_grad=True)
        losses.get("lambdarank@2")(scores, labels).backward()
        assert scores.grad[2] == 0
        scores.grad = None
        losses.get("lambdaloss@2")(scores, labels).backward()
        assert scores.grad[2] > 0

    def test_ndcg_loss2_weights(self):
        """|1/log2(2) - 1/log2(3)| = 0.369 for neighbors, then 0.131; were inverted."""
        for difference, weight in ((1, 0.369), (2, 0.131)):
            scores = torch.zeros(difference + 1) - torch.arange(difference + 1) * 1e-6
            labels = torch.zeros(difference + 1)
            labels[difference] = 1
            pairs = losses.get("lambdaloss(sigma=1.0)")(scores, labels).item() / math.log(2)
            if difference == 1:
                assert pairs == pytest.approx(0.369, abs=1e-3)
            else:  # the neighbor's weight is in the sum as well
                assert pairs == pytest.approx(0.369 + weight, abs=1e-3)

    def test_ndcg_past_the_end_is_ndcg_at_the_end(self):
        scores, labels = torch.randn(7), torch.randint(0, 5, (7,))
        assert metrics.get("ndcg@20")(scores, labels) == metrics.get("ndcg@10")(scores, labels)

    def test_transposed_with_linear_gain_and_a_perfect_ranking(self):
        """Got 0.476: linear gains over the exponential ideal."""
        loss = losses.get("neural_ndcg(transposed=true, gain=linear, temperature=0.001)")
        assert loss(PERFECT[0], LABELS[0]).item() == pytest.approx(0, abs=1e-5)


class TestNumbers:
    @pytest.mark.parametrize("difference", [5.0, 6.0, 30.0, 1000.0])
    @pytest.mark.parametrize("name", ["ranknet", "lambdarank", "lambdaloss"])
    def test_the_worst_mistakes_keep_their_gradient(self, name, difference):
        """Was 29 at a difference of 5 and exactly 0 from 6 on."""
        scores = torch.tensor([0.0, difference], requires_grad=True)
        losses.get(name)(scores, torch.tensor([1, 0])).backward()
        weight = {"ranknet": 1.0}.get(name, 1 - 1 / math.log2(3))
        assert scores.grad[0].item() == pytest.approx(-weight, rel=0.01)

    @pytest.mark.parametrize("name", losses.names())
    def test_long_lists_and_large_differences_stay_finite(self, name):
        """exp(score) overflowed at 100, NaN at a difference of 200, 2^n weights at n = 130."""
        scores = torch.linspace(-200, 200, 140, requires_grad=True)
        value = losses.get(name)(scores, torch.arange(140) % 5)
        value.backward()
        assert value.isfinite()
        assert scores.grad.isfinite().all()

    def test_no_denormals_in_the_relaxed_permutation(self):
        P = sorting.NeuralSort(0.5)(torch.randn(4, 240))
        tiny = torch.finfo(torch.float32).tiny
        assert ((P == 0) | (tiny <= P)).all()

    def test_gain_of_an_irrelevant_item_is_zero(self):
        """With gain 2^y an all-irrelevant list scored 1, the worst ranking 0.415."""
        assert metrics.get("ndcg")(torch.randn(3), torch.zeros(3)) == 0
        assert metrics.get("dcg")(torch.tensor([2.0, 1.0]), torch.tensor([0, 0])) == 0

    def test_ap_counts_relevant_items_not_grades(self):
        """Was 0.417 for 0.833."""
        value = metrics.get("ap")(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([2, 0, 2]))
        assert value.item() == pytest.approx(0.8333, abs=1e-4)

    def test_batch_ndcg_is_the_mean_of_lists(self):
        """Was sum(DCG) / sum(IDCG)."""
        scores, labels = torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.tensor([[4, 0], [1, 0]])
        table = metrics.evaluate(scores, labels, metrics=["ndcg"])
        assert table["ndcg"] == pytest.approx((1 / math.log2(3) + 1) / 2)

    def test_a_better_ranking_costs_less_and_scores_more(self):
        """A loss returned +NDCG and was minimized."""
        labels = torch.tensor([2, 1, 0])
        good, bad = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 2.0, 3.0])
        for name in losses.names():
            if name.endswith(("_precision", "_recall")) or name in ("mse", "rmse"):
                continue
            seeded = {"seed": 0} if name.startswith(("gumbel", "listmle")) else {}
            more = {"scale": 0.01} if name.startswith("gumbel") else {}
            loss = losses.get(name, **seeded, **more)
            assert loss(good, labels) < loss(bad, labels), name
        for name in metrics.names():
            metric = metrics.get(name)
            better, worse = metric(good, labels), metric(bad, labels)
            assert better <= worse if metric.lower_is_better else better >= worse

    def test_listmle_does_not_learn_the_order_of_the_file(self):
        scores, labels = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 1, 1])
        shuffled = torch.stack([losses.get("listmle", seed=s)(scores, labels) for s in range(40)])
        assert len(shuffled.unique()) > 3

    def test_softsort_learns_from_a_constant_score(self):
        scores = torch.zeros(5, requires_grad=True)
        losses.get("softsort_ndcg")(scores, torch.tensor([0, 2, 0, 2, 0])).backward()
        assert scores.grad[1] < 0 < scores.grad[0]
        torch.testing.assert_close(scores.grad[0], scores.grad[4])
        torch.testing.assert_close(scores.grad[1], scores.grad[3])

    def test_softsort_at_a_tie_has_the_mean_gradient_over_the_orders(self):
        labels = torch.tensor([2.0, 0.0, 1.0, 0.0], dtype=torch.float64)
        tied = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
        loss = losses.get("softsort_ndcg@3(temperature=0.8)")
        (gradient,) = torch.autograd.grad(loss(tied, labels), tied)
        sides = []
        for order in itertools.permutations([0.0, 1e-9, 2e-9]):
            apart = (tied.detach() + torch.tensor([*order, 0.0])).requires_grad_()
            sides.append(torch.autograd.grad(loss(apart, labels), apart)[0])
        torch.testing.assert_close(gradient, torch.stack(sides).mean(0), atol=1e-7, rtol=0)

    def test_smoothi_of_long_lists_needs_a_larger_alpha(self):
        """At alpha = 1, delta = 0.1 the indicators of 120 items are near uniform by rank 30."""
        scores = torch.randn(120, generator=torch.Generator().manual_seed(0))
        assert sorting.SmoothI()(scores, k=30)[-1].max() < 2 / 120
        assert sorting.SmoothI(alpha=1e6)(scores, k=30)[-1].max() > 0.9


class TestProtocol:
    def test_constant_scores_earn_what_they_deserve(self):
        """0.307, 0.299 or 0.300 for the same list in three tools: here the mean over all orders."""
        labels = torch.tensor([3.0, 0.0, 1.0, 0.0, 2.0], dtype=torch.float64)
        generator = torch.Generator().manual_seed(0)
        orders = torch.stack([torch.randperm(5, generator=generator) for _ in range(20000)])
        metric = metrics.get("ndcg@3")
        sampled = metric(orders.double(), labels.expand_as(orders)).mean()
        constant = metric(torch.zeros(5, dtype=torch.float64), labels)
        assert constant.item() == pytest.approx(sampled.item(), abs=5e-3)
