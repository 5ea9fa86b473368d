"""A ranker as a LightningModule: a loss of rankgrad, and its metric through torchmetrics.

pip install 'rankgrad[lightning,torchmetrics]'
python examples/lightning_module.py
"""

from __future__ import annotations

import pytorch_lightning as lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from rankgrad import losses
from rankgrad.data import Dataset, synthetic
from rankgrad.integrations.torchmetrics import RankingMetric

List = tuple[Tensor, Tensor, int]
Batch = tuple[Tensor, Tensor, Tensor, Tensor]


class RankingModule(lightning.LightningModule):
    """A network that scores items, trained on a ranking loss.

    Args:
        n_features: of an item.
        loss: the spec of a loss.
        metric: the spec of the validation metric.
    """

    def __init__(self, n_features: int, loss: str = "softmax", metric: str = "ndcg@10") -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(
            nn.BatchNorm1d(n_features), nn.Linear(n_features, 64), nn.ReLU(), nn.Linear(64, 1)
        )
        self.loss = losses.get(loss)
        self.metric = RankingMetric(metric)

    def forward(self, features: Tensor) -> Tensor:
        return self.network(features).squeeze(-1)

    def training_step(self, batch: Batch, number: int) -> Tensor:
        features, labels, offsets, _ = batch
        # The mean over the lists of all processes, as one process with all of them has it.
        value = losses.distributed_mean(self.loss, self(features), labels, offsets=offsets)
        self.log("train/loss", value, batch_size=len(offsets) - 1)
        return value

    def validation_step(self, batch: Batch, number: int) -> None:
        features, labels, offsets, queries = batch
        indexes = queries.repeat_interleave(offsets.diff())
        self.metric.update(self(features), labels, indexes)
        self.log(f"val/{self.hparams['metric']}", self.metric, batch_size=len(queries))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def lists_of(data: Dataset) -> list[List]:
    """Features ``[n, f]``, labels ``[n]`` and the number of each list."""
    sizes = data.lengths.tolist()
    features, labels = torch.from_numpy(data.features), torch.from_numpy(data.labels)
    return list(zip(features.split(sizes), labels.split(sizes), range(len(data)), strict=True))


def collate(lists: list[List]) -> Batch:
    """Lists of any length as flat tensors: list b is ``offsets[b]:offsets[b + 1]``. No padding."""
    features, labels, numbers = zip(*lists, strict=True)
    offsets = torch.tensor([0, *map(len, labels)]).cumsum(0)
    return torch.cat(features), torch.cat(labels), offsets, torch.tensor(numbers)


def train(epochs: int = 5) -> tuple[float, float]:
    """Train; the validation NDCG@10 before and after."""
    lightning.seed_everything(0, verbose=False)
    data = [
        lists_of(synthetic.make(n, features=16, split=s)) for n, s in ((200, "train"), (50, "vali"))
    ]
    training = DataLoader(data[0], batch_size=16, shuffle=True, collate_fn=collate)
    validation = DataLoader(data[1], batch_size=16, collate_fn=collate)
    module = RankingModule(16, "neural_ndcg@10")
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    before = trainer.validate(module, validation, verbose=False)[0]["val/ndcg@10"]
    trainer.fit(module, training, validation)
    return before, trainer.callback_metrics["val/ndcg@10"].item()


if __name__ == "__main__":
    print("validation ndcg@10 before and after:", train())
