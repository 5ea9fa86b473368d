"""What is trained to choose the default, the most useful first.

Everything is compared with one configuration, :data:`BASE`, in one thing at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from data import Data
from plan import LAMBDA, LAST, LEVELS, SOFTMAX, Results, Task

from rankgrad.data.synthetic import INFORMATIVE, SIZES
from rankgrad.models import models
from rankgrad.training import Settings
from rankgrad.training._settings import ATTENTION_LISTS, _weight_decay

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


#: Perceptrons that share weights, which were the best of the above on validation lists.
SHARED = "tabm(hidden=[512, 256], members=16, dropout=0.2)"
FINAL = replace(BASE, losses=(SOFTMAX,), model=SHARED)
POINTWISE = replace(MEDIUM, world="pointwise")
WEB30K = Data(SIZES["web30k"], seed=1, in_list=IN_LIST)
#: Queries on which nothing was chosen.
FRESH, FRESH_WEB30K = replace(MEDIUM, seed=7), replace(WEB30K, seed=7)


def eligible() -> list[Task]:
    """What the default on many lists is chosen from, by validation NDCG@10 at medium size."""
    found = [replace(FINAL, losses=(loss,)) for loss in (SOFTMAX, BOUND, LAMBDA)]
    for model in (
        "tabm(hidden=[256, 128], members=1, dropout=0.2)",
        "tabm(hidden=[256, 128], members=8, dropout=0.2)",
        "tabm(hidden=[128, 64], members=8, dropout=0.2)",
        "tabm(hidden=[512, 256, 128], members=16, dropout=0.2)",
        "tabm(hidden=[512, 256], members=16, dropout=0.0)",
        "tabm(hidden=[512, 256], members=16, dropout=0.2, activation=silu)",
    ):
        found.append(replace(FINAL, model=model))
    decays = (0.3, 1.0)
    return found + [replace(FINAL, changes=(("weight_decay", own),)) for own in decays]


#: What became the default on many items, with a GPU and without.
LARGE = replace(FINAL, model="tabm(hidden=[512, 256], members=16, dropout=0.2, activation=silu)")
ONE = replace(FINAL, model="tabm(hidden=[256, 128], members=1, dropout=0.2)")

CONTEXT_AWARE = replace(
    LARGE,
    model="context_aware(fc=[256], blocks=2, heads=8, ff=512, dropout=0.2)",
    changes=(("learning_rate", 1e-3), ("graphs", False)),
)


def chosen(results: Results) -> Task | None:
    """The best of those that are eligible; None while one of them is missing."""
    values = [results.get(task.key) for task in eligible()]
    if not all(values):
        return None
    return max(zip(eligible(), values, strict=True), key=lambda each: each[1]["best_value"])[0]


def claims(task: Task) -> Iterable[Task]:
    """What is said of the default, each confirmed on fresh queries."""
    at_web30k = replace(task, recipe="short")
    yield replace(at_web30k, data=WEB30K)
    yield replace(task, data=POINTWISE)
    yield replace(task, data=SMALL)
    yield replace(task, data=FRESH)
    yield replace(at_web30k, data=FRESH_WEB30K)
    yield replace(task, data=replace(FRESH, world="pointwise"))


def further() -> Iterable[Task]:
    """What is not in the library (attention, transforms side by side), and longer training."""
    yield replace(FINAL, model=f"attentive_{SHARED[:-1]}, similar=true, heads=8)")
    yield replace(FINAL, data=replace(MEDIUM, transforms=(QUANTILE, LOG)))
    yield replace(FINAL, model=f"attentive_{SHARED[:-1]}, similar=false, layers=1, heads=8)")
    yield replace(FINAL, changes=(("epochs", 40),))


def encoded(bins: int = 32, blocks: int = 1, dropout: float = 0.2, of: int = 4) -> str:
    """:data:`LARGE`'s model with a piecewise linear encoding of features."""
    own = f"bins={bins}, blocks={blocks}, of={of}"
    return f"encoded_tabm(hidden=[512, 256], members=16, dropout={dropout}, activation=silu, {own})"


#: The best of them on validation lists of the second world.
ENCODED = encoded(dropout=0.1)


def encodings() -> Iterable[Task]:
    """A piecewise linear encoding of features, at small size and at medium, in both worlds."""
    pointwise = replace(SMALL, world="pointwise")
    for data in (pointwise, SMALL):
        own = replace(LARGE, data=data)
        yield own
        for bins in (8, 16, 32, 64):
            yield replace(own, model=encoded(bins))
        yield replace(own, model=encoded(blocks=3))
        for dropout in (0.0, 0.1, 0.4):
            yield replace(own, model=encoded(dropout=dropout))
    for data in (POINTWISE, MEDIUM):
        own = replace(LARGE, data=data)
        for model in (LARGE.model, ENCODED, encoded(16), encoded(48), encoded(24, blocks=3)):
            yield replace(own, model=model)
        yield replace(own, model=encoded(dropout=0.0))
        yield replace(own, model=encoded(16, dropout=0.1))
        yield replace(own, model=encoded(96))
    own = replace(LARGE, data=pointwise, model=encoded())
    yield replace(own, data=replace(pointwise, in_list=()), model=encoded(of=1))
    for name, values in (
        ("weight_decay", (0.1, 0.3)),
        ("learning_rate", (1e-3,)),
        ("epochs", (10, 40)),
        ("batch_size", (8, 16)),
    ):
        yield from (replace(own, changes=((name, value),)) for value in values)


