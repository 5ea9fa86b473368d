"""The pins of ``make minimum`` are those that pyproject.toml declares."""

import re

import minimum
import pytest
from packaging.requirements import Requirement
from packaging.version import Version


def test_every_declared_package_is_pinned_to_its_minimum():
    pins = {Requirement(line).name: Requirement(line).specifier for line in minimum.read()}
    project = minimum.project()
    declared: dict[str, list[Version]] = {}
    for requirement in map(Requirement, minimum.requirements(project)):
        lowest = Version(str(requirement.specifier).removeprefix(">=") or "0")
        declared.setdefault(requirement.name, []).append(lowest)
    for name in declared.keys() - {project["name"], "torch"}:
        assert Version(str(pins[name]).removeprefix("==")) == max(declared[name])
    assert str(pins["torch"]) == "==2.13.0"


@pytest.mark.parametrize(("name", "lowest"), [("typer", "0.19"), ("jaxtyping", "0.3.2")])
def test_versions_known_to_break_are_not_allowed(name, lowest):
    (pin,) = (line for line in minimum.read() if re.match(rf"{name}==", line))
    assert Version(pin.partition("==")[2]) >= Version(lowest)


def test_a_package_without_a_minimum_is_an_error():
    project = {"name": "p", "dependencies": ["numpy"], "optional-dependencies": {}}
    with pytest.raises(ValueError, match="'numpy' does not declare a minimum"):
        minimum.pins(project, {})
