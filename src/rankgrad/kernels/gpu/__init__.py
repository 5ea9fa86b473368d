"""GPU kernels of the hot paths, in Triton.

:mod:`rankgrad.kernels._backends` lists the operations and the function of this package that
computes each. Such a function allocates memory and launches kernels, without waiting for them.

Most kernels have these conventions:

- Lists are in the flat layout: list ``b`` is ``scores[offsets[b]:offsets[b + 1]]``. Arrays of shape
  ``[items]`` have one number per item of all lists; arrays of shape ``[lists]`` one per list.
- Axis 0 of the grid is the list, and axis 1, where there is one, a block of its items or ranks.
- A tensor that is None, such as the mask, is a compile-time constant: Triton compiles one kernel
  with it and one without it.
- Arguments in capitals are compile-time constants; those that choose a formula are strings.
- ``k`` is the cutoff, 0 for none.
- ``2^x`` is faster than ``e^x`` on GPUs. So exponents are multiplied by 1.4426950408889634, which
  is log2(e), and logarithms to base 2 by 0.6931471805599453, which is log(2).

Names that mean the same in all kernels:

- ``list_index``, ``start`` (or ``begin``): the list of the program, and the index of its first item
  in flat arrays.
- ``row``, ``column``: positions in a list, of the items that a program computes and of those that
  it compares them with in a tile of pairs.
- ``at``: an array of positions in a list, or of indices in flat arrays. ``first`` is the first one.
- ``ranked``: scores, or whole arrays of items, in descending order of scores.
- ``inside``: which positions are in the list; ``real``: which of them are no padding. ``valid`` is
  the same for columns.
- ``scale``: one over the norm of a metric, 0 where the metric is undefined.
- ``defined``: whether the loss of a list is defined; lists without are left out of the mean.
"""
