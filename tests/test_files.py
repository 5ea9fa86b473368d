"""Files and folders are there whole or not at all, whoever else writes and whenever it ends."""

from __future__ import annotations

import os
import resource
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from rankgrad import _files
from rankgrad.cli._errors import one_line
from rankgrad.data import Dataset, _scores, columnar, store


def test_writing_a_file_is_atomic(tmp_path):
    path = tmp_path / "a"
    _files.write(path, "one")
    with pytest.raises(TypeError), _files.atomic_write(path) as file:
        file.write("text")
    assert path.read_text() == "one"
    _files.write(path, b"two")
    assert path.read_text() == "two"
    assert os.listdir(tmp_path) == ["a"]


def test_writing_a_folder_is_atomic(tmp_path):
    path = tmp_path / "new" / "a"
    for content in ("one", "two"):
        with _files.atomic_folder(path) as place:
            _files.write(place / content, content)
    with pytest.raises(FileNotFoundError), _files.atomic_folder(path) as place:
        _files.write(place / "missing" / "three", "three")
    assert os.listdir(path) == ["two"]
    with (
        pytest.raises(OSError, match=r"not empty: '[^']*/new/a'$"),
        _files.atomic_folder(path, replace=False) as place,
    ):
        _files.write(place / "four", "four")
    assert os.listdir(path) == ["two"]
    assert os.listdir(path.parent) == ["a"]


def test_what_was_left_behind_is_removed_once_it_is_old(tmp_path):
    path = tmp_path / "a"
    old, young = tmp_path / ".a.01234567.unfinished", tmp_path / ".a.89abcdef.unfinished"
    other = tmp_path / ".ab.01234567.unfinished"
    for left in (old, young, other):
        left.write_text("half")
        os.utime(left, (0, 0) if left != young else None)
    _files.write(path, "whole")
    assert set(tmp_path.iterdir()) == {path, young, other}
    _files.clean(path)
    assert set(tmp_path.iterdir()) == {path, other}


def test_a_folder_in_which_a_file_grows_is_not_removed(tmp_path):
    path, unfinished = tmp_path / "a", tmp_path / ".a.01234567.unfinished"
    unfinished.mkdir()
    (unfinished / "growing").write_text("half")
    os.utime(unfinished, (0, 0))
    _files.clean(path, 60)
    assert unfinished.exists()
    os.utime(unfinished / "growing", (0, 0))
    _files.clean(path, 60)
    assert not unfinished.exists()


def test_a_file_is_not_flushed_after_its_block(tmp_path):
    with _files.atomic_write(tmp_path / "a") as file:
        file.write(b"one")
    file.close()  # as when Python collects it
    assert (tmp_path / "a").read_text() == "one"


def test_a_folder_moved_away_to_be_replaced_is_found(tmp_path):
    path, old = tmp_path / "a", tmp_path / ".a.01234567.replaced"
    assert _files.readable_path(path) == path
    old.mkdir()
    assert _files.readable_path(path) == old
    _files.recover(path)
    assert _files.readable_path(path) == path
    assert os.listdir(tmp_path) == ["a"]


def test_a_linked_folder_moved_away_to_be_replaced_is_found(tmp_path):
    place, link = tmp_path / "elsewhere" / "a", tmp_path / "link"
    link.symlink_to(place)
    old = place.with_name(".a.01234567.replaced")
    old.mkdir(parents=True)
    (old / "part").write_text("old")
    assert _files.readable_path(link) == old
    assert _files.readable_path(link / "part").read_text() == "old"
    _files.recover(link)
    assert _files.readable_path(link) == link and (link / "part").read_text() == "old"
    for suffix in ("unfinished", "replaced"):
        place.with_name(f".a.01234567.{suffix}").mkdir()
    _files.clean(link)
    assert os.listdir(place.parent) == ["a"] and link.is_symlink()


