"""A class declares its kernel; a subclass that computes something else does not inherit it.

The base classes of losses, metrics and relaxations derive from :class:`DeclaresKernel`.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

__all__ = ["DeclaresKernel", "declaration_applies"]

# Attributes that name or describe a class and do not change what it computes.
_DESCRIPTIVE = frozenset(
    {"capturable", "is_stationary", "limit", "name", "newton_kernel_applies", "spec"}
)


class DeclaresKernel:
    """Base of losses, metrics and relaxations, whose classes may declare a kernel.

    A class declares a kernel by defining an attribute named in ``kernel_declarations``. The kernel
    computes what that class computes. A subclass that overrides one of its methods and declares no
    kernel falls back to the eager form.

    Attributes:
        kernel_declarations: names of the attributes that declare a kernel.
        kernel_applies: whether the declared kernel computes what this class computes.

    >>> class Doubled(metrics.NDCG):
    ...     def gains(self, labels):
    ...         return 2 * super().gains(labels)
    >>> metrics.NDCG.kernel_applies, Doubled.kernel_applies
    (True, False)
    """

    kernel_declarations: ClassVar[frozenset[str]] = frozenset({"kernel"})
    kernel_applies: ClassVar[bool] = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.kernel_applies = declaration_applies(cls, cls.kernel_declarations)


def declaration_applies(cls: type, declarations: frozenset[str]) -> bool:
    """Whether a class overrides nothing of the nearest base with one of these declarations.

    If so, it computes what that base computes.

    Args:
        cls: the class, which may be that base itself.
        declarations: names of the attributes that declare a kernel.
    """
    for base in cls.__mro__:
        if declarations & vars(base).keys():
            return not any(_overrides(cls, base, name) for name in dir(base))
    return False


def _overrides(cls: type, base: type, name: str) -> bool:
    """Whether a class overrides an attribute of the base that declares the kernel.

    Each class looks the attribute up in its own method resolution order. So a mixin overrides it
    too, if it comes after the base and before the class from which the base inherits the attribute.
    """
    if name.startswith("__") or name in _DESCRIPTIVE or name in vars(DeclaresKernel):
        return False
    attribute = inspect.getattr_static(cls, name)
    if name in getattr(base, "__dataclass_fields__", {}) and not hasattr(attribute, "__get__"):
        return False  # kernels read a field from the object, so a new default is no override
    return attribute is not inspect.getattr_static(base, name)
