"""Former spellings work, and the warning names the current one."""

import numpy as np
import pytest

from rankgrad import data, significance
from rankgrad.data import catalog, transforms
from rankgrad.training import Settings


@pytest.mark.parametrize(
    ("use", "current"),
    [
        (lambda: transforms.transforms.get("standardise"), "standardize"),
        (lambda: Settings(transforms=("standardise",)), "standardize"),
        (lambda: significance.Significance("randomisation"), "randomization"),
        (lambda: significance.randomisation_test([1.0], [0.0]), "randomization_test"),
        (lambda: significance.randomisation_tests(np.ones((3, 1))), "randomization_tests"),
        (lambda: transforms.Standardise(), "Standardize"),
        (lambda: catalog.recognise("."), "recognize"),
        (lambda: catalog.Entry, "KnownDataset"),
    ],
)
def test_former_spellings_work_and_warn(use, current):
    with pytest.warns(DeprecationWarning, match=f" is now .*{current}"):
        use()


def test_a_former_spelling_is_written_as_the_current_one():
    with pytest.warns(DeprecationWarning, match="is now"):
        assert Settings(transforms=("standardise",)).transforms == ("standardize",)
    with pytest.warns(DeprecationWarning, match="is now"):
        assert significance.Significance("randomisation").test == "randomization"


def test_a_former_argument_works_and_warns(tmp_path):
    file = tmp_path / "data.txt"
    file.write_text("1 qid:1 1:0.5\n0 qid:1 1:0.1\n")
    with pytest.warns(DeprecationWarning, match=r"load\(labelled=...\) is now labeled="):
        assert len(data.load(file, labelled=False)) == 1
    with (
        pytest.warns(DeprecationWarning, match="is now labeled="),
        pytest.raises(TypeError, match=r"labeled= and its former name"),
    ):
        data.load(file, labelled=False, labeled=True)


@pytest.mark.parametrize("module", [significance, transforms, catalog])
def test_other_unknown_attributes_are_errors(module):
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018
