"""What rankers take, as it is said outside of Python."""

import pytest

from rankgrad.export._missing_values import takes_missing_values
from rankgrad.training import Settings, fit


@pytest.mark.parametrize(
    ("model", "transforms", "holes", "takes"),
    [
        ("mlp(hidden=[4])", (), False, False),
        ("mlp(hidden=[4])", (), True, True),
        ("mlp(hidden=[4])", ("impute(indicator=false)",), True, True),
        ("mlp(hidden=[4])", ("pipeline(steps=[impute(fill=0)])",), False, True),
        ("lightgbm(num_leaves=5)", (), False, False),
        ("xgboost(max_leaves=5)", (), False, False),
        ("xgboost(max_leaves=5)", (), True, True),
        ("xgboost(max_leaves=5)", ("impute(fill=0)",), False, True),
    ],
)
def test_who_takes_missing_values(model, transforms, holes, takes, lists, missing):
    settings = Settings(model=model, transforms=transforms, epochs=2, device="cpu")
    trained = fit(settings, missing if holes else lists).model
    assert takes_missing_values(trained) == takes
