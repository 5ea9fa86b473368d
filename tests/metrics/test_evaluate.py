import numpy as np
import pytest
import torch

from rankgrad import metrics


def test_table_has_means_per_list_values_and_conventions():
    table = metrics.evaluate(
        [[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]],
        [[1, 0, 0], [1, 0, 0]],
        metrics=["rr", "ndcg@2(gain=linear)", metrics.Precision(1)],
    )
    assert table["rr"] == pytest.approx((1 + 1 / 3) / 2)
    assert table.per_list["rr"].tolist() == pytest.approx([1.0, 1 / 3])
    assert list(table.mean) == ["rr", "ndcg@2(gain=linear)", "precision@1"]
    printed = str(table)
    for words in ("rr", "0.6667", "2 lists", "count 0", "tied scores: average", "gain: y"):
        assert words in printed


def test_numpy_in_and_list_weights_weigh_the_mean():
    scores, labels = np.array([2.0, 1.0, 1.0, 2.0]), np.array([1, 0, 1, 0])
    table = metrics.evaluate(
        scores, labels, offsets=np.array([0, 2, 4]), weights=[3.0, 1.0], metrics=["rr"]
    )
    assert table["rr"] == pytest.approx((3 * 1 + 0.5) / 4)


def test_skipped_lists_are_left_out_of_the_mean():
    table = metrics.evaluate(
        torch.tensor([[2.0, 1.0], [2.0, 1.0]]),
        torch.tensor([[1, 0], [0, 0]]),
        metrics=["ap", "ap(empty=skip)"],
    )
    assert table["ap"] == 0.5
    assert table["ap(empty=skip)"] == 1.0
    assert "are left out for ap(empty=skip)" in str(table)


def test_many_lists_are_one_batch():
    generator = torch.Generator().manual_seed(0)
    offsets = torch.randint(0, 40, (3001,), generator=generator).cumsum(0)
    offsets -= offsets[0].clone()
    scores = torch.randn(int(offsets[-1]), generator=generator)
    labels = torch.randint(0, 5, scores.shape, generator=generator)
    table = metrics.evaluate(scores, labels, offsets=offsets, metrics=metrics.names())
    assert all(values.shape == (3000,) for values in table.per_list.values())
    some = int(offsets[7]), int(offsets[8])
    for name in metrics.names():
        alone = metrics.get(name)(scores[slice(*some)], labels[slice(*some)])
        torch.testing.assert_close(table.per_list[name][7], alone[0])


@pytest.mark.parametrize("spelling", ["ndcg@2( gain = linear )", 'ndcg@2(gain="linear", empty=0)'])
def test_a_metric_is_found_by_any_spelling_of_its_spec(spelling):
    found = metrics.evaluate([0.3, 0.2], [0, 1], metrics=[spelling])
    assert found[spelling] == found["ndcg@2(gain=linear)"] == found[metrics.get(spelling)]
    for other in ("ndcg@2", "no metric"):
        with pytest.raises(KeyError, match="was not evaluated; there are: ndcg@2"):
            found[other]


def test_a_metric_that_refuses_the_labels_is_named():
    with pytest.raises(ValueError, match=r"^err: a label of 500 is too large .* on a small scale$"):
        metrics.evaluate([0.1, 0.2], [500, 1], metrics=["ndcg(gain=linear)", "ap", "err", "ndcg"])
