"""Runs that are killed, as a program: python killed.py FOLDER. The test beside it starts it.

Libraries are imported once, and every run is a child of this process.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from learnable import lists

from rankgrad.training import Settings, _processes, fit

SETTINGS = Settings(
    loss="gumbel_neural_ndcg@5(seed=3)",  # numbers of its own
    model="mlp(hidden=[8], dropout=0.5, batch_norm=true)",
    average=0.9,
    epochs=3,
    batch_size=8,
    list_size=6,
    learning_rate=0.01,
    metrics=(),
    device="cpu",
)


def child(folder, strike=None):
    """Train, from the start or going on; with ``strike``, die at that write to the disk."""
    pid = os.fork()
    if pid:
        return pid
    if strike is not None:
        count = 0

        def dying(call):
            def called(*arguments, **options):
                nonlocal count
                count += 1
                if count == strike:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            return called

        for name in ("fsync", "rename", "replace"):
            setattr(os, name, dying(getattr(os, name)))
    fit(SETTINGS, lists(30, 0), lists(10, 1), folder=folder, resume=(folder / "run.json").exists())
    os._exit(0)


def result(folder):
    """What must be the same to the last bit, times left out."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    names = ("best/model.safetensors", "last/model.safetensors", "last/optimizer.safetensors")
    contents = [(folder / name).read_bytes() for name in names]
    return [{**line, "seconds": 0} for line in lines], contents


def main():
    place = Path(sys.argv[1])
    torch.set_num_threads(1)
    _processes.connect(SETTINGS)
    fit(SETTINGS, lists(30, 0), lists(10, 1))  # so that children need not load what is compiled
    began = time.monotonic()
    assert os.waitpid(child(place / "whole"), 0)[1] == 0
    lasted = time.monotonic() - began
    expected = result(place / "whole")
    dice = random.Random(int(sys.argv[2]))
    kills = 0
    for trial in range(2):  # at any moment
        folder, ended = place / f"moment{trial}", None
        while ended != 0:
            pid = child(folder)
            time.sleep(dice.uniform(0.1, 1.1) * lasted)
            os.kill(pid, signal.SIGKILL)
            ended = os.waitpid(pid, 0)[1]
            kills += ended != 0
        assert result(folder) == expected, f"killed at a moment, trial {trial}"
    for trial in range(6):  # at a write to the disk, where damage is done
        folder, strike = place / f"write{trial}", dice.randrange(6, 80)
        kills += os.waitpid(child(folder, strike), 0)[1] != 0
        assert os.waitpid(child(folder), 0)[1] == 0
        assert result(folder) == expected, f"killed at write {strike}"
        assert not list(folder.glob(".*")), f"left behind after write {strike}"
    print(kills)


if __name__ == "__main__":
    main()
