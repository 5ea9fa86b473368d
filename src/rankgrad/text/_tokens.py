"""Tokens of (query, document) pairs, made once, and padded mini-batches of like length from them.

A pair is one input of the encoder, or, where documents are read in passages, several: the query
with each passage.
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

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

QUERY, DOCUMENT, SPECIAL, PADDING = range(4)  # what a token is part of
_PAIRS = 4096  # tokenized at a time
_UNLIMITED = 10**9  # a tokenizer without a limit has a larger number
_DEFAULT_LENGTH = 512  # where there is no limit


@dataclass(frozen=True)
class InputBatch:
    """A padded mini-batch of encoder inputs.

    Attributes:
        input_ids: ``[m, length]``.
        attention_mask: ``[m, length]``, True on tokens.
        token_type_ids: ``[m, length]``, or None where the tokenizer gives none.
        segments: ``[m, length]``: 0 on the query's tokens, 1 on the document's, 2 on the special
            tokens of both, 3 on padding.
        pair_of: ``[m]``: which of the mini-batch's pairs an input is of.
        indices: ``[p]``, on the CPU: where its pairs are among those asked for.
    """

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor | None
    segments: Tensor
    pair_of: Tensor
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        """The number of pairs, whose scores a mini-batch gives."""
        return len(self.indices)


@dataclass(frozen=True)
class PairInputs:
    """The tokens of many pairs in flat layout, on one device.

    Attributes:
        ids: ``[T]``, the tokens of all inputs.
        types: ``[T]``, their token types, or None.
        segments: ``[T]``, what they are part of.
        offsets: ``[I + 1]``: input i is ``ids[offsets[i]:offsets[i + 1]]``.
        pairs: ``[N + 1]``: pair n has the inputs ``pairs[n]:pairs[n + 1]``, at least one.
        padding: the token that fills up mini-batches.
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
        """Where the tokens are."""
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
        """Mini-batches of some pairs, shortest first, so that padding is little.

        Args:
            pairs: which ones, in any order.
            size: pairs per mini-batch.

        Returns:
            Mini-batches, whose ``indices`` say where in ``pairs`` their pairs are.
        """
        order = np.argsort(self._max_lengths[pairs], kind="stable")
        for start in range(0, len(pairs), size):
            indices = order[start : start + size]
            yield self._batch(pairs[indices], indices)

    def _batch(self, pairs: NDArray[np.int64], indices: NDArray[np.int64]) -> InputBatch:
        counts = self.pairs[pairs + 1] - self.pairs[pairs]
        owners = np.repeat(np.arange(len(pairs)), counts)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        inputs = self.pairs[pairs][owners] + within
        lengths = self._lengths[inputs]
        columns = torch.arange(int(lengths.max()), device=self.device)
        mask = columns < self._sent(lengths)[:, None]
        positions = torch.where(mask, self._sent(self.offsets[inputs])[:, None] + columns, 0)
        ids = torch.where(mask, self.ids[positions].long(), self.padding)
        types = None if self.types is None else torch.where(mask, self.types[positions].long(), 0)
        segments = torch.where(mask, self.segments[positions], PADDING)
        return InputBatch(ids, mask, types, segments, self._sent(owners), indices)

    def _sent(self, values: NDArray[np.int64]) -> Tensor:
        return to_device(values, self.device)


