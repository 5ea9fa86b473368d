"""A tutorial as a notebook: the same text and code."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

#: Python, shell, and what the page takes for granted, in a comment: <!-- setup
_BLOCK = re.compile(
    r"^(?:```(python|sh)|<!-- (?:setup))\n(.*?)^(?:```|-->)$", re.MULTILINE | re.DOTALL
)
_LAYOUT = re.compile(r"^</?div[^>]*>\n?", re.MULTILINE)


def write_notebook(page: Path) -> Path:
    """Write the notebook beside the page, and a link to it under the page's title.

    Args:
        page: Markdown. Its Python blocks and its setup become cells; its shell blocks become
            cells that run each command, but for those that begin with a comment and need what
            the reader has: they stay text.

    Returns:
        The notebook's path.
    """
    text = page.read_text()
    notebook = new_notebook(metadata={"language_info": {"name": "python"}})
    end = 0
    for block in _BLOCK.finditer(text):
        if block[1] == "sh" and block[2].startswith("#"):
            continue
        _add_text(notebook, text[end : block.start()])
        code = block[2].rstrip()
        if block[1] == "sh":
            code = "%%sh\n" + code
        notebook.cells.append(new_code_cell(code))
        end = block.end()
    _add_text(notebook, text[end:])
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # else random: two builds differ
    path = page.with_suffix(".ipynb")
    nbformat.write(notebook, path)
    title, _, rest = text.partition("\n")
    page.write_text(
        f"{title}\n\n[Download as a notebook]({path.name}){{ .md-button download }}\n{rest}"
    )
    return path


def _add_text(notebook: nbformat.NotebookNode, text: str) -> None:
    text = _LAYOUT.sub("", text).strip()
    if text:
        notebook.cells.append(new_markdown_cell(text))
