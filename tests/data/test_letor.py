"""The LETOR parser: equal to scikit-learn's, forgiving where that is safe, exact in its errors."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file  # type: ignore[import-untyped]

from rankgrad.data import letor
from rankgrad.data._dataset import Dataset

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file that hypothesis writes over and over."""
    return tmp_path_factory.mktemp("letor") / "data.txt"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str | bytes, name: str = "data.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def unpack(name: str) -> Path:
        source = SHARED / f"{name}.tar.xz"
        if not source.exists():
            pytest.skip(f"{source.name} is not beside the project")
        folder = tmp_path_factory.mktemp(name)
        with tarfile.open(source) as tar:
            tar.extractall(folder, filter="data")
        return folder / name

    return unpack


def same_as_sklearn(dataset: Dataset, path: Path, **options: object) -> None:
    matrix, labels, qids = load_svmlight_file(str(path), query_id=True, **options)
    with np.errstate(over="ignore"):
        expected = matrix.toarray().astype(np.float32)
    assert dataset.features.dtype == np.float32
    assert dataset.features.flags.c_contiguous
    np.testing.assert_array_equal(dataset.features, expected)
    np.testing.assert_array_equal(dataset.labels, labels.astype(np.float32))
    if len(qids):
        lists = np.repeat(dataset.qids.astype(np.int64), np.diff(dataset.offsets))
        np.testing.assert_array_equal(lists, qids)


# Equality with scikit-learn

numbers = st.one_of(
    st.integers(-(10**6), 10**6).map(str),
    st.decimals(-1000, 1000, places=6).map(str),
    st.floats(allow_nan=False, width=64).map(repr),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda x: f"{x:.9e}"),
    st.from_regex(
        r"[+-]?([0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,9})([eE][+-]?[0-9]{1,3})?", fullmatch=True
    ),
    st.sampled_from(["nan", "-NaN", "inf", "-Infinity", "-0", "16777217", "1e39", "1e-46"]),
)
# Halfway between two float32, and a float64 step to either side, with all their digits.
halves = st.tuples(st.integers(2**23, 2**24 - 1), st.integers(-60, 60), st.integers(-1, 1)).map(
    lambda t: (
        f"{np.nextafter((t[0] + 0.5) * 2.0 ** t[1], t[2] * np.inf):.60g}"
        if t[2]
        else f"{(t[0] + 0.5) * 2.0 ** t[1]:.60g}"
    )
)


@st.composite
def rows(draw: st.DrawFn) -> str:
    label = draw(st.sampled_from(["0", "1", "4", "0.5", "1e0", "+2", "-0"]))
    ids = sorted(draw(st.sets(st.integers(1, 40), max_size=12)))
    gap = draw(st.sampled_from([" ", "  ", "\t", " \x0b"]))
    pairs = [f"{i}:{draw(numbers | halves)}" for i in ids]
    tail = draw(st.sampled_from(["", " ", "\r", " # a comment 3:4", "#x"]))
    qid = draw(st.integers(-5, 5))
    skipped = draw(st.sampled_from(["", "", "\n", "# only a comment\n", " \t\r\n"]))
    return f"{skipped}{gap.join([label, f'qid:{qid}', *pairs])}{tail}"


@settings(max_examples=80)
@given(lines=st.lists(rows(), min_size=1, max_size=12), block=st.sampled_from([1, 50, 1 << 20]))
def test_equal_to_sklearn(scratch: Path, lines: list[str], block: int) -> None:
    lines.sort(key=lambda line: line.split("qid:")[1].split()[0])  # each qid in one place
    scratch.write_bytes("\n".join([*lines, "0 qid:9 1:1"]).encode())
    dataset = letor.read(scratch, n_features=40, _block=block)
    same_as_sklearn(dataset, scratch, n_features=40, zero_based=False)


