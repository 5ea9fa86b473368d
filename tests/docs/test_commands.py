"""Every command of a shell block runs, on small data and runs under the names that pages use.

Commands of ours run in this process as they are written, with ``SMALLER`` options at the end.
Requests to search engines are sent to a server that takes all, and those to our service to it. What
needs more than a test has is in ``NOT_RUN``, with the reason, which the tests' summary prints.
"""

from __future__ import annotations

import contextlib
import http.server
import inspect
import itertools
import json
import multiprocessing.pool
import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote_plus

import pytest
import torch
from small_places import named_runs, prepare
from typer.main import get_command
from typer.testing import CliRunner

from rankgrad.cli import app
from rankgrad.data import synthetic
from rankgrad.experiments import _tree_entries
from rankgrad.papers import protocol

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SHELL = re.compile(r"^( *)```sh\n(.*?)^ *```", re.DOTALL | re.MULTILINE)

#: What is put at the end of a command, by how it begins: the last of two options counts.
SMALLER = {
    r"rankgrad train .*--resume": "--epochs 2",
    r"rankgrad (train|distill) ": "--epochs 1",
    r"rankgrad compare runs/": "",
    r"rankgrad compare \S+\.run ": "--epochs 1 --seeds 1",
    r"rankgrad compare MQ2008 ": "--epochs 1 --seeds 1 --workers 0 --folds 1",
    r"rankgrad compare .*--tune": "--epochs 1 --seeds 1 --workers 0 --tune 2",
    r"rankgrad compare ": "--epochs 1 --seeds 1 --workers 0",
    r"rankgrad demo": "--epochs 1 --device cpu",
    r"rankgrad reproduce \w": "--quick --no-search --seeds 1 --workers 0",
    r"rankgrad text train .*--protocol": "--epochs 1 --folds 3 --max-length 32 -l softmax",
    r"rankgrad text train ": "--epochs 1 --folds 3 --seeds 1",
    r"rankgrad serve ": "--port {port}",
    r"python benchmarks/missing_values.py ": "--queries 12 --seeds 1",
    r"python benchmarks/mq2008.py ": "--seeds 1 --set epochs=1",
    r"python benchmarks/ablation.py --data": "--processes 1 --configurations one.json",
    r"python benchmarks/trees.py study ": "--trees 2 --losses softmax",
    r"python benchmarks/trees.py round ": "--lists 20 --rounds 2 --threads 1",
}

#: Commands that are not run, by how they begin, and why. Their options are checked.
NOT_RUN = {
    "python benchmarks/direct_study": "hours of a GPU, or a minute for the page; "
    "tests/kernels/test_direct_study.py has small runs and the page",
    "python benchmarks/default_study": "hours of a GPU or of CPUs; "
    "tests/training/test_default_study.py writes the page",
    "python benchmarks/text_study": "an hour of a GPU; "
    "tests/integrations/test_text_study.py has a small study from start to end",
    "rankgrad text index corpus.jsonl.gz --stemmer english": "PyStemmer, of no extra",
    "rankgrad train DATA --devices 4": "four GPUs; "
    "tests/training/test_processes.py has two processes",
    "rankgrad train DATA --model 'xgboost(device=cuda)'": "a GPU",
    "rankgrad train DATA --model 'lightgbm(device_type=gpu)'": "an OpenCL device",
}


def logical_lines(block: str) -> list[str]:
    """Commands of a block: continued lines and quotations over several lines are one."""
    found, line = [], ""
    for part in textwrap.dedent(block).replace("\\\n", " ").splitlines():
        line = f"{line}\n{part}" if line else part
        with contextlib.suppress(ValueError):  # No closing quotation
            if shlex.split(line, comments=True):
                found.append(line.strip())
            line = ""
    assert not line, f"a quotation is not closed: {line}"
    return found


def examples() -> dict[str, str]:
    """The examples of every command's help, which are on its page of the reference."""
    found = {}
    groups = [("", get_command(app))]
    for prefix, group in groups:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                groups.append((f"{prefix}{name} ", command))
            elif "Examples:" in command.help:
                text = inspect.cleandoc(command.help).partition("Examples:\n")[2]
                found[f"rankgrad {prefix}{name}"] = text.replace("\\\\\n", "\\\n")
    return found


