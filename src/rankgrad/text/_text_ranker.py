"""TextRanker: a Hugging Face network that scores pairs of query and document.

``rankgrad text train`` trains it (``_training``) and ``rankgrad text rerank`` applies it. It is a
cross-encoder (Nogueira and Cho 2019) with one of the heads that :class:`Reading` describes: a
classification head, the similarity of two mean vectors, or the answer of a causal language model.
"""

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
from rankgrad._validation import check_choice
from rankgrad.extras import load
from rankgrad.text._pretrained import check_exists, check_one_output, load_pretrained
from rankgrad.text._reading import CAUSAL, Prompt, Reading
from rankgrad.text._scorers import PromptTokens
from rankgrad.text._tokens import (
    DOCUMENT,
    QUERY,
    InputBatch,
    PairInputs,
    Passages,
    cut_documents,
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
_SCALE = 20.0  # the factor of the cosine, as in sentence-transformers' losses
_ZERO_COSINE = 0.5  # the cosine whose score is 0 before training


class Similarity(nn.Module):
    """The head ``20 (a cos(query, document) + b) + w · first``, in which a, b and w are learned.

    Before training ``a = 1``, ``b = -0.5`` and ``w = 0``, so that scores rank as the cosine does.

    Args:
        size: the size of the vectors.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.affine = nn.Parameter(torch.tensor([1.0, -_ZERO_COSINE]))
        self.weights = nn.Parameter(torch.zeros(size))

    def forward(self, query: Tensor, document: Tensor, first: Tensor) -> Tensor:
        """The scores ``[p]`` of pairs.

        Args:
            query: mean vectors of the queries' tokens, ``[p, size]``.
            document: mean vectors of the documents' tokens, ``[p, size]``; zeros for an empty
                document, whose cosine is 0.
            first: vectors of the inputs' first tokens, ``[p, size]``.
        """
        cosine = torch.cosine_similarity(query, document, eps=1e-6)
        return _SCALE * (self.affine[0] * cosine + self.affine[1]) + first @ self.weights


class TextRanker(nn.Module):
    """A cross-encoder with its tokenizer; documents may be read in passages.

    Args:
        network: for the head ``"classifier"`` a network for sequence classification with one
            output, for ``"similarity"`` and ``"embedding"`` an encoder without a head, for
            ``"causal"`` a causal language model.
        tokenizer: the network's tokenizer.
        reading: how pairs are read, and by which head they are scored.
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
        self.max_length = length_limit(network, tokenizer, self.reading.max_length)
        set_padding_token(network, tokenizer)
        self.similarity: Similarity | None = None
        if self.reading.head in ("similarity", "embedding"):
            self.similarity = Similarity(network.config.hidden_size)
        self._prompt: PromptTokens | None = None
        if self.reading.head == "causal":
            prompt = self.reading.prompt or Prompt()
            self._prompt = PromptTokens(tokenizer, prompt, self.max_length)
        for name in ("classifier", "score", "lm_head"):  # names of heads in transformers
            if hasattr(network, name):
                getattr(network, name).register_forward_hook(_float32_hook)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str],
        reading: Reading | None = None,
        *,
        trained: bool = False,
    ) -> TextRanker:
        """Load a ranker from a folder or the hub; an encoder without a head gets a new one.

        Args:
            name_or_path: a Hugging Face folder, a folder that :meth:`save` wrote, or a name on the
                hub.
            reading: how pairs are read; by default as the folder was saved. The head ``"auto"`` is
                the saved one.
            trained: raise where the head would be new, as its scores would be random.

        Returns:
            The ranker.

        Raises:
            FileNotFoundError: ``name_or_path`` is a path that does not exist.
            ValueError: the folder is damaged, has its weights as pickles only, or, if ``trained``,
                has no head.
        """
        manifest = _read_manifest(Path(name_or_path))
        saved = _parse_reading(manifest.get("reading", {}))
        reading = reading or saved
        if reading.head == "auto":
            reading = replace(reading, head=saved.head, cross_attention=saved.cross_attention)
        if reading.head in ("auto", "causal") and reading.prompt is None:
            reading = replace(reading, prompt=saved.prompt)
        with _silent_transformers():  # which would warn that a head is new
            if reading.head == "auto":
                reading = reading.resolve(architecture(name_or_path))
            auto_class = _LOADERS.get(reading.head, "AutoModel")
            options: dict[str, Any] = {"num_labels": 1} if reading.head == "classifier" else {}
            network, tokenizer, missing = load_pretrained(
                auto_class, name_or_path, dtype=torch.float32, **options
            )
        if trained and reading.head == "classifier" and missing:
            raise ValueError(
                f"{name_or_path} is not trained to rank: it has no {missing[0]}. Train it with "
                "`rankgrad text train`, or take a cross-encoder"
            )
        ranker = cls(network, tokenizer, reading)
        if ranker.similarity is not None and HEAD in manifest.get("files", {}):
            ranker.similarity.load_state_dict(
                _files.read_tensors(Path(name_or_path) / HEAD, manifest)
            )
        return ranker

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self.network.device

    def tokenize(self, queries: Sequence[str], texts: Sequence[str]) -> PairInputs:
        """The tokens of pairs, ``[N]`` queries and ``[N]`` documents, on the ranker's device.

        Args:
            queries: the text of each pair's query.
            texts: the text of each pair's document.

        Returns:
            The tokens of the N pairs.
        """
        if self._prompt is not None:
            padding = int(self.tokenizer.pad_token_id or 0)
            texts = cut_documents(self.tokenizer, texts, self.reading.document_tokens)
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
        """The scores ``[p]`` of a mini-batch's p pairs, in float32.

        A pair is one input of the network or, with passages, several, whose vectors are pooled. A
        mini-batch has m inputs.

        Args:
            batch: the tokens of the mini-batch.

        Returns:
            The scores, ``[p]``.
        """
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask.long()}
        if self._prompt is not None:
            return self._prompt.log_odds(self.network, *inputs.values())
        if self.similarity is not None:
            return self._similarity_scores(inputs, batch)
        if batch.token_type_ids is not None:
            inputs["token_type_ids"] = batch.token_type_ids
        if self.reading.passages == 1:
            logits: Tensor = self.network(**inputs).logits
            return logits.squeeze(-1).float()
        first_vectors = self.network.base_model(**inputs).last_hidden_state[:, 0]
        with torch.autocast(first_vectors.device.type, enabled=False):
            pooled = self._pool_passages(first_vectors.float(), batch)
            head = _PASSAGE_HEADS[type(self.network).__name__]
            return head(self.network, pooled).squeeze(-1)

    def _similarity_scores(self, inputs: dict[str, Tensor], batch: InputBatch) -> Tensor:
        """The scores ``[p]`` of the heads ``"similarity"`` and ``"embedding"``.

        Token types are not passed: an encoder that was trained with one type alone would be
        disturbed by the second.
        """
        query, document = batch.segments == QUERY, batch.segments == DOCUMENT
        if self.reading.head == "embedding":
            inputs |= _separate_texts(self.network, query, document, self.reading.cross_attention)
        hidden = self.network(**inputs).last_hidden_state
        assert self.similarity is not None
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.float()
            scores: Tensor = self.similarity(
                query=self._pool_passages(_mean_vectors(hidden, query), batch),
                document=self._pool_passages(_mean_vectors(hidden, document), batch),
                first=self._pool_passages(hidden[:, 0], batch),
            )
        return scores

    def _pool_passages(self, vectors: Tensor, batch: InputBatch) -> Tensor:
        """One vector per pair, ``[p, d]``, from those of its inputs, ``[m, d]``."""
        if len(vectors) == len(batch):
            return vectors
        pooled = vectors.new_zeros(len(batch), vectors.shape[-1])
        pair_indices = batch.pair_of[:, None].expand_as(vectors)
        reduce = "mean" if self.reading.pooling == "mean" else "amax"
        return pooled.scatter_reduce(0, pair_indices, vectors, reduce, include_self=False)

    @torch.no_grad()
    def score(
        self,
        inputs: PairInputs,
        pairs: NDArray[np.int64] | None = None,
        *,
        batch_size: int = 256,
        precision: str = "32-true",
    ) -> NDArray[np.float32]:
        """The scores ``[n]`` of tokenized pairs, without dropout, in the order of ``pairs``.

        Args:
            inputs: the tokens, from :meth:`tokenize`.
            pairs: indices of the pairs to score, ``[n]``; by default all.
            batch_size: pairs per mini-batch.
            precision: ``32-true``, or ``bf16-mixed`` for matrix products in bfloat16.

        Returns:
            The scores, in float32.

        Raises:
            ValueError: ``batch_size`` is below 1, or the precision is another one.
        """
        pairs = np.arange(len(inputs)) if pairs is None else np.asarray(pairs, np.int64)
        scores = torch.empty(len(pairs), device=inputs.device)
        training = [module for module in self.modules() if module.training]  # may be some of them
        self.eval()
        try:
            with autocast(inputs.device, precision):
                for batch in inputs.batches(pairs, batch_size):
                    scores[to_device(batch.indices, scores.device)] = self(batch)
        finally:
            for module in training:
                module.training = True
        array: NDArray[np.float32] = scores.cpu().numpy()
        return array

    def predict(self, pairs: Iterable[tuple[str, str]], **options: Any) -> NDArray[np.float32]:
        """The scores of pairs of texts (query, document), ``[N]``.

        Args:
            pairs: one pair or more.
            options: arguments of :meth:`score`.

        Returns:
            The scores, in the order of the pairs.

        Raises:
            ValueError: there is no pair.
        """
        pairs = list(pairs)
        if not pairs:
            raise ValueError("predict needs one pair (query, document) or more, found none")
        queries, texts = zip(*pairs, strict=True)
        return self.score(self.tokenize(queries, texts), **options)

    def head_parameters(self) -> list[nn.Parameter]:
        """The parameters that are not part of the encoder; a causal language model has none.

        Returns:
            The parameters.
        """
        if self.reading.head == "causal":
            return []
        encoder = {id(parameter) for parameter in self.network.base_model.parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in encoder]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a Hugging Face folder with ``rankgrad.json``, which records how pairs are read.

        ``CrossEncoder(folder)`` of sentence-transformers gives the same scores if the head is a
        classification head and documents are read without passages.

        Args:
            folder: where to write it; a folder that is there already is replaced.
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
        """Write network and tokenizer, with some of their settings changed during the write."""
        config, limit = self.network.config, self.tokenizer.model_max_length
        previous = vars(config).pop("sentence_transformers", None)
        if self.reading.head == "classifier":
            # Otherwise CrossEncoder would apply a sigmoid to the scores.
            config.sentence_transformers = {"activation_fn": "torch.nn.modules.linear.Identity"}
        self.tokenizer.model_max_length = self.max_length
        try:
            with _silent_transformers():
                self.network.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
        finally:
            self.tokenizer.model_max_length = limit
            vars(config).pop("sentence_transformers", None)
            if previous is not None:
                config.sentence_transformers = previous


