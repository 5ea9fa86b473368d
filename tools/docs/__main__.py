"""Build the documentation site: ``python tools/docs [--out site]``.

The pages of ``docs/`` are copied to a staging folder, formulas become MathML, tutorials get their
notebooks, the pages of every loss, metric and relaxation are generated, and Zensical renders all.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from formulas import render_formulas
from notebooks import write_notebook
from reference_pages import write_reference

ROOT = Path(__file__).resolve().parents[2]
CONTENT = ROOT / "docs"


def main() -> None:
    """Read the options and build."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="where the site goes")
    parser.add_argument("--without-plots", action="store_true", help="leave out plots of losses")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stage(Path(folder), plots=not options.without_plots)
        render(Path(folder), options.out)
    print(f"{options.out}: {len(list(options.out.rglob('*.html')))} pages")


def stage(folder: Path, plots: bool = True) -> None:
    """Write the configuration and all Markdown that Zensical reads.

    Args:
        folder: an empty one.
        plots: draw each loss and its gradient.
    """
    pages = folder / "pages"
    shutil.copytree(CONTENT, pages, ignore=shutil.ignore_patterns("zensical.toml"))
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text().replace("](docs/", "](")
        (pages / name.lower()).write_text(text)
    for page in sorted((pages / "tutorials").glob("*.md")):
        write_notebook(page)
    generated = write_reference(pages / "reference", plots=plots)
    for page in sorted(pages.rglob("*.md")):
        page.write_text(render_formulas(_link_files(page, pages)))
    config: dict[str, Any] = tomllib.loads((CONTENT / "zensical.toml").read_text())
    project = config["project"]
    project["docs_dir"], project["site_dir"] = "pages", "site"
    python = project["plugins"]["mkdocstrings"]["handlers"]["python"]
    python["paths"] = [str(ROOT / "src")]
    python["options"]["extensions"] = [str(ROOT / "tools" / "docs" / "docstrings.py")]
    for section in project["nav"]:
        if "Reference" in section:
            section["Reference"] = generated + section["Reference"]
    (folder / "zensical.toml").write_text(tomli_w.dumps(config))


def render(folder: Path, out: Path) -> None:
    """Let Zensical render a staged folder as HTML."""
    process = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if process.returncode or not (folder / "site" / "index.html").exists():
        sys.exit(process.stdout + process.stderr)
    # A page that is opened from disk may not fetch JSON, so the search index is also a script.
    worker = (ROOT / "tools" / "docs" / "offline_search.js").read_text()
    index = (folder / "site" / "search.json").read_text()
    (folder / "site" / "search.js").write_text(f"{worker}\nvar __index = {index};\n")
    if out.exists():
        shutil.rmtree(out)
    shutil.copytree(folder / "site", out)


def _link_files(page: Path, pages: Path) -> str:
    """The text of a page; files of the repository that it links to are copied into the site."""
    to_root = "../" * len(page.relative_to(pages).parts)  # as links on pages in docs/ begin
    to_site = to_root.removeprefix("../")

    def copy(link: re.Match[str]) -> str:
        source, target = ROOT / link[1], pages / "files" / link[1]
        if not source.is_file():
            return link[0]  # a broken link, which the test of links reports
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        return f"]({to_site}files/{link[1]})"

    text = page.read_text().replace(f"]({to_root}CONTRIBUTING.md", f"]({to_site}contributing.md")
    folders = "benchmarks|examples|src|tests"
    return re.sub(rf"\]\({re.escape(to_root)}((?:{folders})/[^)#]+)\)", copy, text)


if __name__ == "__main__":
    main()
