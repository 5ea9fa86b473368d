"""How a text ranker reads and scores a pair of a query and a document.

:class:`Reading` has the options; :class:`Prompt` is the text that a causal language model is asked.

The module imports nothing heavy, because the command line makes options of these dataclasses.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, get_args

from rankgrad._validation import check_choice, check_whole

Head = Literal["auto", "classifier", "similarity", "embedding", "causal"]
Pooling = Literal["mean", "max"]
CAUSAL = ("ForCausalLM", "LMHeadModel")  # how the class names of causal language models end


@dataclass(frozen=True)
class Prompt:
    """What a causal language model is asked about a pair of a query and a document.

    The default is the prompt of Qwen3-Reranker.

    Attributes:
        prefix: text before the pair, never cut.
        body: the pair; ``{query}`` and ``{document}`` are replaced. Cut at its end if too long.
        suffix: text after the pair, never cut; the answer follows it.
        yes: the answer for a relevant document, a single token.
        no: the answer for a document that is not relevant, a single token.

    Raises:
        ValueError: the body lacks ``{query}`` or ``{document}``.
    """

    prefix: str = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n"
    )
    body: str = (
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        "<Query>: {query}\n<Document>: {document}"
    )
    suffix: str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    yes: str = "yes"
    no: str = "no"

    def __post_init__(self) -> None:
        for part in ("{query}", "{document}"):
            if part not in self.body:
                raise ValueError(f"the body of a prompt must have {part} in it")

    @classmethod
    def read(cls, path: str | Path) -> Prompt:
        """Read a prompt from a TOML file, whose keys are attributes; others keep their defaults.

        Args:
            path: the file.

        Returns:
            The prompt.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is not TOML or has an unknown key, or the body lacks ``{query}`` or
                ``{document}``.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no prompt at {path}")
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is not TOML: {error}") from None
        allowed = [field.name for field in fields(cls)]
        for name, value in values.items():
            if name not in allowed:
                raise ValueError(f"{path}: there is no {name!r} in a prompt, only: {allowed}")
            if not isinstance(value, str):
                raise ValueError(f"{path}: {name} must be a text, found {value!r}")
        try:
            return cls(**values)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def pair(self, query: str, document: str) -> str:
        """The body for a pair; braces in the query and in the document stay as they are.

        Args:
            query: the text of the query.
            document: the text of the document.

        Returns:
            The text of the body.
        """
        parts = self.body.split("{query}")
        filled = [part.replace("{document}", document) for part in parts]
        return query.join(filled)


@dataclass(frozen=True)
class Reading:
    """How a ranker reads a pair of texts and makes a score of it.

    Attributes:
        max_length: tokens per input, special ones included; None for the model's limit.
        passages: the largest number of inputs that a document is split into.
        document_tokens: the largest number of tokens that are read of a document; None for all that
            fit.
        pooling: how the vectors of a document's passages become one, ``"mean"`` or ``"max"``.
        head: how a pair is scored.

            - ``"auto"``: ``"causal"`` for causal language models, ``"classifier"`` for others.
            - ``"classifier"``: the [CLS] vector through the model's classification head, which is
              new if the checkpoint has none.
            - ``"similarity"``: the cosine of the mean vectors of the query's and of the document's
              tokens, plus a linear function of the [CLS] vector. That function is 0 at first, so
              that training starts from the ranking by sentence embeddings.
            - ``"embedding"``: the same, but each text is encoded as if it were alone: a bi-encoder
              as long as ``cross_attention`` is 0.
            - ``"causal"``: the logit of "yes" minus that of "no" after a prompt, by a causal
              language model. It has no new head.
        cross_attention: a factor, from 0 to 1, of the attention from one text to the other before
            it is normalized, for ``"embedding"``. Above 0 the model is a cross-encoder; a small
            factor starts it near the bi-encoder.
        prompt: what a causal language model is asked; None for the prompt of Qwen3-Reranker.
    """

    max_length: int | None = None
    passages: int = 1
    document_tokens: int | None = None
    pooling: Pooling = "mean"
    head: Head = "auto"
    cross_attention: float = 0.0
    prompt: Prompt | None = None

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, get_args(Pooling))
        check_choice("head", self.head, get_args(Head))
        check_whole("passages", self.passages)
        for name in ("max_length", "document_tokens"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        if not 0 <= self.cross_attention <= 1:
            raise ValueError(f"cross_attention must be from 0 to 1, found {self.cross_attention}")
        if self.prompt is not None and self.head not in ("auto", "causal"):
            raise ValueError(f"a prompt is for causal language models, found head={self.head!r}")
        if self.cross_attention and self.head != "embedding":
            raise ValueError(
                f"cross_attention needs head='embedding', found head={self.head!r}, whose texts "
                "see each other anyway"
            )

    def resolve(self, architecture: str) -> Reading:
        """The same with ``"auto"`` replaced by the head for a network of class ``architecture``."""
        if self.head != "auto":
            return self
        if architecture.endswith(CAUSAL):
            return replace(self, head="causal")
        if self.prompt is not None:
            raise ValueError(f"a prompt is for causal language models, and not for {architecture}")
        return replace(self, head="classifier")