#: The class of transformers that loads a network for each head; ``AutoModel`` for other heads.
_LOADERS = {"classifier": "AutoModelForSequenceClassification", "causal": "AutoModelForCausalLM"}


def architecture(name_or_path: str | os.PathLike[str]) -> str:
    """The class name of a saved network, such as ``"BertModel"``; ``""`` if it is not saved."""
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
    """The contents of ``rankgrad.json``, besides its format and version."""

    reading: _ReadingMetadata
    files: dict[str, str]


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Autocast to bfloat16 for ``bf16-mixed``; a context without effect for ``32-true``."""
    check_choice("precision", precision, ("32-true", "bf16-mixed"))
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed")


@contextmanager
def _silent_transformers() -> Iterator[None]:
    """A context in which transformers shows neither warnings nor progress bars."""
    logging = load("transformers", "text").logging
    with ExitStack() as restored:
        restored.callback(logging.set_verbosity, logging.get_verbosity())
        if logging.is_progress_bar_enabled():
            restored.callback(logging.enable_progress_bar)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield


def _read_manifest(folder: Path) -> dict[str, Any]:
    """The contents of ``rankgrad.json``, after checking the folder's files; {} without one."""
    path = folder / MANIFEST
    if not path.is_file():
        return {}
    remedy = "train the ranker again"
    metadata = _schemas.read_versioned(path, _Manifest, _FORMAT, _VERSION, remedy)
    for name in metadata["files"]:
        _files.read_part(folder / name, metadata)  # compares checksums
    return metadata


