"""Parquet, Arrow, Feather and CSV: the same data from each."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutations import mutations

from rankgrad.data import Dataset, columnar, load

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyarrow.csv")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

Same = Callable[[Dataset, Dataset], None]


@pytest.fixture
def table(dataset: Dataset) -> Any:
    columns = {
        "qid": np.repeat(dataset.qids, dataset.lengths).tolist(),
        "label": dataset.labels,
        "weight": dataset.weights,
        "id": dataset.ids.tolist(),
    }
    columns |= dict(zip(dataset.feature_names, dataset.features.T, strict=True))
    return pa.table(columns)


def csv(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_write_and_read_are_bit_for_bit(same: Same, dataset: Dataset, tmp_path: Path) -> None:
    path = columnar.write(dataset, tmp_path / "x.parquet")
    same(columnar.read(path), dataset)
    same(load(path), dataset)
    assert [inside.name for inside in tmp_path.iterdir()] == ["x.parquet"]


def test_write_names_features_as_letor_numbers_them(dataset: Dataset, tmp_path: Path) -> None:
    plain = replace(dataset, feature_names=None, weights=None, ids=None)
    read = columnar.read(columnar.write(plain, tmp_path / "x.parquet"))
    assert read.feature_names == ("f1", "f2", "f3", "f4")
    assert replace(read, feature_names=None).checksum() == plain.checksum()


def test_write_refuses(dataset: Dataset, tmp_path: Path) -> None:
    path = columnar.write(dataset, tmp_path / "x.parquet")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        columnar.write(dataset, path)
    columnar.write(dataset, path, overwrite=True)
    with pytest.raises(ValueError, match="only Parquet is written"):
        columnar.write(dataset, tmp_path / "x.csv")
    with pytest.raises(ValueError, match="none of qid, label, weight, id; found id"):
        columnar.write(
            replace(dataset, feature_names=("id", "b", "c", "d")), tmp_path / "y.parquet"
        )
    infinite = dataset.features.copy()
    infinite[2, 1] = np.inf
    with pytest.raises(ValueError, match="of item 2 is infinite"):
        columnar.write(replace(dataset, features=infinite), tmp_path / "y.parquet")
    assert [inside.name for inside in tmp_path.iterdir()] == ["x.parquet"]


def test_every_format_gives_the_same(
    same: Same, dataset: Dataset, table: Any, tmp_path: Path
) -> None:
    from pyarrow import csv as arrow_csv

    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=5)
    feather.write_feather(table, tmp_path / "a.feather", chunksize=4)
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=3)
    arrow_csv.write_csv(table, tmp_path / "a.csv")
    text = (tmp_path / "a.csv").read_bytes()
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text))
    (tmp_path / "a.tsv").write_bytes(text.replace(b",", b"\t"))
    for name in ("a.parquet", "a.feather", "a.arrow", "a.csv", "a.csv.gz", "a.tsv"):
        read = columnar.read(tmp_path / name, weight="weight", id="id")
        same(read, dataset)
        assert read.notes == ()


def test_many_batches(tmp_path: Path, same: Same) -> None:
    lengths = np.random.default_rng(1).integers(1, 60, 2000)
    items = int(lengths.sum())
    data = Dataset(
        np.random.default_rng(2).normal(size=(items, 3)),
        np.arange(items) % 5,
        np.concatenate([[0], np.cumsum(lengths)]),
        np.arange(2000),
        feature_names=("a", "b", "c"),
    )
    path = columnar.write(data, tmp_path / "x.parquet")
    same(columnar.read(path), data)
    feather.write_feather(parquet.read_table(path), tmp_path / "x.feather")
    same(columnar.read(tmp_path / "x.feather"), data)


def test_columns_are_in_the_chosen_order(dataset: Dataset, table: Any, tmp_path: Path) -> None:
    renamed = table.rename_columns(["session", "grade", *table.column_names[2:]])
    parquet.write_table(renamed, tmp_path / "x.parquet")
    read = columnar.read(
        tmp_path / "x.parquet", query="session", label="grade", features=["length", "bm25"]
    )
    assert read.feature_names == ("length", "bm25") and read.weights is None
    assert (read.features == dataset.features[:, [3, 0]]).all()


def test_scattered_rows_are_brought_together(tmp_path: Path) -> None:
    path = csv(tmp_path / "x.csv", "qid,label,x\nb,1,1\na,0,2\nb,2,3\nc,0,4\na,1,5\n")
    read = columnar.read(path)
    assert read.qids.tolist() == ["b", "a", "c"] and read.offsets.tolist() == [0, 2, 4, 5]
    assert read.features[:, 0].tolist() == [1, 3, 2, 5, 4] and read.labels.tolist() == [
        1,
        2,
        0,
        1,
        0,
    ]
    assert "the rows of 2 queries were not contiguous" in read.notes[0]


def test_types_that_are_numbers_in_other_clothes(tmp_path: Path) -> None:
    table = pa.table(
        {
            "qid": pa.array([5, 5, 2**60]),
            "label": pa.array([0, 1, 2], pa.int8()),
            "flag": [True, False, True],
            "big": pa.array([2**60 + 1, 3, 4]),
            "exact": pa.array([1, 2, 3]).cast(pa.decimal128(21, 2)),
            "text": ["x", "y", "z"],
        }
    )
    parquet.write_table(table, tmp_path / "x.parquet")
    read = columnar.read(tmp_path / "x.parquet")
    assert read.feature_names == ("flag", "big", "exact")
    assert read.features.tolist() == [[1, 2.0**60, 1], [0, 3, 2], [1, 4, 3]]
    assert read.qids.tolist() == ["5", str(2**60)]


def test_string_views_are_categories(tmp_path: Path) -> None:
    """Polars writes its texts so."""
    views = pa.array(["x", "y"] * 10, pa.string_view())
    table = pa.table({"qid": ["a"] * 20, "label": [1] * 20, "t": views})
    feather.write_feather(table, tmp_path / "t.arrow")
    data = columnar.read(tmp_path / "t.arrow")
    assert data.categories == (("x", "y"),)
    assert data.features[:2].tolist() == [[0.0], [1.0]]


def test_dictionary_columns_are_texts(tmp_path: Path) -> None:
    table = pa.table({"qid": pa.array(["a", "a", "b"]).dictionary_encode(), "label": [0, 1, 2]})
    table = table.append_column("x", pa.array([1.0, 2.0, 3.0]))
    parquet.write_table(table, tmp_path / "x.parquet")
    assert columnar.read(tmp_path / "x.parquet").qids.tolist() == ["a", "b"]


def test_ids_that_are_floats_are_those_of_integers(tmp_path: Path) -> None:
    """As pandas has them where a value was missing."""
    values = {"label": [1, 0, 2], "x": [0.5, 1.0, 2.0]}
    numbers = [7, 7, 12345678901]
    for kind in (int, float):
        ids = list(map(kind, numbers))
        parquet.write_table(pa.table({"qid": ids, "doc": ids, **values}), tmp_path / "x.parquet")
        rows = "".join(f"{i},{i},{y},{x}\n" for i, y, x in zip(ids, *values.values(), strict=True))
        csv(tmp_path / "x.csv", f"qid,doc,label,x\n{rows}")
        for name in ("x.parquet", "x.csv"):
            read = columnar.read(tmp_path / name, id="doc")
            assert read.qids.tolist() == ["7", "12345678901"]
            assert read.ids is not None and read.ids.tolist() == ["7", "7", "12345678901"]
    for text in ("1.0,1,1\n1,1,1\n", "1.0,1,1\n2.10,1,1\n"):  # not of floats alone: as written
        read = columnar.read(csv(tmp_path / "y.csv", f"qid,label,x\n{text}"))
        assert read.qids[0] == "1.0" and len(read) == 2


def test_csv_keeps_ids_as_written_and_learns_of_fractions_late(tmp_path: Path) -> None:
    rows = "".join(f"00{i // 10},1,{i}\n" for i in range(200_000))
    read = columnar.read(csv(tmp_path / "x.csv", f"qid,label,x\n{rows}last,0.5,0.25\n"))
    assert read.qids[:2].tolist() == ["000", "001"] and read.labels[-1] == 0.5
    assert read.features[-2:, 0].tolist() == [199_999, 0.25] and read.n_items == 200_001


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("query,label,x\n1,1,1\n", {}, "no column 'qid' for query. There are: query, label, x"),
        ("qid,lable,x\n1,1,1\n", {}, "'label' for label. Did you mean 'lable'?"),
        ("qid,label,x\n1,1,1\n", {"features": ["y"]}, "no column 'y' for features"),
        ("qid,label,x\n1,1,1\n", {"weight": "w"}, "no column 'w' for weight"),
        ("qid,label,x,x\n1,1,1,1\n", {"features": ["x"]}, "2 columns named 'x'"),
        ("qid,label,x,x\n1,1,1,1\n", {}, "2 columns named 'x'"),
        ("qid,label,x\n1,1,1\n,1,1\n", {}, "query 'qid' of row 2 is empty"),
        ("qid,label,x\n1,1,1\n", {"fill": 1e39}, "fill must be a finite number in float32"),
        ("qid,label,x\n1,1,1\n", {"missing": "-999"}, r"list of values, such as \['-999'\]"),
        ("qid,label,x\n1,1,a\n", {}, r"no numeric columns for features beside \['qid', 'label'\]"),
        ("qid,label,x\n1,1,2020-01-01\n", {"features": ["x"]}, "'x' must be a column of numbers"),
        ("qid,label,x\n", {}, "has no rows"),
        ("qid,label,x\n1,1,1e39\n", {}, "feature 'x' of row 1 is infinite or beyond float32"),
        ("qid,label,x\n1,,1\n", {"fill": 0.0}, "label 'label' of row 1 is null"),
        ("qid,label,x\n1,-1,1\n", {}, r"item 0 \(list 0, qid '1'\) has -1"),
        ("qid,label,x\n1,1\n", {}, "cannot read .*x.csv"),
        ("", {}, "cannot read .*x.csv"),
    ],
)
def test_names_what_is_wrong(
    tmp_path: Path, text: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        columnar.read(csv(tmp_path / "x.csv", text), **options)


def test_a_null_query_is_an_error(tmp_path: Path) -> None:
    table = pa.table({"qid": ["a", None], "label": [0, 1], "x": [1.0, 2.0]})
    parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="query 'qid' of row 2 is null"):
        columnar.read(tmp_path / "x.parquet")


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.feather"])
def test_missing_values_are_nan(tmp_path: Path, name: str) -> None:
    nan, path = np.nan, tmp_path / name
    if name == "x.csv":
        csv(path, "qid,label,x,y\nNA,1,,2\nNA,0,null,?\nb,0,NULL,-9\nb,0,Nan,4\nb,0,na,4\n")
    else:
        y = pa.array([2, None, -9, 4, 4])
        x = pa.array([None, nan, None, None, None], pa.float64())
        table = pa.table({"qid": [*"aabbb"], "label": [1, 0, 0, 0, 0], "x": x, "y": y})
        write = parquet.write_table if name == "x.parquet" else feather.write_feather
        write(table, path)
    read = columnar.read(path, missing=["-9"])
    np.testing.assert_array_equal(read.features[:, 1], np.array([2, nan, nan, 4, 4], np.float32))
    assert np.isnan(read.features[:, 0]).all()
    assert "7 feature values are missing" in read.notes[0]
    again = columnar.read(columnar.write(read, tmp_path / "again.parquet"))
    assert again.checksum() == read.checksum()


def test_left_out_columns_are_said(tmp_path: Path) -> None:
    path = csv(tmp_path / "x.csv", "qid,label,x,url,day\n1,1,3,a,2020-01-01\n")
    assert columnar.read(path).notes[0].endswith("neither numbers nor few texts: day, url")
    assert columnar.read(path, features=["x"]).notes == ()


def test_an_index_of_pandas_is_no_feature(tmp_path: Path) -> None:
    """In a file that is sorted by label, the numbers of rows would give the labels away."""
    columns = {"qid": [1, 1], "label": [1, 0], "x": [0.5, 1.0]}
    for name in ("__index_level_0__", "", "Unnamed: 0"):
        parquet.write_table(pa.table({name: [0, 1], **columns}), tmp_path / "x.parquet")
        csv(tmp_path / "x.csv", f"{name},qid,label,x\n0,1,1,0.5\n1,1,0,1.0\n")
        for file in ("x.parquet", "x.csv"):
            read = columnar.read(tmp_path / file)
            assert read.feature_names == ("x",)
            note = f"columns left out, which are numbers of rows that pandas wrote: {name!r}"
            assert read.notes == (note,)
            named = columnar.read(tmp_path / file, features=[name, "x"])  # unless it is asked for
            assert named.feature_names == (name, "x") and named.notes == ()
        columnar.write(named, tmp_path / "y.parquet", overwrite=True)
        assert columnar.read(tmp_path / "y.parquet").feature_names == (name, "x")


def test_columns_of_many_texts_are_left_out_of_several_parts_too(tmp_path: Path) -> None:
    for number in range(2):
        columns = {"qid": ["a"] * 20, "label": [1] * 20, "x": [0.5] * 20}
        urls = {"url": [f"{number}/{row}" for row in range(20)]}
        parquet.write_table(pa.table(columns | urls), tmp_path / f"part-{number}.parquet")
    data = columnar.read(tmp_path)
    assert data.feature_names == ("x",)
    assert data.notes == ("columns left out, which are neither numbers nor few texts: url",)
    assert columnar.read(tmp_path, features=["x", "url"]).feature_names == ("x", "url")


def test_labels_may_be_missing_where_nothing_is_learned(tmp_path: Path) -> None:
    path = csv(tmp_path / "x.csv", "qid,label,x\n1,NA,3\n1,2,4\n")
    read = columnar.read(path, labeled=False)
    assert read.labels.tolist() == [0, 2] and "1 rows have no label" in read.notes[0]


def test_fill_replaces_what_is_missing_and_says_so(tmp_path: Path) -> None:
    path = csv(tmp_path / "x.csv", "qid,label,x,y\n1,1,,2\n1,0,nan,3\n")
    read = columnar.read(path, fill=-1)
    assert read.features.tolist() == [[-1, 2], [-1, 3]]
    assert "2 missing feature values were set to -1" in read.notes[0]


def test_categories_are_missing_but_not_filled(tmp_path: Path) -> None:
    rows = "".join(f"1,0,{'' if i % 3 else i},{['x', 'na', -9][i % 3]},u{i}\n" for i in range(60))
    path = csv(tmp_path / "x.csv", "qid,label,x,c,url\n" + rows + "1,0,5,x,\n")
    read = columnar.read(path, missing=[-9], fill=7)
    assert read.categories == (None, ("x",))
    np.testing.assert_array_equal(read.features[:3], [[0, 0], [7, np.nan], [7, np.nan]])
    assert read.notes[:2] == (
        "40 missing feature values were set to 7",
        "40 feature values are missing",  # not that of url, which is left out
    )


def test_a_column_of_true_and_false_is_one_of_numbers(tmp_path: Path) -> None:
    path = csv(tmp_path / "x.csv", "qid,label,x\n1,true,False\n1,false,True\n1,true,\n")
    read = columnar.read(path)
    np.testing.assert_array_equal(read.features[:, 0], [0, 1, np.nan])
    assert read.labels.tolist() == [1, 0, 1]


def test_lists_without_items_are_not_written(same: Same, tmp_path: Path) -> None:
    lists = Dataset(np.eye(2), [1, 0], [0, 0, 1, 1, 2, 2], [*"abcde"], feature_names=["x", "y"])
    read = columnar.read(columnar.write(lists, tmp_path / "x.parquet"))
    same(read, lists.select([1, 3]))


def test_a_compressed_parquet_file_and_a_folder_are_called_so(tmp_path: Path) -> None:
    (tmp_path / "x.parquet.gz").write_bytes(gzip.compress(b"PAR1"))
    with pytest.raises(ValueError, match=r"x.parquet.gz is compressed as a whole: unpack it"):
        columnar.read(tmp_path / "x.parquet.gz")
    (tmp_path / "y.parquet").mkdir()
    with pytest.raises(ValueError, match=r"y.parquet is a folder, and has no parts"):
        columnar.read(tmp_path / "y.parquet")


@pytest.mark.parametrize("name", ["x.parquet", "x.feather", "x.arrow"])
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, table: Any, name: str) -> None:
    path = tmp_path / name
    if name == "x.parquet":
        parquet.write_table(table, path)
    else:
        feather.write_feather(table, path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=f"cannot read .*{name}"):
        columnar.read(path)
    path.write_bytes(b"0 qid:1 1:0.5\n" * 20)
    with pytest.raises(ValueError, match=f"cannot read .*{name}"):
        columnar.read(path)


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r'pip install "rankgrad\[columnar\]"'):
        columnar.read(csv(tmp_path / "x.csv", "qid,label,x\n1,1,1\n"))


def test_what_would_take_too_much_is_refused_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"f{j}" for j in range(300)]
    table = pa.table({"qid": ["1"] * 400, "label": [0] * 400, **{n: [0.5] * 400 for n in names}})
    parquet.write_table(table, tmp_path / "a.parquet")
    feather.write_feather(table, tmp_path / "a.feather")
    rows = "".join(f"1,0{',0.5' * 300}\n" for _ in range(400))
    (tmp_path / "a.csv").write_text(f"qid,label,{','.join(names)}\n{rows}")
    assert columnar.read(tmp_path / "a.csv").features.shape == (400, 300)
    monkeypatch.setattr(columnar._memory_limit, "available", lambda: 800_000)
    for name in ("a.parquet", "a.feather"):
        with pytest.raises(ValueError, match=rf"{name}: 400 rows of 300 features would take 0\.0"):
            columnar.read(tmp_path / name)
    with pytest.raises(ValueError, match=r"a\.csv: to read a text file of 302 columns would take"):
        columnar.read(tmp_path / "a.csv")
    monkeypatch.setattr(columnar, "_CSV_COLUMN_BYTES", 1)
    with pytest.raises(ValueError, match=r"a\.csv: 400 rows of 300 features would take"):
        columnar.read(tmp_path / "a.csv")


def test_batches_of_wide_files_are_short() -> None:
    assert columnar._batch_rows(10) == 1 << 14
    assert columnar._batch_rows(190_000) == 22
    assert columnar._batch_rows(10**9) == 1


def test_long_ids_and_headers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"qid,label,x\na,0,1\n{'q' * 1025},0,1\n")
    with pytest.raises(ValueError, match=r"the query 'qid' of row 2 has 1,025 characters"):
        columnar.read(path)
    path.write_text(f"qid,label,x,name\na,0,1,{'q' * 2000}\n")
    with pytest.raises(ValueError, match=r"the id 'name' of row 1 has 2,000 characters"):
        columnar.read(path, id="name")
    wide = ",".join(f"{j:0>600}" for j in range(2000))  # beyond pyarrow's usual block
    path.write_text(f"qid,label,{wide}\na,0{',1' * 2000}\n")
    assert columnar.read(path).n_features == 2000
    with pytest.raises(ValueError, match=r"no column 'x' for label.* and 1,982 more") as error:
        columnar.read(path, label="x")
    assert len(str(error.value)) < 4000


@pytest.mark.parametrize("record", [b"[", b"[]", b'{"weight": 1}', b"[" * 100_000])
def test_a_damaged_record_of_columns(tmp_path: Path, record: bytes) -> None:
    table = pa.table({"qid": ["1"], "label": [0], "x": [1.0]})
    table = table.replace_schema_metadata({b"rankgrad": record})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="its record of the columns is not readable"):
        columnar.read(tmp_path / "a.parquet")


def test_no_damage_to_what_was_written_goes_unnoticed(same, dataset, tmp_path):
    path = columnar.write(dataset, tmp_path / "a.parquet")
    content, expected, noticed = path.read_bytes(), columnar.read(path).checksum(), 0
    for damaged in mutations(content, 200):
        path.write_bytes(damaged)
        try:
            assert columnar.read(path).checksum() == expected  # statistics may be damaged, unread
        except (ValueError, MemoryError):
            noticed += 1
    assert noticed > 120


def test_a_parquet_file_of_before_checksums_is_read(same, dataset, tmp_path):
    path = columnar.write(dataset, tmp_path / "a.parquet")
    table = parquet.read_table(path)
    metadata = {b"rankgrad": table.schema.metadata[b"rankgrad"]}
    parquet.write_table(table.replace_schema_metadata(metadata), path)
    same(columnar.read(path), dataset)


@pytest.mark.parametrize("roles", [{"categorical": ["g"]}, {"query": "g"}])
def test_a_written_file_is_read_in_other_roles(tmp_path, roles):
    features = [[0.5, 1.0], [0.5, 2.0], [1.0, 3.0], [1.0, 4.0]]
    written = Dataset(features, [1, 0, 1, 0], [0, 2, 4], ["1", "2"], feature_names=["g", "h"])
    path = columnar.write(written, tmp_path / "a.parquet")
    assert columnar.read(path).n_items == columnar.read(path, **roles).n_items == 4


READING = """
import sys
sys.path.insert(0, {source!r})
from rankgrad.data import columnar
for path in sys.argv[1:]:
    try:
        columnar.read(path, id="id")
    except ValueError as error:
        assert path in str(error), error
print("alive")
"""


def test_no_damaged_arrow_file_ends_the_process(dataset, tmp_path):
    table = parquet.read_table(columnar.write(dataset, tmp_path / "a.parquet"))
    sources = [tmp_path / "plain.arrow", tmp_path / "lz4.arrow", tmp_path / "stream.arrow"]
    feather.write_feather(table, sources[0], compression="uncompressed")
    feather.write_feather(table, sources[1], compression="lz4")
    with pa.ipc.new_stream(sources[2], table.schema) as writer:
        writer.write_table(table)
    paths = []
    for source in sources:
        for number, damaged in enumerate(mutations(source.read_bytes(), 300)):
            paths.append(str(source.with_name(f"{source.stem}{number}.arrow")))
            Path(paths[-1]).write_bytes(damaged)
    program = READING.format(source=str(Path(columnar.__file__).parents[2]))
    done = subprocess.run([sys.executable, "-c", program, *paths], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-2000:]
