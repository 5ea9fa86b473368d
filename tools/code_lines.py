"""Count lines of code by package: without comments, docstrings and blank lines.

::

    python tools/code_lines.py                 the files as they are
    python tools/code_lines.py HEAD~9 HEAD     at two commits, side by side
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = "src/rankgrad"
#: Tokens that do not make a line one of code.
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def code_lines(text: str) -> int:
    """Count the lines of a module that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_constant and isinstance(node.value.value, str):  # a docstring
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def by_package(commit: str) -> Counter[str]:
    """Count lines by package; ``kernels/cpu`` and ``kernels/gpu`` count as packages.

    Args:
        commit: a commit; empty for the files of the working tree.
    """
    counts: Counter[str] = Counter()
    for path in _git("ls-tree", "-r", "--name-only", commit or "HEAD", SOURCE).splitlines():
        if not path.endswith(".py") or not (commit or (ROOT / path).is_file()):
            continue
        text = _git("show", f"{commit}:{path}") if commit else (ROOT / path).read_text("utf-8")
        *packages, _ = Path(path).relative_to(SOURCE).parts
        counts["/".join(packages[:2]) or "(root)"] += code_lines(text)
    return counts


def _git(*arguments: str) -> str:
    run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(run.stderr.strip())
    return run.stdout


def main() -> None:
    """Print a table of the commits that the command line names."""
    commits = sys.argv[1:] or [""]
    columns = [by_package(commit) for commit in commits]
    for package in sorted(set().union(*columns)):
        print(f"{package:20}", *(f"{column[package]:8,}" for column in columns))
    print(f"{'all':20}", *(f"{column.total():8,}" for column in columns))


if __name__ == "__main__":
    main()