def blocks() -> dict[str, list[str]]:
    """The commands of each page. Tutorials are run by test_site.py, but for their asides."""
    found = {}
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]:
        shown = [block for _, block in SHELL.findall(page.read_text())]
        if page.parent.name == "tutorials":
            shown = [block for block in shown if block.startswith("#")]
        lines = [line for block in shown for line in logical_lines(block)]
        if lines:
            found[str(page.relative_to(ROOT))] = lines
    for name, text in examples().items():
        lines = logical_lines(text)
        if lines not in found.values():
            found[name] = lines
    return found


PAGES = blocks()


def reason_not_to_run(line: str) -> str | None:
    plain = shlex.join(shlex.split(line, comments=True))
    return next((why for start, why in NOT_RUN.items() if plain.startswith(start)), None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_commands_of_pages_run(tmp_path, monkeypatch, capsys):
    """One after the other, each page in a folder of its own; all that fails is told."""
    assert len(PAGES) > 45 and sum(map(len, PAGES.values())) > 190
    make_quick(monkeypatch)
    prepare(tmp_path / "prepared")
    failures: list[str] = []
    with engine() as (port, requests):
        outputs: dict[str, Path] = {}
        for number, (page, lines) in enumerate(PAGES.items()):
            folder = tmp_path / str(number)
            shutil.copytree(tmp_path / "prepared", folder, copy_function=os.link)
            monkeypatch.chdir(folder)
            Shell(page, folder, outputs, port, failures).run_all(lines)
    assert not failures, "\n\n".join(failures)
    check_requests(requests)


def make_quick(monkeypatch) -> None:
    """Small simulated data, grids of trees and protocols of papers, and no network."""
    monkeypatch.setattr(synthetic, "SIZES", dict.fromkeys(synthetic.SIZES, (12, 6, 6)))
    few = {kind: tuple(axis[:1] for axis in grid) for kind, grid in _tree_entries._GRID.items()}
    monkeypatch.setattr(_tree_entries, "_GRID", few)
    short = {
        name: own.model_copy(update={"quick": own.quick.model_copy(update={"epochs": 1})})
        for name, own in protocol.protocols().items()
    }
    monkeypatch.setattr(protocol, "protocols", lambda: short)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("start", NOT_RUN)
def test_commands_that_are_not_run(start):
    """Their options are those of the program; the reasons are in the summary of the tests."""
    lines = [line for lines in PAGES.values() for line in lines]
    words = [shlex.split(line, comments=True) for line in lines]
    found = [own for own in words if shlex.join(own).startswith(start)]
    assert found, f"no page has it: {start}"
    for own in found:
        if own[0] == "rankgrad":
            command, options = get_command(app), own[1:]
            while hasattr(command, "commands"):
                command, options = command.commands[options[0]], options[1:]
            command.make_context(command.name, options)
        else:
            with script(ROOT / own[1]):
                runpy.run_path(str(ROOT / own[1]))["_parser"]().parse_args(own[2:])
    pytest.skip(f"needs {NOT_RUN[start]}: {len(found)} commands, `{start}`")


@contextlib.contextmanager
def script(path: Path):
    """Modules beside a script are found, and forgotten: others have some of the same names."""
    before, threads = set(sys.modules), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path if path.is_dir() else path.parent))
        yield patch
    torch.set_num_threads(threads)
    for name in set(sys.modules) - before:
        if str(ROOT / "benchmarks") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@contextlib.contextmanager