#: :data:`LARGE` with attention over the list; with twice the members the best on validation lists.
ATTENTIVE = f"attentive_{LARGE.model[:-1]}, heads=8, similar=true, layers=1)"
MORE_MEMBERS = ATTENTIVE.replace("members=16", "members=32")


def attentive() -> Iterable[Task]:
    """:data:`LARGE` with attention over the list, and the context-aware model on its inputs."""
    spec = f"attentive_{LARGE.model[:-1]}, heads=8"
    off = (("graphs", False),)
    yield replace(LARGE, model=f"{spec}, similar=true)", changes=off)
    yield replace(LARGE, model=f"{spec}, similar=false, layers=1)", changes=off)
    yield replace(LARGE, model=f"{spec}, similar=true, layers=1)", changes=off)
    yield CONTEXT_AWARE
    own = replace(LARGE, model=ATTENTIVE, changes=off)
    bins, fewer_heads = f"{ATTENTIVE[:-1]}, bins=16)", ATTENTIVE.replace("heads=8", "heads=2")
    yield replace(own, model=bins)
    yield replace(own, model=ATTENTIVE.replace("dropout=0.2", "dropout=0.1"))
    yield replace(own, model=ATTENTIVE.replace("heads=8", "heads=16"))
    yield replace(own, data=POINTWISE)
    yield replace(own, losses=(BOUND,))
    yield replace(own, changes=(("batch_size", 16), *off))
    yield replace(own, changes=(("weight_decay", 0.1), *off))
    yield replace(own, model=MORE_MEMBERS)
    for data in (POINTWISE, MEDIUM):
        yield replace(own, model=f"{fewer_heads[:-1]}, bins=16, gated=true)", data=data)
        yield replace(own, model=f"{bins[:-1]}, seen_dropout=0.5)", data=data)


#: Attention with all that helped one at a time: members, little dropout, small batches.
LONG_ATTENTION = replace(
    LARGE,
    model=MORE_MEMBERS.replace("dropout=0.2", "dropout=0.1"),
    changes=(("batch_size", 16), ("graphs", False)),
)


def combined() -> Iterable[Task]:
    """What helped, together; confirmed on fresh queries; and gains for the targets of softmax."""
    small = (("batch_size", 16),)
    encoded_pointwise = replace(LARGE, data=POINTWISE, model=ENCODED)
    yield replace(LONG_ATTENTION, data=FRESH)
    for loss in ("gain_softmax", "gain_softmax(normalized=false)"):
        yield replace(encoded_pointwise, losses=(loss,))
    yield replace(LONG_ATTENTION, data=SMALL)
    yield LONG_ATTENTION
    fewer = LONG_ATTENTION.model.replace("members=32", "members=16")
    yield replace(LONG_ATTENTION, model=fewer)
    for data in (POINTWISE, MEDIUM):
        yield replace(LARGE, data=data, model=ENCODED, changes=small)
    more = ENCODED.replace("members=16", "members=32")
    yield replace(encoded_pointwise, model=more, changes=small)
    informative = len(INFORMATIVE)
    for data in (POINTWISE, MEDIUM):
        yield replace(LARGE, data=replace(data, features=informative))
    yield replace(encoded_pointwise, data=replace(POINTWISE, features=informative))
    own = replace(LARGE, model=ATTENTIVE, changes=(("graphs", False),))
    yield replace(own, data=replace(MEDIUM, features=informative))
    yield replace(LONG_ATTENTION, data=POINTWISE)
    encoded_attention = LONG_ATTENTION.model.replace("layers=1", "layers=1, bins=16")
    for data in (POINTWISE, MEDIUM):
        yield replace(LONG_ATTENTION, data=data, model=encoded_attention)


#: One loss of each kind, in the order of worth.
KINDS = (
    *(SOFTMAX, LAMBDA, BOUND, "ranknet", "lambdarank@10", "approx_ndcg@10", "smoothi_ndcg@10"),
    *("neural_ndcg@10", "softsort_ndcg@10", "pirank_ndcg@10", "lapsum_ndcg@10", "fastsort_ndcg@10"),
    *("listmle", "mse", "ordinal", "bce", "level_likelihood"),
)
SEEDS = (0, 1, 2, 3, 4)


LEVEL = "level_likelihood"


