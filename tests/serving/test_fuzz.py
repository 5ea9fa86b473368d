"""Requests that are made up; ``python benchmarks/serving.py fuzz`` makes thousands."""

import importlib
import sys
from pathlib import Path

import pytest

from rankgrad.serving import Limits, create_app

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def fuzz():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("serving_fuzz")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def app(served):
    return create_app(served, Limits(body=10_000, lists=5, items=20))


@pytest.mark.filterwarnings("ignore")  # of packages that schemathesis uses
def test_requests_that_a_schema_makes_up(fuzz, app):
    found = fuzz.fuzz_schema(app, examples=8)
    assert found["POST /rank"] >= 10 and found["GET /models/{name}"]


@pytest.mark.parametrize("model", ["in_list", "trees"])
def test_bodies_near_what_they_should_be(fuzz, app, served, model):
    found = fuzz.fuzz_bodies(app, model, served[model].feature_names, examples=80)
    assert sum(found.values()) >= 160
    assert found["json 200"] and found["json 422"] and found["stream 200"] and found["stream 400"]
