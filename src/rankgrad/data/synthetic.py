"""A simulated web-search log: the built-in data set, whose best ranking is known.

Pages are drawn for queries, described by the 136 features of MSLR-WEB (25 kinds of text match in
five streams of the page, and 11 features of the page), and judged 0 to 4. The judgment is

    label = number of thresholds below  u(features of the list) + shift(query) + noise(item)

where the utility u is :func:`oracle`, a function of the features of the list alone. It has
thresholds, saturations, products and ratios, which a linear model cannot express, and terms that
compare a page with the others in its list, which a model that sees one page at a time cannot
express. The noise is normal and independent, so labels have a monotone likelihood ratio in u.
Therefore exchanging two items that u has in the right order cannot improve any expected NDCG, AP or
RR: **the metric of the oracle's scores is the best achievable** by any model of the features.

This world, ``"listwise"``, favors models that see whole lists. In a second one, ``"pointwise"``,
the utility of a page is a function of its own features alone; pages and features are the same.

In each world the seed and the split determine the queries. Queries are drawn in blocks, each from
its own counter-based random stream, so query q does not depend on the number of queries.

>>> from rankgrad.data import synthetic
>>> train = synthetic.make(100)
>>> len(train), train.n_features
(100, 136)
>>> best = metrics.evaluate(synthetic.oracle(train), train.labels, offsets=train.offsets)
>>> 0.6 < best["ndcg@10"] < 0.8
True
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from rankgrad._shapes import Array
from rankgrad._validation import check_choice, check_whole
from rankgrad.data._dataset import Dataset

__all__ = ["INFORMATIVE", "NAMES", "SIZES", "SPLITS", "make", "oracle", "splits"]

SPLITS = ("train", "vali", "test")
_WORLDS = ("listwise", "pointwise")
SIZES: Mapping[str, tuple[int, int, int]] = {
    "small": (1000, 300, 500),
    "medium": (6000, 2000, 2000),  # WEB10K's
    "web30k": (18919, 6306, 6306),
}

_STREAMS = ("body", "anchor", "title", "url", "whole")
_STATISTICS = ("sum", "min", "max", "mean", "variance")
_KINDS = (
    *("covered terms", "covered ratio", "length", "idf"),
    *(f"{name} {base}" for base in ("tf", "tf/length", "tf-idf") for name in _STATISTICS),
    *("boolean", "vsm", "bm25", "lmir.abs", "lmir.dir", "lmir.jm"),
)
_PAGE_FEATURES = (
    *("slashes", "address length", "inlinks", "outlinks", "pagerank", "siterank"),
    *("quality", "spam", "query clicks", "clicks", "dwell"),
)
NAMES = (*(f"{stream} {kind}" for kind in _KINDS for stream in _STREAMS), *_PAGE_FEATURES)
# The features that the utility depends on. They are always part of the data.
INFORMATIVE = (
    *("body length", "body idf", "title idf", "url idf", "whole idf"),
    *("body bm25", "title bm25", "url bm25", "body lmir.abs"),
    *("pagerank", "quality", "spam", "query clicks", "dwell"),
)
# Columns that are always 0, as some of a real crawl are.
_EMPTY = ("url variance tf/length", "title variance tf/length", "anchor min tf/length")

_BLOCK = 64  # queries drawn together; changing it changes every query
_MAX_LENGTH = 1251  # of a list, as in WEB30K
_THREADS = 8
# Thresholds were fitted on 16,384 queries (8,192 in the pointwise world), so that labels are as
# frequent as in WEB30K: 51.5%, 32.5%, 13.4%, 1.9% and 0.8%. With this noise the best achievable
# NDCG@10 is near 0.7.
_NOISE = 1.05
_THRESHOLDS = np.array([-0.615, 1.012, 2.58, 3.376])
_POINTWISE_THRESHOLDS = np.array([-0.485, 1.222, 2.912, 3.809])


def make(
    queries: int = 1000,
    *,
    seed: int = 0,
    features: int = len(NAMES),
    split: str = "train",
    world: str = "listwise",
) -> Dataset:
    """Simulate queries with their pages, features and judgments.

    The same arguments give the same bytes (on one version of NumPy and one kind of processor), and
    ``make(100)`` is the beginning of ``make(1000)``.

    Args:
        queries: the number of queries, with about 120 pages each.
        seed: any whole number of at least 0; another seed gives other queries of the same world.
        features: the number of columns. With fewer than 136, some columns that the utility does not
            depend on are left out; with more, columns of heavy-tailed noise are added. The other
            columns and the labels stay the same.
        split: ``"train"``, ``"vali"`` or ``"test"``, whose queries are independent of each other.
        world: ``"listwise"``, where the utility has terms that compare a page with the others in
            its list, or ``"pointwise"``, where it has none. Only the labels differ.

    Returns:
        The lists, with the names of features.

    Raises:
        ValueError: an argument is out of its range.

    >>> from rankgrad.data import synthetic
    >>> synthetic.make(2, seed=7).qids.tolist()
    ['train-0', 'train-1']
    """
    queries = check_whole("queries", queries, least=0)
    seed = check_whole("seed", seed, least=0, most=math.inf)
    names = _column_names(check_whole("features", features, least=len(INFORMATIVE)))
    check_choice("split", split, SPLITS)
    check_choice("world", world, _WORLDS)
    blocks = [_Queries.draw(seed, split, block) for block in range(-(-queries // _BLOCK))]
    lengths = np.concatenate([block.lengths for block in blocks] or [np.zeros(0, np.int64)])
    offsets = np.concatenate([[0], lengths[:queries].cumsum()]).astype(np.int64)
    table = np.empty((offsets[-1], len(names)), np.float32)
    labels = np.empty(offsets[-1], np.float32)
    extra = max(0, features - len(NAMES))
    column_indices = (
        slice(None) if names[: len(NAMES)] == NAMES else [NAMES.index(name) for name in names]
    )

    def fill(number: int) -> None:
        columns, judgments = _draw_pages(blocks[number], extra, world)
        start, stop = offsets[number * _BLOCK], offsets[min((number + 1) * _BLOCK, queries)]
        table[start:stop] = columns[column_indices, : stop - start].T
        labels[start:stop] = judgments[: stop - start]

    # NumPy releases the interpreter's lock, and blocks are independent of each other.
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        for _ in pool.map(fill, range(len(blocks))):
            pass
    qids = np.array([f"{split}-{query}" for query in range(queries)], dtype=np.str_)
    return Dataset(table, labels, offsets, qids, feature_names=names)


def splits(size: str = "small", *, seed: int = 0, world: str = "listwise") -> dict[str, Dataset]:
    """Train, vali and test sets of one world with different queries.

    Args:
        size: ``"small"`` (1,000, 300 and 500 queries), ``"medium"`` (as many as WEB10K: 6,000,
            2,000 and 2,000) or ``"web30k"`` (18,919, 6,306 and 6,306).
        seed: as in :func:`make`.
        world: as in :func:`make`.

    Returns:
        The data sets by split, ``train`` first.

    Raises:
        ValueError: there is no such size or world.
    """
    check_choice("size", size, tuple(SIZES))
    return {
        split: make(queries, seed=seed, split=split, world=world)
        for split, queries in zip(SPLITS, SIZES[size], strict=True)
    }


def oracle(dataset: Dataset, *, world: str = "listwise") -> Array:
    """The utility of each item ``[N]``: scores that no model of the features can beat.

    In the listwise world it needs whole lists: there an item's utility depends on the others. The
    columns are found by their names or, in a data set without names, by their positions in
    ``NAMES``.

    Args:
        dataset: a data set that :func:`make` made.
        world: the world that it was made in.

    Returns:
        The utilities, in float64.

    Raises:
        ValueError: the data set does not have the features of :func:`make`.
    """
    check_choice("world", world, _WORLDS)
    names = dataset.feature_names or NAMES
    missing = [name for name in INFORMATIVE if name not in names[: dataset.n_features]]
    if missing:
        raise ValueError(
            f"the data set has no feature {missing[0]!r}: the oracle knows only what "
            "rankgrad.data.synthetic.make made"
        )
    columns = {name: dataset.features[:, names.index(name)] for name in INFORMATIVE}
    lengths = np.diff(dataset.offsets)
    if world == "pointwise":
        return _pointwise_utility(columns)
    return _utility(columns, np.repeat(np.arange(len(lengths)), lengths), len(lengths))


@dataclass(frozen=True)
class _Queries:
    """A block of queries: the properties that all pages of a list have in common.

    Arrays are ``[queries]`` unless said otherwise. Those from ``shift`` on are latent: they are no
    features, but features or labels depend on them.
    """

    key: tuple[int, int, int]  # seed, split and block, for random streams
    lengths: Array  # the number of pages of each list
    terms: Array  # the number of words of the query
    idf: Array  # [streams, queries], summed over terms
    shift: Array  # how generous the judge is
    coverage: Array  # how well the web answers the query
    fame: Array  # how popular the pages of this topic are
    traffic: Array  # how often the query is asked
    verbosity: Array  # how long the pages are

    @classmethod
    def draw(cls, seed: int, split: str, block: int) -> _Queries:
        """Draw the queries of a block."""
        key = (seed, SPLITS.index(split), block)
        random = _random_stream(key, 0)
        normal = random.standard_normal((9, _BLOCK))
        uniform = random.random((3, _BLOCK))
        # Log-normal with a few very short lists, as in WEB30K: mean 120, from 1 to 1,251.
        usual = np.exp(4.625 + 0.6 * normal[0])
        lengths = np.where(uniform[0] < 0.02, 1 + 25 * uniform[1], usual)
        terms = np.clip(np.floor(np.exp(0.85 + 0.55 * normal[1])), 1, 10)
        rarity = terms * np.exp(1.45 + 0.35 * normal[2])
        # By stream: the factor of the idf, and how much it varies from query to query.
        scale = np.array([1.0, 1.9, 1.7, 1.8, 0.98])[:, None]
        variation = np.array([0.02, 0.12, 0.08, 0.1, 0.0])[:, None]
        # A few lists have no relevant pages, whatever their features say.
        penalty = np.where(uniform[2] < 0.028, -6.0, 0.0)
        return cls(
            key,
            np.clip(lengths, 1, _MAX_LENGTH).astype(np.int64),
            terms.astype(np.float32),
            (rarity * scale * np.exp(variation * normal[3])).astype(np.float32),
            0.5 * normal[8] + 0.25 * normal[2] + penalty,
            *normal[4:8].astype(np.float32),  # coverage, fame, traffic and verbosity
        )


def _draw_pages(queries: _Queries, extra: int, world: str) -> tuple[Array, Array]:
    """Draw the columns ``[features, N]`` and labels ``[N]`` of a block of queries.

    Args:
        queries: the block.
        extra: the number of columns of noise.
        world: as in :func:`make`.
    """
    lists = np.repeat(np.arange(_BLOCK), queries.lengths)
    random = _random_stream(queries.key, 1)
    n = len(lists)
    columns = np.empty((len(NAMES) + extra, n), np.float32)
    topic = random.standard_normal(n, np.float32)
    text = columns[: len(NAMES) - len(_PAGE_FEATURES)].reshape(len(_KINDS), len(_STREAMS), n)
    match = _text_features(text, queries, lists, topic, random)
    _page_features(
        columns[len(NAMES) - len(_PAGE_FEATURES) : len(NAMES)], queries, lists, topic, match, random
    )
    for name in _EMPTY:
        columns[NAMES.index(name)] = 0
    informative = {name: columns[NAMES.index(name)] for name in INFORMATIVE}
    pointwise = world == "pointwise"
    thresholds = _POINTWISE_THRESHOLDS if pointwise else _THRESHOLDS
    utility = _pointwise_utility(informative) if pointwise else _utility(informative, lists, _BLOCK)
    judgments = utility + queries.shift[lists]
    judgments += _NOISE * random.standard_normal(n)
    if extra:
        noise = _random_stream(queries.key, 2).standard_normal((n, extra), np.float32)
        columns[len(NAMES) :] = np.exp(1.5 * noise.T)
    return columns, np.searchsorted(thresholds, judgments).astype(np.float32)


# For each stream of a page (except "whole", which follows from them): mean and deviation of the log
# length, dependence of the match on the page's topic, coverage of terms at an average match (as a
# logit), occurrences of a term per word.
_LOG_LENGTH = np.array([6.0, 1.0, 2.0, 2.3], np.float32)[:, None]
_LENGTH_DEVIATION = np.array([0.95, 1.3, 0.5, 0.45], np.float32)[:, None]
_TOPICALITY = np.array([0.7, 0.5, 0.6, 0.4], np.float32)[:, None]
_COVERAGE = np.array([1.6, 0.3, 0.6, -0.8], np.float32)[:, None]
_RATE = np.array([0.012, 0.1, 0.04, 0.02], np.float32)[:, None]
# For each stream, "whole" included: the length that BM25 takes for the average.
_USUAL_LENGTH = np.array([600.0, 4.0, 8.0, 11.0, 620.0], np.float32)[:, None]


def _text_features(
    out: Array, queries: _Queries, lists: Array, topic: Array, random: np.random.Generator
) -> Array:
    """Fill the text features; return the match ``[4, N]`` of page and query that they depend on.

    Terms are not simulated one by one: for each stream its length, the number of terms it covers,
    and the sum, minimum and maximum of their frequencies are drawn; all features follow from these.

    Args:
        out: ``[kinds, streams, N]``, written; rows are in the order of ``_KINDS``.
        queries: the block of queries.
        lists: ``[N]``: the query of each page.
        topic: ``[N]``: how close each page is to the topic of its query.
        random: of the block.
    """
    n = len(lists)
    # Of each stream but "whole": noise of the match, the length, the occurrences, the unevenness.
    latent = random.standard_normal((4, 4, n), np.float32)
    jitter = random.standard_normal((len(_STREAMS), n), np.float32)  # of language models' scores
    chance = random.random((3, n), np.float32)  # is a copy, of which page, has no anchor text
    source = _body_sources(queries, lists, chance[0], chance[1])
    # A copy has the other page's body, and with it every feature of the body.
    latent[:, 0] = latent[:, 0, source]
    jitter[0] = jitter[0, source]
    terms, idf = queries.terms[lists], queries.idf[:, lists]
    topics = np.stack([topic[source], topic, topic, topic])
    match: Array = _TOPICALITY * topics + np.sqrt(1 - _TOPICALITY**2) * latent[0]
    match += 0.8 * queries.coverage[lists]
    length = np.exp(_LOG_LENGTH + _LENGTH_DEVIATION * latent[1])
    length[0] *= np.exp(0.8 * queries.verbosity[lists])
    length = np.floor(length)
    length[1, chance[2] < 0.6] = 0  # 60% of pages have no anchor text
    ratio = 1 / (1 + np.exp(-_COVERAGE - 1.4 * match))
    covered = np.minimum(np.floor(terms * ratio + 0.5), length)
    occurrences = _RATE * length * np.exp(0.5 * match + 0.7 * latent[2])
    total = np.minimum(np.floor(covered * (1 + occurrences)), length)
    total = np.maximum(total, covered)
    uneven = 1 / (1 + np.exp(-latent[3]))

    covered = _append_whole(covered, covered.max(0))
    length = _append_whole(length, length.sum(0))
    total = _append_whole(total, total.sum(0))
    uneven = _append_whole(uneven, uneven[0])
    _count_features(out, terms, idf, covered, length, total, uneven)
    _score_features(out, terms, idf, jitter)
    return match


def _count_features(
    out: Array, terms: Array, idf: Array, covered: Array, length: Array, total: Array, uneven: Array
) -> None:
    """Fill the kinds that count: covered terms, length, idf, statistics of term frequencies.

    The rows of ``out``, as in ``_KINDS``: 0 to 3 are covered terms, covered ratio, length and idf;
    4 to 8 are the statistics of tf, 9 to 13 of tf/length, 14 to 18 of tf-idf; 19 is boolean.

    Args:
        out: ``[kinds, streams, N]``, written.
        terms: ``[N]``: the number of words of the query.
        idf: ``[streams, N]``, summed over terms.
        covered: ``[streams, N]``: how many terms occur.
        length: ``[streams, N]``, in words.
        total: ``[streams, N]``: the occurrences of all terms.
        uneven: ``[streams, N]``, from 0 to 1: how unequal the terms' frequencies are.
    """
    mean = total / terms
    most = np.ceil(total / np.maximum(covered, 1) * (1 + uneven * (covered > 1)))
    most = np.minimum(most, total)
    least = np.where(covered == terms, np.maximum(1, np.floor((1 - uneven) * mean)), 0)
    least = np.where(covered == 1, total * (terms == 1), np.minimum(least, total))
    variance = np.square(0.45 * (most - least)) * (terms > 1)
    out[0], out[1], out[2], out[3] = covered, covered / terms, length, idf
    frequencies = out[4:9]
    for row, statistic in enumerate((total, least, most, mean, variance)):
        frequencies[row] = statistic
    per_term = 1 / np.maximum(length, 1)
    weight = idf / terms
    for target, factor in ((out[9:14], per_term), (out[14:19], weight)):
        np.multiply(frequencies[:4], factor, out=target[:4])
        np.multiply(variance, factor * factor, out=target[4])
    out[19] = covered == terms


def _score_features(out: Array, terms: Array, idf: Array, jitter: Array) -> None:
    """Fill the kinds that score: rows 20 (vector space), 21 (BM25), 22 to 24 (language models).

    Reads the rows that :func:`_count_features` has filled. ``out`` is ``[kinds, streams, N]``,
    ``terms`` ``[N]``, ``idf`` and ``jitter`` ``[streams, N]``.
    """
    length, mean, variance = out[2], out[7], out[8]
    out[20] = mean / np.sqrt(mean * mean + variance + 1e-6)
    out[21] = idf * 2.2 * mean / (mean + 1.2 * (0.25 + 0.75 * length / _USUAL_LENGTH))
    background = np.exp(-idf / terms)  # how frequent the query's words are in all pages
    out[22] = terms * np.log((mean + 2 * background) / (length + 2)) + 0.3 * jitter
    out[23] = terms * np.log((mean + 50 * background) / (length + 50)) + 0.1 * jitter
    out[24] = terms * np.log(0.9 * mean / (length + 1) + 0.1 * background)


def _page_features(
    out: Array,
    queries: _Queries,
    lists: Array,
    topic: Array,
    match: Array,
    random: np.random.Generator,
) -> None:
    """Fill the features of pages ``[11, N]``, in the order of ``_PAGE_FEATURES``.

    Arguments are as in :func:`_text_features`; ``match`` is its result.
    """
    normal = random.standard_normal((12, len(lists)), np.float32)
    fame = queries.fame[lists]
    authority = 0.8 * normal[0] + 0.8 * fame
    out[0] = 1 + np.floor(np.exp(0.4 + 0.6 * normal[1]))  # slashes
    out[1] = 9 + np.floor(np.exp(2.4 + 0.45 * normal[1] + 0.5 * normal[2]))  # address length
    out[2] = np.floor(np.exp(np.minimum(1.2 + 3.4 * authority + 1.5 * normal[3], 18.8)))  # inlinks
    out[3] = np.floor(np.exp(-0.1 + 1.6 * normal[4]))  # outlinks
    out[4] = np.floor(65535 / (1 + np.exp(0.8 - 2 * authority - 0.5 * normal[5])))  # pagerank
    out[5] = np.floor(65535 / (1 + np.exp(-1.2 * authority - 1.2 * normal[6])))  # siterank
    out[6] = np.clip(np.floor(np.exp(1.7 + 1.4 * normal[7])), 1, 254)  # quality
    out[7] = np.clip(np.floor(np.exp(2.0 + 1.5 * normal[8])), 1, 254)  # spam
    popularity = -0.7 + 1.4 * authority + 1.8 * queries.traffic[lists] + 1.6 * normal[9]
    out[9] = np.floor(np.exp(popularity))  # clicks
    log_clicks = popularity - 2.6 + 0.8 * topic + 0.5 * match[2] + normal[10]  # for the query
    out[8] = np.minimum(np.floor(np.exp(log_clicks)), out[9])  # query clicks
    dwell = np.exp(2.4 + 0.9 * normal[11] + 0.6 * topic)
    out[10] = np.where(out[9] > 0, np.minimum(dwell, 1200), 0)  # dwell


def _utility(column: Mapping[str, Array], lists: Array, count: int) -> Array:
    """The utility ``[N]`` of pages for the query's user, from the features of their lists alone.

    Args:
        column: ``[N]`` by name, for all of ``INFORMATIVE``.
        lists: ``[N]``: the list of each page.
        count: the number of lists.
    """
    x = {name: np.asarray(values, np.float64) for name, values in column.items()}
    sizes = np.maximum(np.bincount(lists, minlength=count), 1)

    def above_mean(values: Array) -> Array:
        """How many standard deviations above its list's mean an item is, saturated by tanh."""
        mean = np.bincount(lists, values, count) / sizes
        centered = values - mean[lists]
        deviation = np.sqrt(np.bincount(lists, centered * centered, count) / sizes)
        return np.tanh(0.7 * centered / (deviation[lists] + 1e-3))

    text, navigational = _text_match(x)
    quality = np.minimum(np.log(np.maximum(x["quality"], 1)) / 3, 1)
    spam = (x["spam"] > 20) & (x["pagerank"] < 30000)
    # A click is a vote for the page if its reader stayed, and against it otherwise. Log clicks are
    # divided by those of the list's most clicked page: popular queries have more clicks, not more
    # relevant pages.
    log_clicks = np.log1p(x["query clicks"])
    max_log_clicks = np.zeros(count)
    np.maximum.at(max_log_clicks, lists, log_clicks)
    clicked = log_clicks / np.maximum(max_log_clicks[lists], 1)
    stayed = np.where(x["dwell"] > 14, 1.0, -1.0)
    length = above_mean(np.log1p(x["body length"]))
    return (
        1.2 * text * (quality - 0.4)
        + 0.7 * above_mean(text)
        + (2.4 * navigational - 1.2) * above_mean(np.log1p(x["pagerank"]))
        + 1.4 * clicked * stayed
        - 0.8 * spam
        - 1.8 * np.square(length)
        - 1.8 * _copied(x["body lmir.abs"], x["pagerank"], lists)
    )