def levels() -> Iterable[Task]:
    """The likelihood of label levels (``candidates.py``), which needs the fewest lists (direct.md).

    First beside lambdaloss@10 and softmax at WEB30K's size, over three seeds; then at medium and
    small size and in the second world, with the networks that were the best there.
    """
    web30k = replace(LARGE, data=WEB30K, recipe="short")
    pointwise, small = replace(LARGE, data=POINTWISE), replace(LARGE, data=SMALL)
    small_pointwise = replace(small, data=replace(SMALL, world="pointwise"))
    for seed in SEEDS[:3]:
        for loss in (LEVEL, LAMBDA, SOFTMAX):
            yield replace(web30k, losses=(loss,), seed=seed)
        yield replace(LARGE, losses=(LEVEL,), seed=seed)
    batches = (("batch_size", 16),)
    for own in (
        pointwise,
        replace(pointwise, model=ENCODED),
        replace(pointwise, model=ENCODED, changes=batches),
        *(small, small_pointwise),
        *(replace(own, model=encoded(bins=8)) for own in (small, small_pointwise)),
        replace(small_pointwise, model=ENCODED),
        LONG_ATTENTION,
        replace(LARGE, model=ENCODED, changes=batches),
        replace(LARGE, changes=(("average", 0.99),)),
        replace(LARGE, model=LARGE.model.replace("dropout=0.2", "dropout=0.1")),
    ):
        yield replace(own, losses=(LEVEL,))
    for own in (web30k, LARGE, pointwise, small):
        yield replace(own, losses=(LEVELS,))


def with_bins(task: Task, bins: int) -> Task:
    """A task with the library's own encoding of features (its option ``bins``)."""
    kinds = ", ".join(task.data.in_list)
    return replace(task, model=f"{task.model[:-1]}, in_list=[{kinds}], bins={bins})")


def library_encodings() -> Iterable[Task]:
    """The library's encoding in both defaults on many items, at small and at medium size."""
    small_pointwise = replace(SMALL, world="pointwise")
    less_dropout = replace(LARGE, model=LARGE.model.replace("dropout=0.2", "dropout=0.1"))
    for seed in SEEDS[:2]:
        for data in (SMALL, small_pointwise):
            for task in (ONE, LARGE):
                own = replace(task, data=data, seed=seed)
                yield own
                yield from (with_bins(own, bins) for bins in (8, 4, 16))
        for data in (MEDIUM, POINTWISE) if seed == 0 else ():
            one, large = replace(ONE, data=data), replace(LARGE, data=data)
            yield from (one, with_bins(one, 8), with_bins(large, 8), with_bins(one, 4))
            yield from (with_bins(large, 4), with_bins(replace(less_dropout, data=data), 8))
    for data in (FRESH, replace(FRESH, world="pointwise")):
        yield from (with_bins(replace(task, data=data), 8) for task in (ONE, LARGE))
        yield replace(ONE, data=data)


#: As many training lists as at small size, and as many others as at medium size.
FEW = Data((1000, 2000, 2000), in_list=IN_LIST)


def variants() -> Iterable[Task]:
    """Other forms of the default's network, optimizers and recipes, on few and on many lists."""
    for data in (FEW, replace(FEW, world="pointwise"), MEDIUM, POINTWISE):
        base = with_bins(replace(LARGE, data=data), 8)
        variant = f"variant_{base.model[:-1]}"
        yield base
        yield replace(base, changes=(("optimizer", "muon"),))
        yield with_bins(replace(LARGE, data=data), 16)
        yield encoded_by(replace(LARGE, data=data), "bins=8, scale_rate=6.0")
        yield replace(base, model=f"{variant}, encoding=embedded)")
        yield replace(base, losses=(LEVEL,))
        yield replace(base, model=f"{variant}, gated=true)")
        both = replace(data, transforms=(QUANTILE, LOG))
        yield replace(base, data=both)
        if data.lists[0] > 1000:
            continue
        yield replace(base, model=f"{variant}, encoding=periodic)")
        yield replace(base, changes=(("optimizer", "muon"), ("learning_rate", 1e-2)))
        yield replace(base, changes=(("optimizer", "muon"), ("learning_rate", 1e-3)))
        yield replace(base, changes=(("epochs", 40),))
        yield replace(base, changes=(("epochs", 10),))
        yield replace(base, changes=(("average", 0.999),))
        yield replace(base, changes=(("batch_size", 16),))
        yield replace(base, changes=(("learning_rate", 1e-3),))
        yield replace(base, changes=(("weight_decay", 0.3),))
        yield replace(base, model=base.model.replace("dropout=0.2", "dropout=0.4"))


def encoded_by(task: Task, options: str) -> Task:
    """A task with further options of the library's network, such as ``periodic=8``."""
    kinds = ", ".join(task.data.in_list)
    return replace(task, model=f"{task.model[:-1]}, in_list=[{kinds}], {options})")


#: What the encoding of the defaults on many items is chosen from.
ENCODINGS = ("bins=8", "bins=8, scale_rate=6.0", "periodic=8, scale_rate=6.0")
WORLDS = ("listwise", "pointwise")


def periodic(task: Task, options: str, functions: int = 8) -> Task:
    """A task with a periodic encoding that differs from the library's (``networks.py``)."""
    spec = with_bins(task, functions).model[:-1]
    return replace(task, model=f"variant_{spec}, encoding=periodic, {options})")


