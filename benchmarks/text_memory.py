"""Memory and speed of training a cross-encoder on long lists, with gradient caching and without.

python benchmarks/text_memory.py --model FOLDER [--out text_memory.json] [--device cuda]
python benchmarks/text_memory.py --device cpu --tiny

FOLDER holds an encoder such as MiniLM. All methods train the same sentence-transformers
``CrossEncoder`` on the same tokens (256 per document) in bf16 autocast, in mini-batches of 64:

- ``cached``: RankingLoss, with gradient caching;
- ``plain``: RankingLoss without, one graph over a list of 64: what a mini-batch costs by itself;
- ``sentence-transformers``: its LambdaLoss with the same ``mini_batch_size``.

A step is a forward and a backward pass. Gradients and the states of Adam are allocated before, and
tokenization is left out: the model looks up tokens made in advance. Under a cap of the GPU's
memory, the longest list of each method is found by doubling and bisection. Rows are written as they
come.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from rankgrad.integrations.sentence_transformers import RankingLoss

LOSS = "lambdaloss(scheme=ndcg_loss2++)"  # the default of sentence-transformers' LambdaLoss
GIGABYTE = 1e9


class Bench:
    """A cross-encoder with tokens for its documents, and the losses to train it with."""

    def __init__(self, options: argparse.Namespace, folder: str) -> None:
        import sentence_transformers
        from sentence_transformers.cross_encoder import CrossEncoder
        from sentence_transformers.cross_encoder.losses import LambdaLoss

        self.options, self.device = options, torch.device(options.device)
        self.version = sentence_transformers.__version__
        self.model = CrossEncoder(folder, device=options.device).train()
        self.model.preprocess = self._look_up
        vocabulary = self.model.model.config.vocab_size
        random = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(
            5, vocabulary, (options.max_length, options.tokens), generator=random
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)
        size = options.mini_batch
        self.losses: dict[str, Callable[..., torch.Tensor]] = {
            "cached": RankingLoss(self.model, LOSS, mini_batch_size=size),
            "plain": RankingLoss(self.model, LOSS, mini_batch_size=None),
            "sentence-transformers": LambdaLoss(self.model, mini_batch_size=size),
        }
        self.step("plain", size)
        self.optimizer.step()  # allocates its states

    def _look_up(self, pairs: list[tuple[str, str]], **_: Any) -> dict[str, torch.Tensor]:
        """Tokens of documents, whose texts are their numbers."""
        ids = self.tokens[[int(document) for _, document in pairs]]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def step(self, method: str, documents: int) -> float:
        """A forward and a backward pass over one list; its seconds."""
        labels = torch.arange(documents) % 10 == 0
        names = [f"{number:08d}" for number in range(documents)]
        self._synchronize()
        start = time.perf_counter()
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = self.losses[method]([["query"], [names]], [labels.float().to(self.device)])
        loss.backward()
        self._synchronize()
        seconds = time.perf_counter() - start
        self.optimizer.zero_grad(set_to_none=False)
        return seconds

    def row(self, method: str, documents: int) -> dict[str, Any]:
        """Peak memory and documents per second of a method at a length."""
        row: dict[str, Any] = {"method": method, "documents": documents}
        try:
            self.free()
            self.step(method, documents)  # kernels are compiled, memory is allocated
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            seconds = [self.step(method, documents)]
            while sum(seconds) < self.options.seconds and len(seconds) < 50:
                seconds.append(self.step(method, documents))
        except torch.OutOfMemoryError:
            return row | {"out_of_memory": True}
        row["documents_per_second"] = round(documents / statistics.median(seconds), 1)
        row["steps"] = len(seconds)
        if self.device.type == "cuda":
            row["peak_gigabytes"] = round(torch.cuda.max_memory_allocated() / GIGABYTE, 4)
            row["reserved_gigabytes"] = round(torch.cuda.max_memory_reserved() / GIGABYTE, 4)
        return row

    def fits(self, method: str, documents: int) -> bool:
        """Whether a step runs within the memory."""
        self.free()
        try:
            self.step(method, documents)
        except torch.OutOfMemoryError:
            return False
        return True

    def max_list(self, method: str) -> dict[str, Any]:
        """The longest list that fits: powers of two, then three bisections."""
        low, high = 0, self.options.max_length
        if method == "cached" and self.fits(method, high):
            low = high
        size = self.options.mini_batch
        while low < high and size <= high and self.fits(method, size):
            low, size = size, 2 * size
        if low < high:
            high = min(size, high)
            for _ in range(3):
                middle = (low + high) // 2
                low, high = (middle, high) if self.fits(method, middle) else (low, middle)
        return {
            "method": method,
            "longest_list": low,
            "limit_reached": low < self.options.max_length,
        }

    def free(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def make_folder(options: argparse.Namespace, place: Path) -> str:
    """A cross-encoder's folder: the encoder given with a new head, or a tiny random one."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        BertConfig,
        BertForSequenceClassification,
    )

    if options.tiny:
        config = BertConfig(vocab_size=100, hidden_size=16, num_hidden_layers=1)
        config.update({"num_attention_heads": 2, "intermediate_size": 16, "num_labels": 1})
        (place / "vocab.txt").write_text(
            "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(95))])
        )
        from transformers import BertTokenizerFast

        BertTokenizerFast(vocab=str(place / "vocab.txt")).save_pretrained(place)
        BertForSequenceClassification(config).save_pretrained(place)
        return str(place)
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=1)
    model.float()  # weights stored in half precision would stay so, and diverge in training
    model.save_pretrained(place)
    AutoTokenizer.from_pretrained(options.model).save_pretrained(place)
    return str(place)