def to_device(values: NDArray[np.int64], device: torch.device) -> Tensor:
    """An array as a tensor on a device; a GPU is not waited for."""
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True)
class Passages:
    """How long documents are read.

    Args:
        most: inputs per document, at most; 1 reads what fits into one.
        tokens: of a document that are read, at most; None for as many as fit into its inputs.

    The SmoothI paper reads 800 tokens in two inputs: ``Passages(2, 800)``. A document that needs
    several inputs is cut into parts of about equal length, between words if the rest still fits
    then. A document that is longer than what is read ends with a whole word.
    """

    most: int = 1
    tokens: int | None = None

    def split(self, text: str, encoding: Any, space: int) -> list[str]:
        """The parts of a document of which each fits into a number of tokens.

        Together they are the text from its start on, all of it if it fits. A part begins where the
        one before ends, with the white space in between, which some tokenizers need to find the
        same tokens again.

        Args:
            text: the document.
            encoding: its tokens, with the characters and the words that they are of.
            space: tokens that an input has for the document.
        """
        words, spans = encoding.word_ids, encoding.offsets
        total = min(len(words), self.most * space, self.tokens or len(words))
        cuts = _cuts(words, total, max(1, math.ceil(total / space)), space)
        ends = [0, *(spans[cut - 1][1] if cut else 0 for cut in cuts)]
        return [text[first:last] for first, last in itertools.pairwise(ends)]


def _cuts(words: Sequence[Any], total: int, count: int, space: int) -> list[int]:
    """The tokens at which the parts of a document end, each at the end of a word if possible.

    Args:
        words: the word of each token, also of those that are not read.
        total: tokens that are read, at most.
        count: of parts.
        space: tokens of a part, at most.
    """
    cuts = [0]
    for left in range(count - 1, -1, -1):  # parts after this one
        start = cuts[-1]
        highest = min(start + space, total)
        target = min(start + math.ceil((total - start) / (left + 1)), highest)
        rest = max(start + 1, total - left * space)  # from here on, what follows has its space
        # A text that is longer than what is read ends earlier rather than within a word.
        lowest = start + 1 if total < len(words) else rest
        nearest = (*range(target, rest - 1, -1), *range(target + 1, highest + 1))
        ends = (*nearest, *range(min(rest, highest + 1) - 1, lowest - 1, -1))
        cuts.append(next((end for end in ends if _ends_word(words, end)), target))
    return cuts[1:]


def _ends_word(words: Sequence[Any], end: int) -> bool:
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

    Where a pair is too long, the longer of its two texts is cut at its end, which is what
    sentence-transformers does. An empty document is an input that holds the query alone. A
    tokenizer without a separator token joins the texts by its own rule for pairs.

    Args:
        tokenizer: a fast one of Hugging Face.
        queries: the query of each pair, ``[N]``.
        texts: the document of each pair, ``[N]``.
        max_length: tokens per input, special ones included.
        passages: how long documents are read; by default in one input.
        separate: both texts have special tokens of their own, which count as theirs, and up to
            ``max_length`` tokens each: what a bi-encoder reads, one after the other.

    Raises:
        ValueError: the tokenizer is not a fast one, or an input has no space for a document.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} is not a fast tokenizer, which is needed here"
        )
    pairs = np.arange(len(texts) + 1)
    if passages is not None and passages.most > 1:
        parts = _parts(tokenizer, queries, texts, max_length, passages)
        queries = [query for query, part in zip(queries, parts, strict=True) for _ in part]
        texts = [text for part in parts for text in part]
        pairs = np.cumsum([0, *map(len, parts)])
    ids: list[NDArray[Any]] = []
    types: list[NDArray[Any]] = []
    segments: list[NDArray[Any]] = []
    typed = "token_type_ids" in tokenizer.model_input_names
    for start in range(0, len(texts), _PAIRS):
        stop = start + _PAIRS
        encodings = _encodings(
            tokenizer, queries[start:stop], texts[start:stop], max_length, separate
        )
        for tokens, token_types, texts_of in encodings:
            ids.append(np.array(tokens, np.int32))
            types.append(np.array(token_types, np.int8))
            segments.append(
                np.array([SPECIAL if text is None else text for text in texts_of], np.int8)
            )
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    return PairInputs(
        _joined(ids, np.int32),
        _joined(types, np.int8) if typed else None,
        _joined(segments, np.int8),
        np.cumsum([0, *map(len, ids)]),
        pairs,
        padding=padding,
    )


