"""Imports point one way: each room knows only those named here."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "rankgrad"
KNOWS = {
    "autograd": set(),
    "quoting": set(),
    "options": {"quoting"},
    "deprecation": set(),
    "specs": {"deprecation", "quoting"},
    "checksums": set(),
    "locks": set(),
    "files": {"checksums"},
    "schemas": {"files", "quoting"},
    "compilation": set(),
    "linking": {"compilation"},
    "threads": set(),
    "kernels": {"autograd", "compilation", "linking", "lists", "threads"},
    "inputs": {"kernels", "lists"},
    "lists": {"options"},
    "significance": {"deprecation", "options"},
    "sorting": {"autograd", "inputs", "lists", "options", "specs", "kernels"},
    "metrics": {"autograd", "inputs", "lists", "options", "specs", "kernels"},
    "losses": {
        *("autograd", "inputs", "lists", "options", "specs", "kernels", "sorting", "metrics"),
        "threads",
    },
    "data": {"checksums", "compilation", "deprecation", "options", "quoting", "specs", "files"},
    "boosting": {"losses", "metrics", "options", "data"},
    "models": {"options", "specs"},
    "training": {
        *(
            "inputs",
            "lists",
            "options",
            "quoting",
            "schemas",
            "specs",
            "checksums",
            "files",
            "locks",
        ),
        *("losses", "metrics", "data", "models", "threads", "boosting"),
    },
    "experiments": {
        *("options", "quoting", "schemas", "specs", "files", "locks", "losses", "metrics", "data"),
        *("models", "training", "significance", "text", "boosting", "results"),
    },
    "results": {
        *("files", "quoting", "schemas", "options", "significance", "losses", "metrics"),
        "training",
    },
    "papers": {
        *(
            "experiments",
            "results",
            "schemas",
            "specs",
            "files",
            "losses",
            "metrics",
            "data",
            "sorting",
        ),
        *("models", "training", "significance", "text"),
    },
    "explanations": {
        *("files", "schemas", "options", "quoting", "metrics", "data", "training", "significance"),
    },
    "report": {"explanations", "files", "results", "significance"},
    "hub": {"metrics", "significance"},
    "estimator": {
        *("files", "hub", "quoting", "schemas", "metrics", "losses", "data", "models", "training"),
    },
    "text": {
        *("lists", "options", "quoting", "schemas", "specs", "files", "losses", "metrics", "data"),
        *("models", "training", "significance", "locks"),
    },
    "integrations": {
        *("estimator", "kernels", "lists", "options", "losses", "metrics", "text", "threads"),
        *("boosting", "inputs"),
    },
}


def imported(path: Path) -> set[str]:
    """The rooms of the package that a file imports from."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[0] == "rankgrad":
                rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            rooms |= {a.name.split(".")[1] for a in node.names if a.name.startswith("rankgrad.")}
    return rooms


def files(room: str) -> list[Path]:
    folder = SOURCE / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


@pytest.mark.parametrize("room", KNOWS)
def test_a_room_knows_only_its_own(room):
    for path in files(room):
        strangers = imported(path) - KNOWS[room] - {room}
        assert not strangers, f"{path.relative_to(SOURCE)} imports {strangers}"


def test_every_room_is_listed():
    rooms = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__init__", "__main__", "__pycache__", "cli"} <= set(KNOWS)
