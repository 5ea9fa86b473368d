"""TextRanker: an encoder that reads a query and a document together and gives a score."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import TypedDict

from rankgrad import _files, _schemas
from rankgrad.extras import load
from rankgrad.text._pretrained import check_exists, load_pretrained
from rankgrad.text._reading import CAUSAL, Prompt, Reading
from rankgrad.text._scorers import PromptTokens
from rankgrad.text._tokens import (
    DOCUMENT,
    QUERY,
    InputBatch,
    PairInputs,
    Passages,
    first_position,
    length_limit,
    rows_as_inputs,
    set_padding_token,
    to_device,
    tokenize,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MANIFEST, HEAD = "rankgrad.json", "rankgrad_head.safetensors"
_FORMAT, _VERSION = "rankgrad text ranker", 1
_SCALE = 20.0  # of the cosine, as sentence-transformers' losses have it
_CENTER = 0.5  # the cosine whose score is 0 at the start


class Similarity(nn.Module):
    """``20 (a cos(query, document) + b) + w · first``; a, b and w are learned.

    ``a = 1``, ``b = -0.5`` and ``w = 0`` at the start: the order is that of the cosine.

    Args:
        size: of the vectors.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.affine = nn.Parameter(torch.tensor([1.0, -_CENTER]))
        self.weights = nn.Parameter(torch.zeros(size))

    def forward(self, query: Tensor, document: Tensor, first: Tensor) -> Tensor:
        """The scores ``[p]`` of vectors ``[p, size]``; of an empty document, the cosine is 0."""
        cosine = torch.cosine_similarity(query, document, eps=1e-6)
        return _SCALE * (self.affine[0] * cosine + self.affine[1]) + first @ self.weights


