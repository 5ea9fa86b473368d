"""The plan of the study: which losses are trained on which data by which recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from data import Data

from rankgrad.data.synthetic import SIZES
from rankgrad.training import Settings

METRIC = "ndcg@10"
MODEL = "tabm(hidden=[64], members=8, share=nothing, dropout=0.3)"  # on inputs of data.py

MEDIUM, WEB30K = Data(SIZES["medium"]), Data(SIZES["web30k"], seed=1)
#: Queries that were not used to choose anything.
FRESH = Data(SIZES["web30k"], seed=7)

#: Settings of training that differ from the defaults.
RECIPES: dict[str, dict[str, Any]] = {
    "cosine": {"schedule": "cosine", "epochs": 20, "patience": None},
    "short": {"schedule": "cosine", "epochs": 10, "patience": None},
    "default": {"epochs": 60},
    "rate 1e-3": {"schedule": "cosine", "epochs": 20, "patience": None, "learning_rate": 1e-3},
    "rate 1e-2": {"schedule": "cosine", "epochs": 20, "patience": None, "learning_rate": 1e-2},
    "batch 8": {"schedule": "cosine", "epochs": 10, "patience": None, "batch_size": 8},
    "batch 128": {"schedule": "cosine", "epochs": 40, "patience": None, "batch_size": 128},
    "40 items": {"schedule": "cosine", "epochs": 20, "patience": None, "list_size": 40},
    "long": {"schedule": "cosine", "epochs": 100, "patience": None},
    "last": {"schedule": "cosine", "epochs": 20, "patience": None},
}
#: The recipe that takes the last epoch, whatever it has on validation lists: it saves their time.
LAST = "last"

LAMBDA, SOFTMAX = "lambdaloss@10", "softmax"
BOUND, LOGLOG = "rank_bound@10", "rank_bound@10(p=1.0)"
LEVELS = "level_likelihood@10(weights=gain)"
DIRECT = ("approx_ndcg", "neural_ndcg", "smoothi_ndcg@10")
#: Losses by the two factors of a pair in their gradient: the weight and the surrogate.
FIELD = {
    ("none", "logistic"): "ranknet",
    ("none", "sigmoid"): "pair_field(weights=none, surrogate=sigmoid)",
    ("tangent", "logistic"): "pair_field(weights=tangent, relaxation=approx)",
    ("tangent", "sigmoid"): "approx_ndcg",
    ("swap", "logistic"): "lambdarank@10",
    ("swap", "sigmoid"): "pair_field@10(surrogate=sigmoid)",
    ("distance", "logistic"): LAMBDA,
    ("distance", "sigmoid"): "pair_field@10(weights=distance, surrogate=sigmoid)",
}
#: Losses that may beat lambdaloss@10; the best on validation lists is confirmed on fresh queries.
CANDIDATES = (
    BOUND,
    LOGLOG,
    "rank_bound@10(gain=power)",
    'mixed(first="rank_bound@10", second="lambdaloss@10", weight=1.0)',
    'mixed(first="rank_bound@10", second="lambdaloss@10", weight=3.0)',
    "pair_field@10(relaxation=softsort)",
    'pair_field@10(relaxation="neural(sinkhorn=false)")',
    LEVELS,
)
#: The network of the model ``medium``.
CPU_DEFAULT = "tabm(hidden=[256, 128], members=1, dropout=0.2)"
#: Networks with more parameters, on the same inputs.
WIDER = {
    "hidden 256": "tabm(hidden=[256], members=8, share=nothing, dropout=0.3)",
    "hidden 256, 128": "tabm(hidden=[256, 128], members=8, share=nothing, dropout=0.2)",
    "hidden 256, 128, no dropout": "tabm(hidden=[256, 128], members=8, share=nothing)",
    "hidden 512, 256": "tabm(hidden=[512, 256], members=8, share=nothing, dropout=0.3)",
}


#: Lists of at least 200 items, as many as there are among these.
LONG = Data((12000, 8000, 8000), least=200)


def _exact_forward(alpha: float) -> str:
    return f'relaxed(metric=ndcg, relaxation="straight_through(base=sigmoid(alpha={alpha}))")'


EXACT_FORWARD = _exact_forward(1.0)
TEMPERED = 'relaxed(metric=ndcg, relaxation="tempered(alpha=1.0)")'


#: Losses of two temperatures, by their names in the table.
TWO_TEMPERATURES = {
    "exact ranks forward, `alpha=1` backward": EXACT_FORWARD,
    "exact ranks forward, `alpha=0.1` backward": _exact_forward(0.1),
    "`alpha=10` plus `alpha=0.1`": (
        'mixed(first="approx_ndcg(alpha=10.0)", second="approx_ndcg(alpha=0.1)", weight=1.0)'
    ),
    "tempered sigmoid": TEMPERED,
}


@dataclass(frozen=True)
class Task:
    """One training, or several in a row, each of which starts from the network of the one before.

    Args:
        data: the data set.
        losses: the spec of the loss of each training.
        seed: the seed of the training.
        recipe: a name in :data:`RECIPES`.
        model: the spec of the network, which takes the inputs of ``data.py``.
        budget: train on so many lists, the first ones; 0 for all.
        changes: names and values of settings that differ from the recipe's.
        diagnosed: whether :class:`diagnose.Diagnosis` measures gradients along training.
    """

    data: Data
    losses: tuple[str, ...]
    seed: int = 0
    recipe: str = "cosine"
    model: str = MODEL
    budget: int = 0
    changes: tuple[tuple[str, Any], ...] = ()
    diagnosed: bool = True

    @property
    def key(self) -> str:
        """The task as JSON, by which results name it."""
        return json.dumps({**asdict(self), "data": asdict(self.data)}, sort_keys=True)

    @classmethod
    def of(cls, key: str) -> Task:
        """The task of a key. In earlier results the option ``surrogate`` is called ``slope``."""
        fields = json.loads(key)
        data = fields.pop("data")
        for name in {"lists", "in_list", "transforms"} & set(data):
            data[name] = tuple(data[name])
        fields["losses"] = tuple(x.replace("slope=", "surrogate=") for x in fields["losses"])
        fields["changes"] = tuple((name, value) for name, value in fields.get("changes", ()))
        return cls(Data(**data), **fields)

    def settings(self, spec: str, changes: Mapping[str, Any]) -> Settings:
        """The settings of one of its trainings."""
        values = {"metric": METRIC, "metrics": (), "transforms": (), **RECIPES[self.recipe]}
        values |= {"loss": spec, "model": self.model, "seed": self.seed}
        return Settings(**{**values, **dict(self.changes), **changes})

    @property
    def kind(self) -> tuple[Any, ...]:
        """Tasks of equal kind take about the same time."""
        return (self.data.key, self.recipe, self.model, len(self.losses), self.changes)


Results = Mapping[str, Mapping[str, Any]]


def tasks(results: Results, groups: Collection[str] = ()) -> list[Task]:
    """All tasks, the most useful first. Some depend on results: they are added once those exist.

    The groups overlap; each task is listed once.

    Args:
        results: those so far.
        groups: the names of the groups, in :data:`GROUPS`; empty for all.
    """
    planned = [] if groups else list(confirmation(results))
    for name in groups or GROUPS:
        planned += GROUPS[name]()
    return list(dict.fromkeys(planned))


def field() -> Iterable[Task]:
    """Weights and surrogates of pairs, and the candidates, at medium size."""
    specs = [LAMBDA, BOUND, SOFTMAX, *DIRECT, *FIELD.values(), *CANDIDATES]
    return [Task(MEDIUM, (spec,)) for spec in specs]


def wider() -> Iterable[Task]:
    """Whether losses differ more where the network is not the limit."""
    specs = (LAMBDA, BOUND, LOGLOG, "approx_ndcg")
    return [Task(MEDIUM, (spec,), model=model) for model in WIDER.values() for spec in specs]


def web30k() -> Iterable[Task]:
    """The candidates at the size of WEB30K, with three seeds."""
    specs = (LAMBDA, *CANDIDATES[:2], *CANDIDATES[3:], SOFTMAX, "approx_ndcg")
    first = [Task(WEB30K, (spec,), recipe="short") for spec in specs]
    wide = [replace(task, model=WIDER["hidden 256, 128"]) for task in first[:3]]
    return first + wide + [replace(task, seed=seed) for seed in (1, 2) for task in first[:8]]


def best(results: Results) -> str | None:
    """The candidate with the best mean over three seeds on validation lists of WEB30K's size.

    Candidates without results of all three seeds are left out; None if there is no other.
    """
    means = {}
    for spec in CANDIDATES:
        runs = [results.get(Task(WEB30K, (spec,), seed, "short").key) for seed in (0, 1, 2)]
        if all(runs):
            means[spec] = float(np.mean([run["best_value"] for run in runs if run]))
    return max(means, key=lambda spec: means[spec]) if means else None


def confirmation(results: Results) -> Iterable[Task]:
    """The best candidate and lambdaloss@10, on queries not used before."""
    candidate = best(results)
    specs = () if candidate is None else (LAMBDA, candidate)
    return [Task(FRESH, (spec,), seed, "short") for seed in (0, 1, 2) for spec in specs]


def scales() -> Iterable[Task]:
    """Temperatures, their schedules, standardized scores, continuation, mixtures."""
    specs = [f"approx_ndcg(alpha={alpha})" for alpha in (0.1, 0.3, 3.0)]
    specs += [f"neural_ndcg(temperature={t})" for t in (0.1, 10.0)]
    specs += ['approx_ndcg(alpha="exponential(start=0.1, end=3.0)")']
    specs += [f"standardized(scale={scale})" for scale in (0.5, 1.0, 3.0)]
    specs += [f'standardized(loss="{LAMBDA}", scale={scale})' for scale in (1.0, 3.0)]
    specs += [f'standardized(loss="{loss}", scale=1.0)' for loss in DIRECT[1:]]
    specs += ['standardized(loss="neural_ndcg", scale=0.3)']
    specs += [f'mixed(first=softmax, second="{loss}", weight=10.0)' for loss in DIRECT[:2]]
    single = [Task(MEDIUM, (spec,)) for spec in specs]
    sequences = [(BOUND, "approx_ndcg"), (BOUND, "neural_ndcg"), (LAMBDA, "approx_ndcg")]
    sequences += [(BOUND, LAMBDA), (BOUND, "rank_bound@10(of=ndcg)")]
    return single + [Task(MEDIUM, pair, recipe="short") for pair in sequences]


def levels() -> Iterable[Task]:
    """Likelihoods of label levels, of which softmax is an approximation."""
    specs = (LEVELS, "level_likelihood", "level_likelihood(weights=size)")
    return [Task(MEDIUM, (spec,)) for spec in specs]


def levels_with_ties(size: str) -> list[Task]:
    """The same with the inputs and the network that are the default on a CPU."""
    data = Data(SIZES[size], in_list=("rank", "score", "ties"))
    specs = (SOFTMAX, "level_likelihood", LAMBDA, LEVELS)
    return [Task(data, (spec,), model=CPU_DEFAULT, diagnosed=False) for spec in specs]


def budgets() -> Iterable[Task]:
    """Numbers of training lists: 300 at WEB30K's size, then 300 to 3,000 at medium size."""
    specs = (LAMBDA, BOUND, SOFTMAX, "approx_ndcg")
    few = [Task(WEB30K, (spec,), recipe="long", budget=300) for spec in specs]
    recipes = {300: "long", 1000: "long", 3000: "cosine"}
    return few + [
        Task(MEDIUM, (spec,), recipe=recipe, budget=budget)
        for budget, recipe in recipes.items()
        for spec in specs
    ]


