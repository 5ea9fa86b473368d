"""Results: run folders in; means, intervals, tests and tables out.

Everything that shows results takes them from here: the terminal, Markdown, LaTeX, CSV, the report
and the papers' tables. No other package computes statistics of runs.
"""

from rankgrad.extras import lazy_modules

__all__ = ["comparison", "runs", "statistics", "tables"]

__getattr__ = lazy_modules(__name__, __all__)
