"""Temperatures and their schedules."""

import pytest

from rankgrad import losses


@pytest.mark.parametrize(
    "value", [1e308, 1e-300, "linear(start=1e40, end=1)", "constant(value=1e40)"]
)
def test_what_would_leave_float32_is_refused(value):
    with pytest.raises(ValueError, match=r"must be from 1e-30 to 1e\+30, found"):
        losses.get("approx_ndcg", alpha=value)