def _parse_reading(metadata: Mapping[str, Any]) -> Reading:
    """The reading that ``rankgrad.json`` records."""
    prompt = metadata.get("prompt")
    return Reading(**{**metadata, "prompt": None if prompt is None else Prompt(**prompt)})


#: Model types that support the head ``"embedding"``: they take position ids and an attention mask
#: ``[m, 1, length, length]``, which is the same in all layers.
_BI_ENCODERS = ("bert", "electra", "distilbert", "roberta", "xlm-roberta", "camembert", "mpnet")


def _check_supported(network: PreTrainedModel, reading: Reading) -> None:
    """Raise if a network's class does not support a way of reading, or is not known to."""
    name, kind = type(network).__name__, network.config.model_type
    if reading.head == "classifier" and getattr(network.config, "summary_type", None) == "last":
        raise ValueError(
            f"{name} reads its last position, which is padding here: use an encoder that reads its "
            "first one, such as BERT"
        )
    if reading.head == "classifier":
        check_one_output(network)
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


def _float32_hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor | None:
    """A forward hook that computes a head again in float32, because rounded scores would tie."""
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


#: The classification head of each class: logits ``[p, 1]`` of the first tokens' vectors ``[p, d]``.
#: Transformers has no method for this, so these functions repeat the code of its classes.
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