def candidates() -> Iterable[Task]:
    """What :func:`best_encoding` chooses from."""
    for data in (FEW, MEDIUM):
        for world in WORLDS:
            for task in (ONE, LARGE):
                own = replace(task, data=replace(data, world=world))
                yield from (encoded_by(own, options) for options in ENCODINGS)


def scale_rates() -> Iterable[Task]:
    """Other periodic encodings, and other rates of the scales of inputs, on few lists."""
    for world in WORLDS:
        large, one = (replace(own, data=replace(FEW, world=world)) for own in (LARGE, ONE))
        for deviation in (0.03, 0.09, 0.9):
            yield periodic(large, f"rate=6.0, deviation={deviation}")
        for own in (large, one):
            yield from (periodic(own, "rate=6.0"), encoded_by(own, "bins=16, scale_rate=6.0"))
        yield periodic(large, "rate=6.0, deviation=0.1, frozen=true")
        yield periodic(large, "rate=15.0")
        yield periodic(large, "rate=6.0", functions=16)
        yield replace(periodic(large, "rate=6.0"), changes=(("batch_size", 16),))
        yield replace(periodic(large, "rate=6.0"), losses=(LEVEL,))


def best_encoding(task: Task, results: Results) -> str | None:
    """The encoding that is best on validation lists; None while a result is missing.

    It has the highest mean over both worlds, on few lists and at medium size.
    """
    data = [replace(own, world=world) for own in (FEW, MEDIUM) for world in WORLDS]
    means: dict[str, float] = {}
    for options in ENCODINGS:
        found = [results.get(encoded_by(replace(task, data=own), options).key) for own in data]
        if not all(found):
            return None
        means[options] = sum(each["best_value"] for each in found if each)
    return max(means, key=lambda options: means[options])


def confirmed_encodings(results: Results) -> Iterable[Task]:
    """The best encoding on queries not used before, at small size and at WEB30K's."""
    choice = [(own, options) for own in (LARGE, ONE) if (options := best_encoding(own, results))]
    if choice:
        choice.append((ONE, ENCODINGS[1]))  # which takes half the time on a CPU
    for task, options in choice:
        for world in WORLDS:
            yield encoded_by(replace(task, data=replace(FRESH, world=world)), options)
    for task, options in choice:
        for world in WORLDS:
            for seed in SEEDS[:2]:
                own = replace(task, data=replace(SMALL, world=world), seed=seed)
                yield encoded_by(own, options)
    for task, options in choice[:2]:
        yield encoded_by(replace(task, data=WEB30K, recipe="short"), options)


#: ``large`` and ``medium`` as the library has them.
ENCODING = ENCODINGS[2]


def attention_variant(task: Task, options: str) -> Task:
    """A task with the library's encoding and attention that differs from its own."""
    kinds = ", ".join(task.data.in_list)
    own = f"in_list=[{kinds}], periodic=8, rate=6.0, {options}"
    return replace(task, model=f"variant_{task.model[:-1]}, {own})")


#: Queries on which no one had trained anything before.
NEW = replace(MEDIUM, seed=11)

#: Seeds of queries at small size on which nothing was chosen: several draws tell what one cannot.
DRAWS = (21, 22, 23, 24, 25, 26)

#: What the attention of the defaults on many lists is chosen from; the first is the library's.
LIBRARY_ATTENTION = "heads=2, attention_rate=6.0, gated_attention=true"
ATTENTIONS = {
    LARGE: (LIBRARY_ATTENTION, LIBRARY_ATTENTION.replace("heads=2", "heads=8")),
    ONE: (LIBRARY_ATTENTION, "heads=2, attention_rate=6.0"),
}


def encoded_attention() -> Iterable[Task]:
    """Attention beside the periodic encoding: the choice, queries not used before, then others."""
    for data in (MEDIUM, NEW, FEW):
        for world in WORLDS:
            for task, attentions in ATTENTIONS.items():
                own = replace(task, data=replace(data, world=world))
                for options in attentions if data is not NEW or task is ONE else attentions[:1]:
                    yield attention_variant(own, options)
    for task in (ONE, LARGE):
        own = replace(task, data=WEB30K, recipe="short")
        yield attention_variant(own, ATTENTIONS[task][0])


def library_attention() -> Iterable[Task]:
    """The same by the library's own network, which was written after these runs."""
    for data in (MEDIUM, NEW):
        for task in (ONE, LARGE):
            yield encoded_by(replace(task, data=data), f"{ENCODING}, heads=2")


def other_attentions() -> Iterable[Task]:
    """Other forms of that attention, at medium size and on few lists."""
    for data in (MEDIUM, FEW):
        for world in WORLDS:
            large, one = (replace(own, data=replace(data, world=world)) for own in (LARGE, ONE))
            scaled = attention_variant(large, "heads=8, attention_rate=6.0")
            yield attention_variant(large, "heads=8")
            yield scaled
            if data is FEW:
                yield attention_variant(large, "heads=2, attention_rate=6.0")
                yield attention_variant(one, "heads=8, attention_rate=6.0")
                yield attention_variant(large, "heads=8, attention_rate=20.0")
                yield replace(scaled, changes=(("batch_size", 16),))


