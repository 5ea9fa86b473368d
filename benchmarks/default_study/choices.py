"""What is trained to choose the default, the most useful first.

Everything is compared with one configuration, :data:`BASE`, in one thing at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from data import Data
from plan import LAMBDA, SOFTMAX, Results, Task

from rankgrad.data.synthetic import SIZES

IN_LIST = ("rank", "score", "ties")
MEDIUM = Data(SIZES["medium"], in_list=IN_LIST)
SMALL = Data(SIZES["small"], in_list=IN_LIST)
BOUND = "ndcg_bound@10"


def tabm(*hidden: int, members: int = 8, dropout: float = 0.2, **more: Any) -> str:
    """Of perceptrons with weights of their own."""
    options = {"hidden": list(hidden), "members": members, "share": "nothing", "dropout": dropout}
    options["activation"] = "silu"
    return "tabm(" + ", ".join(f"{name}={value}" for name, value in (options | more).items()) + ")"


QUANTILE = "drop_constant; quantile(output=uniform); standardize"
LOG = "drop_constant; log1p; standardize; clip(limit=5.0)"
NORMAL = "drop_constant; quantile(output=normal)"
BASE_MODEL = tabm(256, 128)
BASE = Task(MEDIUM, (LAMBDA,), model=BASE_MODEL, diagnosed=False)


def _models(*specs: str) -> list[Task]:
    return [replace(BASE, model=spec) for spec in specs]


def _changed(**changes: Any) -> Task:
    return replace(BASE, changes=tuple(changes.items()))


def inputs() -> Iterable[Task]:
    """What the model takes in: columns of the list, one by one, and transforms."""
    yield BASE
    for kinds in (("rank", "score"), ("score", "ties"), ("rank", "ties"), ()):
        yield replace(BASE, data=replace(MEDIUM, in_list=kinds))
    for transforms in ((QUANTILE, LOG), (LOG,), (NORMAL,)):
        yield replace(BASE, data=replace(MEDIUM, transforms=transforms))


def sizes() -> Iterable[Task]:
    """Width, depth, members, dropout, activation."""
    return _models(
        tabm(64, dropout=0.3, activation="relu"),
        tabm(256),
        tabm(512, 256),
        tabm(512, 256, dropout=0.4),
        tabm(256, 128, dropout=0.0),
        tabm(256, 128, dropout=0.4),
        tabm(256, 128, 64),
        tabm(128, 64),
        tabm(256, 128, members=1),
        tabm(256, 128, members=16),
        tabm(256, 128, activation="relu"),
        tabm(256, 128, activation="gelu"),
        tabm(256, 128, input_dropout=0.1),
        f"noisy_{tabm(256, 128, noise=0.1)}",
        tabm(1024, 512, members=4, dropout=0.4),
        "tabm(hidden=[512, 256], members=16, dropout=0.2)",
    )


def attention() -> Iterable[Task]:
    """Items that see the other items of their list."""
    rate = (("learning_rate", 1e-3),)
    found = _models(
        f"attentive_{tabm(256, 128, similar='true')}",
        f"attentive_{tabm(256, 128, similar='false')}",
        f"attentive_{tabm(256, 128, similar='false', layers=1, head_width=32)}",
        f"attentive_{tabm(256, 128, similar='true', layers=1, head_width=32)}",
    )
    for spec in (
        "context_aware(fc=[128], blocks=2, heads=4, ff=384, dropout=0.1)",
        "context_aware(fc=[256], blocks=2, heads=8, ff=512, dropout=0.2)",
        "context_aware(fc=[192], blocks=4, heads=6, ff=384, dropout=0.1)",
    ):
        found.append(replace(BASE, model=spec, changes=rate))
    without = replace(MEDIUM, in_list=("rank", "score"))
    found.append(replace(BASE, model=found[-2].model, changes=rate, data=without))
    found.append(replace(BASE, model=found[0].model, data=without))
    return found


def losses() -> Iterable[Task]:
    """The loss, members with different losses, a second network of the first one's scores."""
    specs = (BOUND, SOFTMAX, "ndcg_bound@10(penalty=loglog)", "lambdaloss", "lambdarank@10")
    for spec in specs:
        yield replace(BASE, losses=(spec,))
    yield replace(BASE, losses=('by_member(first="ndcg_bound@10", second="lambdaloss@10")',))
    yield replace(BASE, losses=(LAMBDA, f"born again: {SOFTMAX}"))
    yield replace(BASE, losses=(BOUND, f"born again: {SOFTMAX}"))


def recipes() -> Iterable[Task]:
    """Learning rate, epochs, weight decay, batches, a moving average of weights."""
    yield _changed(learning_rate=1e-3)
    yield _changed(epochs=40)
    yield _changed(learning_rate=1e-3, epochs=40)
    yield _changed(epochs=10)
    yield _changed(weight_decay=0.1)
    yield _changed(weight_decay=0.3)
    yield _changed(batch_size=16)
    yield _changed(batch_size=64)
    yield _changed(average=0.995)
    yield _changed(schedule="constant", average=0.999)
    yield _changed(learning_rate=6e-3)


def others() -> Iterable[Task]:
    """The same in the second world and at small size."""
    pointwise = replace(MEDIUM, world="pointwise")
    for data in (pointwise, SMALL):
        own = replace(BASE, data=data)
        yield own
        yield replace(own, losses=(BOUND,))
        yield replace(own, model=tabm(64, dropout=0.3, activation="relu"), losses=(SOFTMAX,))
        yield replace(own, data=replace(data, in_list=("rank", "score")))
        yield replace(own, model=f"attentive_{tabm(256, 128, similar='true')}")


def tasks(results: Results) -> list[Task]:
    """All of them, each once."""
    found = [*inputs(), *sizes(), *others(), *losses(), *attention(), *recipes()]
    return list(dict.fromkeys(found))
