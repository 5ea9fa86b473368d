"""Other tools' names of metrics, with their conventions."""

import pytest
import torch

from rankgrad import kernels, losses, metrics


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("ndcg_cut_10 ndcg_cut.10 NDCG_cut_10 nDCG@10", "ndcg@10(gain=linear)"),
        ("nDCG", "ndcg(gain=linear)"),
        ("ndcg@10", "ndcg@10"),
        ("nDCG@5(gain=exponential)", "ndcg@5"),
        ("P@5 P_5 P.5 p@5 Precision@5", "precision@5"),
        ("AP ap map MAP", "ap"),
        ("map_cut_5 AP@5 MAP@5", "ap@5"),
        ("RR recip_rank MRR rr", "rr"),
        ("R@100 recall_100 Recall@100", "recall@100"),
        ("success_1 Success@1 hits@1", "hits@1"),
        ("AP(rel=2)@10 ap@10(threshold=2)", "ap@10(threshold=2)"),
        ("RBP(p=0.5,rel=1) rbp(persistence=0.5)", "rbp(persistence=0.5)"),
        ("rbp.p=0.9 RBP(p=0.9)", "rbp(persistence=0.9, graded=true)"),
        ("RBP RBP(p=0.8)", "rbp(graded=true)"),
        ("RBP(rel=2)", "rbp(threshold=2)"),
        ("ERR@20", "err@20"),
        ("set_P", "precision"),
        ("set_recall", "recall"),
        ("P_5(empty=skip)", "precision@5(empty=skip)"),
        ("Kendall_Tau", "kendall_tau"),
    ],
)
def test_names(names, expected):
    assert {str(metrics.get(name)) for name in names.split()} == {expected}


@pytest.mark.parametrize("name", ["NDCG@10", "Ndcg@10"])
def test_case_is_not_ignored_where_something_hangs_on_it(name):
    with pytest.raises(ValueError, match=r"ndcg@10 has the gain 2\^y - 1, nDCG@10 the gain y"):
        metrics.get(name)


def test_a_table_has_our_names():
    found = metrics.evaluate([0.3, 0.2], [0, 1], metrics=["nDCG@10", "recip_rank"])
    assert list(found.mean) == ["ndcg@10(gain=linear)", "rr"]


def test_graded_rbp_is_that_of_trec_eval_in_every_form():
    scores, labels = torch.tensor([3.0, 2.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 4.0, 2.0])
    rbp, expected = metrics.get("rbp.p=0.9"), 0.1 * (1 / 4 + 0.81 + 0.729 * 2 / 4)
    for how in ("eager", "fused"):
        with kernels.using(how):
            assert rbp(scores, labels).item() == pytest.approx(expected)
            found = metrics.evaluate(scores, labels, metrics=[rbp]).mean
            assert list(found.values()) == pytest.approx([expected])
            loss = losses.get("softsort_rbp(persistence=0.9, graded=true, temperature=0.01)")
            assert loss(scores, labels).item() == pytest.approx(1 - expected, abs=1e-5)
    missed = torch.tensor([True, True, False, True])  # its label is the highest all the same
    assert rbp(scores, labels, retrieved=missed).item() == pytest.approx(0.1 * (1 / 4 + 0.81 / 2))
    assert rbp(scores, 0 * labels).item() == 0
    doubled = 2 * torch.ones(4)  # weights multiply the gains, also where they are divided by max y
    assert rbp(scores, labels, weights=doubled).item() == pytest.approx(2 * expected)