def _separate_texts(
    network: PreTrainedModel, query: Tensor, document: Tensor, cross_attention: float = 0.0
) -> dict[str, Tensor]:
    """Attention mask and positions with which the two texts of an input are encoded separately.

    Args:
        network: the encoder.
        query: True on the query's tokens, ``[m, length]``.
        document: True on the document's tokens, ``[m, length]``.
        cross_attention: a factor of the attention between the two texts, before normalization.

    Returns:
        ``attention_mask``, ``[m, 1, length, length]``, which is added to the attention logits, and
        ``position_ids``, ``[m, length]``, which start again with the document.
    """
    device, (n_inputs, length) = query.device, query.shape
    # 0 is the query, 1 the document, 2 padding, which attends to padding so that no row is empty.
    part = document.long() + 2 * (~query & ~document)
    has_autocast = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if has_autocast else network.dtype
    # Eager attention adds the mask to the logits, so it cannot be boolean.
    mask = torch.zeros(n_inputs, 1, length, length, dtype=dtype, device=device)
    mask.masked_fill_((part[:, :, None] != part[:, None, :])[:, None], torch.finfo(dtype).min)
    if cross_attention > 0:
        across = query[:, :, None] & document[:, None, :]
        mask.masked_fill_((across | across.mT)[:, None], math.log(cross_attention))
    positions, first = torch.arange(length, device=device), first_position(network)
    positions = torch.where(query, positions, positions - query.sum(-1, keepdim=True)) + first
    # Padding gets the position that RoBERTa and similar models reserve for it, in others 0.
    return {
        "attention_mask": mask,
        "position_ids": torch.where(part < 2, positions, max(0, first - 1)),
    }


def _mean_vectors(hidden: Tensor, mask: Tensor) -> Tensor:
    """Means ``[m, d]`` of the vectors ``[m, length, d]`` where ``mask`` is True, or zeros."""
    weights = mask.to(hidden.dtype)
    return torch.einsum("mld,ml->md", hidden, weights) / weights.sum(-1, keepdim=True).clamp(min=1)