class TextRanker(nn.Module):
    """A cross-encoder with its tokenizer; documents may be read in passages.

    Args:
        network: with a classification head of one output, without a head for ``"similarity"`` and
            ``"embedding"``, or a causal language model.
        tokenizer: its tokenizer.
        reading: how pairs are read.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        reading: Reading | None = None,
    ) -> None:
        super().__init__()
        self.network, self.tokenizer = network, tokenizer
        self.reading = (reading or Reading()).resolve(type(network).__name__)
        _check_supported(network, self.reading)
        # Shorter inputs would hold no token of the query or none of the document.
        least = int(tokenizer.num_special_tokens_to_add(pair=True)) + 2
        self.max_length = length_limit(network, tokenizer, self.reading.max_length, least=least)
        set_padding_token(network, tokenizer)
        self.similarity: Similarity | None = None
        if self.reading.head in ("similarity", "embedding"):
            self.similarity = Similarity(network.config.hidden_size)
        self._prompt: PromptTokens | None = None
        if self.reading.head == "causal":
            prompt = self.reading.prompt or Prompt()
            self._prompt = PromptTokens(tokenizer, prompt, self.max_length)
        for name in ("classifier", "score", "lm_head"):
            if hasattr(network, name):
                getattr(network, name).register_forward_hook(_without_autocast)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str],
        reading: Reading | None = None,
        *,
        trained: bool = False,
    ) -> TextRanker:
        """A network from a folder or a hub; an encoder without a head gets a new one.

        Args:
            name_or_path: a Hugging Face folder, a folder that :meth:`save` wrote, or a hub's name.
            reading: how pairs are read; by default as the folder says.
            trained: a new head is an error, as its scores would be random.

        Raises:
            FileNotFoundError: a path that is not there.
            ValueError: the folder is damaged, has its weights as pickles only, or has no head.
        """
        manifest = _read_manifest(Path(name_or_path))
        saved = _reading(manifest.get("reading", {}))
        reading = reading or saved
        if reading.head in ("auto", "causal") and reading.prompt is None:
            reading = replace(reading, prompt=saved.prompt)
        with _quiet():  # a new head is what is asked for
            if reading.head == "auto":
                reading = reading.resolve(architecture(name_or_path))
            auto = _AUTO.get(reading.head, "AutoModel")
            options: dict[str, Any] = {"dtype": torch.float32, "output_loading_info": True}
            options |= {"num_labels": 1} if reading.head == "classifier" else {}
            (network, loading), tokenizer = load_pretrained(auto, name_or_path, **options)
        if trained and reading.head == "classifier" and loading["missing_keys"]:
            raise ValueError(
                f"{name_or_path} is not trained to rank: it has no {min(loading['missing_keys'])}. "
                "Train it with `rankgrad text train`, or take a cross-encoder"
            )
        ranker = cls(network, tokenizer, reading)
        if ranker.similarity is not None and manifest:
            ranker.similarity.load_state_dict(
                _files.read_tensors(Path(name_or_path) / HEAD, manifest)
            )
        return ranker

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self.network.device

    def tokenize(self, queries: Sequence[str], texts: Sequence[str]) -> PairInputs:
        """The tokens of pairs, ``[N]`` queries and ``[N]`` documents, on the ranker's device."""
        if self._prompt is not None:
            padding = int(self.tokenizer.pad_token_id or 0)
            return rows_as_inputs(self._prompt.rows(queries, texts), padding).to(self.device)
        inputs = tokenize(
            self.tokenizer,
            queries,
            texts,
            max_length=self.max_length,
            passages=Passages(self.reading.passages, self.reading.document_tokens),
            separate=self.reading.head == "embedding",
        )
        return inputs.to(self.device)

    def forward(self, batch: InputBatch) -> Tensor:
        """The scores ``[p]`` of a mini-batch's pairs, in float32."""
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask.long()}
        if self._prompt is not None:
            return self._prompt.log_odds(self.network, *inputs.values())
        if self.similarity is not None:
            return self._similarity(inputs, batch)
        if batch.token_type_ids is not None:
            inputs["token_type_ids"] = batch.token_type_ids
        if self.reading.passages == 1:
            logits: Tensor = self.network(**inputs).logits
            return logits.squeeze(-1).float()
        first = self.network.base_model(**inputs).last_hidden_state[:, 0]
        with torch.autocast(first.device.type, enabled=False):
            pooled = self._pooled(first.float(), batch)
            return _PASSAGE_HEADS[type(self.network).__name__](self.network, pooled).squeeze(-1)

    def _similarity(self, inputs: dict[str, Tensor], batch: InputBatch) -> Tensor:
        """Token types are left out: one that the encoder was not trained with would disturb it."""
        query, document = batch.segments == QUERY, batch.segments == DOCUMENT
        if self.reading.head == "embedding":
            inputs |= _separated(self.network, query, document, self.reading.cross_attention)
        hidden = self.network(**inputs).last_hidden_state
        assert self.similarity is not None
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.float()
            vectors = (_mean(hidden, query), _mean(hidden, document), hidden[:, 0])
            scores: Tensor = self.similarity(*(self._pooled(each, batch) for each in vectors))
        return scores

    def _pooled(self, vectors: Tensor, batch: InputBatch) -> Tensor:
        """One vector per pair from those of its inputs."""
        if len(vectors) == len(batch):
            return vectors
        pooled = vectors.new_zeros(len(batch), vectors.shape[-1])
        owners = batch.pair_of[:, None].expand_as(vectors)
        reduce = "mean" if self.reading.pooling == "mean" else "amax"
        return pooled.scatter_reduce(0, owners, vectors, reduce, include_self=False)

    @torch.no_grad()
    def score(
        self,
        inputs: PairInputs,
        pairs: NDArray[np.int64] | None = None,
        *,
        batch_size: int = 256,
        precision: str = "32-true",
    ) -> NDArray[np.float32]:
        """The scores of tokenized pairs, without dropout, in the order of ``pairs``.

        Args:
            inputs: from :meth:`tokenize`.
            pairs: which ones; by default all.
            batch_size: pairs at a time.
            precision: ``32-true``, or ``bf16-mixed`` for the network's matrix products.
        """
        wanted = np.arange(len(inputs)) if pairs is None else np.asarray(pairs, np.int64)
        scores = torch.empty(len(wanted), device=inputs.device)
        was_training = self.training
        self.eval()
        try:
            with autocast(inputs.device, precision):
                for batch in inputs.batches(wanted, batch_size):
                    scores[to_device(batch.indices, scores.device)] = self(batch)
        finally:
            self.train(was_training)
        array: NDArray[np.float32] = scores.cpu().numpy()
        return array

    def predict(self, pairs: Iterable[tuple[str, str]], **options: Any) -> NDArray[np.float32]:
        """The scores of pairs of texts (query, document), ``[N]``."""
        queries, texts = zip(*pairs, strict=True)
        return self.score(self.tokenize(queries, texts), **options)

    def head_parameters(self) -> list[nn.Parameter]:
        """What is not part of the pretrained encoder; a causal language model has nothing new."""
        if self.reading.head == "causal":
            return []
        encoder = {id(parameter) for parameter in self.network.base_model.parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in encoder]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a Hugging Face folder with ``rankgrad.json``, which says how pairs are read.

        Without passages and with a classification head, sentence-transformers'
        ``CrossEncoder(folder)`` gives the same scores.
        """
        with _files.atomic_folder(Path(folder)) as unfinished:
            self._save_network(unfinished)
            if self.similarity is not None:
                _files.write_tensors(unfinished / HEAD, self.similarity.state_dict())
            parts = sorted(path.name for path in unfinished.iterdir() if path.is_file())
            for name in parts:
                _files.sync(unfinished / name)
            metadata = {
                "format": _FORMAT,
                "version": _VERSION,
                "reading": {**asdict(self.reading), "max_length": self.max_length},
            }
            _files.write_json(unfinished / MANIFEST, metadata, parts)

    def _save_network(self, folder: Path) -> None:
        """Write network and tokenizer; changes of their settings are undone."""
        config, limit = self.network.config, self.tokenizer.model_max_length
        before = vars(config).pop("sentence_transformers", None)
        if self.reading.head == "classifier":
            # CrossEncoder would else put a sigmoid on the scores.
            config.sentence_transformers = {"activation_fn": "torch.nn.modules.linear.Identity"}
        self.tokenizer.model_max_length = self.max_length
        try:
            with _quiet():
                self.network.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
        finally:
            self.tokenizer.model_max_length = limit
            vars(config).pop("sentence_transformers", None)
            if before is not None:
                config.sentence_transformers = before


_AUTO = {"classifier": "AutoModelForSequenceClassification", "causal": "AutoModelForCausalLM"}


def architecture(name_or_path: str | os.PathLike[str]) -> str:
    """The class that a folder's or a hub's network was saved as; "" where it does not say."""
    check_exists(name_or_path)
    config = load("transformers", "text").AutoConfig.from_pretrained(os.fspath(name_or_path))
    return str((config.architectures or [""])[0])


_Count = Annotated[int, Field(ge=1)]
_ReadingMetadata: Any = _schemas.fields_of(
    Reading,
    max_length=_Count | None,
    passages=_Count,
    document_tokens=_Count | None,
    cross_attention=NotRequired[Annotated[float, Field(ge=0, le=1)]],
    prompt=NotRequired[_schemas.fields_of(Prompt) | None],
)


class _Manifest(TypedDict):
    """What ``rankgrad.json`` holds beside its format."""

    reading: _ReadingMetadata
    files: dict[str, str]


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Matrix products in bfloat16 for ``bf16-mixed``, and nothing for ``32-true``."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed")


@contextmanager
def _quiet() -> Iterator[None]:
    """Transformers without warnings and progress bars."""
    logging = load("transformers", "text").logging
    with ExitStack() as restored:
        restored.callback(logging.set_verbosity, logging.get_verbosity())
        if logging.is_progress_bar_enabled():
            restored.callback(logging.enable_progress_bar)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        return {}
    remedy = "train the ranker again"
    metadata = _schemas.read_versioned(path, _Manifest, _FORMAT, _VERSION, remedy)
    for name in metadata["files"]:
        _files.read_part(folder / name, metadata)  # which compares checksums
    return metadata


def _reading(metadata: Mapping[str, Any]) -> Reading:
    prompt = metadata.get("prompt")
    return Reading(**{**metadata, "prompt": None if prompt is None else Prompt(**prompt)})


#: Encoders with absolute or relative positions and one mask for all layers, which take a mask of
#: four dimensions and explicit position ids.
_BI_ENCODERS = ("bert", "electra", "distilbert", "roberta", "xlm-roberta", "camembert", "mpnet")


def _check_supported(network: PreTrainedModel, reading: Reading) -> None:
    """Raise if a way of reading is not known to be correct for the class of a network."""
    name, kind = type(network).__name__, network.config.model_type
    if reading.head == "classifier" and getattr(network.config, "summary_type", None) == "last":
        raise ValueError(
            f"{name} reads its last position, which is padding here: use an encoder that reads its "
            "first one, such as BERT"
        )
    if reading.head == "classifier" and reading.passages > 1 and name not in _PASSAGE_HEADS:
        raise ValueError(
            f"passages are not supported for {name}, whose classification head is not known here: "
            f"use one of {', '.join(_PASSAGE_HEADS)}, or passages=1"
        )
    if reading.head == "causal" and reading.passages > 1:
        raise ValueError("passages are not supported for causal language models: use passages=1")
    if reading.head == "causal" and not name.endswith(CAUSAL):
        raise ValueError(f"head='causal' needs a causal language model, found {name}")
    if reading.head != "embedding":
        return
    if kind not in _BI_ENCODERS:
        raise ValueError(
            f"head='embedding' is not supported for a model of type {kind!r}: use one of "
            f"{', '.join(_BI_ENCODERS)}, or head='similarity'"
        )
    attention = network.config._attn_implementation
    if attention not in ("sdpa", "eager"):
        raise ValueError(
            f"head='embedding' needs attn_implementation='sdpa' or 'eager', found {attention!r}"
        )


def _without_autocast(module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor | None:
    """A forward hook that computes the head in float32: rounded scores would tie."""
    features = args[0]
    if not torch.is_autocast_enabled(features.device.type):
        return None
    with torch.autocast(features.device.type, enabled=False):
        exact: Tensor = module.forward(features.to(next(module.parameters()).dtype))
    return exact


def _bert_head(network: Any, vectors: Tensor) -> Any:
    return network.classifier(network.dropout(network.bert.pooler(vectors[:, None])))


def _deberta_head(network: Any, vectors: Tensor) -> Any:
    return network.classifier(network.dropout(network.pooler(vectors[:, None])))


def _distilbert_head(network: Any, vectors: Tensor) -> Any:
    hidden = torch.relu(network.pre_classifier(vectors))
    return network.classifier(network.dropout(hidden))


def _roberta_head(network: Any, vectors: Tensor) -> Any:
    return network.classifier(vectors[:, None])


#: What each class does with the vectors of first tokens ``[p, d]``. There is no such method in
#: transformers, so only classes whose code was read are here.
_PASSAGE_HEADS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "BertForSequenceClassification": _bert_head,
    "RobertaForSequenceClassification": _roberta_head,
    "XLMRobertaForSequenceClassification": _roberta_head,
    "CamembertForSequenceClassification": _roberta_head,
    "ElectraForSequenceClassification": _roberta_head,
    "MPNetForSequenceClassification": _roberta_head,
    "DebertaV2ForSequenceClassification": _deberta_head,
    "DistilBertForSequenceClassification": _distilbert_head,
}


def _separated(
    network: PreTrainedModel, query: Tensor, document: Tensor, cross_attention: float = 0.0
) -> dict[str, Tensor]:
    """Attention mask and positions with which two texts in one input are encoded separately.

    Attention between them is multiplied by ``cross_attention``.
    """
    device = query.device
    # Padding is the third side. It attends to padding, so that no row is empty.
    side = document.long() + 2 * (~query & ~document)
    half = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if half else network.dtype
    # Eager attention adds the mask to the logits, so that it cannot be boolean.
    mask = torch.zeros(side.shape[0], 1, side.shape[1], side.shape[1], dtype=dtype, device=device)
    mask.masked_fill_((side[:, :, None] != side[:, None, :])[:, None], torch.finfo(dtype).min)
    if cross_attention > 0:
        across = query[:, :, None] & document[:, None, :]
        mask.masked_fill_((across | across.mT)[:, None], math.log(cross_attention))
    positions, first = torch.arange(side.shape[1], device=device), first_position(network)
    positions = torch.where(query, positions, positions - query.sum(-1, keepdim=True)) + first
    return {
        "attention_mask": mask,
        "position_ids": torch.where(side < 2, positions, max(0, first - 1)),
    }


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean vector of some tokens of each input; zeros where there are none."""
    weights = mask.to(hidden.dtype)
    return torch.einsum("mld,ml->md", hidden, weights) / weights.sum(-1, keepdim=True).clamp(min=1)
