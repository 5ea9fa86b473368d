"""Tokens of (query, document) pairs, and padded mini-batches of pairs of similar length.

``_text_ranker`` tokenizes all pairs once, with :func:`tokenize`; training and scoring then take
mini-batches from :class:`PairInputs`. An input is what the encoder reads at once. A pair has one
input or, if its document is read in passages, several: the query with each passage.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankgrad._validation import check_whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

QUERY, DOCUMENT, SPECIAL, PADDING = range(4)  # the segment of a token
_INPUTS_PER_CALL = 4096  # inputs that are tokenized in one call of the tokenizer
_UNLIMITED = 10**9  # the model_max_length of a tokenizer without a limit is larger
_DEFAULT_LENGTH = 512  # tokens per input, if neither network nor tokenizer has a limit


@dataclass(frozen=True)
class InputBatch:
    """A padded mini-batch: m encoder inputs of p pairs.

    Attributes:
        input_ids: ``[m, length]``.
        attention_mask: ``[m, length]``, True on tokens.
        token_type_ids: ``[m, length]``, or None if the tokenizer has no token types.
        segments: ``[m, length]``: ``QUERY`` on the query's tokens, ``DOCUMENT`` on the document's,
            ``SPECIAL`` on special tokens, ``PADDING`` on padding.
        pair_of: ``[m]``: the pair, from 0 to p - 1, that each input belongs to.
        indices: ``[p]``, on the CPU: the positions of the pairs in the argument of
            :meth:`PairInputs.batches`.
    """

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor | None
    segments: Tensor
    pair_of: Tensor
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        """The number of pairs, p, and so of scores."""
        return len(self.indices)


@dataclass(frozen=True)
class PairInputs:
    """The tokens of many pairs in flat layout, on one device.

    Attributes:
        ids: ``[T]``, the token ids of all inputs.
        types: ``[T]``, the token types, or None.
        segments: ``[T]``: ``QUERY``, ``DOCUMENT`` or ``SPECIAL``.
        offsets: ``[I + 1]``: input i is ``ids[offsets[i]:offsets[i + 1]]``.
        pairs: ``[N + 1]``, offsets of pairs: pair n has the inputs ``pairs[n]:pairs[n + 1]``, at
            least one.
        padding: the id of the token that pads mini-batches.
    """

    ids: Tensor
    types: Tensor | None
    segments: Tensor
    offsets: NDArray[np.int64]
    pairs: NDArray[np.int64]
    padding: int = 0

    def __len__(self) -> int:
        return len(self.pairs) - 1

    @property
    def device(self) -> torch.device:
        """The device of the tokens."""
        return self.ids.device

    def to(self, device: torch.device | str) -> PairInputs:
        """The same tokens on a device."""
        types = None if self.types is None else self.types.to(device)
        return replace(
            self, ids=self.ids.to(device), types=types, segments=self.segments.to(device)
        )

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each input, ``[I]``."""
        return np.diff(self.offsets)

    @cached_property
    def _max_lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each pair's longest input, ``[N]``."""
        starts = self.pairs[:-1]
        return np.maximum.reduceat(self._lengths, starts) if len(starts) else starts

    def batches(self, pairs: NDArray[np.int64], size: int) -> Iterator[InputBatch]:
        """Mini-batches of some pairs, shortest pairs first, so that there is little padding.

        Args:
            pairs: indices of pairs, ``[n]``, in any order.
            size: pairs per mini-batch.

        Returns:
            Mini-batches, whose ``indices`` are the positions of their pairs in ``pairs``.

        Raises:
            ValueError: ``size`` is not a whole number of at least 1.
        """
        check_whole("batch_size", size)
        order = np.argsort(self._max_lengths[pairs], kind="stable")
        for start in range(0, len(pairs), size):
            indices = order[start : start + size]
            yield self._batch(pairs[indices], indices)

    def _batch(self, pairs: NDArray[np.int64], indices: NDArray[np.int64]) -> InputBatch:
        """The mini-batch of ``pairs`` ``[p]``, whose ``indices`` ``[p]`` it keeps as they are."""
        first_inputs = self.pairs[pairs]
        counts = self.pairs[pairs + 1] - first_inputs
        pair_of = np.repeat(np.arange(len(pairs)), counts)
        # The number of an input within its pair, from 0.
        passage = np.arange(len(pair_of)) - np.repeat(np.cumsum(counts) - counts, counts)
        inputs = first_inputs[pair_of] + passage
        lengths = self._lengths[inputs]
        columns = torch.arange(int(lengths.max()), device=self.device)
        mask = columns < self._on_device(lengths)[:, None]
        # The positions ``[m, length]`` of the tokens in the flat layout; 0 for padding.
        positions = torch.where(mask, self._on_device(self.offsets[inputs])[:, None] + columns, 0)
        ids = torch.where(mask, self.ids[positions].long(), self.padding)
        types = None if self.types is None else torch.where(mask, self.types[positions].long(), 0)
        segments = torch.where(mask, self.segments[positions], PADDING)
        return InputBatch(ids, mask, types, segments, self._on_device(pair_of), indices)

    def _on_device(self, values: NDArray[np.int64]) -> Tensor:
        return to_device(values, self.device)