def medium_variants(world: str) -> dict[str, Task]:
    """Variants of ``medium`` on few lists by their names, the first as it was before."""
    base = replace(ONE, data=replace(FEW, world=world), recipe=LAST)
    before = encoded_by(base, ENCODING)
    rates = (0.3, 3.0, 6.0, 12.0)
    found = {"before": before}
    found |= {
        f"`encoding_rate={rate}`": encoded_by(base, f"{ENCODING}, encoding_rate={rate}")
        for rate in rates
    }
    found["`activation=silu`"] = encoded_by(base, f"{ENCODING}, activation=silu")
    found["`members=4`"] = replace(before, model=before.model.replace("members=1", "members=4"))
    found["`level_likelihood`"] = replace(before, losses=(LEVEL,))
    for name, value in (
        ("learning_rate", 0.006),
        ("learning_rate", 0.01),
        ("optimizer", "adamw(beta2=0.95)"),
    ):
        found[f"{name} {value}"] = replace(before, changes=((name, value),))
    return found


def encoding_rates() -> Iterable[Task]:
    """The variants of ``medium``, two of them with two seeds, then the chosen one with attention.

    The last ones are at medium size.
    """
    for world in WORLDS:
        variants = medium_variants(world)
        yield from variants.values()
        for name in ("before", "`encoding_rate=6.0`"):
            yield replace(variants[name], seed=1)
    for world in WORLDS:
        own = replace(ONE, data=replace(MEDIUM, world=world))
        yield encoded_by(own, f"{ENCODING}, heads=2, encoding_rate=6.0")


def decayed(task: Task, decay: float, **changes: Any) -> Task:
    """A task with weight decay of all parameters, as the library's was when these ran."""
    settings = tuple({"weight_decay": decay, **changes}.items())
    return replace(task, model=f"decayed_{task.model}", changes=settings)


def attention_options(world: str) -> dict[str, Task]:
    """Variants of ``medium(heads=2)`` at medium size by their names, the first as it is."""
    one = replace(ONE, data=replace(MEDIUM, world=world))
    base = encoded_by(one, f"{ENCODING}, heads=2")

    def other(old: str, new: str) -> Task:
        return replace(base, model=base.model.replace(old, new))

    def rate(factor: float, **changes: Any) -> Task:
        own = encoded_by(one, f"{ENCODING}, heads=2, encoding_rate={factor}")
        return replace(own, changes=tuple(changes.items()))

    found = {"as it is": base}
    found |= {f"`encoding_rate={factor}`": rate(factor) for factor in (6.0, 3.0, 12.0)}
    for name, value in (
        ("learning_rate", 0.006),
        ("epochs", 40),
        ("batch_size", 16),
        ("batch_size", 64),
    ):
        found[f"{name} {value}"] = replace(base, changes=((name, value),))
    found["weight_decay 0.1"] = decayed(base, 0.1)
    found["`encoding_rate=6.0`, epochs 40"] = rate(6.0, epochs=40)
    for old, new in (
        ("dropout=0.2", "dropout=0.1"),
        ("dropout=0.2", "dropout=0.0"),
        ("hidden=[256, 128]", "hidden=[512, 256]"),
        ("hidden=[256, 128]", "hidden=[256, 128, 64]"),
        ("members=1", "members=4"),
        ("scale_rate=6.0", "scale_rate=15.0"),
        ("periodic=8", "periodic=16"),
    ):
        found[f"`{new}`"] = other(old, new)
    found["`activation=silu`"] = encoded_by(one, f"{ENCODING}, heads=2, activation=silu")
    found["`level_likelihood`"] = replace(base, losses=(LEVEL,))
    return found


def attention_tasks() -> Iterable[Task]:
    """These variants in both worlds, the first one with three seeds, then ``large(heads=2)``."""
    by_world = [attention_options(world) for world in WORLDS]
    for name in by_world[0]:
        yield from (options[name] for options in by_world)
    for seed in SEEDS[1:3]:
        yield from (replace(options["as it is"], seed=seed) for options in by_world)
    for rate in ("", ", encoding_rate=6.0"):
        for world in WORLDS:
            large = replace(LARGE, data=replace(MEDIUM, world=world))
            yield encoded_by(large, f"{ENCODING}, heads=2{rate}")


DECAYS = (0.01, 0.03, 0.1, 0.2, 0.3, 1.0)


def decay_options(world: str) -> dict[str, Task]:
    """Variants of ``medium`` at medium size with weight decay, by their names."""
    one = encoded_by(replace(ONE, data=replace(MEDIUM, world=world)), ENCODING)
    found = {f"weight_decay {decay}": decayed(one, decay) for decay in DECAYS}
    for decay in (0.1, 0.3):
        name = f"weight_decay {decay}"
        for setting, value in (("learning_rate", 0.006), ("learning_rate", 0.01), ("epochs", 40)):
            found[f"{name}, {setting} {value}"] = decayed(one, decay, **{setting: value})
        less_dropout = replace(one, model=one.model.replace("dropout=0.2", "dropout=0.1"))
        found[f"{name}, `dropout=0.1`"] = decayed(less_dropout, decay)
        faster = replace(one, model=f"{one.model[:-1]}, encoding_rate=6.0)")
        found[f"{name}, `encoding_rate=6.0`"] = decayed(faster, decay)
    return found


