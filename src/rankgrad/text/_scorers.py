"""Scorers of (query, document) pairs for users' own training loops.

:class:`EncoderScorer` is a cross-encoder, :class:`CausalScorer` a causal language model. Their
``encode(query, documents)`` returns mini-batches of tokens in the order of the documents, and
``forward(batch)`` the scores ``[m]`` of a mini-batch: the arguments of
:func:`rankgrad.text.cached_backward`. The command line uses :class:`rankgrad.text.TextRanker`
instead, which shares :class:`PromptTokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from rankgrad._validation import check_whole
from rankgrad.text._pretrained import check_one_output, load_pretrained
from rankgrad.text._reading import Prompt
from rankgrad.text._tokens import length_limit, set_padding_token

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: A mini-batch of m tokenized pairs: ``input_ids``, ``attention_mask`` and what else the tokenizer
#: returns, each ``[m, length]``.
TokenBatch = dict[str, Tensor]


class TextScorer(nn.Module):
    """A Hugging Face model and its tokenizer as a scorer of (query, document) pairs.

    Args:
        model: the network.
        tokenizer: its tokenizer. One without a padding token pads with its end-of-text token.
        max_length: tokens per pair; by default the model's limit. Longer pairs are cut.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = length_limit(model, tokenizer, max_length)
        set_padding_token(model, tokenizer)
        if tokenizer.pad_token is None:
            raise ValueError(
                "the tokenizer has neither a padding nor an end-of-text token: set its pad_token"
            )

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.device

    def encode(
        self, query: str, documents: Sequence[str], *, batch_size: int = 64
    ) -> list[TokenBatch]:
        """Tokens of the pairs (query, document), in mini-batches padded to their longest pair.

        Args:
            query: the query.
            documents: its documents; an empty text is a document, too.
            batch_size: documents per mini-batch.

        Returns:
            Mini-batches in the documents' order, with tensors ``[m, length]`` on the CPU; an empty
            list if there are no documents.

        Raises:
            ValueError: ``batch_size`` is not a whole number of at least 1.
        """
        check_whole("batch_size", batch_size)
        return [
            self._encode(query, list(documents[start : start + batch_size]))
            for start in range(0, len(documents), batch_size)
        ]

    def _encode(self, query: str, documents: list[str]) -> TokenBatch:
        """The tokens of one mini-batch; subclasses implement it."""
        raise TypeError(f"{type(self).__name__} does not say how it encodes a mini-batch")

    def save_pretrained(self, folder: str | Path) -> None:
        """Save model and tokenizer as a Hugging Face folder.

        Args:
            folder: where to write them.
        """
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


