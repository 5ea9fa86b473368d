"""The documentation site: its links resolve, its code runs, it fits a phone and stays offline."""

import functools
import html
import http.server
import importlib
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import textwrap
import threading
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import rankgrad.kernels
from rankgrad import losses, sorting
from rankgrad.cli import app
from rankgrad.data import synthetic
from rankgrad.losses.relaxed import grid_losses
from rankgrad.training import Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
#: Pages whose Python blocks are parts of a program that runs elsewhere in the tests.
EXCERPTS = {"lightning.md", "plain_loop.md"}
#: Python, shell and printed text, and what a page takes for granted, in a comment: <!-- setup
BLOCKS = re.compile(
    r"^( *)(?:```(python|sh|text)|<!-- (setup))\n(.*?)^ *(?:```|-->)", re.DOTALL | re.MULTILINE
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
    if ".register(" in page.read_text():
        return run_alone(page)
    names: dict[str, object] = {"__name__": "__main__"}
    text, end, printed = page.read_text(), 0, ""
    for block in BLOCKS.finditer(text):
        _, language, setup, code = block.groups()
        code = textwrap.dedent(code)
        if language == "text" and printed and not text[end : block.start()].strip():
            compare_output(code, printed)
        if language == "python" or setup:
            exec(compile(code, str(page), "exec"), names)
            printed = capsys.readouterr().out
        elif language == "sh":
            printed = run_commands(code) if page.parent.name == "tutorials" else ""
        end = block.end()
    if page.name == "cross_encoder.md":  # it trains: on new lists it was 0.25 at random
        assert names["evaluate"]() > 0.5
    if page.name == "onnxruntime.md":
        graph = names["session"]
        own = [*graph.get_inputs(), *graph.get_overridable_initializers(), *graph.get_outputs()]
        assert set(re.findall(r'name: "(\w+)"', text)) == {each.name for each in own}


NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def compare_output(shown, printed):
    """What a page shows was printed: words and whole numbers as they are, others nearly.

    Training differs in the last digits between machines, and seconds, of one decimal, anyway.
    """

    def lines(text):
        plain = [" ".join(re.sub(r"[┃│]", "|", line).split()) for line in text.splitlines()]
        return [(NUMBER.sub("#", line), NUMBER.findall(line)) for line in plain if line]

    there = lines(printed)
    for words, numbers in lines(shown):
        like = [found for other, found in there if other == words]
        assert any(all(map(is_near, numbers, found)) for found in like), (words, numbers, printed)


def is_near(shown, found):
    if re.fullmatch(r"\d+\.\d", shown):
        return True
    fraction = "." in shown or "e" in shown
    return abs(float(shown) - float(found)) < 0.1 if fraction else shown == found


def run_alone(page):
    """Run the Python blocks in a process of their own: what they register is known to no test.

    That of CONTRIBUTING.md too, with the imports of the files that it is to be written into.
    """
    found = BLOCKS.findall(page.read_text())
    blocks = [block for _, language, _, block in found if language == "python"]
    (contributed,) = re.findall(r"```python\n(.*?) *```", CONTRIBUTING.read_text(), re.DOTALL)
    blocks += ["from typing import ClassVar\nfrom rankgrad.losses.pointwise import PointwiseLoss"]
    renamed = contributed.replace('"absolute"', '"absolute_again"')  # the page has one, too
    blocks += [textwrap.dedent(renamed), "import doctest"]
    blocks += ["doctest.run_docstring_examples(Absolute, globals(), optionflags=doctest.FAIL_FAST)"]
    grid = "\nfrom rankgrad.losses.relaxed import grid_losses\nprint('grid', len(grid_losses()))"
    Path("blocks.py").write_text("\n".join(blocks) + grid)
    done = subprocess.run([sys.executable, "blocks.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Failed example" not in done.stdout, done.stdout
    from rankgrad.losses.relaxed import grid_losses

    assert int(done.stdout.split()[-1]) > len(grid_losses())  # a metric and a relaxation joined it


def run_commands(code):
    """Every command of ours in a shell block, one after the other, in this process.

    A block that begins with a comment needs what the reader has: test_commands.py runs it.

    Returns:
        What the last command printed.
    """
    printed = ""
    if code.startswith("#"):
        return printed
    for line in code.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(line, comments=True) or [""]
        if program == "rankgrad":
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, f"{line}\n{result.output}{result.exception!r}"
            printed = result.stdout
    return printed


COMMAND_LINE = get_command(app)


def test_blocks_in_other_languages_parse():
    """JSON, and code of packages that the tests do not have."""
    found = {"json": 0, "text": 0}
    for page in sorted(DOCS.rglob("*.md")):
        for language, code in re.findall(r"```(json|text)\n(.*?)```", page.read_text(), re.DOTALL):
            if language == "json":
                json.loads(code)
            elif "import " not in code:
                continue
            else:
                compile(code, str(page), "exec")
            found[language] += 1
    assert found["json"] >= 5 and found["text"] >= 1


def test_help_ends_with_a_page_that_is_there():
    commands = {(): COMMAND_LINE} | {(name,): c for name, c in COMMAND_LINE.commands.items()}
    text = COMMAND_LINE.commands["text"].commands
    for command, found in (commands | {("text", name): c for name, c in text.items()}).items():
        page = re.fullmatch(r"Documentation: (docs/\S+\.md)", found.epilog)
        assert page and (ROOT / page[1]).is_file(), (command, found.epilog)
    for command in ((), ("train",), ("text", "rerank")):
        printed = CliRunner().invoke(app, [*command, "--help"]).output
        assert printed.strip().splitlines()[-1].strip().startswith("Documentation: docs/")


def test_formats_are_those_of_the_code(tmp_path):
    """The page of file formats names every file of a store and of a run folder."""
    from rankgrad.data import store
    from rankgrad.training import Settings, fit, run

    page = (DOCS / "reference" / "formats.md").read_text()
    for name in (*store._REQUIRED, *store._OPTIONAL):
        assert f"`{name}.npy`" in page
    for name in (store._MANIFEST, run.SETTINGS, run.RUN, run.METRICS, run.LOCK, run.STATE):
        assert f"`{name}`" in page
    data = synthetic.make(12, features=20)
    fit(Settings(model="mlp(hidden=[2])", epochs=1), data, folder=tmp_path / "run", quiet=True)
    for path in (tmp_path / "run").rglob("*"):
        place = path.relative_to(tmp_path / "run")
        assert (f"`{place.parts[0]}" in page and f"{place.name}`" in page) or path.is_dir(), place


def test_lines_of_formats_are_read(tmp_path):
    from rankgrad.data import letor, trec

    lines, run = re.findall(
        r"```text\n(.*?)```", (DOCS / "reference" / "formats.md").read_text(), re.DOTALL
    )
    (tmp_path / "a.txt").write_text(lines)
    (tmp_path / "a.run").write_text(run)
    found = letor.read(tmp_path / "a.txt")
    assert found.n_items == 2 and np.isnan(found.features[1, 1])
    assert trec.read_run(tmp_path / "a.run")["301"].documents == ["FBIS3-10082"]


def test_a_notebook_has_the_code_of_its_page(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools" / "docs")
    import nbformat
    import notebooks

    tutorials = sorted((DOCS / "tutorials").glob("*.md"))
    assert len(tutorials) == 7
    for page in tutorials:
        shown = [
            code.strip()
            for _, language, _, code in BLOCKS.findall(page.read_text())
            if language != "text" and not (language == "sh" and code.startswith("#"))
        ]
        shutil.copy(page, tmp_path)
        notebook = nbformat.read(notebooks.write_notebook(tmp_path / page.name), as_version=4)
        nbformat.validate(notebook)
        cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
        assert [cell.removeprefix("%%sh\n") for cell in cells] == shown, page.name


def test_figures_of_the_decision_tree_are_those_of_the_results():
    """What the page says of a results page that it links to is printed there.

    But for direct.md, which a program writes: its figures are looked at by whoever runs it.
    """
    page = DOCS / "how-to" / "choose_a_loss.md"
    checked = 0
    for item in re.split(r"\n\s*(?:-|\d\.|\|) ", page.read_text()):
        linked = re.findall(r"\]\((\.\./results/[\w/]+\.md)", item)
        if not linked or any(name.endswith("direct.md") for name in linked):
            continue
        text = "".join((page.parent / name).read_text() for name in linked)
        for number in re.findall(r"\b0\.\d{3,4}\b", item):
            assert number in text, f"{number} is not in {linked}"
            checked += 1
    assert checked > 15


def test_speeds_of_other_libraries_are_those_of_the_benchmark():
    """Each cell of the CPU table is the lower of two runs, and marked where the loss is another."""
    columns = ("allRank", "rax", "TF-Ranking", "TF-Ranking, XLA", "PTRanking")
    cells = {}
    for run in ("cpu", "cpu_again"):
        found = json.loads((ROOT / "benchmarks" / "results" / f"{run}.json").read_text())
        for row in found["rows"]:
            if row["who"] in (*columns, "sentence-transformers") and "ratio" in row:
                mark = "⁴" if row.get("cosine", 1) < 0.999 else ""
                ratio = (row["ratio"]["latency_ms"], mark)
                key = row["loss"], row["who"]
                cells[key] = min(cells.get(key, ratio), ratio)
    shown = {
        key: (f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}") + mark
        for key, (ratio, mark) in cells.items()
    }
    page = (DOCS / "compared.md").read_text()
    for loss in {loss for loss, _ in cells if loss != "neural_ndcg(transposed=true)"}:
        one, two, graph, xla, five, six = (
            shown.get((loss, who), "") for who in (*columns, "sentence-transformers")
        )
        both = f"{graph} / {xla}" if graph else ""
        row = f"| `{loss}` | {' | '.join((one, two, both, five, six))} |"
        assert row in page, row


def test_every_kind_of_spec_has_an_example(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools" / "docs")
    import grammar_pages

    for registry, _, example in grammar_pages.KINDS.values():
        registry.get(example)


def test_links_of_pages_resolve_where_the_repository_is_read():
    """But for pages of the reference, which `make docs` writes (docs/install.md says so)."""
    lost = []
    for page in sorted(DOCS.rglob("*.md")):
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        assert not re.search(r"\)\{ *\w+=", text), f"{page}: attributes are text there"
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
            path = (page.parent / link).resolve()
            if not path.exists() and DOCS / "reference" not in path.parents:
                lost.append(f"{page.relative_to(ROOT)}: {link}")
    assert not lost, "\n".join(lost)


#: Loads pages in frames as wide as a phone, in less than half of the time of a visit to each, and
#: says what is wrong with each. A hidden frame is laid out as any, and not painted.
LOAD_IN_FRAMES = """names => Promise.all(names.map(name => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style = "position: absolute; top: 0; width: 390px; height: 800px; border: 0";
  frame.style.visibility = "hidden";
  frame.onload = () => {
    const page = frame.contentDocument, found = [];
    if (!page.querySelector("h1")) found.push(name + " is empty");
    if (page.documentElement.scrollWidth > 390) found.push(name + " scrolls sideways");
    if ([...page.querySelectorAll(".formula")].some(e => e.scrollWidth > e.clientWidth))
      found.push(name + " has a formula that is cut");
    frame.remove();
    done(found);
  };
  frame.src = name;
  document.body.append(frame);
}))).then(all => all.flat())"""


def test_pages_are_linked_by_their_titles(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools" / "docs")
    import reference_pages

    text = reference_pages._link_pages("Try it (docs/how-to/choose_a_loss.md).")
    assert text == "Try it ([Choose a loss](../../how-to/choose_a_loss.md))."


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built in this process, which has most packages loaded already; Zensical has its own."""
    pytest.importorskip("zensical")
    tools = str(ROOT / "tools" / "docs")
    out = tmp_path_factory.mktemp("site") / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tools)
        patch.setattr(sys, "argv", [tools, "--out", str(out)])
        runpy.run_path(tools, run_name="__main__")
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


@pytest.fixture(scope="module")
def pages(site):
    return {page: Page(page.read_text()) for page in site.rglob("*.html")}


def test_links_resolve(site, pages):
    assert len(pages) > 300
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


def test_reference_pages_are_complete(site):
    """Every loss has a page with all parts, and every option says what it is for."""
    parts = ("options", "shapes", "paper", "when-to-use-it", "cost", "elsewhere", "in-code")
    grid = set(grid_losses())
    pages = {page.stem: page.read_text() for page in (site / "reference" / "losses").glob("*.html")}
    index = pages.pop("index")
    assert set(pages) == set(losses.names())  # the Gumbel forms too
    for name, text in pages.items():
        assert all(f'id="{part}"' in text for part in parts), name
        assert f'href="{name}.html"' in index, name
        assert ("<p>The relaxation: " in text) == (name in grid), name
        assert ("the same at every score" in text) == name.startswith("gumbel_"), name
        assert text.count('class="plot"') == 2 and "<math" in text, name
        options = text[text.index('id="options"') : text.index('id="shapes"')]
        undescribed = re.findall(
            r"<code>(\w+)</code></td>\s*<td[^>]*>.*?</td>\s*<td[^>]*></td>", options
        )
        assert not undescribed, (name, undescribed)


def test_the_plot_of_a_stochastic_loss_is_its_mean(monkeypatch):
    """Beside the loss itself, of other draws: near it, and not at the loss without noise."""
    monkeypatch.syspath_prepend(ROOT / "tools" / "docs")
    import plots

    monkeypatch.setattr(plots, "NOISES", 2000)
    moved, values, _ = plots.sweep("gumbel_softsort_ndcg")
    scores = plots.SCORES.clone()
    scores[0] = moved[-1]
    with rankgrad.kernels.using("eager"):
        mean = losses.get("gumbel_softsort_ndcg(samples=4000, seed=1)")(scores, plots.LABELS)
        plain = losses.get("softsort_ndcg")(scores, plots.LABELS)
    assert abs(values[-1] - mean) < 0.2 * abs(plain - mean), (values[-1], mean, plain)


def code_blocks(page):
    """The code that a built page shows, but for interactive examples, which are doctests."""
    shown = re.findall(r'<div class="highlight"><pre>(.*?)</pre>', page.read_text(), re.DOTALL)
    plain = [html.unescape(re.sub(r"<[^>]+>", "", code)) for code in shown]
    return [code for code in plain if not code.startswith(">>>")]


def test_code_of_the_reference_runs(site):
    """The example of every loss and relaxation, as its built page shows it."""
    with rankgrad.kernels.using("eager"):
        for page in (*losses.names(), *sorting.FAMILIES):
            kind = "relaxations" if page in sorting.FAMILIES else "losses"
            (*_, code) = code_blocks(site / "reference" / kind / f"{page}.html")
            assert code.startswith("import torch\nfrom rankgrad import"), page
            exec(compile(code, page, "exec"), {})
    (*_, written) = code_blocks(site / "reference" / "settings.html")
    assert Settings(**tomllib.loads(written)) == Settings()


@pytest.mark.filterwarnings("ignore")
def test_code_of_docstrings_runs(site, tmp_path, monkeypatch):
    """Where it is no doctest, because it needs data. PyTerrier, which needs Java, is not here."""
    lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    trained = pytest.importorskip("sentence_transformers.cross_encoder")
    datasets = pytest.importorskip("datasets")
    import tiny_models

    from rankgrad.integrations.sentence_transformers import RankingLoss

    monkeypatch.chdir(tmp_path)
    tiny_models.bert().save_pretrained("encoder")
    tiny_models.tokenizer().save_pretrained("encoder")
    random = np.random.default_rng(0)
    X, y = random.normal(size=(120, 4)), random.integers(0, 3, 120)
    sizes, qid = [10] * 12, np.repeat(range(12), 10)
    names = {"X": X, "y": y, "sizes": sizes, "X_vali": X, "y_vali": y, "sizes_vali": sizes}
    names |= {"qid": qid, "validation": xgboost.DMatrix(X, y, qid=qid), "lightgbm": lightgbm}
    names |= {"CrossEncoder": lambda *_, **options: trained.CrossEncoder("encoder", **options)}
    names |= {"CrossEncoderTrainer": trained.CrossEncoderTrainer}
    names |= {"RankingLoss": RankingLoss, "Dataset": datasets.Dataset}
    for module, count in (("lightgbm", 1), ("xgboost", 1), ("sentence_transformers", 2)):
        found = code_blocks(site / "reference" / "api" / f"rankgrad.integrations.{module}.html")
        assert len(found) == count, (module, found)
        for code in found:
            exec(compile(code, module, "exec"), names)


def test_formulas_stay_in_their_paragraphs(site):
    inline = 0
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert "$$" not in re.sub(r"<(code|script)\b.*?</\1>", "", text, flags=re.DOTALL), page
        inline += text.count("<span><math")
        assert not re.search(r"</p>\s*(<span>)?<math", text), page
        for formula in re.findall(r"<math.*?</math>", text, re.DOTALL):
            assert "\\" not in formula, page  # what the converter does not know stays as it is
    assert inline > 10


def test_pages_of_metrics_and_relaxations_are_complete(site):
    for kind, fewest in (("metrics", 13), ("relaxations", 8)):
        pages = [p for p in (site / "reference" / kind).glob("*.html") if p.stem != "index"]
        assert len(pages) >= fewest
        for page in pages:
            text = page.read_text()
            for part in ("options", "shapes", "paper", "when-to-use-it", "cost", "elsewhere"):
                assert f'id="{part}"' in text, (page, part)
            assert 'class="plot"' in text and "<math" in text, page


def test_docstrings_are_rendered(site):
    """No example is a quotation, and no role of Sphinx is left."""
    pages = list((site / "reference").rglob("*.html"))
    for page in pages:
        text = page.read_text()
        assert "<blockquote>" not in text, page
        assert not re.search(r":(class|func|meth|mod|data):<code>", text), page
    assert sum('<span class="gp">' in page.read_text() for page in pages) > 30


def test_every_public_name_has_its_place(site, pages, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools" / "docs")
    import reference_pages

    for module in reference_pages.API:
        anchors = pages[site / "reference" / "api" / f"{module}.html"].anchors
        for name in reference_pages.public_names(module):
            value = getattr(importlib.import_module(module), name)
            places = {f"{module}.{name}", getattr(value, "__module__", "")}
            assert name.startswith("__") or places & anchors, f"{module}.{name}"


def test_every_page_is_in_the_navigation(pages):
    reached = set()
    for page, parsed in pages.items():
        for link in parsed.links:
            target = urlparse(urljoin(page.as_uri(), link))
            reached.add(Path(unquote(target.path)))
    lost = set(pages) - reached
    assert {page.name for page in lost} <= {"404.html"}


def watch(view, base, troubles):
    """Note errors, and requests of anything but the site."""
    view.on("console", lambda m: m.type == "error" and troubles.append(m.text))
    view.on("pageerror", lambda error: troubles.append(str(error)))
    view.on("request", lambda r: r.url.startswith((base, "data:")) or troubles.append(r.url))


def search(view):
    while view.evaluate("document.activeElement.tagName") == "BODY":
        view.keyboard.press("Control+k")  # until the script listens
        view.wait_for_timeout(300)
    view.keyboard.type("Sinkhorn")
    view.locator("text=Sinkhorn without >> visible=true").first.wait_for()


def test_pages_fit_a_phone_and_stay_offline(site):
    """From a server and, with its search too, from disk."""
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
            disk = site.as_uri() + "/"
            for place, name in ((disk, "reference/losses/softmax.html"), (base, "index.html")):
                view = browser.new_page(viewport={"width": 390, "height": 800})
                watch(view, place, troubles)
                view.goto(place + name)
                search(view)
            index = json.loads((site / "search.json").read_text()) | {"items": []}
            # Each page would read a megabyte of it again.
            view.route("**/search.json", lambda route: route.fulfill(json=index))
            names = [str(page.relative_to(site)) for page in sorted(site.rglob("*.html"))]
            for first in range(0, len(names), 8):
                troubles += view.evaluate(LOAD_IN_FRAMES, names[first : first + 8])
            browser.close()
        server.shutdown()
    assert not troubles, "\n".join(troubles[:20])


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files, prints nothing, and lets the browser keep scripts and styles."""

    protocol_version = "HTTP/1.1"

    def end_headers(self):
        """Files do not change while they are looked at."""
        self.send_header("Cache-Control", "max-age=600")
        super().end_headers()

    def log_message(self, *args):
        """Nothing."""