@settings(max_examples=200)
@given(number=numbers | halves)
@example(number="9007199254740993")
@example(number="3.4028235677973366e38")
@example(number="7.006492321624085354618e-46")
@example(number="0." + "0" * 400 + "1e401")
@example(number="1" + "0" * 400 + "e-400")
def test_a_number_is_the_float32_of_pythons_float(scratch: Path, number: str) -> None:
    scratch.write_text(f"0 qid:1 1:{number}\n")
    with np.errstate(over="ignore"):
        expected = np.array([[float(number)]]).astype(np.float32)
    found = letor.read(scratch).features
    np.testing.assert_array_equal(found, expected)
    assert np.isnan(expected) or np.signbit(found) == np.signbit(expected)  # -0.0 stays


@pytest.mark.parametrize("threads", [1, 3])
def test_equal_on_mq2008(archive: Callable[[str], Path], threads: int) -> None:
    path = archive("MQ2008") / "Fold1" / "vali.txt"
    dataset = letor.read(path, threads=threads, _block=1 << 17)
    same_as_sklearn(dataset, path)
    assert dataset.features.shape[1] == 46
    assert dataset.notes == ()


def test_ids_of_mq2008(archive: Callable[[str], Path]) -> None:
    path = archive("MQ2008") / "Fold1" / "test.txt"
    dataset = letor.read(path, ids=True)
    assert dataset.ids is not None
    assert dataset.ids[0] == "GX004-93-7097963"
    assert len(dataset.ids) == len(dataset.labels)


def test_equal_on_mslr(archive: Callable[[str], Path]) -> None:
    path = archive("mslr_sample") / "vali.txt"
    dataset = letor.read(path)
    same_as_sklearn(dataset, path)
    assert (len(dataset), dataset.features.shape) == (18, (1734, 136))


def test_groups_of_lightgbm(archive: Callable[[str], Path]) -> None:
    path = archive("lightgbm_rank") / "rank.test"
    sizes = np.loadtxt(f"{path}.query", dtype=int)
    dataset = letor.read(path, groups=sizes, n_features=300)
    same_as_sklearn(dataset, path, n_features=300)
    np.testing.assert_array_equal(np.diff(dataset.offsets), sizes)
    assert dataset.qids[0] == "1"
    assert "numbered from 1" in dataset.notes[0]


# Layout of files

TEXT = "2 qid:a 1:0.5 3:7\n0 qid:a 2:1\n1 qid:b 1:0.25\n"


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed(write: Callable[..., Path], compress: Callable[[bytes], bytes]) -> None:
    plain, packed = letor.read(write(TEXT)), letor.read(write(compress(TEXT.encode()), "packed"))
    np.testing.assert_array_equal(packed.features, plain.features)
    assert packed.qids.tolist() == ["a", "b"]


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b[:15] + b"\xff" * 9 + b[24:]])
def test_damaged_compression(
    write: Callable[..., Path],
    compress: Callable[[bytes], bytes],
    damage: Callable[[bytes], bytes],
) -> None:
    path = write(damage(compress(TEXT.encode() * 50)))
    with pytest.raises(ValueError, match=r"data\.txt: damaged compressed file"):
        letor.read(path)


def test_several_files_are_one(write: Callable[..., Path]) -> None:
    first, second = write(TEXT, "1.txt"), write("1 qid:b 4:4\n3 qid:c 1:1", "2.txt")
    dataset = letor.read([first, str(second)])
    assert dataset.features.shape == (5, 4)
    assert dataset.offsets.tolist() == [0, 2, 4, 5]
    assert dataset.notes == ()


def test_line_ends_blank_lines_and_comments(write: Callable[..., Path]) -> None:
    messy = "# head\r\n\r\n" + TEXT.replace("\n", " #c\r\n \r\n#\r\n") + "\n\n"
    expected, dataset = letor.read(write(TEXT, "plain")), letor.read(write(messy), _block=7)
    np.testing.assert_array_equal(dataset.features, expected.features)
    assert dataset.qids.tolist() == expected.qids.tolist()


