"""Docstrings as Markdown: examples between fences, roles and literals as code.

Also an extension of Griffe, by which mkdocstrings reads the docstrings of modules so.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


def to_markdown(text: str) -> str:
    """A docstring's text; sections such as ``Args:`` stay as they are."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    return fence_examples(re.sub(r"::$", ":", text, flags=re.MULTILINE))


def fence_examples(text: str) -> str:
    """Interactive examples between fences."""
    fenced: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.startswith(">>> "):
            fenced += ["", "```pycon"]
            inside = True
        elif inside and not line.strip():
            fenced.append("```")
            inside = False
        fenced.append(line)
    return "\n".join([*fenced, "```"] if inside else fenced)


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute of a package."""
        if obj.docstring is not None and "```" not in obj.docstring.value:
            obj.docstring.value = to_markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called for the package itself."""
        self.on_object(obj=pkg)
