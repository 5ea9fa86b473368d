"""Files that rankgrad wrote, with wrong types at every key: one sentence, or nothing wrong."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from rankgrad import Ranker, _schemas
from rankgrad.data import Dataset, store
from rankgrad.results import runs
from rankgrad.training import RunFolder, Settings, fit
from rankgrad.training._evaluations import EvaluatedLists

WRONG = (-1, {}, ["x"], "x", None, 10**30)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with an evaluation, in a comparison, beside a store and a saved estimator."""
    path = tmp_path_factory.mktemp("comparison") / "run"
    data = Dataset(np.eye(6)[:, :3], [2, 0, 1, 0, 1, 0], [0, 2, 4, 6], ["a", "b", "c"])
    settings = Settings(model="mlp(hidden=[2])", epochs=1, device="cpu")
    done = fit(settings, data, data, folder=path)
    scores = done.model.predict(data.features, data.offsets)
    EvaluatedLists.of(scores, data, ["ndcg@5", "rr"], {"loss": "softmax", "seed": 0}).save(path)
    store.write(data, path.parent / "store")
    ranker = Ranker(model="mlp(hidden=[2])", epochs=1, device="cpu")
    ranker.fit(data.features, data.labels, group=[2, 2, 2]).save(path.parent / "ranker")
    comparison = {
        "rows": [{"candidate": "mse", "runs": [{"fold": 1, "seed": 0, "reason": "it failed"}]}],
        "plan": {"data": "MQ2008"},
        "test": {"test": "t", "correction": "holm", "baseline": "mse"},
    }
    (path.parent / "comparison.json").write_text(json.dumps(comparison))
    return path


READERS: dict[str, Callable[[Path], object]] = {
    "run.json": lambda run: (RunFolder.open(run).metadata, runs.read(run)),
    "metrics.jsonl": lambda run: (RunFolder.open(run).history, runs.read(run)),
    "best/model.json": lambda run: RunFolder.open(run).best(),
    "last/state.json": lambda run: RunFolder.open(run).checkpoint(),
    "evaluations/test/evaluation.json": lambda run: (EvaluatedLists.load(run), runs.read(run)),
    "../comparison.json": lambda run: (
        runs.ComparisonMetadata.read([run.parent]),
        runs.FailedRun.read([run.parent]),
    ),
    "../store/manifest.json": lambda run: store.open(run.parent / "store"),
    "../ranker/ranker.json": lambda run: Ranker.load(run.parent / "ranker"),
}


def places(values: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield before
    if isinstance(values, dict):
        for key in values:
            yield from places(values[key], (*before, key))
    elif isinstance(values, list):
        for at in range(min(1, len(values))):
            yield from places(values[at], (*before, at))


def changed(values: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    values = copy.deepcopy(values)
    inside = values
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    return values


@pytest.mark.parametrize("name", READERS)
def test_wrong_types_at_every_key(run: Path, name: str) -> None:
    path = run / name
    text = path.read_text()
    values = json.loads(text)
    refused = 0
    texts = [
        json.dumps(changed(values, place, wrong)) for place in places(values) for wrong in WRONG
    ]
    nested = ["[" * 50_000, '{"a":' * 50_000, "\udcff"]
    try:
        for content in (*texts, *nested):
            path.write_bytes(content.encode("utf-8", "surrogateescape"))
            try:
                READERS[name](run)
            except ValueError as error:  # and nothing else
                assert len(str(error)) < 1000
                assert "\n" not in str(error)
                refused += 1
    finally:
        path.write_text(text)
    READERS[name](run)
    assert refused > 5 or name.startswith("../comparison")  # which is left out where it is damaged


@pytest.mark.parametrize("name", ["values", "offsets", "qids"])
def test_damaged_headers_of_arrays(run: Path, name: str) -> None:
    path = run / "evaluations" / "test" / f"{name}.npy"
    content = path.read_bytes()
    random = np.random.default_rng(0)
    try:
        for at in range(128):
            flipped = bytearray(content)
            flipped[at] ^= int(random.integers(1, 256))
            path.write_bytes(flipped)
            try:
                EvaluatedLists.load(run)
            except ValueError as error:
                assert "is damaged" in str(error)
    finally:
        path.write_bytes(content)
    features = run.parent / "store" / "features.npy"
    whole = features.read_bytes()
    try:
        for at in range(128):
            flipped = bytearray(whole)
            flipped[at] ^= int(random.integers(1, 256))
            features.write_bytes(flipped)
            try:
                store.open(run.parent / "store")
            except ValueError as error:
                assert "features.npy" in str(error)
    finally:
        features.write_bytes(whole)


def test_the_sentence_names_file_key_and_value(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"a": {"b": "x" * 10**6}}))
    with pytest.raises(ValueError, match=r"a\.json is damaged \('a\.b': .*integer, found 'xx") as e:
        _schemas.read_json(path, dict[str, dict[str, int]])
    assert len(str(e.value)) < 500


@pytest.mark.parametrize(
    ("values", "schema", "problem"),
    [
        (
            {"x": {"seed": [1]}},
            dict[str, dict[str, _schemas.Scalar]],
            "'x.seed': should be a valid string or a valid integer or a valid number or a valid "
            "boolean, found [1]",
        ),
        (
            {"x": ["d"]},
            dict[str, list[Literal["AbC", "D"]]],
            "'x.0': should be 'AbC' or 'D', found",
        ),
    ],
)
def test_the_sentence_names_keys_and_values_as_they_are(
    values: Any, schema: Any, problem: str
) -> None:
    with pytest.raises(ValueError) as e:
        _schemas.check(Path("a.json"), values, schema)
    assert f"a.json is damaged ({problem}" in str(e.value)


def test_an_archive_is_no_array(tmp_path: Path) -> None:
    content = io.BytesIO()
    np.savez(content, np.ones(3))
    (tmp_path / "a.npy").write_bytes(content.getvalue())
    with pytest.raises(ValueError, match=r"a\.npy is damaged"):
        _schemas.read_array(tmp_path / "a.npy", {}, "f", 1)


def test_a_field_may_have_any_name(tmp_path: Path) -> None:
    @dataclass
    class Saved:
        kind: tuple[int, ...]

    schema = _schemas.fields_of(Saved, kind=list[int])
    _schemas.check(tmp_path, {"kind": [1]}, schema)
    with pytest.raises(ValueError, match="'kind': field required"):
        _schemas.check(tmp_path, {}, schema)
