"""Renders formulas between dollar signs as MathML, which browsers draw without a script."""

from __future__ import annotations

import re

from latex2mathml.converter import convert

# Code is left as it is: fenced blocks, then spans in backticks.
_CODE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)[ \t]*$|`+[^`\n]+`+)", re.MULTILINE | re.DOTALL)
_DISPLAY = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
_INLINE = re.compile(r"(?<![\\$\w])\$(?=\S)([^$\n]+?)(?<=\S)\$(?![\w$])")


def render_formulas(text: str) -> str:
    """Markdown with LaTeX between $ (inline) and $$ (display) replaced by MathML."""
    parts = _CODE.split(text)
    return "".join(part if index % 2 else _render(part) for index, part in enumerate(parts))


def _render(text: str) -> str:
    text = _DISPLAY.sub(lambda match: _mathml(match[1], "block"), text)
    return _INLINE.sub(lambda match: _mathml(match[1], "inline"), text)


def _mathml(latex: str, display: str) -> str:
    rendered = convert(" ".join(latex.split()), display=display)
    # A line that begins with <math> would end the paragraph: Markdown takes it for a block.
    if display == "inline":
        return f"<span>{rendered}</span>"
    return f'<div class="formula">{rendered}</div>'
