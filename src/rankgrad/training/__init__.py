"""Training: data, a model and a loss in, a fitted ranker out.

>>> from rankgrad import training
>>> training.Settings(loss="lambdarank").loss
'lambdarank'
"""

from rankgrad.extras import requires

with requires("train"):
    from rankgrad.training.fitted import FitResult, FittedRanker
    from rankgrad.training.fitting import fit
    from rankgrad.training.run import RunFolder
    from rankgrad.training.settings import Settings

__all__ = ["FitResult", "FittedRanker", "RunFolder", "Settings", "fit"]