def few_decay_options(world: str) -> dict[str, Task]:
    """Variants of ``medium`` on few lists with weight decay, by their names."""
    few = replace(ONE, data=replace(FEW, world=world), recipe=LAST)
    base = encoded_by(few, f"{ENCODING}, encoding_rate=6.0")
    less, none = (
        replace(base, model=base.model.replace("dropout=0.2", f"dropout={rate}"))
        for rate in (0.1, 0.0)
    )
    found = {"weight_decay 0.01": base}
    found |= {f"weight_decay {decay}": decayed(base, decay) for decay in (0.1, 0.3, 1.0)}
    for decay in (0.3, 1.0, 2.0):
        found[f"weight_decay {decay}, `dropout=0.1`"] = decayed(less, decay)
    found["weight_decay 1.0, `dropout=0.0`"] = decayed(none, 1.0)
    for decay in (1.0, 2.0):
        own = replace(less, changes=(("weight_decay", decay),))
        found[f"weight_decay {decay} of weights only, `dropout=0.1`"] = own
    for decay in (0.3, 1.0):
        own = replace(decayed(less, decay), losses=(LEVEL,))
        found[f"weight_decay {decay}, `dropout=0.1`, `level_likelihood`"] = own
    return found


#: Queries on which nothing had been trained before weight decay was chosen.
LAST_NEW = replace(MEDIUM, seed=13)


def regularized(task: Task, dropout: float = 0.1) -> Task:
    """A task with another rate of dropout and weight decay of all parameters."""
    model = task.model.replace("dropout=0.2", f"dropout={dropout}")
    return decayed(replace(task, model=model), 0.2 if task.data.lists == WEB30K.lists else 0.3)


def present_default(data: Data) -> Task:
    """``medium(heads=2)`` as the library trains it."""
    own = encoded_by(replace(ONE, data=data), f"{ENCODING}, heads=2, encoding_rate=6.0")
    model = own.model.replace("dropout=0.2", "dropout=0.1")
    return replace(own, model=model, changes=(("weight_decay", 0.3),))


def decay_tasks() -> Iterable[Task]:
    """Weight decay in both worlds, then the defaults with it, also on queries not used before."""
    for find_options in (decay_options, few_decay_options):
        by_world = [find_options(world) for world in WORLDS[::-1]]
        for name in by_world[0]:
            yield from (options[name] for options in by_world)
    large, one = (encoded_by(task, f"{ENCODING}, heads=2") for task in (LARGE, ONE))
    worlds = [(replace(data, world=world)) for data in (MEDIUM, LAST_NEW) for world in WORLDS[::-1]]
    for task in (large, one):
        yield from (regularized(replace(task, data=data)) for data in worlds)
    yield from map(present_default, worlds)
    for data in worlds[:2]:
        yield regularized(replace(large, data=data), dropout=0.2)
        yield replace(large, data=data)
    for world in WORLDS:
        own = replace(large, data=replace(WEB30K, world=world), recipe="short")
        yield regularized(own)


ORDERED = "ordered_logit"
#: Queries on which nothing had been trained before the L1 penalty was chosen.
L1_NEW = replace(MEDIUM, seed=17)
#: The library's penalty and weight decay by the number of training lists.
PENALTIES = {1000: (0.3, 1.0), 6000: (0.13, 0.3), 18919: (0.073, 0.19)}


def penalized(data: Data, loss: str = ORDERED, model: str = "medium") -> Task:
    """A default of many lists, with its L1 penalty, weight decay and loss, or with another loss."""
    l1, decay = PENALTIES[data.lists[0]]
    spec = str(models.get(f"{model}(heads=2)" if data.lists[0] >= ATTENTION_LISTS else model))
    changes = (("weight_decay", decay), ("optimizer", f"adamw(l1={l1})"))
    recipe = {FEW.lists: LAST, WEB30K.lists: "short"}.get(data.lists, "cosine")
    return replace(LARGE, data=data, losses=(loss,), model=spec, changes=changes, recipe=recipe)


def with_penalty(task: Task, l1: float) -> Task:
    """The same with another L1 penalty, or with none (0)."""
    changes = [change for change in task.changes if change[0] != "optimizer"]
    changes += [("optimizer", f"adamw(l1={l1})")] if l1 else []
    return replace(task, changes=tuple(changes))


def without_attention(task: Task) -> Task:
    """The same without attention."""
    return replace(task, model=task.model.replace(", heads=2", ""))


