"""Pins of the oldest packages that pyproject.toml says rankgrad works with, for ``make minimum``.

``python tests/minimum.py`` prints a constraints file: each ``name>=version`` of the dependencies
and of all extras as ``name==version``. PyTorch is pinned to the build the tests are run with, since
older CPU builds are not on every index.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?P<extras>\[[^\]]*\])?(?P<version>[^;]*)(?P<marker>;.*)?$"
)
TESTED = {"torch"}  # taken from constraints.txt


def requirements(project: dict) -> Iterator[str]:
    """All that the project declares, those of extras included."""
    yield from project["dependencies"]
    for extra in project["optional-dependencies"].values():
        yield from extra


def pins(project: dict, tested: dict[str, str]) -> list[str]:
    """One pin for each package, its highest minimum. A requirement without one is an error."""
    found: dict[str, tuple[Version, str]] = {}
    for requirement in requirements(project):
        match = REQUIREMENT.match(requirement.strip())
        if match is None:
            raise ValueError(f"cannot read the requirement {requirement!r}")
        name, version = match["name"], match["version"].strip()
        if name == project["name"]:  # an extra that takes in others
            continue
        if not re.fullmatch(r">=[\w.]+", version):
            raise ValueError(f"{requirement!r} does not declare a minimum as name>=version")
        lowest = tested[name] if name in TESTED else version.removeprefix(">=")
        pin = Version(lowest), f"{name}=={lowest}{match['marker'] or ''}"
        found[name] = max(found.get(name, pin), pin)
    return sorted(pin for _, pin in found.values())


def project() -> dict:
    """What pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read() -> list[str]:
    """The pins of this project."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return pins(project(), dict(line.split("==") for line in lines if "==" in line))


if __name__ == "__main__":
    print("\n".join(read()))
