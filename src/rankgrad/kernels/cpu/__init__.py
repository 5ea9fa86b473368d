"""Twins of the hot paths for CPUs, compiled by Numba."""
