"""Names, docstrings and comments use the field's words (docs/glossary.md), not private ones."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: No name has one of these as a part, nor a docstring or comment as a word.
PRIVATE = (
    "twin twins slots slopes verdict verdicts begun settled steady arriving contender contenders "
    "journal journals noting unseen trusted room rooms lean"
)
#: No docstring or comment of the source has one of these.
PHRASES = re.compile(
    r"there and back|on the way back|what is no |is told|are told|gives? back|given back|one's own"
    r"|looked at|a look at|facts about|is worth to|nobody looks|what it knows|written down"
)
#: No name has one of these as a part. In sentences they are plain English.
NAME_PARTS = f"{PRIVATE} facts house look maker shares spread standing tell told gap gaps"
#: No module, class, function or argument is called one of these.
NAMES = "accepts back choosing draws given gives kept longest there whole worth"
#: No module or class is called one of these; functions and arguments may be.
TYPES = "fit guard options order position prepare replay rows"
#: Names that somebody else chose, or files on disk.
FOREIGN = {
    ("src/rankgrad/_files.py", "tell"),  # of Python's files
    ("src/rankgrad/results/runs.py", "gap"),  # a key of files of earlier versions
}


def _parts(name: str) -> set[str]:
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def _private_names(path: str, tree: ast.Module) -> list[str]:
    """Private words among the names of a file.

    Those are the names of the module, classes, functions and arguments; of fields, attributes and
    module constants too, but plain words are allowed there.
    """
    stem = Path(path).stem
    names = [(1, stem, True)]
    values = []
    for holder in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]:
        for node in holder.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            names_in = (name for target in targets for name in ast.walk(target))
            values += [(x.lineno, x.id) for x in names_in if isinstance(x, ast.Name)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names.append((node.lineno, node.name, True))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.append((node.lineno, node.name, False))
        elif isinstance(node, ast.arg):
            names.append((node.lineno, node.arg, False))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            values.append((node.lineno, node.attr))
    found = [
        f"{path}:{line}: {name}"
        for line, name in values
        if (path, name) not in FOREIGN and _parts(name) & set(NAME_PARTS.split())
    ]
    return found + [
        f"{path}:{line}: {name}"
        for line, name, is_type in names
        if (path, name) not in FOREIGN
        and (
            _parts(name) & set(NAME_PARTS.split())
            or PHRASES.search(name.replace("_", " "))
            or name.strip("_").lower() in NAMES.split()
            or (is_type and name.strip("_").removeprefix("test_").lower() in TYPES.split())
        )
    ]


def _prose(source: str) -> list[tuple[int, str]]:
    """The docstrings and comments of a file, each with its line."""
    found = [
        (getattr(node, "lineno", 1), ast.get_docstring(node) or "")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return found + [(x.start[0], x.string) for x in tokens if x.type == tokenize.COMMENT]


def _private_terms(path: str, source: str) -> list[str]:
    """Private words and phrases in the docstrings and comments of a file."""
    found = []
    for line, text in _prose(source):
        words = set(re.findall(r"[a-z]+", text.lower())) & set(PRIVATE.split())
        if path.startswith("src/"):
            words |= set(PHRASES.findall(" ".join(text.split())))
        found += [f"{path}:{line}: {word}" for word in sorted(words)]
    return found


def _packages() -> list[str]:
    tops = [*(ROOT / "src" / "rankgrad").iterdir(), *(ROOT / "tests").iterdir()]
    return sorted(
        str(top.relative_to(ROOT))
        for top in tops
        if top.suffix == ".py" or (top.is_dir() and any(top.rglob("*.py")))
    )


@pytest.mark.parametrize("package", _packages())
def test_names_and_docstrings_have_no_private_words(package):
    top, found = ROOT / package, []
    for file in [top] if top.suffix == ".py" else sorted(top.rglob("*.py")):
        path, source = str(file.relative_to(ROOT)), file.read_text()
        if path != "tests/test_vocabulary.py":
            found += _private_names(path, ast.parse(source)) + _private_terms(path, source)
    assert not found, "use the words of docs/glossary.md:\n" + "\n".join(found)


def test_private_words_are_found():
    source = 'class Twin:\n    def gap(self, given): "A verdict."  # a twin of rows'
    assert len(_private_names("x/rows.py", ast.parse(source))) == 4
    assert _private_terms("x/rows.py", source) == ["x/rows.py:2: verdict", "x/rows.py:2: twin"]
    source = "_TOLD = 1\nclass A:\n    room: int\n    def f(self): self.gap = there_and_back = 0"
    found = _private_names("x/a.py", ast.parse(source))
    assert found == ["x/a.py:1: _TOLD", "x/a.py:3: room", "x/a.py:4: gap"]
    source = "def test_a_run_there_and_back(): pass"
    assert len(_private_names("x/a.py", ast.parse(source))) == 1
    source = '"""Constant on the way back."""'
    assert _private_terms("src/a.py", source) == ["src/a.py:1: on the way back"]