def test_any_block_size_and_number_of_threads(write: Callable[..., Path]) -> None:
    random = np.random.default_rng(0)
    text = "".join(
        f"{i % 5} qid:{i // 7} "
        + " ".join(f"{f + 1}:{random.random():.7g}" for f in range(i % 90))
        + "\n"
        for i in range(300)
    )
    path = write(text)
    expected = letor.read(path, threads=1)
    for block, threads in [(1, 1), (100, 4), (1000, 2), (5000, 3)]:
        dataset = letor.read(path, threads=threads, _block=block)
        np.testing.assert_array_equal(dataset.features, expected.features)
        np.testing.assert_array_equal(dataset.labels, expected.labels)
        np.testing.assert_array_equal(dataset.offsets, expected.offsets)


# What is put right, and said


def test_interleaved_qids(write: Callable[..., Path]) -> None:
    text = "".join(
        f"{i} qid:{q} 1:{i} # docid = d{i}\n" for i, q in enumerate(["x", "y", "x", "é", "y", "y"])
    )
    for block in (1, 1000):
        dataset = letor.read(write(text), ids=True, _block=block)
        assert dataset.qids.tolist() == ["x", "y", "é"]
        assert dataset.offsets.tolist() == [0, 2, 5, 6]
        assert dataset.labels.tolist() == [0, 2, 1, 4, 5, 3]
        assert dataset.features[:, 0].tolist() == [0, 2, 1, 4, 5, 3]
        assert dataset.ids is not None
        assert dataset.ids.tolist() == ["d0", "d2", "d1", "d4", "d5", "d3"]
        assert dataset.notes == ("rows of 2 queries were not contiguous and were brought together",)


def test_unsorted_and_duplicate_ids(write: Callable[..., Path]) -> None:
    text = "0 qid:1 3:3 1:1\n0 qid:1 2:16777217 1:5 2:7 2:8\n0 qid:1 1:1 1:16777217\n0 qid:1 1:1\n"
    dataset = letor.read(write(text))
    assert dataset.features.tolist() == [[1, 0, 3], [5, 8, 0], [16777216, 0, 0], [1, 0, 0]]
    assert dataset.notes == (
        "feature ids of 3 rows were not in order and were put in order",
        "3 values were of a feature that the row had before; the last one counts",
    )


def test_ids_from_zero(write: Callable[..., Path]) -> None:
    path = write("0 qid:1 1:1\n0 qid:1 0:5 2:2\n")
    dataset = letor.read(path, _block=1)
    assert dataset.features.tolist() == [[0, 1, 0], [5, 0, 2]]
    assert dataset.notes == ("feature ids start at 0",)
    with pytest.raises(
        ValueError, match=r"line 2: feature id 0, though ids start at 1 \(zero_based=False"
    ):
        letor.read(path, zero_based=False)
    assert letor.read(write("0 qid:1 1:1\n"), zero_based=True).features.tolist() == [[0, 1]]


def test_labels_and_values_worth_a_note(write: Callable[..., Path]) -> None:
    dataset = letor.read(write("1 qid:1 1:nan\n0.5 qid:1 1:-inf 2:1e39\n"))
    np.testing.assert_array_equal(dataset.features, [[np.nan, 0], [-np.inf, np.inf]])
    assert dataset.notes == (
        "1 feature values are missing",
        "2 values are infinite, or beyond float32",
        "labels are not all whole numbers",
    )


def test_width(write: Callable[..., Path]) -> None:
    path = write(TEXT)
    assert letor.read(path, n_features=5).features.shape == (3, 5)
    assert letor.read(write("1 qid:1\n", "bare")).features.shape == (1, 0)
    with pytest.raises(ValueError, match=r"line 1: feature id 3 is beyond n_features=1; .*1:0\.5"):
        letor.read(path, n_features=1)
    zero = write("0 qid:1 0:1 1:1\n0 qid:1 2:1\n", "zero")
    with pytest.raises(ValueError, match=r"line 2: feature id 2 is beyond n_features=2, counted"):
        letor.read(zero, n_features=2)