def to_device(values: NDArray[np.int64], device: torch.device) -> Tensor:
    """An array as a tensor on a device; the host does not wait for a GPU."""
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True)
class Passages:
    """How documents that are longer than one input are read.

    The SmoothI paper reads 800 tokens in two inputs: ``Passages(2, 800)``. A document that needs
    several inputs is split into passages of about equal length, between words if the rest still
    fits. A document that is too long to be read as a whole is cut after a word.

    Args:
        most: the largest number of inputs per document; 1 reads as much as fits into one.
        tokens: the largest number of tokens that are read; None for as many as fit.
    """

    most: int = 1
    tokens: int | None = None

    def split(self, text: str, encoding: Any, space: int) -> list[str]:
        """The passages of a document.

        Together they are the beginning of the text, or all of it if it fits. A passage begins where
        the previous one ends, so it includes the white space in between: some tokenizers need that
        to give the same tokens again.

        Args:
            text: the document.
            encoding: the document's ``tokenizers.Encoding``, with the characters and the word of
                each token.
            space: the number of tokens that an input has for the document.
        """
        words, spans = encoding.word_ids, encoding.offsets  # the word and characters of each token
        total = min(len(words), self.most * space, self.tokens or len(words))
        token_ends = _passage_ends(words, total, max(1, math.ceil(total / space)), space)
        text_ends = [0, *(spans[end - 1][1] if end else 0 for end in token_ends)]  # characters
        return [text[start:end] for start, end in itertools.pairwise(text_ends)]


def _passage_ends(words: Sequence[Any], total: int, count: int, space: int) -> list[int]:
    """The end of each passage: the index of the token after its last one.

    A passage ends after a whole word if possible.

    Args:
        words: the index of each token's word, also for tokens that are not read.
        total: the largest number of tokens that are read.
        count: the number of passages.
        space: the largest number of tokens of a passage.
    """
    ends = [0]
    for following in range(count - 1, -1, -1):  # passages after this one
        start = ends[-1]
        latest = min(start + space, total)
        target = min(start + math.ceil((total - start) / (following + 1)), latest)
        earliest = max(start + 1, total - following * space)  # so that the rest fits
        # From the target back to the earliest end, then from the target on to the latest one.
        candidates = [*range(target, earliest - 1, -1), *range(target + 1, latest + 1)]
        if total < len(words):
            # The document is cut anyway: better to read less of it than to cut within a word.
            candidates += range(min(earliest, latest + 1) - 1, start, -1)
        ends.append(next((end for end in candidates if _ends_word(words, end)), target))
    return ends[1:]


def _ends_word(words: Sequence[Any], end: int) -> bool:
    """Whether the token before ``end`` is the last one of its word."""
    return end == len(words) or words[end] != words[end - 1]


