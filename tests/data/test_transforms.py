"""Transforms: against scikit-learn, in blocks, through their state, and on bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import QuantileTransformer, StandardScaler
from torch import nn

from rankgrad.data import _blocks, transforms
from rankgrad.data._blocks import quantiles_of
from rankgrad.data.transforms import (
    Clip,
    Distribution,
    DropConstant,
    Log1p,
    Pipeline,
    Quantile,
    Standardize,
)


@pytest.mark.parametrize("output", ["uniform", "normal"])
def test_the_compiled_search_is_pytorchs_to_the_last_bit(output, monkeypatch):
    random = np.random.default_rng(0)
    features = random.normal(size=(3000, 5)).astype(np.float32)
    features[:, 1] = features[:, 1].round()  # many ties
    features[:1500, 2] = 0.0
    features[:, 3] = 1.0
    features[::7, 4] = np.nan
    fitted = Quantile(output=output).fit(features)
    new = np.concatenate([features, 3 * random.normal(size=(300, 5)), [[-0.0] * 5, [9] * 5]])
    values = torch.from_numpy(new.astype(np.float32))
    compiled = fitted.transform(values)
    monkeypatch.setattr(transforms, "_can_use_kernel", lambda values: False)
    assert compiled.numpy().tobytes() == fitted.transform(values).numpy().tobytes()


SPECS = [
    "standardize",
    "log1p",
    "quantile",
    "quantile(output=uniform, quantiles=20, sample=100, seed=3)",
    "clip",
    "clip(limit=2.5)",
    "drop_constant",
    "drop_constant(per_list=true)",
    "impute",
    "pipeline",
    "pipeline(steps=[drop_constant, log1p, standardize, clip(limit=10)])",
    "pipeline(steps=[quantile(quantiles=50), pipeline(steps=[clip])])",
]


def heavy(items: int = 500, dtype: type = np.float32, seed: int = 0) -> np.ndarray:
    """Heavy-tailed columns of very different scales; one constant, one mostly zero."""
    rng = np.random.default_rng(seed)
    columns = rng.lognormal(size=(items, 6)) * 10.0 ** np.arange(-3, 3)
    columns[:, 1] *= rng.choice([-1, 1], items)
    columns[:, 2] = 4.2
    columns[:, 3] *= rng.random(items) < 0.3
    return columns.astype(dtype)


def offsets(items: int = 500) -> np.ndarray:
    return np.array([*range(0, items, 7), items])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_standardize_is_scikit_learns(dtype: type) -> None:
    features = heavy(dtype=dtype)
    ours = Standardize().fit(features).transform(torch.from_numpy(features))
    theirs = StandardScaler().fit(features.astype(np.float64)).transform(features)
    assert ours.dtype == torch.from_numpy(features).dtype
    np.testing.assert_allclose(ours, theirs, rtol=1e-4 if dtype is np.float32 else 1e-10, atol=1e-5)


def test_standardize_refuses_features_with_infinite_differences() -> None:
    features = np.array([[0, 3e38], [1, 3e38], [2, 3e38], [3, -3e38]], np.float32)
    with pytest.raises(ValueError, match=r"standardize: feature index 1 .* from -3e.38 to 3e.38"):
        Standardize().fit(features)
    Standardize().fit(features.astype(np.float64))


@pytest.mark.parametrize("output", ["uniform", "normal"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_quantile_is_scikit_learns_but_at_tied_ends(output: Distribution, dtype: type) -> None:
    features = heavy(dtype=dtype)
    features = features[:, [0, 1, 4, 5]]
    features[::3, 0] = features[0, 0]  # ties inside
    new = np.concatenate([features, heavy(100, dtype, seed=1)[:, [0, 1, 4, 5]]])
    ours = Quantile(output=output, quantiles=100).fit(features)
    theirs = QuantileTransformer(n_quantiles=100, output_distribution=output).fit(features)
    np.testing.assert_allclose(
        ours.transform(torch.from_numpy(new)), theirs.transform(new), rtol=1e-3, atol=2e-4
    )


def test_quantile_puts_ties_at_the_end_into_their_middle() -> None:
    features = np.array([[0.0]] * 6 + [[1.0], [2.0], [3.0], [4.0]])
    uniform = Quantile(output="uniform").fit(features)
    zeros, top, constant = 5 / 18, 1.0, 0.5
    torch.testing.assert_close(
        uniform.transform(torch.tensor([[0.0], [4.0], [-5.0], [9.0]])).flatten(),
        torch.tensor([zeros, top, 0.0, 1.0]),
    )
    assert uniform.fit(np.ones((3, 1))).transform(torch.ones(1, 1)).item() == constant
    normal = Quantile().fit(features).transform(torch.tensor([[-5.0], [9.0]]))
    assert normal.flatten().tolist() == pytest.approx([-5.1993, 5.1993])


def test_quantile_of_a_sample_is_near_that_of_all() -> None:
    features = heavy(20_000)[:, [0, 1, 4]]
    new = torch.from_numpy(heavy(300, seed=2)[:, [0, 1, 4]])
    whole = Quantile(output="uniform", quantiles=200).fit(features).transform(new)
    sampled = Quantile(output="uniform", quantiles=200, sample=4000).fit(features)
    assert (sampled.transform(new) - whole).abs().max() < 0.04
    again = Quantile(output="uniform", quantiles=200, sample=4000).fit(features)
    assert torch.equal(again.table, sampled.table)


def test_quantile_in_blocks_is_quantile_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, new = Quantile().fit(heavy()), torch.from_numpy(heavy(seed=1))
    whole = fitted.transform(new)
    monkeypatch.setattr(_blocks, "_MAX_BLOCK_VALUES", 100)
    assert torch.equal(fitted.transform(new), whole)


def test_log1p_is_signed() -> None:
    values = torch.tensor([[-3.0, 0.0, 1e6]])
    expected = torch.tensor([[-np.log(4.0), 0.0, np.log1p(1e6)]], dtype=torch.float32)
    torch.testing.assert_close(Log1p().fit(np.zeros((1, 3))).transform(values), expected)


def test_clip_keeps_training_data_and_cuts_the_rest() -> None:
    features = heavy()
    new = torch.from_numpy(heavy(seed=5) * 10)
    clip = Clip().fit(features)
    assert torch.equal(clip.transform(torch.from_numpy(features)), torch.from_numpy(features))
    low, high = torch.from_numpy(features).aminmax(dim=0)
    assert torch.equal(clip.transform(new), new.clamp(low, high))
    z = Pipeline(["standardize", "clip(limit=3)"]).fit(features).transform(new)
    assert z.abs().max() <= 3.0001
    assert z[:, 2].abs().max() < 1e-5  # the constant feature


def test_drop_constant() -> None:
    features = heavy()
    transform = DropConstant().fit(features)
    assert (transform.n_features, transform.n_outputs) == (6, 5)
    kept = transform.transform(torch.from_numpy(features))
    assert torch.equal(kept, torch.from_numpy(features[:, [0, 1, 3, 4, 5]]))
    with pytest.raises(ValueError, match="all 2 features are constant in the training data"):
        DropConstant().fit(np.ones((4, 2)))


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_drop_constant_within_lists(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blocks, "_MAX_BLOCK_VALUES", block * 3)
    features = np.array([[1, 5, 0], [1, 6, 0], [2, 6, 0], [3, 7, 0], [3, 7, 0]], np.float32)
    assert DropConstant().fit(features).kept.tolist() == [0, 1]
    per_list = DropConstant(per_list=True)
    assert per_list.fit(features, np.array([0, 2, 2, 3, 5, 5])).kept.tolist() == [1]
    with pytest.raises(ValueError, match="needs offsets"):
        DropConstant(per_list=True).fit(features)
    with pytest.raises(ValueError, match="all 3 features are constant within every list"):
        per_list.fit(features, np.array([0, 1, 2, 3, 5]))
    with pytest.raises(ValueError, match="offsets must run from 0 to the number of items, 5"):
        per_list.fit(features, np.array([0, 1, 2, 3]))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fit_in_blocks_is_fit_in_one(
    spec: str, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = heavy(dtype=dtype)
    whole = transforms.get(spec).fit(features, offsets()).state_dict()
    monkeypatch.setattr(_blocks, "_MAX_BLOCK_VALUES", 64)
    for name, value in transforms.get(spec).fit(features, offsets()).state_dict().items():
        torch.testing.assert_close(value, whole[name], rtol=1e-6, atol=1e-12)


def test_fit_of_large_values_does_not_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blocks, "_MAX_BLOCK_VALUES", 100)
    features = 1e8 + np.random.default_rng(0).normal(size=(5000, 2))
    fitted = Standardize().fit(features)
    np.testing.assert_allclose(fitted.deviation, features.std(0), rtol=1e-7)


def test_fit_on_a_read_only_memory_map(tmp_path: Path) -> None:
    features = heavy()
    np.save(tmp_path / "features.npy", features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    for spec in SPECS:
        expected = transforms.get(spec).fit(features, offsets()).state_dict()
        for name, value in transforms.get(spec).fit(mapped, offsets()).state_dict().items():
            assert torch.equal(value, expected[name]), (spec, name)


@pytest.mark.parametrize("spec", SPECS)
def test_state_goes_through_safetensors(spec: str, tmp_path: Path) -> None:
    features = heavy()
    fitted = transforms.get(spec).fit(features, offsets())
    save_file(nn.ModuleDict({"inputs": fitted}).state_dict(), tmp_path / "state.safetensors")
    again = transforms.get(str(fitted))
    nn.ModuleDict({"inputs": again}).load_state_dict(load_file(tmp_path / "state.safetensors"))
    new = torch.from_numpy(heavy(seed=9))
    assert torch.equal(again.transform(new), fitted.transform(new))
    assert (again.n_features, again.n_outputs) == (fitted.n_features, fitted.n_outputs)


@pytest.mark.parametrize("spec", SPECS)
def test_specs_round_trip(spec: str) -> None:
    assert str(transforms.get(spec)) == spec


@pytest.mark.parametrize("spec", SPECS)
def test_any_leading_shape_and_type(spec: str) -> None:
    features = heavy()
    fitted = transforms.get(spec).fit(features, offsets())
    flat = torch.from_numpy(heavy(12, seed=4))
    expected = fitted.transform(flat)
    assert expected.dtype == torch.float32
    assert torch.equal(fitted.transform(flat.reshape(3, 4, 6)).flatten(0, 1), expected)
    assert torch.equal(fitted(flat), expected)
    assert fitted.transform(flat.double()).dtype == torch.float64
    assert fitted.transform(flat.bfloat16()).dtype == torch.float32
    assert fitted.transform(flat.round().int()).dtype == torch.float32
    assert fitted.transform(flat[0]).shape == (fitted.n_outputs,)
    assert fitted.transform(flat[:0]).shape == (0, fitted.n_outputs)


def test_steps_are_fitted_on_what_the_ones_before_give() -> None:
    features = heavy(dtype=np.float64)
    pipeline = Pipeline(["drop_constant", Log1p(), "standardize"]).fit(features)
    logs = np.sign(features) * np.log1p(np.abs(features))
    expected = StandardScaler().fit_transform(np.delete(logs, 2, axis=1))
    np.testing.assert_allclose(pipeline.transform(torch.from_numpy(features)), expected, atol=1e-9)


@pytest.mark.parametrize("spec", SPECS)
def test_bad_input_says_what_is_wrong(spec: str) -> None:
    features = heavy()
    transform = transforms.get(spec)
    new = torch.from_numpy(heavy(4))
    with pytest.raises(ValueError, match="is not fitted: call fit, or load_state_dict"):
        transform(new)
    broken = features.copy()
    broken[321, 4] = -np.inf
    with pytest.raises(ValueError, match=r"feature index 4 .*features\[321, 4\] = -inf"):
        transform.fit(broken, offsets())
    with pytest.raises(ValueError, match=r"found the shape \(6,\)"):
        transform.fit(features[0])
    with pytest.raises(ValueError, match=r"found the shape \(0, 6\)"):
        transform.fit(features[:0])
    transform.fit(features, offsets())
    with pytest.raises(ValueError, match="was fitted on 6 features, found 5"):
        transform.transform(new[:, :5])
    new[2, 1] = float("inf")
    with pytest.raises(ValueError, match=r"feature index 1 .*features\[2, 1\] = inf"):
        transform.transform(new)


@pytest.mark.parametrize("spec", [*SPECS, "quantile(quantiles=40)", "impute(fill=mean)"])
def test_missing_values_are_learned_around(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Per column, what is learned is learned from the values that are there."""
    monkeypatch.setattr(_blocks, "_MAX_BLOCK_VALUES", 600)
    features = heavy(dtype=np.float64)
    features[:, 2] += np.arange(500) % 7
    missing = np.random.default_rng(1).random(features.shape) < 0.3
    holey = np.where(missing, np.nan, features)
    fitted = transforms.get(spec).fit(holey, offsets())
    found = fitted.transform(torch.from_numpy(holey)).numpy()
    assert np.isnan(found[:, :6]).any() == ("impute" not in spec)
    if spec == "quantile" or "sample" in spec:  # whose tables depend on how many items there are
        return
    for column, is_missing in enumerate(missing.T):
        there = features[~is_missing][:, [column]]
        ends = np.array([0, len(there)])
        alone = transforms.get(spec).fit(there, ends).transform(torch.from_numpy(there))
        np.testing.assert_allclose(found[~is_missing, column], alone[:, 0], rtol=1e-9, atol=1e-12)


