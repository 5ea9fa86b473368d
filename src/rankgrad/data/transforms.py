"""Transforms of features: fitted on training data, saved with the model, applied as torch ops.

A transform is named by a spec such as ``clip(limit=3)``. It is fitted block by block, on an array
or a memory map (``_blocks.py``). Then it is a module whose buffers hold what it learned: they are
in its ``state_dict``, which a new transform of the same spec can load. Several in a row are a
:class:`Pipeline`. The trainer fits a pipeline on the training data and applies it before the
network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from rankgrad._deprecation import renamed_attributes
from rankgrad._quoting import quote
from rankgrad._shapes import Array, Float, Int, Real
from rankgrad._validation import check_choice, check_positive, check_whole
from rankgrad.data._blocks import (
    Blocks,
    Moments,
    block_height,
    check_not_infinite,
    imputation_weights,
    quantiles_of,
    sample_rows,
    varies_in_lists,
)
from rankgrad.data._quantile_kernel import WIDE, quantile_levels
from rankgrad.specs import HasSpec, Registry, Spec

__all__ = [
    "Clip",
    "Distribution",
    "DropConstant",
    "Impute",
    "Log1p",
    "Pipeline",
    "Quantile",
    "SplitColumns",
    "Standardize",
    "Transform",
    "get",
    "names",
    "transforms",
]

transforms: Registry[Transform] = Registry("transform")

_Fitted = TypeVar("_Fitted", bound="Transform")
Distribution = Literal["normal", "uniform"]

_MAX_NORMAL = 5.1993  # the normal quantile of 1 - 1e-7, at which scikit-learn clips too


class Transform(HasSpec, nn.Module):
    """A map of feature vectors that is fitted on training data.

    ``fit`` learns from an array ``[N, F]``. ``transform`` applies the map to tensors ``[..., F]``
    of raw features on any device; an infinite value is an error. Calling the module does the same
    without checking values, as the check would synchronize a GPU.

    NaN is a missing value. ``fit`` ignores missing values, and they stay NaN until :class:`Impute`
    replaces them.

    A subclass overrides ``_map`` and, if it learns anything, ``_learn`` and ``learned``.

    In shapes, F or f is the number of raw features, and g that of transformed features.
    """

    #: The buffers that fitting fills; they are empty until then.
    learned: ClassVar[tuple[str, ...]] = ()

    columns: Tensor  # the number of raw features, a scalar; empty until fitted

    def __init__(self) -> None:
        super().__init__()
        self._n_features: int | None = None
        for buffer in ("columns", *self.learned):
            self.register_buffer(buffer, torch.empty(0))

    def fit(self: _Fitted, features: Array, offsets: Array | None = None) -> _Fitted:
        """Learn from training data ``[N, F]``, block by block with sums in float64.

        Args:
            features: an array or a memory map. Statistics are stored in float64 for float64
                features and in float32 for all others.
            offsets: ``[B + 1]``, for transforms that depend on lists; list b is the rows
                ``offsets[b]:offsets[b + 1]``.

        Returns:
            The transform itself, fitted.

        Raises:
            ValueError: there are no items or no features, a value is infinite, or ``offsets`` do
                not run from 0 to N.
        """
        if features.ndim != 2 or 0 in features.shape:
            raise ValueError(
                f"{self.name} is fitted on features [items, features] with at least one of each, "
                f"found the shape {features.shape}"
            )
        if offsets is not None and (offsets[0] != 0 or offsets[-1] != len(features)):
            raise ValueError(
                f"offsets must run from 0 to the number of items, {len(features)}; found "
                f"{offsets[0]} to {offsets[-1]}"
            )
        blocks = Blocks(features, offsets)
        first = 0
        for block in blocks:
            check_not_infinite(block, first)
            first += len(block)
        return self.fit_blocks(blocks)

    def fit_blocks(self: _Fitted, blocks: Blocks) -> _Fitted:
        """Fit on blocks without checking their values; other transforms may have made them.

        Args:
            blocks: of features.

        Returns:
            The transform itself, fitted.
        """
        for name, value in self._learn(blocks).items():
            buffer = value.to(blocks.dtype) if value.is_floating_point() else value
            setattr(self, name, buffer.to(self.columns.device))
        self.columns = torch.tensor(blocks.width, device=self.columns.device)
        self._n_features = blocks.width
        return self

    def transform(self, features: Real[Tensor, "*b f"]) -> Float[Tensor, "*b g"]:
        """The transformed features: a new tensor, float32 or, for float64 features, float64.

        Args:
            features: ``[..., F]``, raw, on any device.

        Returns:
            ``[..., g]``.

        Raises:
            ValueError: the number of features is not the one it was fitted on, or a value is
                infinite.
        """
        self._check_width(features)
        check_not_infinite(features)
        transformed: Tensor = self(features)
        return transformed

    @override
    def forward(self, features: Real[Tensor, "*b f"]) -> Float[Tensor, "*b g"]:
        self._check_width(features)
        values = features if features.dtype == torch.float64 else features.float()
        return self._map(values).to(values.dtype)

    @property
    def n_features(self) -> int:
        """The number of raw features it was fitted on."""
        if self._n_features is None:
            raise ValueError(f"{self} is not fitted: call fit, or load_state_dict with its state")
        return self._n_features

    @property
    def n_outputs(self) -> int:
        """The number of transformed features, which are the inputs of the network."""
        return len(self.sources)

    @property
    def sources(self) -> Int[Tensor, " g"]:
        """The raw feature that each transformed feature is made of, counting from 0."""
        return torch.arange(self.n_features)

    def _learn(self, blocks: Blocks) -> dict[str, Tensor]:
        """The values of the buffers in ``learned``."""
        return {}

    def _map(self, values: Tensor) -> Tensor:
        """Transform float32 or float64 values ``[..., F]``; they may not be changed in place."""
        raise TypeError(f"{type(self).__name__} does not say how it maps features")

    def _check_width(self, features: Tensor) -> None:
        width = features.shape[-1] if features.dim() else 0
        if width != self.n_features:
            raise ValueError(
                f"{self.name} was fitted on {self.n_features} features, found {width}: give the "
                "features the model was trained with"
            )

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        # The sizes of the buffers depend on the training data, so they come from the state too.
        for name, buffer in self._buffers.items():
            saved = state.get(prefix + name)
            if saved is not None and buffer is not None:
                setattr(self, name, torch.empty_like(saved, device=buffer.device))
        super()._load_from_state_dict(state, prefix, *rest)
        self._n_features = int(self.columns) if self.columns.dim() == 0 else None


transforms.base_class = Transform


@transforms.register("standardize", former=["standardise"])
class Standardize(Transform):
    """``(x - mean) / deviation`` of each feature, and ``x - mean`` of one that is constant.

    The deviation divides by N, as scikit-learn's ``StandardScaler`` does.

    >>> features = np.array([[1.0, 5.0], [3.0, 5.0]])
    >>> Standardize().fit(features).transform(torch.tensor([[2.0, 5.0], [5.0, 6.0]])).tolist()
    [[0.0, 0.0], [3.0, 1.0]]
    """

    learned = ("mean", "deviation")

    mean: Tensor  # [F]
    deviation: Tensor  # [F], 1 for a constant feature

    def _learn(self, blocks: Blocks) -> dict[str, Tensor]:
        moments, limits = Moments.of(blocks), torch.finfo(blocks.dtype)
        is_wide = ~(moments.high - moments.low <= limits.max) | moments.deviation.isinf()
        if is_wide.any():
            j = int(is_wide.nonzero()[0])
            raise ValueError(
                f"standardize: feature index {j} (counting from 0) is from {moments.low[j]:g} to "
                f"{moments.high[j]:g}, too wide a range: give NaN for missing values, or clip first"
            )
        varies = moments.varies & (moments.deviation > limits.tiny)
        return {"mean": moments.mean, "deviation": torch.where(varies, moments.deviation, 1.0)}

    def _map(self, values: Tensor) -> Tensor:
        return (values - self.mean) / self.deviation


@transforms.register("log1p")
class Log1p(Transform):
    """``sign(x) log(1 + |x|)``, which shortens long tails of either sign.

    >>> Log1p().fit(np.zeros((1, 2))).transform(torch.tensor([0.0, -1.0]))
    tensor([ 0.0000, -0.6931])
    """

    def _map(self, values: Tensor) -> Tensor:
        # In float64, then rounded: log1p in float32 has other last digits on other devices and in
        # ONNX, and these decide about ties, quantiles and splits.
        doubles = values.double()
        return (doubles.sign() * doubles.abs().log1p()).to(values.dtype)


@transforms.register("quantile")
class Quantile(Transform):
    """The level of x (the proportion of training items below x), or the level's normal quantile.

    Levels are interpolated between the quantiles of a table; tied training items have the middle of
    their levels. This is scikit-learn's ``QuantileTransformer``, except for ties at the smallest or
    largest training value: scikit-learn gives these level 0 or 1, this class their middle level
    too, since in ranking data most features are 0 for most items.

    Args:
        output: ``"normal"``, clipped to ±5.2, or ``"uniform"``, from 0 to 1.
        quantiles: the size of the table for each feature.
        sample: quantiles are computed from at most this many items, drawn without replacement.
        seed: of the draw.

    >>> features = np.array([[0.0], [0.0], [1.0], [3.0]])
    >>> transform = Quantile(output="uniform").fit(features)
    >>> transform.transform(torch.tensor([[-1.0], [0.0], [2.0], [9.0]])).flatten()
    tensor([0.0000, 0.1667, 0.8333, 1.0000])
    """

    learned = ("table",)

    table: Tensor  # [F, Q] quantiles of each feature, ascending

    def __init__(
        self,
        *,
        output: Distribution = "normal",
        quantiles: int = 1000,
        sample: int = 50_000,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_choice("output", output, get_args(Distribution))
        self.quantiles = check_whole("quantiles", quantiles, least=2)
        self.sample = check_whole("sample", sample, least=2)
        self.output, self.seed = output, check_whole("seed", seed, least=0, most=math.inf)

    def _learn(self, blocks: Blocks) -> dict[str, Tensor]:
        values = sample_rows(blocks, self.sample, self.seed).numpy()
        levels = np.linspace(0, 1, max(2, min(self.quantiles, len(values))))
        table = np.stack([quantiles_of(column, levels) for column in values.T])
        return {"table": torch.from_numpy(np.maximum.accumulate(table, axis=-1))}

    def _map(self, values: Tensor) -> Tensor:
        rows, table = values.reshape(-1, values.shape[-1]), self.table.to(values.dtype)
        if _can_use_kernel(values):
            levels = torch.empty_like(rows, memory_format=torch.contiguous_format)
            quantile_levels(rows.numpy(), table.numpy(), levels.numpy())
            return self._to_distribution(levels.reshape(values.shape))
        # In blocks, as the search takes many times the memory of the values. An exported program
        # has one block, so that it takes any number of rows.
        is_exporting = torch.compiler.is_exporting()
        blocks = [rows] if is_exporting else rows.split(block_height(rows.shape[-1]))
        parts = [_interpolated_levels(block.T.contiguous(), table).T for block in blocks]
        levels = torch.cat(parts).reshape(values.shape)
        return self._to_distribution(torch.where(values.isnan(), values, levels))

    def _to_distribution(self, levels: Tensor) -> Tensor:
        if self.output == "uniform":
            return levels
        normal: Tensor = torch.special.ndtri(levels.double())  # for the reason in Log1p
        return normal.clamp(-_MAX_NORMAL, _MAX_NORMAL).to(levels.dtype)


@transforms.register("clip")
class Clip(Transform):
    """Clamps values to the range of the training data.

    Args:
        limit: clamp to this many standard deviations around the mean of the training data; by
            default to their smallest and largest value. A feature that is constant in the training
            data is constant afterwards.

    >>> features = np.array([[-1.0], [1.0]])
    >>> Clip().fit(features).transform(torch.tensor([[5.0], [-0.5]])).flatten().tolist()
    [1.0, -0.5]
    >>> Clip(limit=3).fit(features).transform(torch.tensor([[5.0], [-0.5]])).flatten().tolist()
    [3.0, -0.5]
    """

    learned = ("low", "high")

    low: Tensor  # [F]
    high: Tensor  # [F]

    def __init__(self, *, limit: float | None = None) -> None:
        super().__init__()
        if limit is not None:
            check_positive("limit", limit)
        self.limit = limit

    def _learn(self, blocks: Blocks) -> dict[str, Tensor]:
        moments = Moments.of(blocks)
        if self.limit is None:
            return {"low": moments.low, "high": moments.high}
        half_width = torch.where(moments.varies, self.limit * moments.deviation, 0.0)
        return {"low": moments.mean - half_width, "high": moments.mean + half_width}

    def _map(self, values: Tensor) -> Tensor:
        return values.clamp(self.low, self.high)


@transforms.register("drop_constant")
class DropConstant(Transform):
    """Drops features that are constant in the training data.

    A feature that is missing for some items and constant for all others is not dropped.

    Args:
        per_list: also drop features that vary between lists, but within none of them. Such a
            feature alone cannot order items, but a non-linear model may still use it.

    >>> features = np.array([[1.0, 7.0], [1.0, 8.0]])
    >>> DropConstant().fit(features).transform(torch.tensor([[1.0, 9.0]])).tolist()
    [[9.0]]
    """

    learned = ("kept",)

    kept: Tensor  # [g] indices of the features that are not dropped; saved models use this name

    def __init__(self, *, per_list: bool = False) -> None:
        super().__init__()
        check_choice("per_list", per_list, (False, True))
        self.per_list = per_list

    @property
    @override
    def sources(self) -> Int[Tensor, " g"]:
        return super().sources[self.kept.cpu()]

    def _learn(self, blocks: Blocks) -> dict[str, Tensor]:
        varies = varies_in_lists(blocks) if self.per_list else Moments.of(blocks).informs
        if not varies.any():
            where = "within every list" if self.per_list else "in the training data"
            raise ValueError(
                f"drop_constant: all {blocks.width} features are constant {where}, so there is "
                "nothing to learn from"
            )
        return {"kept": varies.nonzero().flatten()}

    def _map(self, values: Tensor) -> Tensor:
        return values.index_select(-1, self.kept)


@transforms.register("impute")
class Impute(Transform):
    """Replaces missing values, and adds columns that indicate where values were missing.

    The indicators, 0 or 1, come after the features, one for each feature with missing values in the
    training data, as in scikit-learn's ``SimpleImputer(add_indicator=True)``.

    A missing value is predicted by a linear regression on the item's other features::

        x_j = mean_j + Σ_k W_kj z_k,    z_k = x_k - mean_k, and 0 where x_k is missing

    The weights W have the least squared error if values are missing independently of each other.
    They follow from the covariances of pairs of features, over the items that have both. If the
    training data have no missing values, a missing value becomes the median of its feature.

    Args:
        fill: ``"linear"`` as above, ``"median"`` (the lower one) or ``"mean"`` of the feature in
            training data, or a number.
        indicator: whether to add the indicators.
        sample: medians and covariances are computed from at most this many items, drawn without
            replacement.
        seed: of the draw.

    >>> features = np.array([[1.0, 5.0], [3.0, np.nan], [4.0, 6.0]])
    >>> new = torch.tensor([[np.nan, np.nan], [0.0, 7.0]])
    >>> Impute(fill="median").fit(features).transform(new).tolist()
    [[3.0, 5.0, 1.0], [0.0, 7.0, 0.0]]
    """

    learned = ("values", "weights", "indicated")

    values: Tensor  # [F]: the means (mean_j) with linear regression, else what is filled in
    weights: Tensor  # [F, F]: W; empty without linear regression
    indicated: Tensor  # indices of the features with an indicator

    def __init__(
        self,
        *,
        fill: Literal["linear", "median", "mean"] | float = "linear",
        indicator: bool = True,
        sample: int = 50_000,
        seed: int = 0,
    ) -> None:
        super().__init__()
        is_number = isinstance(fill, int | float | np.number) and not isinstance(fill, bool)
        words = ("linear", "median", "mean")
        if not (math.isfinite(float(fill)) if is_number else fill in words):
            raise ValueError(
                f"fill must be 'linear', 'median', 'mean' or a finite number, found {quote(fill)}"
            )
        check_choice("indicator", indicator, (False, True))
        self.fill, self.indicator = fill, indicator
        self.sample = check_whole("sample", sample)
        self.seed = check_whole("seed", seed, least=0, most=math.inf)

    @property
    def sources(self) -> Int[Tensor, " g"]:
        """The raw feature that each column, or indicator, belongs to, counting from 0."""
        return torch.cat([super().sources, self.indicated.cpu()])

    def _learn(self, blocks: Blocks) -> dict[str, Tensor]:
        moments, weights = Moments.of(blocks), torch.empty(0)
        if self.fill == "mean" or (self.fill == "linear" and moments.missing.any()):
            values = moments.mean
        elif isinstance(self.fill, str):
            values = sample_rows(blocks, self.sample, self.seed).nanmedian(0).values.nan_to_num()
        else:
            values = torch.full((blocks.width,), float(self.fill))
        if self.fill == "linear" and moments.missing.any():
            weights = imputation_weights(sample_rows(blocks, self.sample, self.seed), moments)
        indicated = (moments.missing > 0) & (moments.count > 0) & self.indicator
        return {"values": values, "weights": weights, "indicated": indicated.nonzero().flatten()}

    def _map(self, values: Tensor) -> Tensor:
        missing, constants = values.isnan(), self.values.to(values.dtype)
        filled = torch.where(missing, constants, values)
        if self.weights.numel():
            # In float64, then rounded: a matrix product may round equal rows differently, and
            # copies of an item must stay tied.
            centered = filled.double() - constants.double()
            predicted = constants + centered @ self.weights.double()
            filled = torch.where(missing, predicted.to(values.dtype), values)
        if not len(self.indicated):
            return filled
        indicators = missing.index_select(-1, self.indicated).to(values.dtype)
        return torch.cat([filled, indicators], -1)


@transforms.register("pipeline")
class Pipeline(Transform):
    """Several transforms in a row, each fitted on the output of the ones before it.

    Args:
        steps: transforms or their specs; without any, features stay as they are.

    >>> pipeline = Pipeline(["drop_constant", "log1p", "clip(limit=10)"])
    >>> print(pipeline)
    pipeline(steps=[drop_constant, log1p, clip(limit=10)])
    >>> _ = pipeline.fit(np.array([[1.0, 7.0], [1.0, 8.0]]))
    >>> pipeline.n_features, pipeline.n_outputs
    (2, 1)
    >>> again = transforms.get(str(pipeline))
    >>> again.load_state_dict(pipeline.state_dict())
    <All keys matched successfully>
    """

    def __init__(self, steps: Sequence[str | Spec | Transform] = ()) -> None:
        super().__init__()
        if isinstance(steps, str) or not isinstance(steps, Sequence):
            raise ValueError(f"steps must be a list of transforms, found {steps!r}")
        self._steps = [transforms.get(step) for step in steps]
        self.steps = nn.ModuleList(self._steps)  # so that the state_dict has their buffers

    @classmethod
    def for_network(cls, steps: Sequence[str | Spec | Transform]) -> Pipeline:
        """The pipeline in front of a network: ``impute`` is added unless it is among the steps.

        (Trees can handle missing values.)

        Args:
            steps: transforms or their specs.

        Returns:
            The pipeline, not fitted yet.

        >>> print(Pipeline.for_network(["log1p"]))
        pipeline(steps=[log1p, impute])
        """
        chosen = [transforms.get(step) for step in steps]
        imputes = any(isinstance(step, Impute) for step in chosen)
        return cls(chosen if imputes else [*chosen, Impute()])

    @property
    def sources(self) -> Int[Tensor, " g"]:
        """The raw feature that each feature after all steps is made of.

        >>> pipeline = Pipeline(["log1p", "drop_constant"]).fit(np.array([[1.0, 7.0], [1.0, 8.0]]))
        >>> pipeline.sources
        tensor([1])
        """
        sources = torch.arange(self.n_features)
        for step in self._steps:
            sources = sources[step.sources]
        return sources

    def __str__(self) -> str:
        return str(Spec(self.name, None, {"steps": self._steps} if self._steps else {}))

    def _learn(self, blocks: Blocks) -> dict[str, Tensor]:
        for step in self._steps:
            step.fit_blocks(blocks)
            blocks = blocks.then(step)
        return {}

    def _map(self, values: Tensor) -> Tensor:
        for step in self._steps:
            values = step(values)
        return values


class SplitColumns(Transform):
    """Passes columns of numbers through a pipeline; codes of categories come after them.

    Codes are raised by 1, as 0 is the code of missing values. The network has an embedding with a
    row for each code.

    Args:
        numbers: the pipeline for the columns of numbers.
        sizes: ``[F]``, the number of categories of each raw feature, 0 for a number.

    >>> split = SplitColumns(Pipeline(["standardize"]), [0, 3])
    >>> _ = split.fit(np.array([[1.0, 2.0], [3.0, 0.0]]))
    >>> split.transform(torch.tensor([[2.0, 1.0], [3.0, np.nan]])).tolist()
    [[0.0, 2.0], [1.0, 0.0]]
    """

    name = "split_columns"

    def __init__(self, numbers: Pipeline, sizes: Sequence[int]) -> None:
        super().__init__()
        self.numbers, self.sizes = numbers, tuple(sizes)
        self._number_columns = [j for j, size in enumerate(sizes) if not size]
        self._category_columns = [j for j, size in enumerate(sizes) if size]
        if not self._number_columns:
            raise ValueError("all features are categories: give at least one number beside them")

    @property
    def category_sizes(self) -> list[int]:
        """The number of categories of each categorical column."""
        return [size for size in self.sizes if size]

    @property
    def sources(self) -> Int[Tensor, " g"]:
        """The raw feature that each column is made of, counting from 0."""
        numbers = torch.tensor(self._number_columns)[self.numbers.sources]
        return torch.cat([numbers, torch.tensor(self._category_columns)])

    def __str__(self) -> str:
        return f"{self.numbers} beside {len(self._category_columns)} categorical features"

    def _learn(self, blocks: Blocks) -> dict[str, Tensor]:
        self.numbers.fit_blocks(replace(blocks, columns=self._number_columns))
        return {}

    def _map(self, values: Tensor) -> Tensor:
        device = values.device
        numbers = values.index_select(-1, torch.tensor(self._number_columns, device=device))
        codes = values.index_select(-1, torch.tensor(self._category_columns, device=device))
        codes = torch.where(codes.isnan(), 0.0, codes + 1)
        return torch.cat([self.numbers(numbers), codes.to(values.dtype)], -1)


def _can_use_kernel(values: Tensor) -> bool:
    """Whether ``_quantile_kernel.py`` can search for these values; PyTorch does it for others."""
    is_traced = torch.compiler.is_compiling() or torch.compiler.is_exporting()
    is_cpu_float32 = values.device.type == "cpu" and values.dtype == torch.float32
    is_plain = type(values) is Tensor and not values.requires_grad
    return is_cpu_float32 and is_plain and not is_traced


def _interpolated_levels(
    columns: Float[Tensor, "f m"], table: Float[Tensor, "f q"]
) -> Float[Tensor, "f m"]:
    """The level, from 0 to 1, of each value among the quantiles of its feature.

    ``columns`` has the m values of each of f features, ``table`` their q quantiles, ascending.
    Levels equal those of :func:`~rankgrad.data._quantile_kernel.quantile_levels` to the last bit.
    """
    last = table.shape[-1] - 1
    wide = torch.maximum(table[:, :1].abs(), table[:, last:].abs()) > WIDE
    scale = torch.where(wide, 0.5, 1.0).to(table.dtype)  # so that differences do not overflow
    # How many quantiles are below each value, and how many are not above it.
    left: Int[Tensor, "f m"] = torch.searchsorted(table, columns)
    right: Int[Tensor, "f m"] = torch.searchsorted(table, columns, right=True)
    below = table.gather(-1, (left - 1).clamp(min=0)) * scale
    step = table.gather(-1, left.clamp(max=last)) * scale - below
    # Levels are positions in the table, divided by the last one. A value that equals quantiles has
    # the middle of their positions; any other value is interpolated between its two neighbors.
    between = (left - 1).clamp(min=0) + torch.where(
        step > 0, (columns * scale - below) / torch.where(step > 0, step, 1.0), 0.0
    )
    return torch.where(right > left, (left + right - 1) / 2, between) / last


get = transforms.get
names = transforms.names


__getattr__ = renamed_attributes(__name__, {"Standardise": "Standardize"})