def long_lists() -> Iterable[Task]:
    """Lists of at least 200 items: one in eight of the simulator's."""
    return [Task(LONG, (spec,)) for spec in (LAMBDA, SOFTMAX, "approx_ndcg", BOUND)]


def cutoffs() -> Iterable[Task]:
    """Relaxations of NDCG@10, for the bias of their value along training."""
    return [Task(MEDIUM, (spec,)) for spec in ("approx_ndcg@10", "neural_ndcg@10")]


def two_temperatures() -> Iterable[Task]:
    """One temperature for the value and another for the gradient, sums of two, tempered sigmoids.

    NDCG is linear in the relaxed permutation. So the gradient of a permutation that is exact
    forward and relaxed backward is that of the relaxed one, and only ranks are tried so.
    """
    return [Task(MEDIUM, (spec,)) for spec in TWO_TEMPERATURES.values()]


def worlds() -> Iterable[Task]:
    """Less and more noise, sparse and dense labels, short lists."""
    changes: list[dict[str, Any]] = [
        {"noise": 0.3},
        {"noise": 2.0},
        {"shift": -2.0},
        {"shift": 1.5},
        {"length": 20},
    ]
    specs = (LAMBDA, BOUND, SOFTMAX, "approx_ndcg")
    return [Task(replace(MEDIUM, **change), (spec,)) for change in changes for spec in specs]


