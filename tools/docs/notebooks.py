"""Makes Jupyter notebooks of tutorials, with the same text and code."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

#: Blocks of Python and shell, and code that the page does not show: a comment <!-- setup
_BLOCK = re.compile(
    r"^(?:```(python|sh)|<!-- (?:setup))\n(.*?)^(?:```|-->)$", re.MULTILINE | re.DOTALL
)
_LAYOUT = re.compile(r"^</?div[^>]*>\n?", re.MULTILINE)


def write_notebook(page: Path) -> Path:
    """Write the notebook beside the page, and a link to it under the page's title.

    Args:
        page: Markdown. Its Python blocks and its setup become cells. Its shell blocks become
            cells that run each command, except for blocks that begin with a comment: these need
            data of the reader, and stay text.

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
        cell["id"] = f"cell-{number}"  # random by default, so that two builds would differ
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
