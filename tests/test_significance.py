from __future__ import annotations

import numpy as np
import pytest

from rankgrad.significance import (
    SAMPLES,
    Significance,
    bonferroni,
    bootstrap_interval,
    bootstrap_intervals,
    check_same_queries,
    correct,
    difference_interval,
    differences,
    holm,
    intervals,
    paired_t_test,
    randomization_test,
    randomization_tests,
)


def test_agrees_with_scipy():
    from scipy.stats import bootstrap

    values = np.random.default_rng(0).beta(0.5, 0.5, 300)
    theirs = bootstrap((values,), np.mean, method="percentile", n_resamples=5000, rng=0)
    ours = bootstrap_interval(values, samples=5000)
    expected = theirs.confidence_interval
    assert ours == pytest.approx((expected.low, expected.high), abs=0.004)


def test_skipped_lists_do_not_count():
    values = np.array([0.2, np.nan, 0.4, 0.9])
    assert bootstrap_interval(values) == bootstrap_interval(values[[0, 2, 3]])
    assert np.isnan(bootstrap_interval([np.nan])).all()


def test_the_seed_decides():
    values = np.random.default_rng(0).random(50)
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert bootstrap_interval(values) != bootstrap_interval(values, seed=1)


def pairs(n=60, seed=0):
    random = np.random.default_rng(seed)
    one = random.beta(2, 2, n)
    return one, np.clip(one - 0.03 + 0.15 * random.normal(size=n), 0, 1)


@pytest.mark.parametrize("alternative", ["two-sided", "less", "greater"])
def test_the_t_test_is_scipys(alternative):
    from scipy.stats import ttest_rel

    one, other = pairs()
    expected = ttest_rel(one, other, alternative=alternative).pvalue
    assert paired_t_test(one, other, alternative=alternative) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("alternative", ["two-sided", "less", "greater"])
@pytest.mark.parametrize("n", [3, 9, 12])
def test_the_randomization_test_of_few_lists_is_scipys_exact_one(alternative, n):
    from scipy.stats import permutation_test

    one, other = pairs(n)
    expected = permutation_test(
        (one, other),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        alternative=alternative,
        n_resamples=np.inf,
        vectorized=True,
    ).pvalue
    assert randomization_test(one, other, alternative=alternative) == pytest.approx(expected)


@pytest.mark.parametrize("alternative", ["two-sided", "less"])
def test_the_randomization_test_of_many_lists_is_near_scipys(alternative):
    from scipy.stats import permutation_test

    one, other = pairs(80)
    expected = permutation_test(
        (one, other),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        alternative=alternative,
        n_resamples=100_000,
        vectorized=True,
        batch=5_000,
        rng=0,
    ).pvalue
    found = randomization_test(one, other, alternative=alternative, samples=100_000)
    assert found == pytest.approx(expected, abs=0.004)
    assert found == randomization_test(one, other, alternative=alternative, samples=100_000)


def test_a_p_value_is_never_zero_however_large_the_difference():
    assert randomization_test(np.ones(100), np.zeros(100), samples=999) == 2 / 1000
    one_sided = randomization_test(np.ones(100), np.zeros(100), alternative="greater", samples=999)
    assert one_sided == 1 / 1000


@pytest.mark.parametrize("test", [paired_t_test, randomization_test])
def test_rankers_that_are_alike_do_not_differ(test):
    values = np.random.default_rng(0).random(20)
    assert test(values, values) == 1.0


def test_the_same_difference_everywhere_is_certain():
    assert paired_t_test([0.5, 0.75, 1.0], [0.25, 0.5, 0.75]) == 0.0


@pytest.mark.parametrize("test", [paired_t_test, randomization_test, difference_interval])
def test_lists_left_out_for_both_do_not_count(test):
    one, other = pairs(12)
    skipped = np.r_[one, np.nan], np.r_[other, np.nan]
    assert test(*skipped) == test(one, other)
    with pytest.raises(ValueError, match=r"list 12 is left out for one of them \(1 such"):
        test(np.r_[one, np.nan], np.r_[other, 0.5])
    with pytest.raises(ValueError, match=r"found \[12\] and \[11\]"):
        test(one, other[1:])


@pytest.mark.parametrize("test", ["t", "randomization"])
@pytest.mark.parametrize("lists", [0, 1, 2])
def test_fewer_than_two_lists_have_no_p_value(test, lists):
    """However many there are that the metric leaves out."""
    values = {"bm25": [0.1, 0.2], "mse": [0.9, 0.7], "softmax": [0.2, 0.2]}
    counted = {name: [*own[:lists], *[np.nan] * 3] for name, own in values.items()}
    for found in differences(counted, "bm25", "ap", Significance(test)):
        assert np.isnan([found.p_value, found.corrected]).all() == (lists < 2)
        assert np.isnan(found.difference) == (lists == 0)
        assert not found.significant


