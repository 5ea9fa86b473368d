"""The library's promise on real data, with default settings."""

import importlib.util
import tarfile
from pathlib import Path

import pytest

from rankgrad.training import Settings

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT.parent / "shared" / "data" / "MQ2008.tar.xz"


@pytest.mark.slow
@pytest.mark.skipif(not ARCHIVE.exists(), reason="MQ2008 is not in ../shared/data")
def test_default_settings_reach_the_published_level(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    spec = importlib.util.spec_from_file_location("mq2008", ROOT / "benchmarks" / "mq2008.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    test, _, _ = benchmark.run(tmp_path / "MQ2008", Settings().loss)
    assert test.mean() >= 0.470  # what LightGBM reaches, tuned
