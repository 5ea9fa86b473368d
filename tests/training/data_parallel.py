"""Training in several processes, as a program that a test starts: torchrun data_parallel.py OUT."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from learnable import lists

from rankgrad.training import Settings, fit, trainer

# Not Adam, which would blow up the rounding of gradients that are zero, such as the last bias's.
SHARED = {
    "epochs": 2,
    "batch_size": 7,
    "optimizer": "sgd(momentum=0.5)",
    "learning_rate": 0.1,
    "device": "cpu",
}
VARIANTS = {
    "batch norm": {"model": "mlp(hidden=[8], batch_norm=true)", "clip": 0.5},
    "lists left out": {"model": "mlp(hidden=[8])", "loss": "lambdarank", "accumulate": 2},
    "attention": {"model": "context_aware(fc=[8], ff=8, blocks=1, dropout=0.0)"},
    "fewer lists than processes": {
        "model": "context_aware(fc=[8], ff=8, blocks=1, dropout=0.0)",
        "batching": "query",
        "epochs": 1,
    },
    "members, averaged": {"model": "tabm(hidden=[8], members=3)", "average": 0.8},
    "by documents": {"model": "mlp(hidden=[8])", "batching": "documents", "documents": 60},
}


def data():
    train = lists(23, 0, weights=True)
    train.labels[: train.offsets[6]] = 0  # nothing to learn from these
    return train, lists(11, 1)


def trained(name, folder=None):
    done = fit(Settings(**SHARED | VARIANTS[name]), *data(), folder=folder)
    weights = {k: v.tolist() for k, v in done.model.tensors().items()}
    return {"history": done.history, "weights": weights}


def resumed(folder):
    """A run that is interrupted in one of the processes and goes on, and the same one in one go."""
    # An epoch has more steps than processes take to exchange that one of them is interrupted.
    own = SHARED | {"batch_size": 3}
    settings = Settings(**own, model="mlp(hidden=[8], dropout=0.5)", list_size=6)

    def interrupt(line):
        if line["epoch"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    whole = fit(settings, *data(), folder=folder / "whole")
    cut = fit(settings, *data(), folder=folder / "cut", on_epoch=interrupt)
    done = fit(settings, *data(), folder=folder / "cut", resume=True)
    return {
        "stopped": [cut.stopped, len(cut.history), done.stopped],
        "weights": [{k: v.tolist() for k, v in r.model.tensors().items()} for r in (whole, done)],
        "history": [[{**line, "seconds": 0} for line in r.history] for r in (whole, done)],
    }


def refused(folder):
    """What each of the processes says of a folder that is there; only one of them looks."""
    try:
        fit(Settings(**SHARED), *data(), folder=folder)
    except FileExistsError as error:
        return str(error)


if __name__ == "__main__":
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    results = {name: trained(name, out / name) for name in VARIANTS}
    results["refused"] = refused(out / "attention")
    results["resumed"] = resumed(out)
    trainer._STOP_DELAY["cpu"] = 2  # as on GPUs, which do not wait for each other's word
    results["resumed later"] = resumed(out / "later")
    rank = torch.distributed.get_rank()
    assert torch.distributed.get_world_size() == 2
    (out / f"{rank}.json").write_text(json.dumps(results))