def rows_as_inputs(rows: Sequence[Sequence[int]], padding: int) -> PairInputs:
    """Pairs whose tokens are known, one input each; all tokens count as the document's."""
    offsets = np.cumsum([0, *map(len, rows)])
    ids = _joined([np.array(row, np.int32) for row in rows], np.int32)
    segments = torch.full((len(ids),), DOCUMENT, dtype=torch.int8)
    pairs = np.arange(len(rows) + 1)
    return PairInputs(ids, None, segments, offsets, pairs, padding=padding)


def first_position(network: PreTrainedModel) -> int:
    """The position of an input's first token: RoBERTa and its like count from after the padding's.

    Their position embeddings have one for padding, which those of other models do not.
    """
    embeddings = getattr(network.base_model, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    return 0 if padding is None else int(padding) + 1


def set_padding_token(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Let a tokenizer without a padding token pad with its end-of-text token, if it has one."""
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    if getattr(network.config, "pad_token_id", None) is None:
        network.config.pad_token_id = tokenizer.pad_token_id


def length_limit(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    wanted: int | None,
    *,
    least: int = 1,
) -> int:
    """The number of tokens per input: ``wanted``, or the limit of network and tokenizer.

    Args:
        network: an encoder or a causal language model.
        tokenizer: its tokenizer.
        wanted: None for the limit, or for 512 where there is none.
        least: the fewest that are allowed.

    Raises:
        ValueError: ``wanted`` is below ``least`` or above the limit.
    """
    limit = int(tokenizer.model_max_length)
    positions = getattr(network.config, "max_position_embeddings", None)
    if positions is not None and int(positions) > 0:  # some say -1 for no limit
        limit = min(limit, int(positions) - first_position(network))
    if wanted is None and limit > _UNLIMITED:
        return _DEFAULT_LENGTH
    if wanted is None:
        return limit
    if not least <= wanted <= limit:
        raise ValueError(
            f"max_length must be from {least} to the model's limit {limit}, found {wanted}"
        )
    return wanted


def _encodings(
    tokenizer: PreTrainedTokenizerBase,
    queries: Sequence[str],
    texts: Sequence[str],
    max_length: int,
    separate: bool,
) -> Iterator[tuple[list[int], list[int], list[int | None]]]:
    """Of each pair the tokens, their types, and their texts: 0, 1, or None for special tokens."""
    if not separate:
        encoded = tokenizer(
            list(queries), list(texts), truncation="longest_first", max_length=max_length
        )
        for pair in encoded.encodings:
            yield pair.ids, pair.type_ids, pair.sequence_ids
        return
    first, second = (
        [
            encoding.ids
            for encoding in tokenizer(list(side), truncation=True, max_length=max_length).encodings
        ]
        for side in (queries, texts)
    )
    for query, text in zip(first, second, strict=True):
        sides: list[int | None] = [*[QUERY] * len(query), *[DOCUMENT] * len(text)]
        yield query + text, [0] * len(sides), sides


def _parts(
    tokenizer: PreTrainedTokenizerBase,
    queries: Sequence[str],
    texts: Sequence[str],
    max_length: int,
    passages: Passages,
) -> list[list[str]]:
    """The passages of each pair's document, which depend on how long its query is."""

    @cache
    def encoding(text: str) -> Any:
        return tokenizer(text, add_special_tokens=False, verbose=False).encodings[0]

    space_of_pair = max_length - int(tokenizer.num_special_tokens_to_add(pair=True))
    parts = []
    for query, text in zip(queries, texts, strict=True):
        # A query takes at most half of an input, as it does beside a long document.
        space = space_of_pair - min(len(encoding(query)), space_of_pair // 2)
        if space < 1:
            raise ValueError(f"max_length={max_length} leaves no space for a document")
        parts.append(passages.split(text, encoding(text), space))
    return parts


def _joined(arrays: list[NDArray[Any]], dtype: type) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays) if arrays else np.empty(0, dtype))
