"""Compiled loops for what array operations cannot express well."""

from rankgrad.kernels.isotonic import pool_adjacent

__all__ = ["pool_adjacent"]
