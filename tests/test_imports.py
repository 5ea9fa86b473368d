"""Imports point one way: each package imports only those named here."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "rankgrad"
#: These import nothing of rankgrad, and any package may import them.
LEAVES = {"extras", "_shapes"}
MAY_IMPORT = {
    "_autograd": set(),
    "_quoting": set(),
    "_validation": {"_quoting", "specs"},
    "_deprecation": set(),
    "specs": {"_deprecation", "_quoting"},
    "_checksums": set(),
    "_locks": set(),
    "_files": {"_checksums"},
    "_schemas": {"_files", "_quoting"},
    "_precompiled": set(),
    "_linking": {"_precompiled"},
    "_compilation": {"_linking", "_precompiled"},
    "_threads": set(),
    "_reference": set(),
    "kernels": {"_autograd", "_compilation", "lists", "_threads"},
    "inputs": {"_quoting", "kernels", "lists"},
    "lists": {"_quoting"},
    "_padded": {"_validation"},
    "significance": {"_deprecation", "_validation"},
    "sorting": {
        *("_autograd", "inputs", "lists", "_padded", "_quoting", "_validation", "specs"),
        "kernels",
    },
    "metrics": {"_autograd", "inputs", "lists", "_padded", "_validation", "specs", "kernels"},
    "losses": {
        *("_autograd", "inputs", "lists", "_padded", "_validation", "specs", "kernels", "sorting"),
        *("metrics", "_threads"),
    },
    "data": {
        "_checksums",
        "_compilation",
        "_deprecation",
        "_validation",
        "_quoting",
        "specs",
        "_files",
    },
    "boosting": {"losses", "metrics", "_quoting", "_validation", "data"},
    "models": {"_compilation", "_quoting", "specs", "_validation"},
    "training": {
        *(
            "inputs",
            "lists",
            "_padded",
            "_validation",
            "_quoting",
            "_schemas",
            "specs",
            "_checksums",
            "_files",
            "_locks",
        ),
        *("losses", "metrics", "data", "models", "_threads", "boosting"),
        "_compilation",
    },
    "experiments": {
        *("_validation", "_quoting", "_schemas", "specs", "_files", "_locks", "losses", "metrics"),
        *("data", "models", "training", "significance", "text", "boosting", "results"),
    },
    "results": {
        *("_files", "_quoting", "_schemas", "_validation", "significance", "losses", "metrics"),
        "training",
    },
    "export": {
        *("boosting", "data", "_files", "metrics", "models", "significance", "text", "training"),
        "_validation",
    },
    "papers": {
        *(
            "experiments",
            "results",
            "_schemas",
            "specs",
            "_files",
            "losses",
            "metrics",
            "data",
            "sorting",
        ),
        *("models", "training", "significance", "text"),
    },
    "serving": {"_compilation", "data", "export", "models", "_quoting", "training"},
    "explanations": {
        *(
            "_files",
            "_schemas",
            "_validation",
            "_quoting",
            "metrics",
            "data",
            "training",
            "significance",
        ),
    },
    "report": {"explanations", "_files", "_reference", "results", "significance"},
    "hub": {"metrics", "significance"},
    "estimator": {
        *(
            "_files",
            "hub",
            "_validation",
            "_quoting",
            "_schemas",
            "metrics",
            "losses",
            "data",
            "models",
            "training",
        ),
    },
    "text": {
        *(
            "lists",
            "_validation",
            "_quoting",
            "_schemas",
            "specs",
            "_files",
            "losses",
            "metrics",
            "data",
        ),
        *("models", "training", "significance", "_locks"),
    },
    "integrations": {
        *("estimator", "kernels", "lists", "_validation", "losses", "metrics", "text", "_threads"),
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
    packages = {path.parent.stem for path in SOURCE.glob("*/*.py")}
    packages |= {path.stem for path in SOURCE.glob("*.py")}
    assert packages - {"__init__", "__main__", "cli"} <= set(MAY_IMPORT) | LEAVES