@pytest.mark.parametrize("is_reversed", [False, True])
def test_of_folders_moved_away_the_last_is_taken(tmp_path, monkeypatch, is_reversed):
    path, listed = tmp_path / "a", _files._hidden_siblings
    monkeypatch.setattr(
        _files, "_hidden_siblings", lambda *a: sorted(listed(*a), reverse=is_reversed)
    )
    for digits in ("00000000", "22222222", "11111111"):
        path.mkdir()
        (path / digits).touch()
        path.rename(tmp_path / f".a.{digits}.replaced")
        time.sleep(0.02)  # longer than a tick of the file system's clock
    assert _files.readable_path(path).name == ".a.11111111.replaced"
    _files.recover(path)
    assert os.listdir(path) == ["11111111"]


def test_a_folder_that_is_moved_while_it_is_read_is_read_again(tmp_path):
    path, old = tmp_path / "a", tmp_path / ".a.01234567.replaced"
    with _files.atomic_folder(path) as place:
        _files.write(place / "manifest", "one")
        _files.write(place / "values", "1")

    def read(folder: Path) -> str:
        manifest = (folder / "manifest").read_text()
        if folder == path:
            path.rename(old)  # the first half of a replacement
        return manifest + (folder / "values").read_text()

    assert _files.read_folder(path, "manifest", read) == "one1"


def test_damaged_json_is_named(tmp_path):
    (tmp_path / "a.json").write_text('{"a": ')
    with pytest.raises(ValueError, match=r"a\.json is damaged"):
        _files.read_json(tmp_path / "a.json")


def test_damaged_tensors_are_named(tmp_path):
    (tmp_path / "a.safetensors").write_text("text")
    with pytest.raises(_files.FileError, match=r"a\.safetensors is damaged \(it is not"):
        _files.read_tensors(tmp_path / "a.safetensors", {})


@pytest.mark.parametrize("target", ["file", "dangling", "folder"])
def test_links_stay_and_what_they_point_to_is_replaced(tmp_path, target):
    (tmp_path / "elsewhere").mkdir()
    place, link = tmp_path / "elsewhere" / "a", tmp_path / "link"
    link.symlink_to(os.path.join("elsewhere", "a"))
    if target == "folder":
        place.mkdir()
        with _files.atomic_folder(link) as unfinished:
            _files.write(unfinished / "new", "new")
    else:
        if target == "file":
            place.write_text("old")
        _files.write(link, "new")
    assert link.is_symlink() and not place.is_symlink()
    assert (place / "new" if target == "folder" else place).read_text() == "new"
    assert os.listdir(tmp_path / "elsewhere") == ["a"]
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "link"]


def test_a_link_to_itself_is_an_error(tmp_path):
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        _files.write(tmp_path / "a", "new")
    assert (tmp_path / "a").is_symlink()


def test_a_fifo_is_written_to_once_all_is_there(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(TypeError), _files.atomic_write(fifo) as file:
        file.writelines([b"half", "text"])
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    _files.write(fifo, "whole")
    assert os.read(reader, 100) == b"whole"
    os.close(reader)
    assert stat.S_ISFIFO(fifo.stat().st_mode) and os.listdir(tmp_path) == ["fifo"]


def device(path, minor):
    """A device of one's own, as /dev/null (3) and /dev/full (7) are."""
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, minor))
        path.open("wb").close()
    except OSError as error:
        pytest.skip(f"devices cannot be made here: {error}")


def test_a_device_stays_one(tmp_path, monkeypatch):
    null, link = tmp_path / "null", tmp_path / "link"
    device(null, 3)
    link.symlink_to(null)
    for path in (null, link):
        _files.write(path, "gone")
    assert stat.S_ISCHR(null.stat().st_mode) and link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "null"]


def test_an_open_file_is_added_to(tmp_path):
    with (tmp_path / "log").open("wb") as file:
        file.write(b"before ")
        file.flush()
        inode = os.fstat(file.fileno()).st_ino
        _files.write(Path(f"/dev/fd/{file.fileno()}"), "after")
    assert (tmp_path / "log").read_text() == "before after"
    assert (tmp_path / "log").stat().st_ino == inode


