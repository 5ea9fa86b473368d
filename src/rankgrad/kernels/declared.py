"""A class declares its kernel itself, and loses it where a subclass computes something else."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

# What names a class or describes it, and takes no part in what it computes.
_DESCRIPTIVE = frozenset({"limit", "name", "spec", "steady"})


class Fused(NamedTuple):
    """A call of a fused operation: its name in :mod:`rankgrad.kernels.ops`, and its options."""

    name: str
    options: tuple[Any, ...]


class DeclaresKernel:
    """Base of losses, metrics and relaxations, whose classes may declare a kernel.

    A class declares one by defining an attribute named in ``kernel_declarations``. The kernel
    computes what that very class computes, so a subclass that overrides one of its methods and
    declares none falls back to the eager form.

    Attributes:
        kernel_declarations: the attributes that declare a kernel.
        kernel_applies: whether the declared kernel computes what this class computes.

    >>> class Doubled(metrics.NDCG):
    ...     def gains(self, labels):
    ...         return 2 * super().gains(labels)
    >>> metrics.NDCG.kernel_applies, Doubled.kernel_applies
    (True, False)
    """

    kernel_declarations: ClassVar[frozenset[str]] = frozenset({"fused"})
    kernel_applies: ClassVar[bool] = False

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        cls.kernel_applies = _applies(cls)


def _applies(cls: type[DeclaresKernel]) -> bool:
    for depth, base in enumerate(cls.__mro__):
        if cls.kernel_declarations & vars(base).keys():
            return not any(_overrides(derived, base) for derived in cls.__mro__[:depth])
    return False


def _overrides(derived: type, base: type) -> bool:
    """Whether a class replaces something that its base computes with."""
    # The value of a field is read from the object, so another default changes nothing here.
    fields = {
        name
        for name in getattr(base, "__dataclass_fields__", {})
        if not hasattr(vars(derived).get(name), "__get__")
    }
    return any(
        hasattr(base, name) and name not in _DESCRIPTIVE and name not in fields
        for name in vars(derived)
        if not name.startswith("__") and name not in vars(DeclaresKernel)
    )
