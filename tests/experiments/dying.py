"""A entry whose worker is killed, or raises what nobody expects."""

import os
import signal
from dataclasses import dataclass

from rankgrad.experiments.compare import NetworkEntry


@dataclass(frozen=True)
class Dying(NetworkEntry):
    def score(self, task, data, on_progress):
        if task.fold == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        raise KeyError("lost")
