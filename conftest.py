import importlib.util
import os
import signal

import numpy as np
import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

# Machines are noisy, and kernels are compiled when they are first called.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# A shell has background jobs ignore it, and theirs inherit that; some tests press Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Triton runs interpreted where there is no GPU. It reads this when it is first imported, which
# other packages do, too.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Modules of packages that are not installed are not looked through for examples.
INTEGRATIONS = ("pyterrier", "torchmetrics")
collect_ignore = [
    f"src/rankgrad/integrations/{name}.py"
    for name in INTEGRATIONS
    if importlib.util.find_spec(name) is None
]

# Shape annotations are checked at run time in every test. (Compiled kernels have none.)
CHECKED = ["rankgrad.lists", "rankgrad.sorting", "rankgrad.metrics", "rankgrad.losses"]

with install_import_hook(CHECKED, "shapes.check"):
    from rankgrad import data, losses, metrics, models, sorting


def pytest_collection_modifyitems(items):
    """Long tests first, so that no process is left with one when the others are done."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    doctest_namespace.update(
        torch=torch,
        np=np,
        losses=losses,
        metrics=metrics,
        sorting=sorting,
        data=data,
        models=models,
    )