def tokenize(
    tokenizer: PreTrainedTokenizerBase,
    queries: Sequence[str],
    texts: Sequence[str],
    *,
    max_length: int,
    passages: Passages | None = None,
    separate: bool = False,
) -> PairInputs:
    """Tokenize pairs of texts.

    If a pair is too long, the longer of its two texts is cut at its end, as sentence-transformers
    does. The input of an empty document has the query alone. A tokenizer without a separator token
    joins the texts by its own rule for pairs.

    Args:
        tokenizer: a fast tokenizer of Hugging Face.
        queries: the query of each pair, ``[N]``.
        texts: the document of each pair, ``[N]``.
        max_length: tokens per input, special ones included.
        passages: how documents that are too long for one input are read; by default they are cut.
        separate: tokenize each text as if it were alone, for a bi-encoder: it has up to
            ``max_length`` tokens and its own special tokens, which belong to its segment. The
            input is the two texts' tokens, one text after the other.

    Raises:
        ValueError: the tokenizer is not a fast one, or an input has no space for a document.
    """
    _check_fast(tokenizer)
    pairs = np.arange(len(texts) + 1)
    if passages is not None and passages.most == 1:
        texts = cut_documents(tokenizer, texts, passages.tokens)
    elif passages is not None:
        splits = _split_documents(tokenizer, queries, texts, max_length, passages, separate)
        queries = [query for query, split in zip(queries, splits, strict=True) for _ in split]
        texts = [passage for split in splits for passage in split]
        pairs = np.cumsum([0, *map(len, splits)])
    ids: list[NDArray[Any]] = []
    types: list[NDArray[Any]] = []
    segments: list[NDArray[Any]] = []
    has_types = "token_type_ids" in tokenizer.model_input_names
    for start in range(0, len(texts), _INPUTS_PER_CALL):
        stop = start + _INPUTS_PER_CALL
        encodings = _encodings(
            tokenizer, queries[start:stop], texts[start:stop], max_length, separate
        )
        for input_ids, input_types, input_segments in encodings:
            ids.append(np.array(input_ids, np.int32))
            types.append(np.array(input_types, np.int8))
            segments.append(np.array(input_segments, np.int8))
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    return PairInputs(
        _concatenate(ids, np.int32),
        _concatenate(types, np.int8) if has_types else None,
        _concatenate(segments, np.int8),
        np.cumsum([0, *map(len, ids)]),
        pairs,
        padding=padding,
    )


def cut_documents(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], tokens: int | None
) -> Sequence[str]:
    """The beginning of each text, up to ``tokens`` tokens, cut after a word; None for all of it.

    Raises:
        ValueError: the tokenizer is not a fast one.
    """
    if tokens is None:
        return texts
    _check_fast(tokenizer)

    @cache
    def cut(text: str) -> str:
        encoding = tokenizer(text, add_special_tokens=False, verbose=False).encodings[0]
        return Passages(1, tokens).split(text, encoding, tokens)[0]

    return [cut(text) for text in texts]


