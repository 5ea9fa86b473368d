"""Docstrings as Markdown: examples between fences, roles and literals as code.

:class:`Docstrings` is an extension of Griffe, which reads docstrings for mkdocstrings: it converts
each of them before the pages of modules are made.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


def to_markdown(text: str) -> str:
    """A docstring as Markdown; sections such as ``Args:`` stay as they are."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    return fence_examples(re.sub(r"::$", ":", text, flags=re.MULTILINE))


def fence_examples(text: str) -> str:
    """The text with fences around its interactive examples."""
    lines: list[str] = []
    in_example = False
    for line in text.splitlines():
        if not in_example and line.startswith(">>> "):
            lines += ["", "```pycon"]
            in_example = True
        elif in_example and not line.strip():
            lines.append("```")
            in_example = False
        lines.append(line)
    return "\n".join([*lines, "```"] if in_example else lines)


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute of a package."""
        if obj.docstring is not None and "```" not in obj.docstring.value:
            obj.docstring.value = to_markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called for the package itself."""
        self.on_object(obj=pkg)