def test_impute_is_scikit_learns() -> None:
    features = heavy(501, dtype=np.float64)
    features[np.random.default_rng(1).random(features.shape) < 0.3] = np.nan
    features[:, [0, 2]] = 1.5
    theirs = SimpleImputer(strategy="mean", add_indicator=True).fit(features)
    ours = transforms.get("impute(fill=mean)").fit(features)
    new = np.where(np.random.default_rng(2).random((9, 6)) < 0.5, np.nan, 1.0)
    found = ours.transform(torch.from_numpy(new)).numpy()
    np.testing.assert_allclose(found, theirs.transform(new), rtol=1e-9)
    assert ours.sources.tolist() == [*range(6), 1, 3, 4, 5]
    plain = transforms.get("impute(indicator=false, fill=0)").fit(features)
    assert plain.transform(torch.from_numpy(new)).tolist() == np.nan_to_num(new).tolist()


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_linear_imputation_is_the_best_linear_one(share: float) -> None:
    """Of features that are missing at random, least squares on the zero-filled others."""
    random = np.random.default_rng(0)
    features = random.normal(size=(20_000, 5)) @ random.normal(size=(5, 5)) + [0, 3, -2, 0, 9]
    holey = np.where(random.random(features.shape) < share, np.nan, features)
    holey[0, 0] = np.nan
    fitted = transforms.get("impute(indicator=false)").fit(holey)
    for column in range(5):
        probe = holey.copy()
        probe[:, column] = np.nan
        found = fitted.transform(torch.from_numpy(probe)).numpy()[:, column]
        others = np.nan_to_num(np.delete(holey - np.nanmean(holey, 0), column, 1))
        centered = features[:, column] - features[:, column].mean()
        best = others @ np.linalg.lstsq(others, centered, rcond=None)[0]
        left = np.var(centered - best), np.var(features[:, column] - found)
        assert left[1] <= 1.02 * left[0] + 0.01 * np.var(centered)


