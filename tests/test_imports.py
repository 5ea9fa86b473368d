"""Imports point one way: each package imports only those named here."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "rankgrad"
#: These import nothing of rankgrad, and any package may import them.
LEAVES = {"extras", "shapes"}
MAY_IMPORT = {
    "autograd": set(),
    "quoting": set(),
    "validation": {"quoting", "specs"},
    "deprecation": set(),
    "specs": {"deprecation", "quoting"},
    "checksums": set(),
    "locks": set(),
    "files": {"checksums"},
    "schemas": {"files", "quoting"},
    "precompiled": set(),
    "linking": {"precompiled"},
    "compilation": {"linking", "precompiled"},
    "threads": set(),
    "reference": set(),
    "kernels": {"autograd", "compilation", "lists", "threads"},
    "inputs": {"kernels", "lists"},
    "lists": {"quoting"},
    "padded": {"validation"},
    "significance": {"deprecation", "validation"},
    "sorting": {"autograd", "inputs", "lists", "padded", "validation", "specs", "kernels"},
    "metrics": {"autograd", "inputs", "lists", "padded", "validation", "specs", "kernels"},
    "losses": {
        *("autograd", "inputs", "lists", "padded", "validation", "specs", "kernels", "sorting"),
        *("metrics", "threads"),
    },
    "data": {"checksums", "compilation", "deprecation", "validation", "quoting", "specs", "files"},
    "boosting": {"losses", "metrics", "quoting", "validation", "data"},
    "models": {"compilation", "quoting", "specs", "validation"},
    "training": {
        *(
            "inputs",
            "lists",
            "padded",
            "validation",
            "quoting",
            "schemas",
            "specs",
            "checksums",
            "files",
            "locks",
        ),
        *("losses", "metrics", "data", "models", "threads", "boosting"),
        "compilation",
    },
    "experiments": {
        *("validation", "quoting", "schemas", "specs", "files", "locks", "losses", "metrics"),
        *("data", "models", "training", "significance", "text", "boosting", "results"),
    },
    "results": {
        *("files", "quoting", "schemas", "validation", "significance", "losses", "metrics"),
        "training",
    },
    "export": {
        *("boosting", "data", "files", "metrics", "models", "significance", "text", "training"),
        "validation",
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
    "serving": {"compilation", "data", "export", "models", "quoting", "training"},
    "explanations": {
        *(
            "files",
            "schemas",
            "validation",
            "quoting",
            "metrics",
            "data",
            "training",
            "significance",
        ),
    },
    "report": {"explanations", "files", "results", "significance"},
    "hub": {"metrics", "significance"},
    "estimator": {
        *("files", "hub", "quoting", "schemas", "metrics", "losses", "data", "models", "training"),
    },
    "text": {
        *(
            "lists",
            "validation",
            "quoting",
            "schemas",
            "specs",
            "files",
            "losses",
            "metrics",
            "data",
        ),
        *("models", "training", "significance", "locks"),
    },
    "integrations": {
        *("estimator", "kernels", "lists", "validation", "losses", "metrics", "text", "threads"),
        *("boosting", "inputs"),
    },
}


def imported(path: Path) -> set[str]:
    """The subpackages that a file imports from."""
    packages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[0] == "rankgrad":
                packages |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            packages |= {a.name.split(".")[1] for a in node.names if a.name.startswith("rankgrad.")}
    return packages


def files(package: str) -> list[Path]:
    folder = SOURCE / package
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


@pytest.mark.parametrize("package", [*MAY_IMPORT, *sorted(LEAVES)])
def test_a_package_imports_only_those_listed(package):
    for path in files(package):
        strangers = imported(path) - MAY_IMPORT.get(package, set()) - LEAVES - {package}
        assert not strangers, f"{path.relative_to(SOURCE)} imports {strangers}"


def test_every_package_is_listed():
    packages = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert packages - {"__init__", "__main__", "__pycache__", "cli"} <= set(MAY_IMPORT) | LEAVES