def penalty_options(data: Data) -> dict[str, Task]:
    """The default, its parts one by one, and other losses, by their names."""
    own = penalized(data)
    found = {"the default": own, "without the L1 penalty": with_penalty(own, 0)}
    if data.lists == FEW.lists:
        found |= {f"`adamw(l1={l1})`": with_penalty(own, l1) for l1 in (0.1, 1.0)}
        found["two heads"] = replace(own, model=str(models.get("medium(heads=2)")))
    else:
        found["without attention"] = without_attention(own)
    found |= {f"`{loss}`": penalized(data, loss) for loss in (LAMBDA, SOFTMAX)}
    if data.lists == FEW.lists:
        found["`softmax`, without the L1 penalty"] = with_penalty(found["`softmax`"], 0)
    return found


def penalty_tasks() -> Iterable[Task]:
    """The L1 penalty and ``ordered_logit``: the default, its parts, losses, and more seeds."""
    worlds = {data: [replace(data, world=w) for w in WORLDS[::-1]] for data in (L1_NEW, MEDIUM)}
    web30k = [replace(WEB30K, world=world) for world in WORLDS[::-1]]
    for data in (*worlds[L1_NEW], *worlds[MEDIUM], *web30k):
        yield penalized(data)
    for loss in (LAMBDA, SOFTMAX):
        yield from (penalized(data, loss) for data in web30k)
    for data in worlds[MEDIUM]:
        yield penalized(data, SOFTMAX)
        yield with_penalty(penalized(data), 0)
    for loss in (ORDERED, LAMBDA):
        yield from (replace(penalized(data, loss), seed=1) for data in web30k)
    for data in worlds[MEDIUM]:
        yield penalized(data, model="large")
        yield penalized(data, LAMBDA)
        yield without_attention(penalized(data))
    for seed in (1, 2):
        yield from (replace(penalized(data), seed=seed) for data in worlds[MEDIUM])
    for loss in (ORDERED, LAMBDA):
        yield from (replace(penalized(data, loss), seed=2) for data in web30k)


def few_penalty_tasks() -> Iterable[Task]:
    """The same on few lists, which a CPU trains on in some minutes."""
    by_world = [penalty_options(replace(FEW, world=world)) for world in WORLDS[::-1]]
    for name in by_world[0]:
        yield from (options[name] for options in by_world)


#: Sizes of batches, by the number of training lists: the first ones of :data:`FEW`.
BATCHES = {450: (32, 16, 8, 4), 1000: (32, 16, 8)}


def batched(lists: int, batch_size: int, world: str) -> Task:
    """The default on so many lists, with batches of some size and weight decay by its rule."""
    own = penalized(replace(FEW, world=world))
    changed = dict(own.changes)
    settings = own.settings(ORDERED, changed)
    steps = settings.epochs * lists / batch_size
    changed["weight_decay"] = _weight_decay(settings.learning_rate, steps)
    if batch_size != Settings().batch_size:
        changed["batch_size"] = batch_size
    budget = lists if lists != FEW.lists[0] else 0
    return replace(own, budget=budget, changes=tuple(changed.items()))


def batch_tasks() -> Iterable[Task]:
    """Sizes of batches on few lists, which a CPU trains on in some minutes."""
    for seed in SEEDS[:2]:
        for lists, sizes in BATCHES.items():
            for size in sizes:
                yield from (replace(batched(lists, size, w), seed=seed) for w in WORLDS)


#: Losses of the default's network: one of each kind, and NeuralSort of scores that are held small.
DEFAULT_KINDS = (
    *(ORDERED, *KINDS[:-1], "ot_ndcg@10"),
    "relaxed(metric=ndcg@10, relaxation=standardized(base=neural, deviation=0.3))",
)


def with_loss(data: Data, loss: str) -> Task:
    """The default of these data with a loss."""
    if data.lists == FEW.lists:
        return replace(batched(data.lists[0], 16, data.world), data=data, losses=(loss,))
    return penalized(data, loss)


def few_loss_tasks() -> Iterable[Task]:
    """A loss of each kind with the default of few lists, which a CPU trains on in some minutes."""
    for loss in DEFAULT_KINDS:
        yield from (with_loss(replace(FEW, world=world), loss) for world in WORLDS)


def loss_tasks() -> Iterable[Task]:
    """The same with the default of many lists, five seeds, the first of all sizes before others."""
    for seed in SEEDS:
        for data in (MEDIUM, WEB30K, POINTWISE):
            yield from (replace(with_loss(data, loss), seed=seed) for loss in DEFAULT_KINDS)


def seed_tasks() -> Iterable[Task]:
    """More seeds of training of the default, where it is compared with LightGBM."""
    for seed in SEEDS[1:]:
        for data in (MEDIUM, L1_NEW, WEB30K):
            yield from (replace(penalized(replace(data, world=w)), seed=seed) for w in WORLDS)


def ablation_options(data: Data) -> dict[str, Task]:
    """The default with what others found to work, by their names."""
    own = with_loss(data, ORDERED)

    def inputs(*transforms: str) -> Task:
        return replace(own, data=replace(data, transforms=transforms))

    def members(count: int) -> Task:
        return replace(own, model=own.model.replace("members=1", f"members={count}"))

    different = f'by_member(first="{ORDERED}", second="{LAMBDA}")'
    return {
        "the default": own,
        "born again, by `softmax`": replace(own, losses=(ORDERED, f"born again: {SOFTMAX}")),
        "`log1p` in place of quantiles": inputs(LOG),
        "`log1p` beside quantiles": inputs(QUANTILE, LOG),
        "noise of 0.1": replace(own, model=f"noisy_{own.model[:-1]}, noise=0.1)"),
        f"2 members, one with `{LAMBDA}`": replace(members(2), losses=(different,)),
        "8 members": members(8),
        "the context-aware model": replace(
            own, model=CONTEXT_AWARE.model, changes=CONTEXT_AWARE.changes
        ),
    }