def test_linear_imputation_from_a_tiny_feature_is_finite() -> None:
    features = np.random.default_rng(0).normal(size=(50, 2)) * [1e-30, 1e10]
    features[::3, 1] = np.nan
    fitted = transforms.get("impute").fit(features.astype(np.float32))
    assert fitted.transform(torch.tensor([[1e-30, np.nan], [np.nan, np.nan]])).isfinite().all()


def test_a_feature_that_is_there_or_not_is_not_constant() -> None:
    features = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, 3.0]])
    for spec in ("drop_constant", "drop_constant(per_list=true)"):
        fitted = transforms.get(spec).fit(features, np.array([0, 2]))
        assert fitted.sources.tolist() == [0]


def test_the_row_of_a_bad_value_counts_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blocks, "_MAX_BLOCK_VALUES", 60)
    features = heavy()
    features[47, 5] = np.inf
    with pytest.raises(ValueError, match=r"features\[47, 5\] = inf"):
        Log1p().fit(features)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("standardze", "Did you mean 'standardize'"),
        ("clip(limits=3)", "no option 'limits'. Did you mean 'limit'"),
        ("clip(limit=0)", "limit must be a number above 0"),
        ("quantile(output=gamma)", "output must be one of 'normal', 'uniform'"),
        ("quantile(quantiles=1)", "quantiles must be a whole number of at least 2, found 1"),
        ("quantile(seed=-1)", "seed must be a whole number of at least 0, found -1"),
        ("impute(fill=inf)", "'mean' or a finite number, found inf"),
        ("impute(fill=mode)", "'mean' or a finite number, found 'mode'"),
        ("pipeline(steps=[1])", "expected a transform or its spec, found int"),
        ("pipeline(steps=log1p)", "steps must be a list of transforms"),
        ("pipeline(steps=[log1q])", "unknown transform 'log1q'"),
    ],
)
def test_bad_specs_say_what_is_wrong(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transforms.get(spec)


@settings(max_examples=40)
@given(
    rows=st.lists(
        st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=3, max_size=3),
        min_size=1,
        max_size=20,
    ),
    spec=st.sampled_from([spec for spec in SPECS if "drop" not in spec]),
)
def test_any_finite_training_data_gives_finite_features(rows: list[list[float]], spec: str) -> None:
    features = np.array(rows, np.float32)
    fitted = transforms.get(spec).fit(features)
    assert fitted.transform(torch.from_numpy(features)).isfinite().all()


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_quantiles_are_those_of_numpy(n):
    random = np.random.default_rng(n)
    for values in (random.normal(size=n).astype(np.float32), random.integers(0, 3, n) * 1e30):
        for count in (2, 3, 1000):
            levels = np.linspace(0, 1, count)
            expected = np.quantile(values.astype(np.float64), levels)
            with_missing = random.permutation(np.append(values, [np.nan] * 3))
            assert np.array_equal(quantiles_of(values, levels), expected)
            assert np.array_equal(quantiles_of(with_missing, levels), expected)
