"""Collections and topics in every format, and what is wrong with a file said by line."""

import gzip
import json

import pytest

from rankgrad.text import _classic
from rankgrad.text._collections import read_documents, read_topics

EXPECTED = {"d1": "A wing in a slipstream", "d2": "heat & slabs", "empty": ""}
FORMS = {
    "a.jsonl": "".join(
        json.dumps(row) + "\n"
        for row in [
            {"docid": "d1", "title": "A wing", "contents": "in a slipstream"},
            {"_id": "d2", "text": "heat & slabs"},
            {"id": "empty", "title": "", "text": ""},
        ]
    ),
    "a.tsv": "d1\tA wing in a slipstream\nd2\theat & slabs\nempty\t\n",
    "docs": "d1\thttp://a\tA wing\tin a slipstream\nd2\thttp://b\t\theat & slabs\nempty\tc\t\t\n",
    "disk4": "<!-- a disk -->\n<DOC>\n<DOCNO> d1 </DOCNO>\n<PARENT> x </PARENT>\n<HEADLINE>\nA "
    "<b>wing</b></HEADLINE><DATE>1994</DATE>\n<TEXT>\nin a\nslipstream</TEXT>\n</DOC>\n"
    "<doc><docno>d2</docno>heat &amp; slabs</doc>\n<DOC><DOCNO>empty</DOCNO><TEXT></TEXT></DOC>\n",
    "web": "<DOC><DOCNO>d1</DOCNO><DOCHDR>http://a 1997</DOCHDR><html><head><title>A wing</title>"
    "</head><body>in a<br>slipstream</html></DOC>\n<DOC><DOCNO>d2</DOCNO><DOCHDR></DOCHDR>heat "
    "&amp; slabs</DOC><DOC><DOCNO>empty</DOCNO></DOC>\n",
    "a.all": ".I d1\n.T\nA wing\n.A\nsomebody\n.W\nin a\n  slipstream\n"
    ".I d2\n.T\nheat\n.W\nheat & slabs\n.X\n1\t2\n.I empty\n.T\n.W\n",
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_documents(tmp_path, name, compressed):
    text = FORMS[name].encode()
    path = tmp_path / (f"{name}.gz" if compressed else name)
    path.write_bytes(gzip.compress(text) if compressed else text)
    documents = read_documents(path)
    assert documents == EXPECTED and list(documents) == list(EXPECTED)
    assert len(documents) == 3 and documents["empty"] == "" and "d9" not in documents


def test_a_folder_of_files(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.tsv").write_text("z\tlast\n")
    (tmp_path / "a.tsv").write_text("y\tfirst\n")
    (tmp_path / ".hidden").write_text("\x00")
    assert read_documents(tmp_path) == {"y": "first", "z": "last"}
    (tmp_path / "c.tsv").write_text("q\tx\ny\ttwice\n")
    with pytest.raises(ValueError, match=r"c\.tsv, line 2: the document 'y' comes twice"):
        read_documents(tmp_path)


TOPICS = """
<top>
<num> Number: 051
<title> Topic: Airbus
Subsidies

<desc> Description:
How are they subsidized?

<narr> Narrative: None.
</top>
<top><num>B-2</num><title>Second</title><desc>More</desc></top>
<topic number="7" type="single"><query>web &amp; track</query><description>d</description></topic>
"""


def test_topics(tmp_path):
    (tmp_path / "topics.txt").write_text(TOPICS)
    titles = {"51": "Airbus Subsidies", "B-2": "Second", "7": "web & track"}
    assert read_topics(tmp_path / "topics.txt") == titles
    described = read_topics(tmp_path / "topics.txt", field="description")
    assert described["51"] == "How are they subsidized?" and described["7"] == "d"
    (tmp_path / "q.tsv").write_text("7\tweb track\n")
    (tmp_path / "q.jsonl").write_text('{"query_id": 7, "query": "web track"}\n\n')
    (tmp_path / "q.qry").write_text(".I 7\n.W\nweb\n track\n")
    for name in ("q.tsv", "q.jsonl", "q.qry"):
        assert read_topics(tmp_path / name) == {"7": "web track"}
    with pytest.raises(ValueError, match=r"line 12: topic B-2 has no narrative"):
        read_topics(tmp_path / "topics.txt", field="narrative")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"id": "a", "text": "x"}\n{"id": "b"\n', "line 2: not JSON"),
        ("a.jsonl", '["a"]\n', "line 1: expected an object"),
        ("a.jsonl", "[" * 100_000, "line 1: not JSON"),
        ("a.jsonl", '{"id": ' + "1" * 5000 + "}", "line 1: not JSON"),
        ("a.jsonl", '{"id": "a", "text": "x \\ud83d"}\n', "line 1: .* is half of a surrogate pair"),
        ("a.jsonl", '{"id": "a", "text": 3}\n', "line 1: expected a text, found 3"),
        ("a.jsonl", '{"id": "a", "texts": "x"}\n', "line 1: expected a text under one of text, "),
        ("a.jsonl", '{"text": "x"}\n', "line 1: expected an id under one of"),
        (
            "a.jsonl",
            '{"id": "a b", "text": "x"}\n',
            "line 1: the id of a document must be one word",
        ),
        ("a.tsv", "a\tx\nb\n", "line 2: expected 2 columns, as in the first line.*found 1"),
        ("a.tsv", "a\tx\ty\n", r"line 1: expected 2 columns \(id, text\) or 4 .*found 3"),
        ("a.tsv", "a\tx\n\n\na\ty\n", "line 4: the document 'a' comes twice"),
        ("a.tsv", "a\t\udcff\n", "line 1: not UTF-8 text"),
        ("a", "<DOC>\n<DOCNO>a</DOCNO>\n<DOC>\n", "line 3: <DOC> inside of the <DOC> of line 1"),
        ("a", "\n<DOC>\n<DOCNO>a</DOCNO>\n", "line 2: <DOC> does not end"),
        ("a", "<DOC>\n</DOC>\n", "line 1: a document without a <DOCNO>"),
        ("a", "<DOC>\n<DOCNO>a</DOCNO></DOC>\nstray\n", "line 3: expected <DOC>, found 'stray'"),
        ("a", "<x>\n</DOC>\n", "line 2: </DOC> without a <DOC>"),
        ("a", ".I 1\n.W\ntext\n.I\n", "line 4: a record without an id"),
        ("a", ".I 1\ntext\n", "line 2: expected a field, such as .W, found 'text'"),
        ("a", "a text\n", "cannot tell the format of .*a by its first line"),
        ("a.tsv", "", "has no documents in it"),
    ],
)
def test_damaged_collections(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=message):
        read_documents(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("q.tsv", "1\tx\n2\t\n", "line 2: the query '2' has no text"),
        ("q.tsv", "1\tx\n1\ty\n", "line 2: the query '1' comes twice"),
        ("q", "<top>\n<num> 1\n<title> x\n", "line 1: <top> does not end"),
        ("q", "<top>\n<title> x\n</top>\n", "line 1: a topic without a <num>"),
        ("q.tsv", "\n", "has no topics in it"),
    ],
)
def test_damaged_topics(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_topics(tmp_path / name)


def test_latin_1_in_sgml(tmp_path):
    (tmp_path / "a").write_bytes(
        b"<DOC><DOCNO>a</DOCNO>caf\xe9</DOC>\n<DOC><DOCNO>b</DOCNO>\xc3\xa9</DOC>"
    )
    assert dict(read_documents(tmp_path / "a")) == {"a": "café", "b": "é"}


def test_an_explicit_format(tmp_path):
    (tmp_path / "a.txt").write_text("1\t{}\n")
    assert dict(read_documents(tmp_path / "a.txt", "tsv")) == {"1": "{}"}
    with pytest.raises(ValueError, match="format must be one of 'jsonl'"):
        read_documents(tmp_path / "a.txt", "xml")


def test_cranfield(real):
    """The title once, queries by position, the lowest code the highest grade."""
    folder = real("cranfield")
    found = _classic.load(folder)
    assert len(found.documents) == 1400 and len(found.topics) == len(found.qrels) == 225
    start = "experimental investigation of the aerodynamics of a wing in a slipstream . an experi"
    assert found.documents["1"].startswith(start)
    assert [name for name, text in found.documents.items() if not text] == ["471", "995"]
    assert found.topics["3"].startswith("what problems of heat conduction")  # .I 004
    grades = [grade for judged in found.qrels.values() for grade in judged.values()]
    assert [grades.count(grade) for grade in range(5)] == [225, 363, 734, 387, 128]
    assert found.qrels["1"]["184"] == 3  # its code is 2
    assert list(read_documents(folder)) == list(found.documents)
    assert read_topics(folder) == found.topics


def test_cisi(real):
    found = _classic.load(real("cisi"))
    assert len(found.documents) == 1460 and len(found.topics) == 112 and len(found.qrels) == 76
    assert sum(map(len, found.qrels.values())) == 3114
    assert {grade for judged in found.qrels.values() for grade in judged.values()} == {1}
    assert found.documents["1"].startswith("18 Editions of the Dewey Decimal Classifications The p")


def test_damaged_judgments_of_a_known_collection(tmp_path):
    (tmp_path / "CISI.ALL").write_text(".I 1\n.W\nx\n")
    (tmp_path / "CISI.QRY").write_text(".I 1\n.W\nx\n")
    for text, message in [
        ("1 1 0 0.0\n1 2\n", "line 2: expected a query, a document and a code"),
        ("1 1 0 0.0\n\n9 1 0 0.0\n", "line 3: expected a query"),
        ("1 1 0 0.0\n1 1 0 0.0\n", "line 2: document 1 is judged twice"),
    ]:
        (tmp_path / "CISI.REL").write_text(text)
        with pytest.raises(ValueError, match=message):
            _classic.load(tmp_path)


def test_data_sets_of_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = {"_id": ["a", "b"], "title": ["t", ""], "text": ["x", "y"]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "one")
    assert dict(read_documents(f"datasets:{tmp_path / 'one'}")) == {"a": "t x", "b": "y"}
    parts = {name: datasets.Dataset.from_dict(rows) for name in ("corpus", "queries")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "two")
    assert read_topics(f"datasets:{tmp_path / 'two'}::queries") == {"a": "t x", "b": "y"}
    with pytest.raises(ValueError, match=r"say which split.*There are: corpus, queries"):
        read_documents(f"datasets:{tmp_path / 'two'}")


def test_data_sets_of_ir_datasets(tmp_path):
    package = pytest.importorskip("ir_datasets")
    from ir_datasets.datasets.base import Dataset
    from ir_datasets.formats import TsvDocs

    (tmp_path / "d.tsv").write_text("a\tx y\nb\t\n")
    source = package.util.LocalDownload(tmp_path / "d.tsv")
    package.registry.register("rankgrad-test", Dataset(TsvDocs(source)))
    assert dict(read_documents("ir_datasets:rankgrad-test")) == {"a": "x y", "b": ""}
    with pytest.raises(ValueError, match="'rankgrad-test' of ir_datasets has no queries"):
        read_topics("irds:rankgrad-test")
    with pytest.raises(ValueError, match="ir_datasets has no data set 'no-such'"):
        read_documents("ir_datasets:no-such")


def test_a_package_that_is_not_there(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ir_datasets", None)
    for name in ("ir_datasets:vaswani", "irds:vaswani"):
        with pytest.raises(ImportError, match=f"{name} needs ir_datasets: pip install ir_datasets"):
            read_documents(name)
