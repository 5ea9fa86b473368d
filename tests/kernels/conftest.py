"""Kernels: Triton runs interpreted where there is no GPU."""

import importlib.util
import os

# Programs that tests run in processes of their own: not looked through for examples.
collect_ignore = ["compile_for_gpu.py", "compile_whole.py"]
if importlib.util.find_spec("numba") is None:
    collect_ignore_glob = ["test_cpu_*.py"]


def _let_ranges_end_at_tensors():
    """Triton 3.6 makes an index of an array of one number, which NumPy 2.4 no longer does."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_index(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_index


if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
    _let_ranges_end_at_tensors()
