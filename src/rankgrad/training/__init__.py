"""Training: data, a model and a loss in, a fitted ranker out.

>>> from rankgrad import training
>>> training.Settings(loss="lambdarank").loss
'lambdarank'
"""

from rankgrad.training.fitted import FittedRanker
from rankgrad.training.run import RunFolder
from rankgrad.training.settings import Settings
from rankgrad.training.trainer import Fit, fit

__all__ = ["Fit", "FittedRanker", "RunFolder", "Settings", "fit"]