@pytest.mark.parametrize("block", [1, 1 << 20])
def test_missing_values_are_nan(write: Callable[..., Path], block: int) -> None:
    lines = [
        *(f"1 qid:1 1:5 2:{text} 3:6 # docid = x" for text in ("NULL", "null", "NA", "na", "?")),
        *(f"1 qid:1 3:6 2:{text} 1:5" for text in ("NaN", "-nan", "+NAN", "Null", "")),
        "1 qid:1 1:5 2:7 3:6 2:NA",  # the last one of a feature counts
        "1 qid:1 1:5 2:",
    ]
    dataset = letor.read(write("\n".join(lines)), _block=block)
    features = np.array([[5, np.nan, 6]] * 12, np.float32)
    features[-1, 2] = 0
    np.testing.assert_array_equal(dataset.features, features)
    missing = dataset.features.view(np.uint32)[np.isnan(dataset.features)]
    assert set(missing.tolist()) == {0x7FC00000}  # one pattern of bits, so one checksum
    assert "12 feature values are missing" in dataset.notes


def test_further_missing_values(write: Callable[..., Path]) -> None:
    path = write("1 qid:1 1:-999 2:Unknown 3:1\n0 qid:1 1:-999.0 3:0.1\n")
    with pytest.raises(ValueError, match="value 'Unknown' is not a number"):
        letor.read(path)
    nan, dataset = np.nan, letor.read(path, missing=["-999", "unknown", 0.1])
    np.testing.assert_array_equal(dataset.features, [[nan, nan, 1], [nan, 0, nan]])
    assert dataset.notes == ("4 feature values are missing",)


def test_rows_without_labels(write: Callable[..., Path]) -> None:
    path = write("qid:1 1:5 # docid = a\n? qid:1 1:6\n2 qid:2 1:NA\n")
    dataset = letor.read(path, labeled=False)
    assert (dataset.labels.tolist(), dataset.qids.tolist()) == ([0, 0, 2], ["1", "2"])
    assert "2 rows have no label" in dataset.notes
    with pytest.raises(ValueError, match="line 1: no label before the qid"):
        letor.read(path)


def test_ids_if_all_rows_have_one(write: Callable[..., Path]) -> None:
    text = "1 qid:1 1:1 #docid = a\n# docid = no row\n0 qid:1 1:2 # inc = 1 docid=b c\n"
    assert letor.read(write(text), ids="auto").ids.tolist() == ["a", "b"]
    partly = letor.read(write(text + "0 qid:1 1:3\n"), ids="auto", _block=1)
    assert partly.ids is None
    assert partly.notes == ("some rows have no 'docid = ...': items have no ids",)


# Errors

BAD = {
    "x qid:1 1:1": "label 'x' is not a number",
    "nan qid:1 1:1": "label 'nan' is not a finite",
    "-1 qid:1 1:1": "label '-1' is negative",
    "1e39 qid:1 1:1": "label '1e39' is not a finite",
    "1 qid: 1:1": "the qid is empty",
    "1 qid:a\0 1:1": "NUL",
    "1 1:1": "needs the sizes of its lists: beside it as NAME.query",
    "1 1:1 qid:1": "no qid",
    "1 qid:1 1": "expected id:value, found '1'",
    "1 qid:1 1:1 2 3:3": "expected id:value, found '2'",
    "1 qid:1 1:1 cost:3": "expected id:value, found 'cost:3'",
    "1 qid:1 1: 2": "expected id:value, found '2'",
    "1 qid:1 1:-": "value '-' is not a number",
    "1 qid:1 1:-NULL": "value '-NULL' is not a number",
    "NA qid:1 1:1": "label 'NA' is not a number",
    "1 qid:1 :1": "feature id of ':1'",
    "1 qid:1 -1:1": "expected id:value, found '-1:1'",
    "1 qid:1 99999999999:1": "feature id of '99999999999:1'",
    "1 qid:1 1:1:1": "value '1:1' is not a number",
    "1 qid:1 1:.": "value '.' is not a number",
    "1 qid:1 1:1.5.2": "value '1.5.2' is not a number",
    "1 qid:1 1:2e": "value '2e' is not a number",
    "1 qid:1 1:0x1": "value '0x1' is not a number",
    "1 qid:1 1:1,5": "value '1,5' is not a number",
    "1 qid:1 1:nano": "value 'nano' is not a number",
    "1 qid:1 1:1_000": "value '1_000' is not a number",
    "1_0 qid:1 1:1": "label '1_0' is not a number",
    "1 qid:1 1:\u0661": "value '\u0661' is not a number",
    "\uff11 qid:1 1:1": "label '\uff11' is not a number",
    "1 qid:1 1:2\x1c": "is not a number",
    "1 qid:1 \u0661:1": "expected id:value",
}


