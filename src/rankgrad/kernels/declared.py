"""A class declares its kernel itself, and loses it where a subclass computes something else."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

# What names a class or describes it, and takes no part in what it computes.
_DESCRIPTIVE = frozenset({"is_stationary", "limit", "name", "spec"})


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

    kernel_declarations: ClassVar[frozenset[str]] = frozenset({"kernel"})
    kernel_applies: ClassVar[bool] = False

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        cls.kernel_applies = _applies(cls)


def _applies(cls: type[DeclaresKernel]) -> bool:
    for base in cls.__mro__:
        if cls.kernel_declarations & vars(base).keys():
            return not any(_overrides(cls, base, name) for name in dir(base))
    return False


def _overrides(cls: type, base: type, name: str) -> bool:
    """Whether a class has another attribute of this name than the base that declares the kernel.

    What counts is the attribute that Python finds, so a mixin that comes after the base in the
    order of inheritance, and before the class that the base has it from, counts too.
    """
    if name.startswith("__") or name in _DESCRIPTIVE or name in vars(DeclaresKernel):
        return False
    found = inspect.getattr_static(cls, name)
    if name in getattr(base, "__dataclass_fields__", {}) and not hasattr(found, "__get__"):
        return False  # the value of a field is read from the object: another default is no override
    return found is not inspect.getattr_static(base, name)
