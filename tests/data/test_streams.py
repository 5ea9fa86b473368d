"""Each kind of file that is not plain text gets its own answer; pipes and ``-`` work."""

from __future__ import annotations

import gzip
import io
import os
import sys
import threading
from pathlib import Path

import pytest

from rankgrad import data
from rankgrad.data import _scores, columnar, letor, load_pair, load_splits

TEXT = b"2 qid:1 1:0.5 3:7\n0 qid:1 2:1\n1 qid:2 1:3\n"


@pytest.fixture
def expected(tmp_path: Path) -> str:
    (tmp_path / "plain").write_bytes(TEXT)
    return data.load(tmp_path / "plain").checksum()


class Input:
    """A standard input of these bytes."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


@pytest.mark.parametrize(
    "content",
    [TEXT, gzip.compress(TEXT), b"\xef\xbb\xbf" + TEXT],
    ids=["plain", "gzip", "byte order mark"],
)
def test_pipes_and_the_standard_input(tmp_path, monkeypatch, expected, content):
    monkeypatch.setattr(sys, "stdin", Input(content))
    assert data.load("-").checksum() == expected
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    assert data.load(pipe).checksum() == expected
    writer.join()


def test_the_standard_input_is_named_in_errors(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Input(b"1 qid:1 1:1\n1 qid:1 1:x\n"))
    with pytest.raises(ValueError, match="the standard input, line 2: value 'x'"):
        data.load("-")
    with pytest.raises(ValueError, match="the standard input is one data set that can be read"):
        load_splits("-")
    with pytest.raises(ValueError, match="the standard input is a file: a split and a fold"):
        data.load("-", split="test")


def test_scores_from_the_standard_input(tmp_path, monkeypatch):
    (tmp_path / "plain").write_bytes(TEXT)
    dataset = data.load(tmp_path / "plain")
    monkeypatch.setattr(sys, "stdin", Input(b"\xef\xbb\xbf1\n2\n0.5\n"))
    assert _scores.read("-", dataset).tolist() == [1, 2, 0.5]
    monkeypatch.setattr(sys, "stdin", Input(b"1\n1_0\n3\n"))
    with pytest.raises(ValueError, match="the standard input, line 2: '1_0' is not a number"):
        _scores.read("-", dataset)
    (tmp_path / "long").write_bytes(gzip.compress(b"\n" * 20_000 + b"1\n2\n3\n"))
    with pytest.raises(ValueError, match="too long for the scores of 3 items"):
        _scores.read(tmp_path / "long", dataset)


REFUSED = {
    b"\x28\xb5\x2f\xfd\x04\x00": "is compressed with Zstandard",
    b"PK\x03\x04abc": "is a ZIP archive",
    "1 qid:1 1:1\n".encode("utf-16"): "is UTF-16 text",
    TEXT.replace(b"\n", b"\r"): "lines end in carriage returns alone",
}


@pytest.mark.parametrize("content", REFUSED)
def test_what_is_not_read_says_what_it_is(tmp_path, content):
    path = tmp_path / "data.zst"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"data.zst:? {REFUSED[content]}"):
        data.load(path)


def test_a_byte_order_mark_is_left_out(tmp_path, expected):
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbf" + TEXT)
    assert letor.read(tmp_path / "marked").checksum() == expected
    (tmp_path / "marked.csv").write_bytes(b"\xef\xbb\xbfqid,label,x\n1,1,2\n")
    assert columnar.read(tmp_path / "marked.csv").features.tolist() == [[2]]


def test_links_to_nowhere(tmp_path):
    (tmp_path / "link").symlink_to("gone.txt")
    with pytest.raises(FileNotFoundError, match=r"link is a link to gone\.txt, which is not there"):
        data.load(tmp_path / "link")
    (tmp_path / "train.txt").write_bytes(TEXT)
    (tmp_path / "vali.txt").symlink_to("gone.txt")
    with pytest.raises(FileNotFoundError, match=r"vali\.txt is a link to gone\.txt"):
        load_splits(tmp_path)  # it is not as if there were no validation data


def test_a_pipe_of_columns(tmp_path):
    os.mkfifo(tmp_path / "data.csv")
    with pytest.raises(ValueError, match=r"data\.csv is a pipe, and columnar files"):
        data.load(tmp_path / "data.csv")


def test_training_data_from_a_pipe_count_from_zero_with_the_others(tmp_path, monkeypatch):
    (tmp_path / "vali.txt").write_bytes(b"1 qid:1 0:4 1:5\n")
    (tmp_path / "train.txt").write_bytes(TEXT)
    monkeypatch.setattr(sys, "stdin", Input(TEXT))
    piped, _ = load_pair("-", tmp_path / "vali.txt")
    assert piped.checksum() == letor.read(tmp_path / "train.txt", zero_based=True).checksum()
    assert piped.zero_based
    assert piped.notes == ("feature ids start at 0",)