def test_corrections_are_those_of_r():
    p = [0.01, 0.02, 0.03, 0.04, 0.05]
    assert holm(p) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert holm(p[::-1]) == pytest.approx([0.09, 0.09, 0.09, 0.08, 0.05])
    assert bonferroni(p) == pytest.approx([0.05, 0.10, 0.15, 0.20, 0.25])
    assert correct(p, "none") == pytest.approx(p)
    assert len(holm([])) == 0
    with pytest.raises(ValueError, match="correction must be one of"):
        correct(p, "holms")


def test_unequal_queries_are_named():
    check_same_queries(["a", "b"], ["a", "b"])
    with pytest.raises(ValueError, match="only mse has 'b'; only ranknet has 'c'"):
        check_same_queries(["a", "b"], ["a", "c"], names=("mse", "ranknet"))
    with pytest.raises(ValueError, match="in another order: 'a' and 'b' at place 0"):
        check_same_queries(["a", "b"], ["b", "a"])
    with pytest.raises(ValueError, match="5 and 1 of them; only the first has '1', '2', '3' and 1"):
        check_same_queries(list("01234"), ["0"])


def test_several_rankers_are_tested_as_each_alone():
    random = np.random.default_rng(0)
    one = random.normal(0.02, 0.1, (80, 3))
    one[:, 1] = 0.0
    one[:70, 2] = 0.0  # few lists moved: all signs are gone through
    alone = [randomization_test(column, np.zeros(80)) for column in one.T]
    assert randomization_tests(one).tolist() == alone
    left_out = np.insert(one, [0, 40], np.nan, axis=0)
    assert randomization_tests(left_out).tolist() == alone


def test_draws_are_enough_near_the_level():
    noise = np.random.default_rng(5).normal(size=100)
    apart = (noise - noise.mean()) / noise.std() + 0.195  # p is about 0.052
    found = [randomization_test(apart, np.zeros(100), seed=seed) for seed in range(6)]
    assert SAMPLES >= 100_000 and Significance().samples == SAMPLES
    assert 0.045 < min(found) < max(found) < 0.06
    assert np.ptp(found) < 0.005  # ten thousand draws spread over 0.011


def test_how_to_test_is_one_rule():
    apart = np.random.default_rng(0).normal(0.02, 0.1, (50, 2))
    zeros = np.zeros(50)
    for test, alone in (("t", paired_t_test), ("randomization", randomization_test)):
        for sides, better, alternative in (
            (2, True, "two-sided"),
            (1, True, "greater"),
            (1, False, "less"),
        ):
            found = Significance(test, sides=sides).p_values(apart, better)
            assert found == pytest.approx(
                [alone(c, zeros, alternative=alternative) for c in apart.T]
            )


def test_intervals_are_those_of_each_entry_alone():
    values = dict(enumerate(np.random.default_rng(0).random((3, 50))))
    for name, ends in intervals(values).items():
        assert ends == pytest.approx(bootstrap_interval(values[name]), abs=1e-12)


def test_intervals_leave_out_what_is_not_there():
    values = dict(enumerate(np.random.default_rng(0).random((2, 400))))
    values[1][::2] = np.nan
    found = intervals(values)
    assert found[1] == pytest.approx(bootstrap_interval(values[1][1::2]), abs=1e-12)
    assert found[0] == pytest.approx(bootstrap_interval(values[0]), abs=1e-12)
    assert np.isnan(intervals({"none": np.full(5, np.nan)})["none"]).all()
    assert np.isnan(bootstrap_intervals(np.zeros((0, 1)))).all()


@pytest.mark.parametrize("samples", [0, -5])
def test_numbers_of_samples_out_of_range_are_errors(samples):
    for drawing in (
        lambda: Significance("randomization", samples=samples),
        lambda: randomization_tests(np.ones((30, 1)), samples=samples),
        lambda: bootstrap_interval([0.0, 1.0], samples=samples),
    ):
        with pytest.raises(ValueError, match="samples must be a whole number of at least 1"):
            drawing()


@pytest.mark.parametrize("level", [-0.5, 0, 95])
def test_levels_of_intervals_out_of_range_are_errors(level):
    with pytest.raises(ValueError, match="level must be above 0 and at most 1"):
        bootstrap_interval([0.0, 1.0], level=level)


def test_the_level_is_printed_with_its_digits():
    levels = [str(Significance(level=level)).split()[-1] for level in (0.05, 0.07, 0.025, 0.001)]
    assert levels == ["5%", "7%", "2.5%", "0.1%"]
    for level in (0, 5, "0.05"):
        with pytest.raises(ValueError, match="level must lie between 0 and 1"):
            Significance(level=level)