@pytest.mark.parametrize("block", [1, 1 << 20])
@pytest.mark.parametrize("line", BAD)
def test_malformed_lines(write: Callable[..., Path], line: str, block: int) -> None:
    path = write(TEXT + "\r\n# comment\n" + line + "\n" + TEXT)
    with pytest.raises(ValueError) as error:
        letor.read(path, _block=block)
    message = str(error.value)
    assert BAD[line] in message
    assert message.startswith(f"{path}, line 6: ")
    assert line.split()[0] in message


def test_the_first_error_is_named_whatever_the_block(write: Callable[..., Path]) -> None:
    good = "1 qid:1 " + " ".join(f"{f}:0.5" for f in range(1, 60)) + "\n"
    path = write(good * 100 + "1 qid:1 1:a\n" + good * 50 + "1 qid:1 b\n" + good)
    for block in (1, 333, 4096, 1 << 20):
        with pytest.raises(ValueError, match=r"line 101: value 'a' is not a number"):
            letor.read(path, threads=3, _block=block)


def test_a_long_line_is_shortened(write: Callable[..., Path]) -> None:
    path = write("1 qid:1 " + " ".join(f"{f}:0.5" for f in range(1, 5000)) + " 5000:oops\n")
    with pytest.raises(ValueError, match=r"'1 qid:1 1:0.5.* \.\.\. .*5000:oops'") as error:
        letor.read(path)
    assert len(str(error.value)) < 600


def test_a_qid_that_is_not_text(write: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match=r"line 1: the qid is not UTF-8"):
        letor.read(write(b"1 qid:\xff 1:1\n"))


def test_missing_item_ids(write: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match=r"line 2: there is no .*ids=True"):
        letor.read(
            write("1 qid:1 1:1 # docid=a\n1 qid:1 1:1 # inc = 1\n2 qid:1 # docid=b"), ids=True
        )


def test_bad_arguments(write: Callable[..., Path], tmp_path: Path) -> None:
    plain, path = write("1 1:1\n1 1:2\n", "plain"), write(TEXT)
    with pytest.raises(ValueError, match=r"groups add up to 3 rows, found 2"):
        letor.read(plain, groups=[1, 2])
    with pytest.raises(ValueError, match=r"groups must be"):
        letor.read(plain, groups=[2, 0])
    with pytest.raises(ValueError, match=r"line 1: a qid, though there are groups"):
        letor.read(path, groups=[3])
    with pytest.raises(ValueError, match=r"no rows"):
        letor.read(write("\n# nothing\n", "empty"))
    with pytest.raises(ValueError, match=r"at least one file"):
        letor.read([])
    with pytest.raises(ValueError, match=r"n_features must be"):
        letor.read(path, n_features=0)
    with pytest.raises(ValueError, match=r"threads must be"):
        letor.read(path, threads=0)
    with pytest.raises(FileNotFoundError):
        letor.read(tmp_path / "missing.txt")


def test_a_stray_feature_id_is_no_allocation(write: Callable[..., Path]) -> None:
    path = write("1 qid:1 1:1\n" * 2000 + "1 qid:1 2147483000:1\n")
    with pytest.raises(ValueError, match=r"line 2001: 2,001 rows of 2,147,483,000 .* 17,188 GB"):
        letor.read(path)


# Whatever the bytes

tokens = st.sampled_from(
    ("1", "0", " ", "\n", "\r\n", "qid:", "qid:1 ", ":", "1:", "2:0.5 ", "#", "-", ".", "e5", "_")
) | st.sampled_from(("nan", "1:1 1:2", "\0", "\t", "0:", "1 qid:1 1:1\n", "99999"))