class EncoderScorer(TextScorer):
    """A cross-encoder: a classification head with one output over the encoded pair.

    The tokenizer joins query and document by its own rule for pairs. If a pair is too long, the
    longer of its two texts is cut.

    Args:
        model: a sequence classification network with one label.
        tokenizer: its tokenizer. One without a padding token pads with its end-of-text token.
        max_length: tokens per pair; by default the model's limit. Longer pairs are cut.

    Raises:
        ValueError: the network has more than one output.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int | None = None,
    ) -> None:
        check_one_output(model)
        super().__init__(model, tokenizer, max_length=max_length)

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, *, max_length: int | None = None, **options: Any
    ) -> Self:
        """Load a model from a folder or the hub; a model without a head gets a new one.

        Args:
            name_or_path: a Hugging Face folder, or a name on the hub.
            max_length: tokens per pair; by default the model's limit.
            options: arguments of ``AutoModelForSequenceClassification.from_pretrained``.

        Returns:
            The scorer.
        """
        auto_class = "AutoModelForSequenceClassification"
        model, tokenizer, _ = load_pretrained(auto_class, name_or_path, num_labels=1, **options)
        return cls(model, tokenizer, max_length=max_length)

    def _encode(self, query: str, documents: list[str]) -> TokenBatch:
        encoded = self.tokenizer(
            [query] * len(documents),
            documents,
            padding=True,
            truncation="longest_first",
            max_length=self.max_length,
            return_tensors="pt",
        )
        return dict(encoded)

    def forward(self, batch: TokenBatch) -> Tensor:
        """The scores ``[m]`` in float32 of a mini-batch, which is moved to the model's device.

        Args:
            batch: token tensors ``[m, length]`` by name, from :meth:`encode`.

        Returns:
            The scores, ``[m]``.
        """
        tokens = {name: tensor.to(self.device) for name, tensor in batch.items()}
        logits: Tensor = self.model(**tokens).logits
        return logits.squeeze(-1).float()


class CausalScorer(TextScorer):
    """A causal language model as a pointwise reranker: the logit of "yes" minus that of "no".

    The difference is the log-odds of "yes" against "no" as the next token after the prompt. Only
    the logits of the last position are computed. Mini-batches may be padded on either side; scores
    are the same.

    Args:
        model: a causal language model.
        tokenizer: its tokenizer.
        max_length: tokens per pair, prompt included; by default the model's limit.
        prompt: what the model is asked; by default the prompt of Qwen3-Reranker.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int | None = None,
        prompt: Prompt | None = None,
    ) -> None:
        super().__init__(model, tokenizer, max_length=max_length)
        self.prompt = Prompt() if prompt is None else prompt
        self.tokens = PromptTokens(tokenizer, self.prompt, self.max_length)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        max_length: int | None = None,
        prompt: Prompt | None = None,
        **options: Any,
    ) -> Self:
        """Load a model from a folder or the hub.

        Args:
            name_or_path: a Hugging Face folder, or a name on the hub.
            max_length: tokens per pair, prompt included; by default the model's limit.
            prompt: what the model is asked; by default the prompt of Qwen3-Reranker.
            options: arguments of ``AutoModelForCausalLM.from_pretrained``.

        Returns:
            The scorer.
        """
        model, tokenizer, _ = load_pretrained("AutoModelForCausalLM", name_or_path, **options)
        return cls(model, tokenizer, max_length=max_length, prompt=prompt)

    def forward(self, batch: TokenBatch) -> Tensor:
        """The scores ``[m]`` in float32 of a mini-batch, which is moved to the model's device.

        Args:
            batch: token tensors ``[m, length]`` by name, from :meth:`encode`.

        Returns:
            The scores, ``[m]``.
        """
        tokens, mask = batch["input_ids"].to(self.device), batch["attention_mask"].to(self.device)
        return self.tokens.log_odds(self.model, tokens, mask)

    def _encode(self, query: str, documents: list[str]) -> TokenBatch:
        rows = self.tokens.rows([query] * len(documents), documents)
        padded = self.tokenizer.pad(
            {"input_ids": rows},
            padding_side="left",
            return_attention_mask=True,
            return_tensors="pt",
            verbose=False,
        )
        return dict(padded)


class PromptTokens:
    """A prompt as tokens: what a causal language model reads of a pair, and its two answers.

    Args:
        tokenizer: the tokenizer of the model.
        prompt: what the model is asked.
        max_length: tokens per pair, prompt included.

    Raises:
        ValueError: the prompt alone is too long, or an answer is not a single token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: Prompt, max_length: int) -> None:
        self.tokenizer, self.prompt = tokenizer, prompt
        self._prefix, self._suffix = self._tokenize(prompt.prefix), self._tokenize(prompt.suffix)
        self._yes, self._no = self._answer_token(prompt.yes), self._answer_token(prompt.no)
        prompt_length = len(self._prefix) + len(self._suffix)
        self._body_length = max_length - prompt_length
        if self._body_length < 1:
            raise ValueError(
                f"max_length={max_length} leaves nothing for the pair: the prompt alone has "
                f"{prompt_length} tokens"
            )

    def rows(self, queries: Sequence[str], documents: Sequence[str]) -> list[list[int]]:
        """The tokens of each pair between those of the prompt, without padding.

        A pair that is too long is cut at its end; the prompt is never cut.
        """
        pairs = [self.prompt.pair(*pair) for pair in zip(queries, documents, strict=True)]
        bodies = [self._tokenize(pair)[: self._body_length] for pair in pairs]
        return [self._prefix + body + self._suffix for body in bodies]

    def log_odds(self, model: Any, tokens: Tensor, mask: Tensor) -> Tensor:
        """The logit of "yes" minus that of "no" as the next token, ``[m]``, in float32.

        Args:
            model: a causal language model.
            tokens: ``[m, length]``, padded on any side.
            mask: ``[m, length]``, 1 on tokens, 0 on padding.
        """
        # Move padding to the left, so that the answer of every pair follows the last position.
        order = mask.argsort(dim=1, stable=True)
        tokens, mask = tokens.gather(1, order), mask.gather(1, order)
        output = model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            logits_to_keep=1,
            use_cache=False,
        )
        # In float32, as the difference of half-precision logits would be rounded
        logits: Tensor = output.logits[:, -1].float()
        return logits[:, self._yes] - logits[:, self._no]

    def _tokenize(self, text: str) -> list[int]:
        """The tokens of a text, without special tokens."""
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def _answer_token(self, text: str) -> int:
        """The single token of an answer."""
        tokens = self._tokenize(text)
        if len(tokens) != 1:
            raise ValueError(
                f"the answer {text!r} must be a single token of the tokenizer, found "
                f"{len(tokens)}: give another one in prompt"
            )
        return tokens[0]
