"""BM25Index: the first stage, which retrieves the candidates to be reranked.

``rankgrad text index`` builds and saves an index, ``rankgrad text retrieve`` searches it. The
package bm25s computes the scores. An index is a folder of NumPy arrays, JSON and the
documents' ids, without the texts. No pickle is read.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NotRequired

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from rankgrad import _files, _schemas
from rankgrad._quoting import message_of
from rankgrad._validation import check_between, check_choice, check_positive, check_whole
from rankgrad.data import _layout
from rankgrad.data.trec import RankedList, Run
from rankgrad.extras import load

_METADATA, _DOCUMENTS = "index.json", "documents.txt"
_VERSION = 1  # of the folder's layout
_STOP_WORDS = {"english": "en", "none": []}


@dataclass(frozen=True, kw_only=True)
class BM25Settings:
    """How texts become terms, and the parameters of BM25.

    The score of a document is the sum of ``idf(t) · tf / (tf + k1 (1 - b + b · length / mean
    length))`` over the terms t of the query, as in Lucene (Robertson and Zaragoza 2009). Terms are
    lower-case words of two or more letters.

    Args:
        stop_words: words that are left out: ``"english"``, the list of bm25s, or ``"none"``.
        stemmer: the name of a Snowball stemmer of PyStemmer, such as ``"english"``, or None.
        k1: how fast further occurrences of a term stop counting.
        b: how much long documents are discounted, from 0 to 1.
    """

    stop_words: Literal["english", "none"] = "english"
    stemmer: str | None = None
    k1: float = 1.5
    b: float = 0.75

    def __post_init__(self) -> None:
        check_choice("stop_words", self.stop_words, tuple(_STOP_WORDS))
        check_positive("k1", self.k1)
        if self.b not in (0, 1):
            check_between("b", self.b, 0, 1)

    def tokenize(self, texts: Iterable[str], progress: bool = False) -> Any:
        """The terms of texts, as bm25s's ``Tokenized``: ``ids`` by text, and a ``vocab``.

        Raises:
            ImportError: bm25s or PyStemmer is not installed; the message has the install line.
        """
        tokenization = load("bm25s.tokenization", "text")
        tokens = tokenization.tokenize(
            list(texts), stopwords=_STOP_WORDS[self.stop_words], show_progress=progress, leave=True
        )
        if self.stemmer is None:
            return tokens
        # Stems are numbered here, because bm25s numbers them in the order of a set, which differs
        # between processes.
        stems = _stemmer(self.stemmer).stemWords(list(tokens.vocab))
        stem_ids: dict[str, int] = {}
        stem_of_word = [stem_ids.setdefault(stem, len(stem_ids)) for stem in stems]
        ids = [[stem_of_word[word] for word in words] for words in tokens.ids]
        return tokenization.Tokenized(ids=ids, vocab=stem_ids)


class _Metadata(TypedDict):
    """What ``index.json`` holds.

    Attributes:
        rankgrad_text_index: the version of the folder's layout.
        documents: the number of documents.
        files: the checksum of each other file, by its name.

    The others are those of :class:`BM25Settings`.
    """

    rankgrad_text_index: int
    documents: int
    stop_words: str
    stemmer: str | None
    k1: float
    b: float
    files: NotRequired[dict[str, str]]


class BM25Index:
    """A collection indexed for BM25.

    Args:
        documents: ids of the documents, in the order of the index.
        bm25: the index, of the class ``bm25s.BM25``.
        settings: the settings that the index was built with.

    >>> from rankgrad.text._first_stage import BM25Index
    >>> index = BM25Index.build({"a": "wing in a slipstream", "b": "heat in slabs", "c": ""})
    >>> index.search("a heated wing", depth=10).documents
    ['a']
    """

    def __init__(self, documents: list[str], bm25: Any, settings: BM25Settings) -> None:
        self.documents = documents
        self.settings = settings
        self._bm25 = bm25
        # The rank of each document by descending id, which breaks ties as trec_eval does
        by_id = sorted(range(len(documents)), key=documents.__getitem__, reverse=True)
        self._tie_rank: NDArray[np.int64] = np.empty(len(documents), np.int64)
        self._tie_rank[by_id] = np.arange(len(documents))

    @classmethod
    def build(
        cls,
        documents: Mapping[str, str],
        settings: BM25Settings | None = None,
        *,
        progress: bool = False,
    ) -> BM25Index:
        """Index texts.

        Args:
            documents: texts by id, as :func:`rankgrad.text._collections.read_documents` reads them.
            settings: by default English stop words and no stemmer.
            progress: show progress bars on standard error.

        Raises:
            ValueError: no document has a term.
        """
        settings = settings or BM25Settings()
        terms = settings.tokenize(documents.values(), progress)
        if not terms.vocab:
            raise ValueError("none of the documents has a word that can be indexed")
        bm25 = load("bm25s", "text").BM25(k1=settings.k1, b=settings.b)
        bm25.index(terms, show_progress=progress, leave_progress=True)
        return cls(list(documents), bm25, settings)

    def search(self, text: str, depth: int = 100) -> RankedList:
        """The best documents for a query; documents without any of its terms are not retrieved.

        Args:
            text: the query.
            depth: the largest number of documents.

        Returns:
            Documents by descending score, then by descending id.
        """
        check_whole("depth", depth)
        tokens = self.settings.tokenize([text])
        # The query's terms are numbered anew: look them up in the index by word.
        words = {number: word for word, number in tokens.vocab.items()}
        terms = self._bm25.get_tokens_ids([words[number] for number in tokens.ids[0]])
        if not terms:
            return RankedList([], np.empty(0, np.float32))
        scores = self._bm25.get_scores_from_ids(terms)
        matching = np.flatnonzero(scores > 0)
        if len(matching) > depth:
            lowest = np.partition(scores[matching], len(matching) - depth)[len(matching) - depth]
            matching = matching[scores[matching] >= lowest]
        best = matching[np.lexsort((self._tie_rank[matching], -scores[matching]))][:depth]
        return RankedList([self.documents[i] for i in best.tolist()], scores[best])

    def retrieve(
        self,
        topics: Mapping[str, str],
        depth: int = 100,
        *,
        on_query: Callable[[], None] = lambda: None,
    ) -> Run:
        """The best documents for each query.

        Args:
            topics: queries' texts by id.
            depth: the largest number of documents per query.
            on_query: called after each query, to show progress.

        Returns:
            The run, without queries for which nothing is found.
        """
        ranked_lists = {}
        for query, text in topics.items():
            ranked = self.search(text, depth)
            if len(ranked):
                ranked_lists[query] = ranked
            on_query()
        return Run(ranked_lists, "bm25")

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the index as a folder, atomically.

        Args:
            folder: the path of the new folder.
            overwrite: replace an index that exists.

        Raises:
            FileExistsError: the folder exists, and is not an index or may not be overwritten.
        """
        folder = Path(folder)
        check_target(folder, overwrite)
        metadata = {
            "rankgrad_text_index": _VERSION,
            "documents": len(self.documents),
            **asdict(self.settings),
        }
        with _files.atomic_folder(folder) as unfinished:
            self._bm25.save(unfinished, allow_pickle=False, show_progress=False)
            id_lines = "".join(f"{document}\n" for document in self.documents)
            (unfinished / _DOCUMENTS).write_text(id_lines, encoding="utf-8")
            parts = sorted(file.name for file in unfinished.iterdir())
            for name in parts:
                _files.sync(unfinished / name)
            _files.write_json(unfinished / _METADATA, metadata, parts)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> BM25Index:
        """Read an index that :meth:`save` wrote.

        Raises:
            ValueError: the folder is not an index, or it is damaged.
        """
        folder = Path(folder)
        _layout.check_exists(folder)
        if not is_index(folder):
            raise ValueError(f"{folder} is not an index of `rankgrad text index`")
        metadata = _schemas.read_json(folder / _METADATA, _Metadata)
        try:
            if metadata["rankgrad_text_index"] != _VERSION:
                raise ValueError("of another version of rankgrad")
            for name in metadata.get("files", {}):  # earlier versions wrote no checksums
                _files.read_part(folder / name, metadata)  # compares checksums
            options = (option.name for option in fields(BM25Settings))
            settings = BM25Settings(**{name: metadata[name] for name in options})
            documents = (folder / _DOCUMENTS).read_text(encoding="utf-8").split("\n")[:-1]
            bm25 = load("bm25s", "text").BM25.load(folder, allow_pickle=False, load_corpus=False)
            _check_arrays(bm25, documents, metadata["documents"])
        except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
            raise _files.damaged(folder, message_of(error)) from None
        return cls(documents, bm25, settings)