def engine():
    """A server that takes all requests, in the place of a search engine."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            requests.append((self.command, self.path, body))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_PUT = do_POST = do_GET  # noqa: N815

        def log_message(self, *args):
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, requests
        server.shutdown()


def check_requests(requests) -> None:
    """What curl sent is what the pages say: features and a model of these names, and a query."""
    sent = {path: body for _, path, body in requests}
    names = {"bm25", "age", "clicks"}
    features = json.loads(sent["/_ltr/_featureset/products"])["featureset"]["features"]
    assert {feature["name"] for feature in features} == names
    model = json.loads(sent["/_ltr/_featureset/products/_createmodel"])["model"]
    assert model["name"] == "rankgrad" and json.loads(model["model"]["definition"])
    rescored = json.loads(sent["/products/_search"])["rescore"]["query"]["rescore_query"]
    assert rescored["sltr"]["model"] == "rankgrad"
    solr = "/solr/products"
    assert {each["name"] for each in json.loads(sent[f"{solr}/schema/feature-store"])} == names
    assert json.loads(sent[f"{solr}/schema/model-store"])["class"].endswith("NeuralNetworkModel")
    (query,) = (path for path in sent if path.startswith(f"{solr}/query"))
    assert "{!ltr model=rankgrad" in unquote_plus(query)


class Shell:
    """Runs the commands of one page in a folder of its own.

    Args:
        page: its path, or the command whose examples these are.
        folder: where data and runs are.
        outputs: the outputs of commands of other pages, which are not run again.
        port: of what stands for a search engine.
        failures: what failed, which is added to.
    """

    def __init__(
        self, page: str, folder: Path, outputs: dict[str, Path], port: int, failures: list[str]
    ):
        self.page, self.folder, self.outputs, self.failures = page, folder, outputs, failures
        self.engine = f"localhost:{port}"
        self.variables: dict[str, str] = {}
        if page in SERVED:
            named_runs(folder, SERVED[page])
        path = ROOT / page
        if path.is_file():
            for name, text in re.findall(
                r"`(\w+\.json)`:\n\n```json\n(.*?)```", path.read_text(), re.S
            ):
                (folder / name).write_text(text)

    def run_all(self, lines: list[str]) -> None:
        lines = [line for line in lines if not reason_not_to_run(line)]
        while lines:
            line = lines.pop(0)
            asked: list[str] = []
            if line.startswith("rankgrad serve "):  # requests that follow are sent to it
                while lines and lines[0].startswith("curl localhost:8000"):
                    asked.append(lines.pop(0))
            try:
                self.serve(line, asked) if "rankgrad serve" in line else self.run(line)
            except (Exception, SystemExit) as error:
                self.failures.append(f"{self.page}: {line}\n{error!r}")

    def run(self, line: str) -> None:
        """Run a line: commands with && or a pipe between them."""
        words = shlex.split(line, comments=True)
        if re.fullmatch(r"\w+=\S+", words[0]) and len(words) == 1:
            name, _, value = words[0].partition("=")
            self.variables[f"${name}"] = value
            return
        printed: bytes | None = None
        while words:
            ends = [at for at, word in enumerate(words) if word in ("&&", "|")] or [len(words)]
            one, words = words[: ends[0]], words[ends[0] + 1 :]
            while re.match(r"\w+=", one[0]):
                one = one[1:]  # the environment of one command
            name = "source" if one[0] == "." else one[0]  # `.` is short for `source`
            printed = getattr(self, f"run_{name}")(one, printed)

    def run_rankgrad(self, words: list[str], piped: bytes | None) -> None:
        words = ["18219" if word == "ID" else word for word in words]
        output = self.remove_output(words)
        key = shlex.join(words).replace(f"-o {output}", "")
        if key in self.outputs and not {"--resume", "--save"} & set(words):
            made = self.outputs[key]
            if output:
                copy = shutil.copytree if made.is_dir() else shutil.copy
                copy(made, self.folder / output)
            return
        result = CliRunner().invoke(app, [*words[1:], *smaller(words)], input=piped)
        assert result.exit_code == 0, f"{result.output[-2000:]}{result.exception!r}"
        if output:
            assert (self.folder / output).exists()
        self.outputs[key] = self.folder / (output or "")

    def run_python(self, words: list[str], piped: bytes | None) -> None:
        self.remove_output(words)
        path = ROOT / words[1]
        with script(path) as patch:
            patch.setattr(sys, "argv", [str(path), *words[2:], *smaller(words)])
            # Threads in the place of processes, which would take seconds to start.
            context = SimpleNamespace(Pool=multiprocessing.pool.ThreadPool)
            patch.setattr(multiprocessing, "get_context", lambda _: context)
            runpy.run_path(str(path), run_name="__main__")

    def run_make(self, words: list[str], piped: bytes | None) -> None:
        """What a target would do: `make test` cannot run itself."""
        command = ["make", "--dry-run", *words[1:]]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)

    def run_pip(self, words: list[str], piped: bytes | None) -> None:
        """The extra is one of ours; what it holds is installed already."""
        extra = re.fullmatch(r"rankgrad\[(\w+)\]", words[2])
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert words[1] == "install" and extra[1] in project["optional-dependencies"]

    def run_source(self, words: list[str], piped: bytes | None) -> None:
        """The environment is active already."""
        assert words[1] == ".venv/bin/activate"

    def run_zcat(self, words: list[str], piped: bytes | None) -> bytes:
        return subprocess.run(words, check=True, capture_output=True).stdout

    def run_curl(self, words: list[str], piped: bytes | None) -> None:
        """Send to what stands for an engine; the model is made by the page's code."""
        if "@model.json" in words and not (self.folder / "model.json").exists():
            code = re.findall(r"```python\n(.*?)```", (ROOT / self.page).read_text(), re.DOTALL)
            exec(code[0], {})
        for name, value in self.variables.items():
            words = [word.replace(name, value) for word in words]
        curl([re.sub(r"localhost:(9200|8983)", self.engine, word) for word in words])

    def serve(self, line: str, asked: list[str]) -> None:
        """Serve in this thread, ask in another, and stop."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        asking = threading.Thread(target=self.ask, args=(port, asked), daemon=True)
        asking.start()
        interval = sys.getswitchinterval()
        words = shlex.split(line, comments=True)
        options = [option.format(port=port) for option in smaller(words)]
        result = CliRunner().invoke(app, [*words[1:], *options])
        assert sys.getswitchinterval() == interval
        asking.join()
        assert result.exit_code == 0, f"{result.output}{result.exception!r}"

    def ask(self, port: int, asked: list[str]) -> None:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        else:
            self.failures.append(f"{self.page}: the service did not start")
            return
        try:
            for line in ["curl localhost:8000/ready", *asked]:
                words = shlex.split(line, comments=True)
                answer = curl(
                    [word.replace("localhost:8000", f"127.0.0.1:{port}") for word in words]
                )
                self.compare(line, answer)
        except Exception as error:
            self.failures.append(f"{self.page}: {line}\n{error!r}")
        os.kill(os.getpid(), signal.SIGTERM)

    def compare(self, line: str, answer: bytes) -> None:
        """An answer that the page shows, as a comment below, has the fields of the real one."""
        text = (ROOT / self.page).read_text() if (ROOT / self.page).is_file() else ""
        shown = re.search(re.escape(line) + r"\n# (\{.*\})\n", text)
        if shown:
            assert fields(json.loads(shown[1])) == fields(json.loads(answer)), answer

    def remove_output(self, words: list[str]) -> str | None:
        """The output of a command. Blocks show alternatives with one output: it is removed."""
        named = [word for flag, word in itertools.pairwise(words) if flag in OUTPUT]
        if words[1] == "report" and not named:
            named = ["report.html"]
        if not named or {"--resume", "--overwrite"} & set(words):
            return None
        place = self.folder / named[0]
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        return named[0] if "-o" in words else None


OUTPUT = ("-o", "--output")

#: The features of the rankers that pages serve.
SERVED = {"docs/serving.md": ("bm25", "age", "clicks"), "rankgrad serve": ("bm25",)}


def curl(words: list[str]) -> bytes:
    command = ["curl", "--fail", "--silent", "--show-error", "--max-time", "20", *words[1:]]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def fields(value):
    """The names in JSON, without what they hold."""
    if isinstance(value, dict):
        return {name: fields(inner) for name, inner in value.items()}
    return [fields(value[0])] if isinstance(value, list) and value else type(value).__name__


def smaller(words: list[str]) -> list[str]:
    """The options that make a command small."""
    line = " ".join(words)
    found = [options for start, options in SMALLER.items() if re.match(start, line)]
    return found[0].split() if found else []