def _pointwise_utility(column: Mapping[str, Array]) -> Array:
    """The utility ``[N]`` of pages for the query's user, from their own features alone."""
    x = {name: np.asarray(values, np.float64) for name, values in column.items()}
    text, navigational = _text_match(x)
    quality = np.minimum(np.log(np.maximum(x["quality"], 1)) / 3, 1)
    spam = (x["spam"] > 20) & (x["pagerank"] < 30000)
    stayed = np.where(x["dwell"] > 14, 1.0, -1.0)
    length = np.tanh(0.6 * (np.log1p(x["body length"]) - 6))
    return (
        1.2 * text * (quality - 0.4)
        + 0.9 * np.tanh(1.1 * (text - 1.2))
        + (2.4 * navigational - 1.2) * np.tanh(0.6 * (np.log1p(x["pagerank"]) - 9.5))
        + 1.4 * np.tanh(0.7 * np.log1p(x["query clicks"])) * stayed
        - 0.8 * spam
        - 1.8 * np.square(length)
    )


def _text_match(x: Mapping[str, Array]) -> tuple[Array, Array]:
    """How well the text answers the query, and how navigational the query is; both ``[N]``.

    A navigational query asks for one site. Many or rare words make a query informational, few and
    common words navigational.
    """
    informational = 1 / (1 + np.exp(-(x["whole idf"] - 8) / 1.5))
    navigational = 1 - informational
    body, title, url = (x[f"{s} bm25"] / x[f"{s} idf"] for s in ("body", "title", "url"))
    return informational * body + navigational * (0.5 * title + 0.9 * url), navigational


