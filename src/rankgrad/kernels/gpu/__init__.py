"""GPU kernels of the hot paths, in Triton."""
