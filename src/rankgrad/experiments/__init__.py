"""Experiments: several rankers trained on the same data, and compared.

``plans`` says what is trained, ``compare`` runs a plan, ``tuning`` searches for hyperparameters,
and ``demo`` is the experiment of ``make demo``. Behind ``compare`` stand ``_runner`` (which run is
made next), ``_workers`` (the processes) and ``_jobs`` (what a process does). Besides networks, a
plan may hold ``_tree_entries`` and ``_grid_search`` entries. ``_cross_validation`` trains text
rankers, and ``_text_comparison`` compares them.
"""

from rankgrad.extras import lazy_modules

__all__ = ["compare", "demo", "plans", "tuning"]

__getattr__ = lazy_modules(__name__, __all__)