def _copied(body: Array, rank: Array, lists: Array) -> Array:
    """Whether a page of higher PageRank in the same list has the same body, ``[N]``.

    Args:
        body: ``[N]``: a feature that is equal for pages with the same body.
        rank: ``[N]``: the PageRank.
        lists: ``[N]``: the list of each page.
    """
    order = np.lexsort((-rank, body, lists))
    lists, body, rank = lists[order], body[order], rank[order]
    positions = np.arange(len(order))
    first = np.ones(len(order), bool)
    first[1:] = (lists[1:] != lists[:-1]) | (body[1:] != body[:-1])
    best = rank[np.maximum.accumulate(np.where(first, positions, 0))]
    copied = np.empty(len(order), bool)
    copied[order] = rank < best
    return copied


def _body_sources(queries: _Queries, lists: Array, chance: Array, choice: Array) -> Array:
    """The page whose body each page has: itself or, for one in seven, a random one of its list.

    Args:
        queries: the block of queries.
        lists: ``[N]``: the query of each page.
        chance: ``[N]``, uniform: decides whether a page is a copy.
        choice: ``[N]``, uniform: decides of which page it is a copy.
    """
    starts = np.concatenate([[0], queries.lengths.cumsum()])[:-1]
    originals = starts[lists] + (choice * queries.lengths[lists]).astype(np.int64)
    return np.where(chance < 0.14, originals, np.arange(len(lists)))


def _append_whole(streams: Array, page: Array) -> Array:
    """The values of the four streams and, after them, those of the whole page: ``[5, N]``."""
    return np.concatenate([streams, page[None]])


def _random_stream(key: tuple[int, int, int], purpose: int) -> np.random.Generator:
    """A random stream of its own for each key (seed, split, block) and purpose."""
    seed, split, block = key
    sequence = np.random.SeedSequence(seed, spawn_key=(split, block, purpose))
    return np.random.Generator(np.random.Philox(sequence))


def _column_names(features: int) -> tuple[str, ...]:
    """The names of this many columns, in the order of ``NAMES``; ``INFORMATIVE`` are among them."""
    if features >= len(NAMES):
        return (*NAMES, *(f"noise {number}" for number in range(features - len(NAMES))))
    others = [name for name in NAMES if name not in INFORMATIVE]
    selected = {*INFORMATIVE, *others[: features - len(INFORMATIVE)]}
    return tuple(name for name in NAMES if name in selected)
