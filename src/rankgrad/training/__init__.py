"""Training: data, a model and a loss in, a fitted ranker out.

>>> from rankgrad import training
>>> training.Settings(loss="lambdarank").loss
'lambdarank'
"""

from rankgrad.training.fitted import FittedRanker
from rankgrad.training.fitting import fit
from rankgrad.training.job import Fit
from rankgrad.training.run import RunFolder
from rankgrad.training.settings import Settings

__all__ = ["Fit", "FittedRanker", "RunFolder", "Settings", "fit"]