def parts() -> Iterable[Task]:
    """Which part of the bound matters: the gains, the ideal DCG, or the penalty of the rank."""
    specs = ("rank_bound@10(gain=linear)", "rank_bound@10(ideal=false)")
    specs += ("rank_bound@10(p=0.5)", "rank_bound@10(p=2.0)", "rank_bound@10(of=ndcg)")
    return [Task(MEDIUM, (spec,)) for spec in specs]


def second_world() -> Iterable[Task]:
    """The simulated world in which no term of the utility compares items of a list."""
    specs = (LAMBDA, BOUND, LOGLOG, SOFTMAX, "approx_ndcg")
    return [Task(replace(MEDIUM, world="pointwise"), (spec,)) for spec in specs]


def grid() -> Iterable[Task]:
    """One loss of each kind, with the default settings of training."""
    specs = (LAMBDA, SOFTMAX, BOUND, "ranknet", *DIRECT, "softsort_ndcg@10", "lapsum_ndcg")
    specs += ("pirank_ndcg@10", "fastsort_ndcg", "ot_ndcg@10", "neural_ndcg@10", "listnet")
    specs += ("lambdaloss", "listmle", "ordinal", "mse", "rank_bound@10(of=ndcg)")
    return [Task(MEDIUM, (spec,), recipe="default") for spec in specs]


