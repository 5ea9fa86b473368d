"""The documentation site: its links resolve, its code runs, it fits a phone and stays offline."""

import functools
import http.server
import importlib
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

import pytest
from typer.testing import CliRunner

from rankgrad.cli import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Pages whose Python blocks are parts of a program that runs elsewhere in the tests.
EXCERPTS = {"lightning.md", "plain_loop.md"}
#: Python and shell blocks, and what a page takes for granted, in a comment: <!-- setup
BLOCKS = re.compile(
    r"^( *)(?:```(python|sh)|<!-- (setup))\n(.*?)^ *(?:```|-->)", re.DOTALL | re.MULTILINE
)
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if "```python" in page.read_text() and page.name not in EXCERPTS
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
@pytest.mark.filterwarnings("default")
def test_code_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for _, language, setup, block in BLOCKS.findall(page.read_text()):
        code = textwrap.dedent(block)
        if language == "python" or setup:
            exec(compile(code, str(page), "exec"), names)
        elif page.parent.name == "tutorials":
            run_commands(code)


def run_commands(code):
    """Every command of ours in a shell block, one after the other, in this process.

    A block that begins with a comment needs what the reader has, and is only shown.
    """
    if code.startswith("#"):
        return
    for line in code.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(line, comments=True) or [""]
        if program == "rankgrad":
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, f"{line}\n{result.output}{result.exception!r}"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("zensical")
    out = tmp_path_factory.mktemp("site") / "site"
    subprocess.run([sys.executable, str(ROOT / "tools" / "docs"), "--out", str(out)], check=True)
    return out


class Page(HTMLParser):
    """What a page links to, and where in it a link may lead."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if "id" in found:
            self.anchors.add(found["id"])
        for name in ("href", "src"):
            if found.get(name) and tag in ("a", "link", "script", "img"):
                self.links.append(found[name])


def test_links_resolve(site):
    pages = {page: Page(page.read_text()) for page in site.rglob("*.html")}
    assert len(pages) > 130
    broken = []
    for page, parsed in pages.items():
        for link in parsed.links:
            target = urlparse(urljoin(page.as_uri(), link))
            if target.scheme != "file" or page.name == "404.html":
                continue
            path = Path(unquote(target.path))
            path = path / "index.html" if path.is_dir() else path
            if not path.exists() or (
                target.fragment and path in pages and target.fragment not in pages[path].anchors
            ):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert not broken, "\n".join(broken[:20])


def test_every_public_name_has_its_place(site, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools" / "docs")
    import reference_pages

    for module in reference_pages.API:
        anchors = Page((site / "reference" / "api" / f"{module}.html").read_text()).anchors
        for name in reference_pages.public_names(module):
            value = getattr(importlib.import_module(module), name)
            places = {f"{module}.{name}", getattr(value, "__module__", "")}
            assert name.startswith("__") or places & anchors, f"{module}.{name}"


def test_every_page_is_in_the_navigation(site):
    reached = set()
    for page in site.rglob("*.html"):
        for link in Page(page.read_text()).links:
            target = urlparse(urljoin(page.as_uri(), link))
            reached.add(Path(unquote(target.path)))
    lost = set(site.rglob("*.html")) - reached
    assert {page.name for page in lost} <= {"404.html"}


def test_pages_fit_a_phone_and_stay_offline(site):
    api = pytest.importorskip("playwright.sync_api")
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser_path is None:
        pytest.skip("needs chromium")
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}/"
        troubles = []
        with api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"]
            )
            view = browser.new_page(viewport={"width": 390, "height": 800})
            view.on("console", lambda m: m.type == "error" and troubles.append(m.text))
            view.on("pageerror", lambda error: troubles.append(str(error)))
            view.on(
                "request", lambda r: r.url.startswith((base, "data:")) or troubles.append(r.url)
            )
            for page in sorted(site.rglob("*.html")):
                name = str(page.relative_to(site))
                view.goto(base + name)
                if view.evaluate("document.documentElement.scrollWidth > innerWidth"):
                    troubles.append(f"{name} scrolls sideways")
            browser.close()
        server.shutdown()
    assert not troubles, "\n".join(troubles[:20])


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, *args):
        """Nothing."""
