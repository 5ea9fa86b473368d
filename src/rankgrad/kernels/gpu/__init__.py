"""Twins of the hot paths for GPUs, in Triton."""