def ablation_tasks() -> Iterable[Task]:
    """These in both worlds, at medium size."""
    by_world = [ablation_options(replace(MEDIUM, world=world)) for world in WORLDS]
    for name in by_world[0]:
        yield from (options[name] for options in by_world)


def few_ablation_tasks() -> Iterable[Task]:
    """The same on few lists, which a CPU trains on in some minutes, with two seeds."""
    by_world = [ablation_options(replace(FEW, world=world)) for world in WORLDS]
    for seed in SEEDS[:2]:
        for name in by_world[0]:
            yield from (replace(options[name], seed=seed) for options in by_world)


#: Added to every judgment: few items are relevant, or many are.
SHIFTS = (-2.0, 1.5)


def density_tasks() -> Iterable[Task]:
    """Losses with the default of few lists, where few items are relevant and where many are."""
    for seed in SEEDS[:2]:
        for loss in (ORDERED, SOFTMAX, LAMBDA):
            for shift in SHIFTS:
                yield replace(with_loss(replace(FEW, shift=shift), loss), seed=seed)


def context_tasks() -> Iterable[Task]:
    """Losses of every kind with the context-aware model, one seed: WEB30K's size, then medium."""
    at_web30k = replace(CONTEXT_AWARE, data=WEB30K, recipe="short")
    for losses in (KINDS[:8], KINDS[8:]):
        for own in (at_web30k, CONTEXT_AWARE):
            yield from (replace(own, losses=(loss,)) for loss in losses)


def evidence_tasks() -> Iterable[Task]:
    """What is missing in the tables of losses and of the default, which needs a GPU: in one call.

    Losses of every kind with one seed, the context-aware model, more seeds of the default, what
    others found to work, then more seeds of all losses.
    """
    losses = list(loss_tasks())
    yield from (task for task in losses if task.seed == SEEDS[0])
    yield from context_tasks()
    yield from seed_tasks()
    yield from ablation_tasks()
    yield from losses


def table() -> Iterable[Task]:
    """Losses of every kind with the default's network and the context-aware one, then seeds."""
    at_web30k = replace(LARGE, data=WEB30K, recipe="short")
    for losses in (KINDS[:8], KINDS[8:]):
        for own in (LARGE, at_web30k, CONTEXT_AWARE):
            yield from (replace(own, losses=(loss,)) for loss in losses)
    for losses in (KINDS[:4], KINDS[4:]):
        for seed in SEEDS[1:]:
            yield from (replace(LARGE, losses=(loss,), seed=seed) for loss in losses)


def timed() -> Iterable[Task]:
    """Four epochs each, for a process that has the GPU to itself (``--workers 1``)."""
    encoded_too = (with_bins(LARGE, 8), with_bins(ONE, 8))
    for own in (*encoded_too, LARGE, replace(CONTEXT_AWARE, losses=(SOFTMAX,)), ONE):
        yield replace(own, changes=(("epochs", 4), *own.changes))
    for loss in (LAMBDA, "neural_ndcg@10"):
        yield replace(LARGE, losses=(loss,), changes=(("epochs", 4),))
    for loss in (ORDERED, SOFTMAX, LAMBDA, "approx_ndcg@10", "neural_ndcg@10"):
        own = penalized(MEDIUM, loss)
        yield replace(own, changes=(("epochs", 4), *own.changes))
    own = without_attention(penalized(MEDIUM))
    yield replace(own, changes=(("epochs", 4), *own.changes))


def encoding_tasks(results: Results) -> list[Task]:
    """Those of the encodings only."""
    found = [*candidates(), *confirmed_encodings(results), *scale_rates()]
    return list(dict.fromkeys(found))


def tasks(results: Results) -> list[Task]:
    """All of them, each once."""
    task = chosen(results)
    found = [
        *library_attention(),
        *attention_tasks(),
        *decay_tasks(),
        *penalty_tasks(),
        *few_penalty_tasks(),
        *encoded_attention(),
        *other_attentions(),
        *encoding_rates(),
        *encoding_tasks(results),
        *variants(),
        *library_encodings(),
        *levels(),
        *claims(LARGE),
        *claims(replace(LARGE, model=ENCODED)),
        *encodings(),
        *attentive(),
        *combined(),
    ]
    found += [replace(FINAL, recipe="short", data=WEB30K), *eligible()]
    found += [] if task is None else claims(task)
    found += [*further(), *claims(FINAL), *table()]
    found += [*inputs(), *sizes(), *others(), *losses(), *attention(), *recipes()]
    return list(dict.fromkeys(found))
