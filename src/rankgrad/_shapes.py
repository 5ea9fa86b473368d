"""Shape annotations of jaxtyping, such as ``Float[Tensor, "*b n"]``.

The letters name dimensions: b lists, n items, k ranks, c channels and f features; ``*b`` is any
number of dimensions.

Annotations are strings at run time and nothing reads them, so jaxtyping need not be installed, and
is not imported for them. The tests import it first; then every annotation is checked.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

__all__ = ["Array", "Bool", "Float", "Int", "Real"]
__all__ += ["Channels", "ItemMask", "ItemValues", "ListMask", "ListValues", "RankValues"]
__all__ += ["Features", "Labels", "Mask", "Scores"]

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Int, Real
    from torch import Tensor
else:

    class _Unchecked:
        """Stands in for jaxtyping's annotations: any subscript means Any."""

        def __class_getitem__(cls, item: Any) -> Any:
            return Any

    Bool = Float = Int = Real = Tensor = _Unchecked

#: A NumPy array of any shape and type.
Array: TypeAlias = NDArray[Any]

#: ``[lists, items]``: a number for each item of padded lists.
ItemValues: TypeAlias = Float[Tensor, "b n"]
#: ``[lists, items]``: which items are real, or have a property.
ItemMask: TypeAlias = Bool[Tensor, "b n"]
#: ``[lists]``: a number for each list.
ListValues: TypeAlias = Float[Tensor, " b"]
#: ``[lists]``: which lists have a property, such as that a loss is defined on them.
ListMask: TypeAlias = Bool[Tensor, " b"]
#: ``[lists, channels, items]``: several numbers for each item, such as its gain and its weight.
Channels: TypeAlias = Float[Tensor, "b c n"]
#: ``[lists, channels, ranks]``: the same numbers in the order of a relaxed sort.
RankValues: TypeAlias = Float[Tensor, "b c k"]

#: ``[..., items, features]``, with any dimensions before those of a list.
Features: TypeAlias = Float[Tensor, "*b n f"]
#: ``[..., items]``: the scores of lists.
Scores: TypeAlias = Float[Tensor, "*b n"]
#: ``[..., items]``: the labels of lists, padded or flat.
Labels: TypeAlias = Float[Tensor, "*b n"]
#: ``[..., items]``: which items are real.
Mask: TypeAlias = Bool[Tensor, "*b n"]
