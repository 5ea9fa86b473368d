"""What every model promises, and the configurations they are named by."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rankgrad import models
from rankgrad.models import MLP, ContextAware, Scorer

FEATURES = 7
SPECS = [
    "mlp(hidden=[])",
    "mlp(hidden=[8, 4], activation=gelu, output=tanh)",
    "mlp(hidden=[8], dropout=0.5, batch_norm=true, input_norm=true)",
    "mlp(hidden=[8, 4], dropout=[0.5, 0.0], batch_norm=after, norm_decay=0.99, output=sigmoid)",
    "tabm(hidden=[8], members=3)",
    "tabm(hidden=[8, 4], members=2, share=nothing, dropout=0.5, input_dropout=0.2)",
    "tabm(hidden=[8], members=2, in_list=[rank, score])",
    "tabm(hidden=[8], members=2, heads=2, bins=4)",
    "tabm(hidden=[8], members=2, input_dropout=0.2, in_list=[score], bins=1)",
    "tabm(hidden=[8], members=2, in_list=[rank], periodic=2, scale_rate=3.0, encoding_rate=2.0)",
    "tabm(hidden=[8], members=2, in_list=[rank, ties], heads=1)",
    "tabm(hidden=[8], members=1, in_list=[rank], heads=1, periodic=2, scale_rate=6.0)",
    "context_aware(fc=[8], ff=16)",
    "context_aware(fc=[12, 8], blocks=1, heads=2, ff=16, output=tanh)",
    "context_aware(fc=[8], ff=16, positional=fixed)",
    "context_aware(fc=[8], ff=16, positional=learned, positions=3)",
]
PRESETS = {
    "medium": "tabm(hidden=[256, 128], members=1, dropout=0.1, "
    "in_list=[rank, score, ties], periodic=8, scale_rate=6.0, encoding_rate=6.0)",
    "large": "tabm(hidden=[512, 256], activation=silu, dropout=0.2, "
    "in_list=[rank, score, ties], periodic=8, scale_rate=6.0)",
    "medium(heads=2)": "tabm(hidden=[256, 128], members=1, dropout=0.1, "
    "in_list=[rank, score, ties], heads=2, periodic=8, scale_rate=6.0, encoding_rate=6.0)",
    "large(heads=2)": "tabm(hidden=[512, 256], activation=silu, dropout=0.2, "
    "in_list=[rank, score, ties], heads=2, periodic=8, scale_rate=6.0)",
    "neuralndcg_web30k": "context_aware(output=tanh)",
    "neuralndcg_istella": "context_aware(fc=[128], output=tanh)",
    "lambdaloss": "mlp(hidden=[1024, 512, 256], dropout=[0.5, 0.5, 0.8], batch_norm=true, "
    "input_norm=true, norm_decay=0.999)",
    "smoothi": "mlp(hidden=[1024], batch_norm=after, input_norm=true)",
    "comparison": "mlp(hidden=[5])",
    "pirank": "mlp(hidden=[1024, 512, 256], dropout=[0.0, 0.0, 0.3], batch_norm=true, "
    "input_norm=true, norm_decay=0.99)",
}


TABM = "tabm(hidden=[8], members=2, activation=tanh)"
CONTEXT = "context_aware(fc=[8], ff=16)"


def build(spec: str, dtype: torch.dtype = torch.float64) -> Scorer:
    torch.manual_seed(0)
    return models.get(spec).build(FEATURES).to(dtype)


def ragged(lengths: list[int], width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Lists with NaN as padding, at random places."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, length in zip(mask, lengths, strict=True):
        row[torch.randperm(width, generator=generator)[:length]] = True
    features = torch.randn(len(lengths), width, FEATURES, generator=generator, dtype=torch.float64)
    return features.masked_fill(~mask[..., None], float("nan")), mask


@pytest.mark.parametrize("spec", SPECS)
def test_scores_depend_neither_on_padding_nor_on_other_lists(spec: str) -> None:
    net = build(spec).eval()
    features, mask = ragged([3, 6, 1], 9)
    scores = net(features, mask)
    assert scores.shape == mask.shape
    assert (scores[~mask] == 0).all()
    for row, real, score in zip(features, mask, scores, strict=True):
        torch.testing.assert_close(net(row[real][None])[0], score[real])
        torch.testing.assert_close(net(row[real]), score[real])


@pytest.mark.parametrize("spec", [spec for spec in SPECS if "positional" not in spec])
def test_permuted_items_get_permuted_scores(spec: str) -> None:
    net = build(spec).eval()
    features, mask = ragged([4, 6], 6)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    permuted = net(features[:, order], mask[:, order])
    torch.testing.assert_close(permuted, net(features, mask)[:, order])


@pytest.mark.parametrize("positional", ["fixed", "learned"])
def test_positions_make_the_order_count(positional: str) -> None:
    net = build(f"context_aware(fc=[8], ff=16, positional={positional})").eval()
    features, _ = ragged([5], 5)
    assert not torch.allclose(net(features).flip(-1), net(features.flip(-2)))


@pytest.mark.parametrize("spec", SPECS)
def test_batches_without_items_give_zeros_and_finite_gradients(spec: str) -> None:
    net = build(spec).train()
    for lengths, width in (([0, 0], 3), ([0, 2], 3), ([0], 0), ([1], 1)):
        features, mask = ragged(lengths, width)
        net.zero_grad()
        scores = net(features, mask)
        assert scores.isfinite().all()
        assert (scores[..., ~mask] == 0).all()
        if scores.requires_grad:
            scores.sum().backward()
        gradients = [p.grad for p in net.parameters() if p.grad is not None]
        assert all(gradient.isfinite().all() for gradient in gradients)
    assert net.eval()(torch.zeros(2, 0, FEATURES)).shape == (2, 0)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_reach_every_parameter(spec: str, dtype: torch.dtype) -> None:
    net = build(spec, dtype).eval()
    features, mask = ragged([5, 8], 8)
    scores = net(features.to(dtype), mask)
    assert scores.dtype == dtype
    (scores * torch.randn(2, 8, dtype=dtype)).sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert any(bool((p.grad != 0).any()) for p in net.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    "spec",
    ["mlp(hidden=[8], activation=tanh)", TABM, TABM.replace(")", ", heads=2)"), CONTEXT],
)
def test_gradient_of_features_is_that_of_differences(spec: str) -> None:
    net = build(spec).eval()
    features, mask = ragged([3, 2], 3)
    features = features.nan_to_num(0.0).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: net(x, mask), (features,))


@pytest.mark.parametrize(
    "spec",
    [
        "mlp(hidden=[32], dropout=0.5)",
        "tabm(dropout=0.5)",
        "tabm(input_dropout=0.5)",
        "context_aware(dropout=0.5)",
    ],
)
def test_dropout_is_on_in_training_only(spec: str) -> None:
    net = build(spec)
    features, mask = ragged([6], 6)
    assert torch.equal(net.eval()(features, mask), net(features, mask))
    assert not torch.equal(net.train()(features, mask), net(features, mask))


@pytest.mark.parametrize("spec", SPECS)
def test_same_seed_same_network(spec: str) -> None:
    one, two = build(spec), build(spec)
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name


@pytest.mark.parametrize("spec", SPECS)
def test_per_item_says_whether_flat_items_may_be_mixed(spec: str) -> None:
    net = build(spec).eval()
    features, _ = ragged([4, 4], 4)
    together = torch.allclose(net(features.flatten(0, 1)), net(features).flatten())
    sees_lists = any(option in spec for option in ("context_aware", "in_list", "heads"))
    assert together == net.per_item == (not sees_lists)


def test_bfloat16_under_autocast() -> None:
    for spec in SPECS:
        net = build(spec, torch.float32).train()
        features, mask = ragged([3, 5], 5)
        with torch.autocast("cpu", torch.bfloat16):
            scores = net(features.float(), mask)
        scores.float().sum().backward()
        assert scores.isfinite().all()


@pytest.mark.parametrize("spec", SPECS)
def test_specs_round_trip(spec: str) -> None:
    model = models.get(spec)
    assert str(model) == spec
    assert models.get(str(model)) == model
    assert hash(models.get(spec)) == hash(model)


@pytest.mark.parametrize(("preset", "spec"), PRESETS.items())
def test_presets_are_specs_with_the_sizes_of_the_papers(preset: str, spec: str) -> None:
    assert str(models.get(preset)) == spec
    assert models.get(spec) == models.get(preset)


def test_a_preset_takes_another_output() -> None:
    assert models.get("neuralndcg_web30k(output=none)") == ContextAware()


def test_sizes_of_built_presets() -> None:
    def shapes(name: str, features: int) -> list[tuple[int, int]]:
        net = models.get(name).build(features)
        linear = [module for module in net.modules() if isinstance(module, nn.Linear)]
        return [(module.in_features, module.out_features) for module in linear]

    assert shapes("comparison", 46) == [(46, 5), (5, 1)]
    assert shapes("lambdaloss", 136) == [(136, 1024), (1024, 512), (512, 256), (256, 1)]
    assert shapes("smoothi", 136) == [(136, 1024), (1024, 1)]
    block = [*4 * [(96, 96)], (96, 384), (384, 96)]
    assert shapes("neuralndcg_web30k", 136) == [(136, 96), *block, *block, (96, 1)]


def test_none_in_quotes_is_none() -> None:
    assert models.get('mlp(output="none")') == MLP()
    assert models.get('context_aware(positional="none")') == ContextAware()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mpl", "unknown model 'mpl'. Did you mean 'mlp'"),
        ("mlp(hiden=[3])", "no option 'hiden'. Did you mean 'hidden'"),
        ("mlp(hidden=3)", "hidden must be a list of sizes"),
        ("mlp(hidden=[3, 0])", "each size in hidden must be a whole number of at least 1, found 0"),
        ("mlp(hidden=[3, 2.5])", "found 2.5"),
        ("mlp(activation=rely)", "activation must be one of .*'relu'.*found 'rely'"),
        ("mlp(hidden=[3], dropout=[0.1, 0.2])", "found 2 for 1 layers"),
        ("mlp(dropout=1.0)", "dropout must be a number of at least 0 and below 1, found 1.0"),
        ("mlp(batch_norm=before)", "batch_norm must be one of False, True, 'after'"),
        ("mlp(norm_decay=1)", "norm_decay must be"),
        ("mlp(output=relu)", "output must be one of"),
        ("mlp@5", "mlp takes no cutoff"),
        ("tabm(members=0)", "members must be a whole number of at least 1, found 0"),
        ("tabm(share=all)", "share must be one of 'adapters', 'nothing'; found 'all'"),
        ("tabm(in_list=[place])", "each of in_list must be one of 'rank', 'score'"),
        ("tabm(in_list=[rank, rank])", "in_list must have each kind at most once"),
        ("tabm(in_list=[[rank]])", "each of in_list must be one of 'rank', 'score'"),
        ("lightgbm(monotone_constraints=[1, 0.5])", "each of monotone_constraints must be -1, 0"),
        ("xgboost(monotone_constraints=[2])", "each of monotone_constraints must be -1, 0 or 1"),
        ("tabm(in_list=rank)", "in_list must be a list such as"),
        ("tabm(bins=10000)", "bins must be at most 256, found 10000"),
        ("tabm(bins=-1)", "bins must be a whole number of at least 0, found -1"),
        ("tabm(bins=2, periodic=2)", "bins and periodic are two encodings of the features"),
        ("tabm(scale_rate=1e30)", r"scale_rate must lie in 0\.001 to 1000, found 1e\+30"),
        ("tabm(scale_rate=1e-45)", r"scale_rate must lie in 0\.001 to 1000, found 1e-45"),
        ("tabm(hidden=[], scale_rate=6.0)", "scale_rate is of the first hidden layer's scales"),
        (
            "tabm(bins=2, encoding_rate=2.0)",
            "encoding_rate is of the encoding periodic, which is 0",
        ),
        ("tabm(periodic=2, encoding_rate=1e4)", "encoding_rate must lie in 0.001 to 1000"),
        ("tabm(heads=65)", "heads must be"),
        ("tabm(scale_rate=0.0)", "scale_rate must be a number above 0"),
        ("tabm(share=nothing, scale_rate=2.0)", "which only share=adapters has"),
        ("tabm(heads=-1)", "heads must be a whole number of at least 0, found -1"),
        ("tabm(heads=1.5)", "heads must be a whole number of at least 0, found 1.5"),
        ("tabm(input_dropout=-1)", "input_dropout must be a number of at least 0"),
        ("context_aware(fc=[])", "fc must have at least one layer"),
        ("context_aware(fc=[10], heads=3)", "found 3 heads and width 10"),
        ("context_aware(blocks=0)", "blocks must be a whole number of at least 1, found 0"),
        ("context_aware(positional=random)", "positional must be one of"),
    ],
)
def test_bad_specs_say_what_is_wrong(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.get(spec)


@pytest.mark.parametrize("spec", ["mlp", "tabm", "context_aware"])
def test_bad_input_says_what_is_wrong(spec: str) -> None:
    net = models.get(spec).build(FEATURES)
    with pytest.raises(ValueError, match="built for 7 features, found 5"):
        net(torch.zeros(2, 3, 5))
    with pytest.raises(ValueError, match=r"features must be \[..., items, features\]"):
        net(torch.zeros(7))
    with pytest.raises(ValueError, match="mask must be boolean"):
        net(torch.zeros(2, 3, 7), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"mask has shape \(2, 4\)"):
        net(torch.zeros(2, 3, 7), torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="n_features must be a whole number"):
        models.get(spec).build(0)


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    width=st.integers(6, 9),
    seed=st.integers(0, 99),
    spec=st.sampled_from(SPECS),
)
def test_any_padding_gives_the_scores_of_flat_lists(
    lengths: list[int], width: int, seed: int, spec: str
) -> None:
    net = build(spec).eval()
    features, mask = ragged(lengths, width, seed)
    scores = net(features, mask)
    for row, real, score in zip(features, mask, scores, strict=True):
        torch.testing.assert_close(net(row[real]), score[real])
