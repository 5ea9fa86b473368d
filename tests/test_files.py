"""Files and folders are there whole or not at all, whoever else writes and whenever it ends."""

from __future__ import annotations

import os

import pytest

from rankgrad import files


def test_a_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "a"
    files.write(path, "one")
    with pytest.raises(TypeError), files.whole(path) as file:
        file.write("text")
    assert path.read_text() == "one"
    files.write(path, b"two")
    assert path.read_text() == "two"
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "new" / "a"
    for content in ("one", "two"):
        with files.folder(path) as place:
            files.write(place / content, content)
    with pytest.raises(FileNotFoundError), files.folder(path) as place:
        files.write(place / "missing" / "three", "three")
    assert os.listdir(path) == ["two"]
    with pytest.raises(OSError, match="not empty"), files.folder(path, replace=False) as place:
        files.write(place / "four", "four")
    assert os.listdir(path) == ["two"]
    assert os.listdir(path.parent) == ["a"]


def test_what_was_left_behind_is_removed_once_it_is_old(tmp_path):
    path = tmp_path / "a"
    old, young = tmp_path / ".a.01234567.unfinished", tmp_path / ".a.89abcdef.unfinished"
    other = tmp_path / ".ab.01234567.unfinished"
    for left in (old, young, other):
        left.write_text("half")
        os.utime(left, (0, 0) if left != young else None)
    files.write(path, "whole")
    assert set(tmp_path.iterdir()) == {path, young, other}
    files.clean(path)
    assert set(tmp_path.iterdir()) == {path, other}


def test_a_folder_moved_away_to_be_replaced_is_found(tmp_path):
    path, old = tmp_path / "a", tmp_path / ".a.01234567.replaced"
    assert files.standing(path) == path
    old.mkdir()
    assert files.standing(path) == old
    files.recover(path)
    assert files.standing(path) == path
    assert os.listdir(tmp_path) == ["a"]


def test_damaged_json_is_named(tmp_path):
    (tmp_path / "a.json").write_text('{"a": ')
    with pytest.raises(ValueError, match=r"a\.json is damaged"):
        files.read_json(tmp_path / "a.json")