def _check_fast(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise if a tokenizer is not a fast one, which alone has the words of its tokens."""
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} is not a fast tokenizer, which is needed here"
        )


def rows_as_inputs(rows: Sequence[Sequence[int]], padding: int) -> PairInputs:
    """Pairs with the tokens ``rows``, one input each; all tokens are of the segment DOCUMENT."""
    offsets = np.cumsum([0, *map(len, rows)])
    ids = _concatenate([np.array(row, np.int32) for row in rows], np.int32)
    segments = torch.full((len(ids),), DOCUMENT, dtype=torch.int8)
    pairs = np.arange(len(rows) + 1)
    return PairInputs(ids, None, segments, offsets, pairs, padding=padding)


def first_position(network: PreTrainedModel) -> int:
    """The position id of an input's first token.

    It is 0, except in RoBERTa and similar models: they reserve a position for padding, and count
    from the next one on.
    """
    embeddings = getattr(network.base_model, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    return 0 if padding is None else int(padding) + 1


def set_padding_token(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Let a tokenizer without a padding token use its end-of-text token, if it has one."""
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    if getattr(network.config, "pad_token_id", None) is None:
        network.config.pad_token_id = tokenizer.pad_token_id


def length_limit(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    requested: int | None,
) -> int:
    """The number of tokens per input: ``requested``, or the limit of network and tokenizer.

    Args:
        network: an encoder or a causal language model.
        tokenizer: the network's tokenizer.
        requested: the number of tokens; None for the limit, or for 512 if there is no limit.

    Raises:
        ValueError: ``requested`` is above the limit, or too small for the special tokens of a pair
            and one token of each of its texts.
    """
    limit = int(tokenizer.model_max_length)
    positions = getattr(network.config, "max_position_embeddings", None)
    if positions is not None and int(positions) > 0:  # some models have -1 for no limit
        limit = min(limit, int(positions) - first_position(network))
    if requested is None:
        return _DEFAULT_LENGTH if limit > _UNLIMITED else limit
    minimum = min_length(tokenizer)
    if not minimum <= requested <= limit:
        raise ValueError(
            f"max_length must be from {minimum} to the model's limit {limit}, found {requested}"
        )
    return requested


def min_length(tokenizer: PreTrainedTokenizerBase) -> int:
    """The tokens of the shortest input: the special ones, and one of each text of a pair.

    A tokenizer does not cut a pair to fewer tokens than that: it leaves the pair as it is.
    """
    return int(tokenizer.num_special_tokens_to_add(pair=True)) + 2


def _encodings(
    tokenizer: PreTrainedTokenizerBase,
    queries: Sequence[str],
    texts: Sequence[str],
    max_length: int,
    separate: bool,
) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """The token ids, token types and segments of each input; arguments as in :func:`tokenize`."""
    if not separate:
        encoded = tokenizer(
            list(queries), list(texts), truncation="longest_first", max_length=max_length
        )
        for pair in encoded.encodings:
            # sequence_ids: 0 (QUERY), 1 (DOCUMENT), or None for special tokens.
            segments = [SPECIAL if text is None else text for text in pair.sequence_ids]
            yield pair.ids, pair.type_ids, segments
        return
    encoded_queries = tokenizer(list(queries), truncation=True, max_length=max_length).encodings
    encoded_texts = tokenizer(list(texts), truncation=True, max_length=max_length).encodings
    for query, text in zip(encoded_queries, encoded_texts, strict=True):
        segments = [QUERY] * len(query.ids) + [DOCUMENT] * len(text.ids)
        yield query.ids + text.ids, [0] * len(segments), segments


def _split_documents(
    tokenizer: PreTrainedTokenizerBase,
    queries: Sequence[str],
    texts: Sequence[str],
    max_length: int,
    passages: Passages,
    separate: bool,
) -> list[list[str]]:
    """The passages of each pair's document; arguments as in :func:`tokenize`.

    The longer the query of a pair, the shorter they are, unless texts are tokenized separately.
    """

    @cache
    def encoding(text: str) -> Any:
        return tokenizer(text, add_special_tokens=False, verbose=False).encodings[0]

    total = max_length - int(tokenizer.num_special_tokens_to_add(pair=not separate))
    splits = []
    for query, text in zip(queries, texts, strict=True):
        # As the tokenizer cuts the longer text, a query takes half of an input or less.
        space = total if separate else total - min(len(encoding(query)), total // 2)
        if space < 1:
            raise ValueError(f"max_length={max_length} leaves no space for a document")
        splits.append(passages.split(text, encoding(text), space))
    return splits


def _concatenate(arrays: list[NDArray[Any]], dtype: type) -> Tensor:
    """Arrays ``[t]`` of one dtype as a flat tensor ``[T]``; there may be none."""
    return torch.from_numpy(np.concatenate(arrays) if arrays else np.empty(0, dtype))