def is_index(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is an index of :meth:`BM25Index.save`."""
    return Path(folder, _METADATA).is_file()


def check_target(folder: Path, overwrite: bool) -> None:
    """Check that an index may be written here, before the work of building it.

    Raises:
        FileExistsError: the folder exists, and is not an index or may not be overwritten.
    """
    if folder.exists() and not (overwrite and is_index(folder)):
        hint = "it is not an index, so it is not replaced"
        if is_index(folder):
            hint = "--overwrite or overwrite=True replaces it"
        raise FileExistsError(f"{folder} is there already; {hint}")


def _check_arrays(bm25: Any, documents: list[str], count: int) -> None:
    """Check that the arrays of an index fit together, so that searches stay within their bounds."""
    data, indices, indptr = (bm25.scores[name] for name in ("data", "indices", "indptr"))
    if not len(documents) == count == bm25.scores["num_docs"]:
        raise ValueError(f"{count} documents are announced, {len(documents)} are there")
    last_word = max(bm25.vocab_dict.values(), default=-1)
    is_consistent = (
        len(data) == len(indices) == indptr[-1]
        and last_word <= len(indptr) - 1  # bm25s adds the empty word, which has no scores
        and (np.diff(indptr) >= 0).all()
        and (len(indices) == 0 or (indices.min() >= 0 and indices.max() < count))
        and np.isfinite(data).all()
    )
    if not is_consistent:
        raise ValueError("its arrays do not fit together")


def _stemmer(name: str) -> Any:
    """A stemmer of PyStemmer."""
    try:
        package = importlib.import_module("Stemmer")
    except ImportError as error:
        raise ImportError(f"the stemmer {name!r} needs PyStemmer: pip install PyStemmer") from error
    if name not in package.algorithms():
        raise ValueError(f"stemmer must be one of {', '.join(package.algorithms())}; found {name}")
    return package.Stemmer(name)
