"""The pins of ``make minimum`` are those that pyproject.toml declares."""

import re

import minimum
import pytest
from packaging.requirements import Requirement
from packaging.version import Version


def test_every_declared_package_is_pinned_to_its_minimum():
    pins = {Requirement(line).name: Requirement(line).specifier for line in minimum.read()}
    project = minimum.project()
    for requirement in map(Requirement, minimum.requirements(project)):
        if requirement.name != project["name"] and requirement.name != "torch":
            assert str(pins[requirement.name]) == str(requirement.specifier).replace(">=", "==")
    assert str(pins["torch"]) == "==2.13.0"


@pytest.mark.parametrize(("name", "lowest"), [("typer", "0.19"), ("jaxtyping", "0.3.2")])
def test_versions_known_to_break_are_not_allowed(name, lowest):
    (pin,) = (line for line in minimum.read() if re.match(rf"{name}==", line))
    assert Version(pin.partition("==")[2]) >= Version(lowest)


def test_a_package_without_a_minimum_is_an_error():
    project = {"name": "p", "dependencies": ["numpy"], "optional-dependencies": {}}
    with pytest.raises(ValueError, match="'numpy' does not declare a minimum"):
        minimum.pins(project, {})