def compared(rows: list[dict[str, Any]], size: int) -> dict[str, float]:
    """The longest list of ``cached`` beside a list of one mini-batch."""
    found = {(row["method"], row["documents"]): row for row in rows if "steps" in row}
    longest = max(documents for method, documents in found if method == "cached")
    cached, one = found["cached", longest], found["cached", size]
    plain = found["plain", size]
    speed = cached["documents_per_second"] / plain["documents_per_second"]
    ratios = {"documents": longest, "documents_per_second_to_plain": round(speed, 3)}
    if "peak_gigabytes" in cached:
        ratios["peak_to_one_mini_batch"] = round(
            cached["peak_gigabytes"] / one["peak_gigabytes"], 4
        )
        ratios["peak_to_plain"] = round(cached["peak_gigabytes"] / plain["peak_gigabytes"], 4)
    return ratios


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a folder with an encoder")
    parser.add_argument("--tiny", action="store_true", help="a tiny random model, few documents")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    parser.add_argument("--mini-batch", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--lists", type=int, nargs="+", default=[64, 256, 1000])
    parser.add_argument("--max-length", type=int, default=16384, help="no longer list is tried")
    parser.add_argument("--cap", type=float, default=24.0, help="GB of GPU memory")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each row")
    options = parser.parse_args()
    if options.tiny:
        options.mini_batch, options.tokens, options.lists = 4, 8, [4, 16, 50]
        options.max_length, options.seconds = 64, 0.1
    elif not options.model:
        parser.error("--model FOLDER is needed, or --tiny")
    return options


def main() -> None:
    options = arguments()
    results: dict[str, Any] = {
        "settings": {k: v for k, v in vars(options).items() if k not in ("model", "out")},
        "model": Path(options.model).name if options.model else "tiny",
        "loss": LOSS,
        "torch": torch.__version__,
        "rows": [],
    }
    if options.device == "cuda":
        results["gpu"] = torch.cuda.get_device_name()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.cap * GIGABYTE / total))

    def write(**more: Any) -> None:
        results.update(more)
        if options.out:
            options.out.write_text(json.dumps(results, indent=2) + "\n")

    def add(row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)
        results["rows"].append(row)
        write()

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        bench = Bench(options, make_folder(options, Path(place)))
    write(sentence_transformers=bench.version)
    add(bench.row("plain", options.mini_batch))
    for documents in options.lists:
        add(bench.row("cached", documents))
        add(bench.row("sentence-transformers", documents))
    write(ratios=compared(results["rows"], options.mini_batch))
    print(json.dumps(results["ratios"]), flush=True)
    for method in ("cached", "sentence-transformers"):
        add(bench.max_list(method))
    write(seconds=round(time.perf_counter() - start, 1))


if __name__ == "__main__":
    main()
