"""Stores: whole or not at all, and honest about damage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mutations import mutations

from rankgrad import _checksums
from rankgrad.data import Dataset, load, load_splits, store

Same = Callable[[Dataset, Dataset], None]
FILES = ["features", "labels", "offsets", "qids", "weights", "ids"]


@pytest.fixture
def folder(dataset: Dataset, tmp_path: Path) -> Path:
    return store.write(dataset, tmp_path / "set", sources=["train.txt"])


def rewrite(folder: Path, **changes: object) -> None:
    """Change a manifest and leave its checksum as if it had been written so."""
    path = folder / "manifest.json"
    manifest = {**json.loads(path.read_text()), **changes}
    manifest["checksum"] = store._manifest_checksum(manifest)
    path.write_text(json.dumps(manifest))


def sums_of_zeros(path: Path) -> str:
    """The checksums of a file that is zeros after its first block, of which that one is read."""
    size, block = path.stat().st_size, _checksums.BLOCK
    with path.open("rb") as file:
        first = _checksums.of_bytes(file.read(block))
    blocks, left = divmod(max(0, size - block), block)
    last = _checksums.of_bytes(bytes(left)) if left else ""
    return first + _checksums.of_bytes(bytes(block)) * blocks + last


def fail_rename(monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """Interrupt the process at the n-th renaming."""
    rename, calls = os.rename, 0

    def interrupted(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)


def test_round_trip_bit_for_bit(same: Same, dataset: Dataset, folder: Path) -> None:
    for verify in (False, True):
        opened = store.open(folder, verify=verify)
        same(opened, dataset)
        assert opened.notes == dataset.notes


def test_round_trip_without_the_optional_and_with_odd_values(same: Same, tmp_path: Path) -> None:
    features = np.array([[np.nan, -0.0], [np.inf, 1e-45]], np.float32)
    data = Dataset(features, [0.5, 3], [0, 0, 2], ["", "b"])
    same(store.open(store.write(data, tmp_path / "x"), verify=True), data)


def test_round_trip_of_no_lists(same: Same, dataset: Dataset, tmp_path: Path) -> None:
    nothing = dataset.select([])
    same(store.open(store.write(nothing, tmp_path / "x"), verify=True), nothing)


def test_opening_maps_and_does_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_reading(*_: object) -> None:
        raise AssertionError("more than the numbers beside the features was read")

    monkeypatch.setattr(Dataset, "_check_qids", no_reading)
    monkeypatch.setattr(store, "_file_checksum", no_reading)
    opened = store.open(folder)
    for name in FILES:
        array = getattr(opened, name)
        assert isinstance(array, np.memmap) and not array.flags.writeable
    assert isinstance(opened.select(range(2, 5)).features, np.memmap)


def test_a_set_far_larger_than_what_opening_reads(tmp_path: Path) -> None:
    """A sparse file of 40 GB: opening it can only be mapping it."""
    rows = 100_000_000
    folder = store.write(Dataset(np.zeros((1, 100)), [0], [0, 1], ["a"]), tmp_path / "big")
    files = json.loads((folder / "manifest.json").read_text())["files"]
    shapes = {"features": (rows, 100), "labels": (rows,), "offsets": (2,)}
    for name, shape in shapes.items():
        path = folder / f"{name}.npy"
        with path.open("wb") as file:
            dtype = np.dtype(files[name]["dtype"])
            header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            start = file.tell()
            file.truncate(start + int(np.prod(shape)) * dtype.itemsize)
        files[name] |= {"shape": list(shape), "bytes": path.stat().st_size}
        files[name]["crc32"] = sums_of_zeros(path)
    with (folder / "offsets.npy").open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(rows.to_bytes(8, "little"))
    files["offsets"]["crc32"] = store._block_checksums(folder / "offsets.npy")
    rewrite(folder, files=files)
    opened = store.open(folder)
    assert opened.features.shape == (rows, 100) and opened.features[-1, -1] == 0


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("left", [0, 5, -1])
def test_a_truncated_file_is_named(folder: Path, name: str, left: int) -> None:
    path = folder / f"{name}.npy"
    size = path.stat().st_size
    os.truncate(path, left if left >= 0 else size + left)
    with pytest.raises(
        ValueError, match=rf"damaged: {name}.npy has \d+ bytes, {size} were written"
    ):
        store.open(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / f"{name}.npy").unlink()
    with pytest.raises(ValueError, match=f"damaged: {name}.npy is missing"):
        store.open(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_found_by_verify(folder: Path, name: str) -> None:
    path = folder / f"{name}.npy"
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"{name}.npy does not have the checksum"):
        store.open(folder, verify=True)


@pytest.mark.parametrize("value", [-1, 2**62, -(2**63)])
def test_wild_offsets_are_named_at_every_opening(folder: Path, value: int) -> None:
    np.load(folder / "offsets.npy", mmap_mode="r+")[3] = value
    with pytest.raises(ValueError, match=r"store .*set is damaged: offsets.npy: offsets must not"):
        store.open(folder)


@pytest.mark.parametrize("name", ["labels", "weights"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -1])
def test_wild_values_are_named_at_every_opening(folder: Path, name: str, value: float) -> None:
    np.load(folder / f"{name}.npy", mmap_mode="r+")[4] = value
    with pytest.raises(ValueError, match=rf"damaged: {name}.npy: {name} must be .*; item 4 "):
        store.open(folder)


@pytest.mark.parametrize("key", ["lists", "items", "features", "feature_names", "notes", "files"])
def test_a_manifest_without_a_key_is_damaged(folder: Path, key: str) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest[key]
    manifest["checksum"] = store._manifest_checksum(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=f"damaged: manifest.json has no '{key}'"):
        store.open(folder)


def test_a_manifest_that_does_not_list_all_of_a_file_is_damaged(folder: Path) -> None:
    files = json.loads((folder / "manifest.json").read_text())["files"]
    del files["labels"]["bytes"]
    rewrite(folder, files=files)
    with pytest.raises(ValueError, match=r"damaged: manifest.json does not tell all of labels.npy"):
        store.open(folder)


def test_where_feature_ids_start_is_kept(folder: Path, dataset: Dataset) -> None:
    for zero_based in (True, False, None):
        store.write(replace(dataset, zero_based=zero_based), folder, overwrite=True)
        assert store.open(folder).zero_based is zero_based
    manifest = {**store.read_manifest(folder)}
    del manifest["zero_based"]  # as stores of before have it
    manifest["checksum"] = store._manifest_checksum(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert store.open(folder).zero_based is None


def test_a_file_of_another_shape_or_type_is_named(folder: Path, dataset: Dataset) -> None:
    path = folder / "features.npy"
    np.save(path, dataset.features.T)
    with pytest.raises(ValueError, match=r"features.npy holds <f4 \[4, 22\], <f4 \[22, 4\] was"):
        store.open(folder)


def test_a_pickle_is_never_loaded(folder: Path, dataset: Dataset) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (str(folder / "exploded"),))

    path = folder / "qids.npy"
    np.save(path, np.array([Bomb()] * len(dataset), dtype=object), allow_pickle=True)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    files["qids"]["bytes"] = path.stat().st_size
    rewrite(folder, files=files)
    with pytest.raises(ValueError, match=r"qids.npy is not readable as .npy"):
        store.open(folder)
    assert not (folder / "exploded").exists()


@pytest.mark.parametrize("left", [0, 1, 100, -3])
def test_a_truncated_manifest_is_named(folder: Path, left: int) -> None:
    path = folder / "manifest.json"
    os.truncate(path, left if left >= 0 else path.stat().st_size + left)
    with pytest.raises(ValueError, match=r"damaged: manifest.json is cut short"):
        store.open(folder)


def test_an_edited_or_missing_manifest_is_named(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace("bm25", "bm26"))
    with pytest.raises(ValueError, match=r"manifest.json was changed"):
        store.open(folder)
    path.unlink()
    with pytest.raises(ValueError, match=r"damaged: manifest.json is missing"):
        store.open(folder)


def test_a_manifest_cannot_point_elsewhere(folder: Path) -> None:
    files = json.loads((folder / "manifest.json").read_text())["files"]
    rewrite(folder, files={**files, "../secret": files["ids"]})
    with pytest.raises(ValueError, match=r"unknown file '../secret'"):
        store.open(folder)
    del files["labels"]
    rewrite(folder, files=files)
    with pytest.raises(ValueError, match=r"does not list labels.npy"):
        store.open(folder)


def test_other_versions_and_foreign_folders_are_distinguished(folder: Path, tmp_path: Path) -> None:
    rewrite(folder, version=2)
    with pytest.raises(ValueError, match="has format version 2, this rankgrad reads 1: update"):
        store.open(folder)
    rewrite(folder, format="someone's")
    with pytest.raises(
        ValueError, match=r"not a rankgrad store: its manifest.json is of something"
    ):
        store.open(folder)
    with pytest.raises(ValueError, match=r"not a rankgrad store: it has no manifest.json"):
        store.open(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no store at"):
        store.open(tmp_path / "nowhere")


def test_the_manifest_says_where_the_data_came_from(folder: Path) -> None:
    manifest = store.read_manifest(folder)
    assert manifest["provenance"]["sources"] == ["train.txt"]
    assert manifest["provenance"]["written"].startswith("20")
    assert (manifest["lists"], manifest["items"], manifest["features"]) == (7, 22, 4)


def test_nothing_is_overwritten_unasked(same: Same, dataset: Dataset, folder: Path) -> None:
    other = replace(dataset, labels=dataset.labels + 1)
    with pytest.raises(FileExistsError, match="overwrite=True replaces it"):
        store.write(other, folder)
    same(store.open(folder), dataset)
    store.write(other, folder, overwrite=True)
    same(store.open(folder), other)
    assert [path.name for path in folder.parent.iterdir()] == ["set"]


def test_a_store_can_be_rewritten_from_itself(same: Same, folder: Path, dataset: Dataset) -> None:
    store.write(store.open(folder), folder, overwrite=True)
    same(store.open(folder, verify=True), dataset)


def test_another_folder_is_never_replaced(dataset: Dataset, folder: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "cat.jpg").touch()
    (folder / "notes.md").touch()  # a person's own file inside a store
    (tmp_path / "file").touch()
    for place in (photos, folder, tmp_path / "file", tmp_path):
        with pytest.raises(FileExistsError, match="not a store: choose another place"):
            store.write(dataset, place, overwrite=True)
    assert (photos / "cat.jpg").exists() and (folder / "notes.md").exists()


def test_an_empty_folder_is_free(same: Same, dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    same(store.open(store.write(dataset, tmp_path / "x")), dataset)
    same(store.open(store.write(dataset, tmp_path / "new" / "y")), dataset)


@pytest.mark.parametrize("name", [*FILES, "manifest"])
def test_a_crash_while_writing_leaves_nothing(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    synced = os.fsync
    left = [*FILES, "manifest"].index(name)

    def full_disk(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        store.write(dataset, tmp_path / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("failing", [1, 2])
def test_a_crash_while_replacing_leaves_what_was_there(
    same: Same, dataset: Dataset, folder: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    monkeypatch.setattr("rankgrad._files._swap", lambda *_: False)  # as on file systems that cannot
    fail_rename(monkeypatch, failing)
    with pytest.raises(KeyboardInterrupt):
        store.write(replace(dataset, labels=dataset.labels + 1), folder, overwrite=True)
    same(store.open(folder, verify=True), dataset)
    assert [path.name for path in folder.parent.iterdir()] == ["set"]


@pytest.mark.parametrize("how", ["open", "load", "write", "splits"])
def test_a_store_lost_between_the_renamings_comes_back(
    same: Same, dataset: Dataset, tmp_path: Path, how: str
) -> None:
    """As after a loss of power: the old store is moved away, the new one not in its place."""
    name = tmp_path / "set"
    write = store.write if how != "splits" else lambda d, p: store.write_splits({"test": d}, p)
    write(dataset, name)
    write(dataset, tmp_path / ".set.0123abcd.unfinished")
    os.rename(name, tmp_path / ".set.0123abcd.replaced")
    if how == "write":
        with pytest.raises(FileExistsError, match="there is a store at"):
            store.write(dataset, name)
        unfinished = tmp_path / ".set.0123abcd.unfinished"
        for path in (*unfinished.rglob("*"), unfinished):
            os.utime(path, (0, 0))
        (tmp_path / ".set.01234567.replaced").mkdir()
        other = replace(dataset, labels=dataset.labels + 1)
        same(store.open(store.write(other, name, overwrite=True)), other)
        assert [path.name for path in tmp_path.iterdir()] == ["set"]
    elif how == "splits":
        same(load(name, split="test"), dataset)
    else:
        same(store.open(name) if how == "open" else load(name), dataset)


def test_a_crash_while_renaming_leaves_nothing(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_rename(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        store.write(dataset, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_a_store_that_came_up_meanwhile_is_not_replaced(
    same: Same, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(dataset, labels=dataset.labels + 1)
    rename = os.rename

    def late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "rename", rename)
        store.write(other, target)
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    with pytest.raises(OSError, match="not empty"):
        store.write(dataset, tmp_path / "x")
    same(store.open(tmp_path / "x"), other)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_splits_are_written_all_or_nothing(
    same: Same, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {"train": dataset, "test": dataset.select([1, 2])}
    store.write_splits(both, tmp_path / "set", sources={"train": "a.txt", "test": "b.txt"})
    same(store.open(tmp_path / "set" / "test"), both["test"])
    assert store.read_manifest(tmp_path / "set" / "test")["provenance"]["sources"] == ["b.txt"]
    with pytest.raises(FileExistsError, match="overwrite=True"):
        store.write_splits(both, tmp_path / "set")
    store.write_splits({"train": both["test"]}, tmp_path / "set", overwrite=True)
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["train"]
    with pytest.raises(AttributeError):
        store.write_splits({"train": dataset, "test": None}, tmp_path / "half")  # type: ignore[dict-item]
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_no_damage_goes_unnoticed(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_checksums, "BLOCK", 64)
    rows = np.arange(dataset.n_items)[::-1]
    folder = store.write(replace(dataset, source_rows=rows), tmp_path / "set")
    expected, silent = store.open(folder).checksum(), []
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for number, damaged in enumerate(mutations(content, 50)):
            path.write_bytes(damaged)
            try:
                opened = store.open(folder)
                assert opened.checksum() == expected
                np.asarray(opened.source_rows)
                np.asarray(opened.ids)
            except ValueError as error:
                assert "damaged" in str(error) or "not a rankgrad store" in str(error), error
            else:
                silent.append((path.name, number))
        path.write_bytes(content)
    assert len(list(folder.iterdir())) == 8 and silent == []


def test_stores_of_before_checksums_of_blocks_are_read(
    same: Same, dataset: Dataset, folder: Path
) -> None:
    files = store.read_manifest(folder)["files"]
    for name, entry in files.items():
        del entry["crc32"]
        entry["blake2b"] = store._file_checksum(folder / f"{name}.npy")
    rewrite(folder, files=files)
    for verify in (False, True):
        same(store.open(folder, verify=verify), dataset)
    np.load(folder / "features.npy", mmap_mode="r+")[0, 0] += 1
    with pytest.raises(ValueError, match=r"features.npy does not have the checksum"):
        store.open(folder, verify=True)


REPLACING = """
import sys
import time
sys.path.insert(0, {source!r})
import numpy as np
from rankgrad import _files
from rankgrad.data import Dataset, store
if {renames}:
    _files._swap = lambda *_: False
