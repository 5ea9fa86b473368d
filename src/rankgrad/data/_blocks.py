"""Features in blocks of rows, and the statistics of their columns that transforms learn.

``transforms.py`` fits on :class:`Blocks`, so that memory maps larger than memory can be fitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rankgrad._shapes import Array, Bool, Float, Int

if TYPE_CHECKING:
    from rankgrad.data.transforms import Transform

#: The most values of a block, to bound memory; a block has at least one row, however wide.
_MAX_BLOCK_VALUES = 1 << 22
#: Of the regression that imputes, on features of variance 1.
_RIDGE_PENALTY = 1e-3


def block_height(columns: int) -> int:
    """The number of rows in a block of this many columns."""
    return max(1, _MAX_BLOCK_VALUES // max(1, columns))


@dataclass(frozen=True)
class Blocks:
    """The rows of an array in blocks, each transformed when it is read, to fit one more transform.

    Attributes:
        features: ``[N, F]`` raw features, an array or a memory map.
        offsets: ``[B + 1]``; list b is the rows ``offsets[b]:offsets[b + 1]``.
        transforms: fitted already; applied to each block, in this order.
        columns: the raw features that are read; None for all.
    """

    features: Array
    offsets: Array | None = None
    transforms: tuple[Transform, ...] = ()
    columns: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.features)

    def __iter__(self) -> Iterator[Float[Tensor, "m f"]]:
        height = block_height(self.features.shape[1])
        for start in range(0, len(self), height):
            yield self.rows(slice(start, start + height))

    def then(self, transform: Transform) -> Blocks:
        """The rows after one more transform.

        If they are a single block, it is applied now instead of each time they are read.
        """
        after = replace(self, transforms=(*self.transforms, transform))
        if self.features.size > _MAX_BLOCK_VALUES:
            return after
        return Blocks(after.rows(slice(None)).numpy(), self.offsets)

    def rows(self, index: slice | Array) -> Float[Tensor, "m f"]:
        """Some rows, transformed."""
        raw = self.features[index]
        raw = raw if self.columns is None else raw[:, self.columns]
        values = torch.from_numpy(np.array(raw, _numpy_float(self.features)))
        for transform in self.transforms:
            values = transform(values)
        return values

    @property
    def width(self) -> int:
        """The number of columns after the transforms."""
        if self.transforms:
            return self.transforms[-1].n_outputs
        return self.features.shape[1] if self.columns is None else len(self.columns)

    @property
    def dtype(self) -> torch.dtype:
        """float64 for float64 features, float32 for all others."""
        return torch.float64 if _numpy_float(self.features) is np.float64 else torch.float32


@dataclass
class Moments:
    """Mean, standard deviation and range of each column, in float64, without missing values.

    These four numbers are 0 for a column without values.
    """

    mean: Float[Tensor, " f"]
    deviation: Float[Tensor, " f"]  # divides by count, not by count - 1
    low: Float[Tensor, " f"]
    high: Float[Tensor, " f"]
    missing: Int[Tensor, " f"]  # how many values are missing (NaN)
    count: Int[Tensor, " f"]  # how many are not

    @classmethod
    def of(cls, blocks: Blocks) -> Moments:
        """Compute them in one pass, with the stable update of Chan, Golub and LeVeque (1979)."""
        # squares: sums of squared deviations. Shapes [1] become [f] by broadcasting with the first
        # block.
        count = missing = torch.zeros(blocks.width, dtype=torch.int64)
        mean, squares = torch.zeros(1).double(), torch.zeros(1).double()
        low, high = mean + float("inf"), mean - float("inf")
        for block in blocks:
            values = block.double()
            is_missing = values.isnan()
            n_present = len(values) - is_missing.sum(0)
            total = count + n_present
            divisor = total.clamp(min=1).double()  # a quotient of integers would be float32
            if is_missing.any():
                block_mean = values.nansum(0) / n_present.clamp(min=1)
                # A missing value counts as the mean, which adds nothing to the squares.
                values = torch.where(is_missing, block_mean, values)
                low = low.minimum(values.where(~is_missing, float("inf")).amin(0))
                high = high.maximum(values.where(~is_missing, float("-inf")).amax(0))
            else:
                block_mean = values.mean(0)
                low, high = low.minimum(values.amin(0)), high.maximum(values.amax(0))
            delta = block_mean - mean
            squares = squares + (values - block_mean).square().sum(0)
            squares = squares + delta.square() * (count * n_present / divisor)
            mean = mean + delta * (n_present / divisor)
            count, missing = total, missing + is_missing.sum(0)
        empty = count == 0
        low, high = low.where(~empty, 0.0), high.where(~empty, 0.0)
        deviation = (squares / count.clamp(min=1)).sqrt()
        # The mean of a constant column must be its value, in spite of rounding.
        return cls(mean.clamp(low, high), deviation, low, high, missing, count)

    @property
    def varies(self) -> Bool[Tensor, " f"]:
        """Whether a column has more than one value."""
        return self.high > self.low

    @property
    def informs(self) -> Bool[Tensor, " f"]:
        """Whether items differ in a column: in its values, or in whether they are missing."""
        return self.varies | ((self.missing > 0) & (self.count > 0))


def varies_in_lists(blocks: Blocks) -> Bool[Tensor, " f"]:
    """Whether each column varies within some list: whether two neighboring rows of the list differ.

    A missing value differs from all others, but not from another missing one.
    """
    if blocks.offsets is None:
        raise ValueError("drop_constant(per_list=true) needs offsets: fit(features, offsets)")
    starts = np.zeros(len(blocks) + 1, bool)
    starts[blocks.offsets] = True
    varies = torch.zeros(blocks.width, dtype=torch.bool)
    previous, end = None, 0  # the last row before the block; the index of the row after it
    for block in blocks:
        rows = block if previous is None else torch.cat([previous, block])
        missing = rows.isnan()
        differs = (rows[1:] != rows[:-1]) & ~(missing[1:] & missing[:-1])
        end += len(block)
        # The last entry of differs compares row end - 1 with the row before it.
        same_list = torch.from_numpy(~starts[end - len(differs) : end])
        varies |= (differs & same_list[:, None]).any(0)
        previous = block[-1:]
    return varies


def imputation_weights(values: Float[Tensor, "m f"], moments: Moments) -> Float[Tensor, "f f"]:
    """The regression weights W of :class:`~rankgrad.data.transforms.Impute`.

    Column j has the weights that predict feature j; the weight of feature j itself is 0. Let p_k be
    the fraction of items that have feature k, S the covariances, and z_k the feature minus its
    mean, or 0 where it is missing. If values are missing independently, ``E[z_k²] = p_k S_kk``,
    ``E[z_k z_l] = p_k p_l S_kl`` for k ≠ l, and ``E[x_j z_k] = p_k S_kj`` for centered x_j. The
    normal equations for feature j are these without row and column j. One inverse of the full
    matrix solves the equations of all features. They are solved for features of variance 1.

    Args:
        values: the features of some items, with NaN where they are missing.
        moments: of all items.
    """
    present = ~values.isnan()
    scale = torch.where(moments.varies, moments.deviation, 1.0)
    z = torch.where(present, (values.double() - moments.mean) / scale, 0.0)
    indicator = present.double()
    fraction = indicator.mean(0)
    covariance = z.T @ z / (indicator.T @ indicator).clamp(min=1)
    normal = covariance * fraction * fraction[:, None]
    normal.diagonal().copy_(fraction * covariance.diagonal() + _RIDGE_PENALTY)
    inverse = torch.linalg.inv(normal)
    target = covariance * fraction[:, None]
    target.fill_diagonal_(0.0)
    weights = inverse @ target
    # Leave out row and column j: subtract the multiple of column j of the inverse that makes the
    # weight of feature j itself 0.
    weights = weights - inverse * (weights.diagonal() / inverse.diagonal())
    weights.fill_diagonal_(0.0)
    rescaled: Tensor = weights * scale / scale[:, None]
    # Only the weight of a nearly constant feature can be too large for the features' dtype.
    return rescaled.where(rescaled.abs() <= torch.finfo(values.dtype).max, 0.0)


def sample_rows(blocks: Blocks, size: int, seed: int) -> Float[Tensor, "m f"]:
    """``size`` rows, drawn without replacement, in their order; all rows if there are fewer."""
    if len(blocks) <= size:
        return blocks.rows(slice(None))
    drawn = np.random.default_rng(seed).choice(len(blocks), size, replace=False)
    return blocks.rows(np.sort(drawn))


def quantiles_of(values: Array, levels: Array) -> Array:
    """The quantiles, at levels from 0 to 1, of the values that are not NaN; zeros if all are NaN.

    Equal to ``numpy.quantile`` to the last bit, and several times as fast for many levels.

    Args:
        values: ``[n]``.
        levels: ``[q]``.

    Returns:
        ``[q]``, float64.
    """
    ordered = np.sort(values).astype(np.float64)  # NaN is last
    count = len(ordered) - int(np.isnan(ordered).sum())
    if count == 0:
        return np.zeros(len(levels))
    positions = (count - 1) * levels
    low = np.floor(positions).astype(np.int64)
    below, above, weight = ordered[low], ordered[np.minimum(low + 1, count - 1)], positions - low
    step = above - below
    # numpy.quantile, too, interpolates from the nearer of the two values.
    quantiles: Array = np.where(weight >= 0.5, above - step * (1 - weight), below + step * weight)
    return quantiles


def check_not_infinite(values: Tensor, first: int = 0) -> None:
    """Raise an error if a value is infinite.

    Args:
        values: ``[..., f]``.
        first: the index of row 0 of ``values`` in the whole array, for the message.
    """
    infinite = values.isinf()
    if not bool(infinite.any()):
        return
    index = infinite.nonzero()[0].tolist()
    value = values[tuple(index)].item()
    cell = ", ".join(map(str, [index[0] + first, *index[1:]]))
    raise ValueError(
        f"feature index {index[-1]} (counting from 0) is infinite: features[{cell}] = {value}. "
        "Give a finite value, or NaN for a missing one"
    )


def _numpy_float(features: Array) -> type[np.floating[Any]]:
    return np.float64 if features.dtype == np.float64 else np.float32
