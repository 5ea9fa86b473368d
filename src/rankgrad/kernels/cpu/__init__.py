"""CPU kernels of the hot paths, compiled by Numba.

:mod:`rankgrad.kernels._backends` lists the operations and imports their functions from here. A
kernel of a loss takes :class:`~rankgrad.kernels.cpu._flat_arrays.FlatArrays` and writes the value
of each list and its derivatives to them. Where to start reading:

- ``_compiled``: how functions are compiled and run in threads; ``_flat_arrays``: a batch as arrays;
  ``_list_sort``: sorts of a list; ``_metric_terms``: gains, discounts and norms; ``_arithmetic``:
  exponentials, logarithms and sums that vectorize.
- ``_pointwise``, ``_pairs``, ``_cross_entropy``, ``_listmle``, ``_listap``: losses of one formula.
  ``_pairs`` also has the gradients and Hessians that boosted trees take.
- ``_relaxed``: any metric through any relaxation. Its two halves are ``_metric_steps`` (metrics)
  and the relaxations ``_permutation_rows``, ``_sinkhorn``, ``_ot``, ``_smoothi``, ``_ranks``,
  ``_lapsum`` and ``_fastsort``. ``_scaling`` and ``_panels`` are Sinkhorn's inner loops.
- ``_metrics``: exact metrics.
"""