def test_folders_and_sockets_are_refused(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder; name a file"):
        _files.write(tmp_path, "new")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="is a socket; name a file"):
            _files.write(tmp_path / "socket", "new")
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(NotADirectoryError, match="is not a folder"),
        _files.atomic_folder(tmp_path / "file"),
    ):
        pass
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_device_is_named(tmp_path):
    device(tmp_path / "full", 7)
    with pytest.raises(OSError, match=r"No space left on device.*full"):
        _files.write(tmp_path / "full", "more")


def test_a_reader_reads_again_what_was_replaced_meanwhile(tmp_path):
    mark, part = tmp_path / "mark", tmp_path / "part"
    for path in (mark, part):
        path.write_text("old")

    def reading(replaced):
        def read():
            found = [mark.read_text()]
            while replaced:
                replaced.pop()
                for path in (mark, part):
                    path.write_text("new")
            return [*found, part.read_text()]

        return read

    assert _files.snapshot(lambda: [mark], reading([])) == ["old", "old"]
    assert _files.snapshot(lambda: [mark], reading([1])) == ["new", "new"]
    with pytest.raises(FileNotFoundError):
        _files.snapshot(lambda: [mark], (tmp_path / "missing").read_text)


def test_json_with_a_checksum_shows_every_changed_byte(tmp_path):
    path, part = tmp_path / "a.json", tmp_path / "part"
    part.write_bytes(b"content")
    _files.write_json(path, {"epoch": 1, "values": [0.30000000000000004]}, ["part"])
    values = _files.read_json(path)
    assert values["epoch"] == 1 and _files.read_part(part, values) == b"content"
    content = path.read_bytes()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"a\.json is damaged"):
            _files.read_json(path)
    part.write_bytes(b"contend")
    with pytest.raises(ValueError, match="part is damaged"):
        _files.read_part(part, values)
    assert _files.read_part(part, {}) == b"contend"  # of earlier versions


NAMES = ("store/features.npy", "a.parquet", "b.parquet", "scores.txt", "a.safetensors", "a.html")


def said(place):
    """What each writer says of a disk that has too little space."""
    values = np.random.default_rng(0).random((20_000, 9), np.float32)
    data = Dataset(values, values[:, 0], [0, 20_000], ["a"], feature_names=tuple("abcdefghi"))
    tensor, text = {"a": torch.tensor(values)}, "x" * 300_000
    writers = [
        lambda: store.write(data, place / "store"),
        lambda: columnar.write(data, place / "a.parquet"),
        lambda: _scores.write(place / "b.parquet", values[:, 1], data),
        lambda: _scores.write(place / "scores.txt", values[:, 1], data),
        lambda: _files.write_tensors(place / "a.safetensors", tensor),
        lambda: _files.write(place / "a.html", text),
    ]
    found = []
    for write in writers:
        with pytest.raises(OSError) as caught:
            write()
        found.append(one_line(caught.value).replace(f"{place}/", ""))
    return found


def test_every_writer_says_what_cannot_be_written_and_why(tmp_path):
    (tmp_path / "log").write_bytes(b"x" * 65_530)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, before[1]))
    try:
        found = said(tmp_path)
        with (
            pytest.raises(OSError, match=r"File too large.*log"),
            _files.appended(tmp_path / "log") as log,
        ):
            log.write(b"one more line")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert found == [f"{name}: File too large" for name in NAMES]
    assert os.listdir(tmp_path) == ["log"]


def test_a_full_disk_is_said_by_every_writer(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        found, left = said(tmp_path), os.listdir(tmp_path)
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
    full = "No space left on device; free some and try again"
    assert found == [f"{name}: {full}" for name in NAMES]
    assert left == []


def test_writers_of_one_file_do_not_meet(tmp_path):
    path, problems = tmp_path / "file", []

    def write(content):
        try:
            for _ in range(100):
                _files.write(path, content)
        except OSError as error:
            problems.append(error)

    writers = [threading.Thread(target=write, args=(text * 50,)) for text in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not problems
    assert path.read_text() in {text * 50 for text in "abc"}
    assert os.listdir(tmp_path) == ["file"]