@settings(max_examples=200)
@given(
    data=st.binary(max_size=200) | st.lists(tokens, max_size=40).map(lambda t: "".join(t).encode()),
    block=st.sampled_from([1, 16, 1 << 16]),
    grouped=st.booleans(),
    ids=st.booleans(),
)
def test_any_bytes_are_a_dataset_or_a_value_error(
    scratch: Path, data: bytes, block: int, grouped: bool, ids: bool
) -> None:
    scratch.write_bytes(data)
    try:
        groups = [1] if grouped else None
        dataset = letor.read(scratch, groups=groups, n_features=200, ids=ids, _block=block)
    except ValueError as error:
        assert str(scratch) in str(error)
        return
    assert dataset.offsets[-1] == len(dataset.labels) == len(dataset.features)
    assert len(set(dataset.qids.tolist())) == len(dataset)


# Memory


def test_wide_blocks_are_parsed_in_pieces_and_held_sparse(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        f"{i % 3} qid:{i % 7} {1 + i * 37 % 900}:-0.0 {2000 + i * 91 % 999}:{i}" for i in range(90)
    ]
    path = write("\n".join([*lines, "1 qid:3 9:1 5:2 9:nan 5:16777217 # docid = z"]))
    expected = letor.read(path)
    sizes: list[int] = []  # of the features of each part, in bytes, before they are joined
    join_features = letor._join_features

    def join_and_note_sizes(parts: list[letor._Part], *arguments: object) -> np.ndarray:
        for part in parts:
            features = part.features
            arrays = [features] if isinstance(features, np.ndarray) else vars(features).values()
            sizes.append(sum(array.nbytes for array in arrays))
        return join_features(parts, *arguments)

    monkeypatch.setattr(letor, "_join_features", join_and_note_sizes)
    for dense, block in ((1 << 25, 1 << 20), (30_000, 1 << 20), (1, 300)):
        monkeypatch.setattr(letor, "_MAX_DENSE_BYTES", dense)
        for threads in (1, 3):
            found = letor.read(path, threads=threads, _block=block)
            assert found.checksum() == expected.checksum()
            assert found.notes == expected.notes
    assert np.signbit(expected.features[expected.features == 0]).sum() == 90
    assert max(sizes) < 20_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 qid:1 2000000000:1", "line 1: 1 rows of 2,000,000,000 features would take 8 GB"),
        ("1 qid:1 1:1 200000000:1\n" * 2000, "line 1: 2,000 rows .* would take 1,600 GB"),
        (f"1 qid:{'x' * 1025} 1:1", "line 1: the qid has 1,025 characters, and at most 1,024"),
        (f"1 qid:1 1:1 # docid = {'x' * 1025}", "line 1: the docid has 1,025 characters"),
        ("1 qid:1 1:x" + "7" * 10**6, r"line 1: value 'x777.*7' \(1,000,001 characters\) is not"),
        ("1 qid:1 " + "x" * 10**6, r"expected id:value, found 'xxx.*x' \(1,000,000 characters\)"),
    ],
)  # fmt: skip
def test_what_would_take_too_much(write: Callable[..., Path], text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        letor.read(write(text), ids="docid" in text)
    assert len(str(error.value)) < 700


def test_the_running_total_stops_before_memory_ends(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("".join(f"1 qid:{i} {1 + i % 5000}:1 5000:1\n" for i in range(3000)))
    assert letor.read(path).features.shape == (3000, 5000)  # 60 MB
    monkeypatch.setattr(letor._memory_limit, "available", lambda: 40_000_000)
    with pytest.raises(ValueError, match=r"rows of 5,000 .* GB of memory, and 0\.02 GB, half") as e:
        letor.read(path, _block=1 << 12)
    assert int(str(e.value).split(": ")[1].split(" rows")[0].replace(",", "")) < 1500
    with pytest.raises(ValueError, match=r"line 2: the line is longer than"):
        letor.read(write("1 qid:1 1:1\n1 qid:1 " + " " * 5_000_000), _block=1 << 12)
