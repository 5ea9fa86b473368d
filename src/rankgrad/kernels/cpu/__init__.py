"""CPU kernels of the hot paths, compiled by Numba."""