print("ready", flush=True)
for version in range(1, 10_000):
    values = np.full((300, 5), version)
    sizes = np.arange(0, 301, 1 + version % 3)
    qids = [str(q) for q in range(len(sizes) - 1)]
    data = Dataset(values, values[:, 0], [*sizes[:-1], 300], qids)
    store.write_splits({{"train": data, "vali": data}}, {folder!r}, overwrite=True)
    time.sleep(0.05 * np.random.rand())  # longer, now and then, than it takes to read
"""


def version_of(folder: Path) -> float:
    """The version of the splits in a folder, which must be one."""
    splits = load_splits(folder)
    for part in (splits["train"], splits["vali"], load(folder, split="train")):
        (version,) = np.unique(part.features)
        assert (part.labels == version).all()
        assert len(part) == 1 if version == 0 else part.lengths[0] == 1 + version % 3
    assert splits["train"].checksum() == splits["vali"].checksum()
    return float(version)


@pytest.mark.parametrize("renames", [False, True])
def test_a_reader_sees_one_version_while_another_process_replaces_it(
    tmp_path: Path, renames: bool
) -> None:
    folder, source = tmp_path / "set", str(Path(store.__file__).parents[2])
    nothing = Dataset(np.zeros((300, 5)), np.zeros(300), [0, 300], ["0"])
    store.write_splits({"train": nothing, "vali": nothing}, folder)
    program = REPLACING.format(source=source, renames=renames, folder=str(folder))
    seen = set()
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == b"ready\n"
            deadline = time.monotonic() + 20
            while len(seen) < 25 and time.monotonic() < deadline and other.poll() is None:
                seen.add(version_of(folder))
            assert other.poll() is None, "the writer has failed"
        finally:
            other.kill()
    assert len(seen) == 25


def test_a_reader_changes_nothing(same: Same, dataset: Dataset, folder: Path) -> None:
    left = folder.with_name(".set.0123abcd.replaced")
    folder.rename(left)  # a writer is about to put another in its place
    same(store.open(folder), dataset)
    same(load(folder), dataset)
    assert store.is_store(folder) and store.read_manifest(folder)["items"] == dataset.n_items
    assert [path.name for path in folder.parent.iterdir()] == [left.name]