def recipes() -> Iterable[Task]:
    """Learning rate, batch size, list truncation."""
    names = ("rate 1e-3", "rate 1e-2", "batch 8", "batch 128", "40 items")
    specs = (LAMBDA, BOUND, "approx_ndcg")
    return [Task(MEDIUM, (spec,), recipe=name) for name in names for spec in specs]


def seeds() -> Iterable[Task]:
    """How much the first table depends on the seed of training."""
    specs = [LAMBDA, BOUND, SOFTMAX, *DIRECT, *dict.fromkeys(FIELD.values())]
    return [Task(MEDIUM, (spec,), seed) for seed in (1, 2) for spec in dict.fromkeys(specs)]


def capacity() -> Iterable[Task]:
    """Whether training NDCG can be driven up: few lists, a wide network, no dropout."""
    model = "tabm(hidden=[512], members=2, share=nothing)"
    specs = (LAMBDA, BOUND, *DIRECT)
    return [Task(WEB30K, (spec,), recipe="long", model=model, budget=300) for spec in specs]


#: The groups of tasks by name, the most useful first.
GROUPS: dict[str, Callable[[], Iterable[Task]]] = {
    group.__name__: group
    for group in (
        *(field, web30k, levels, scales, two_temperatures, cutoffs, parts, recipes, second_world),
        *(worlds, long_lists, budgets, seeds, grid, wider, capacity),
    )
}
