"""What ``import rankgrad`` offers, what that imports, and what an install without extras does."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rankgrad

SOURCE = Path(__file__).parents[1] / "src"
#: What the extras install, and packages of the tests: a light install has none of these.
EXTRAS = (
    "bm25s datasets fastapi huggingface_hub jaxtyping lightgbm lightning lightning_fabric mlflow "
    "onnx onnxruntime onnxscript optuna pandas plotly prometheus_client pyarrow pydantic "
    "pydantic_core pytorch_lightning rich safetensors scipy sentence_transformers sklearn "
    "tensorboard tomli_w torchmetrics transformers typer uvicorn wandb xgboost"
)

LIGHT = f"""
import json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS.split()!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
sys.path.insert(0, {str(SOURCE)!r})
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIGHT + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_losses_metrics_and_relaxations_need_no_extra():
    program = """
import rankgrad, torch
scores = torch.tensor([0.3, 0.2, 0.1], requires_grad=True)
labels = torch.tensor([1, 0, 2])
for name in ("lambdaloss@5", "neural_ndcg@2", "approx_ap", "softmax", "mse"):
    rankgrad.losses.get(name)(scores, labels).backward()
mean = rankgrad.evaluate(scores, labels, metrics="ndcg@2")["ndcg@2"]
ranks = rankgrad.soft_rank(scores.detach(), regularization_strength=0.01).tolist()
rankgrad.models.get("mlp").build(n_features=3)
print(json.dumps([mean, ranks, bool(scores.grad.isfinite().all())]))
"""
    done = run(program)
    assert done.returncode == 0, done.stderr
    mean, ranks, finite = json.loads(done.stdout)
    assert mean == pytest.approx(0.2754, abs=1e-4)
    assert ranks == pytest.approx([3, 2, 1])
    assert finite


@pytest.mark.parametrize(
    ("program", "extra"),
    [
        ("import rankgrad; rankgrad.Ranker", "train"),
        ("import rankgrad; rankgrad.training.Settings", "train"),
        ("from rankgrad.training import fit", "train"),
        ("import rankgrad.training._settings", "train"),
        ("import rankgrad; rankgrad.report", "report"),
        ("import rankgrad; rankgrad.serving", "serve"),
        ("from rankgrad.significance import paired_t_test as t; t([1.0, 2], [0.0, 3])", "report"),
    ],
)
def test_what_needs_an_extra_says_the_install_line(program, extra):
    program = f"""
try:
    {program.replace("; ", chr(10) + "    ")}
except ImportError as error:
    print(error)
"""
    done = run(program)
    assert f'is not installed: pip install "rankgrad[{extra}]"' in done.stdout, done.stderr


def test_the_command_says_the_install_line():
    done = run("from rankgrad.__main__ import main; main()", "--help")
    assert done.returncode == 2
    assert done.stderr == 'rankgrad: typer is not installed: pip install "rankgrad[train]"\n'


def test_every_public_name_is_reachable_and_listed():
    assert set(dir(rankgrad)) == set(rankgrad.__all__)
    for name in rankgrad.__all__:
        assert getattr(rankgrad, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rankgrad.nothing  # noqa: B018


def test_type_checkers_see_every_public_name():
    tree = ast.parse((SOURCE / "rankgrad" / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name for node in block.body for alias in node.names}
    assert seen == set(rankgrad.__all__) - {"__version__"}


def test_import_loads_nothing_heavy():
    program = "import rankgrad; print(*sorted(sys.modules))"
    done = run(program)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"torch", "numpy", "numba", *EXTRAS.split()}, done.stderr


def _public_modules() -> list[str]:
    paths = (path.relative_to(SOURCE).as_posix() for path in (SOURCE / "rankgrad").rglob("*.py"))
    return sorted(path for path in paths if not re.search("/_[^_]", path))


@pytest.mark.parametrize("module", _public_modules())
def test_top_level_names_are_in_all_or_private(module):
    path = SOURCE / module
    tree, package = (ast.parse(each.read_text()) for each in (path, path.with_name("__init__.py")))
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {each.id for each in targets if isinstance(each, ast.Name)}
    commands = {path.stem} if path.parent.name == "cli" else set()  # each in a module of its name
    public = {*commands, *_all(tree), *_all(package)}
    assert {name for name in names if not name.startswith("_")} <= public


def _all(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [ast.literal_eval(name) for name in node.value.elts]
    return []


def _packages() -> list[str]:
    inits = sorted((SOURCE / "rankgrad").glob("*/__init__.py"))
    return [path.parent.name for path in inits if path.parent.name != "cli"]


@pytest.mark.parametrize("package", _packages())
def test_public_names_of_a_package_are_in_all_and_documented(package):
    module = importlib.import_module(f"rankgrad.{package}")
    tree = ast.parse(Path(module.__file__).read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
        if (node.module or "").startswith(f"rankgrad.{package}")
    }
    private = {name for name in imported if name.startswith("_")}
    assert imported - private <= set(module.__all__)
    for name in module.__all__:
        try:
            public = getattr(module, name)
        except ImportError as error:  # a library that is not installed
            assert "pip install" in str(error)
            continue
        described = not inspect.isclass(public) and not inspect.isfunction(public)
        assert described or public.__doc__, f"rankgrad.{package}.{name} has no docstring"


@pytest.mark.parametrize("package", _packages())
def test_docstrings_have_every_argument_and_a_result(package):
    module = importlib.import_module(f"rankgrad.{package}")
    numerical = package in ("losses", "metrics", "sorting")  # whose classes are called as functions
    for name in module.__all__:
        try:
            public = getattr(module, name)
        except ImportError:  # a library that is not installed
            continue
        if not (inspect.isfunction(public) or (numerical and inspect.isclass(public))):
            continue
        text, signature = public.__doc__, inspect.signature(public)
        for argument in signature.parameters:
            assert argument.startswith("_") or f" {argument}:" in text, (name, argument)
        assert ">>>" in text or not numerical, name
        if inspect.isfunction(public):
            assert "Args:" in text or not signature.parameters, name
            assert "Returns:" in text or signature.return_annotation in (None, "None"), name


@pytest.mark.parametrize("package", [*_packages(), "estimator"])
def test_docstrings_of_methods_have_every_argument_and_a_result(package):
    module = importlib.import_module(f"rankgrad.{package}")
    for name in getattr(module, "__all__", ["Ranker"]):
        try:
            public = getattr(module, name)
        except ImportError:  # a library that is not installed
            continue
        if not inspect.isclass(public):
            continue
        for method, member in vars(public).items():
            function = getattr(member, "__func__", member)
            inherited = any(hasattr(base, method) for base in public.__mro__[1:])
            if method.startswith("_") or inherited or not inspect.isfunction(function):
                continue
            signature = inspect.signature(function)
            names = [
                argument for argument in signature.parameters if argument not in ("self", "cls")
            ]
            text = function.__doc__ or ""
            for argument in names:
                assert re.search(rf"[ *]{argument}:", text), (name, method, argument)
            assert "Args:" in text or not names, (name, method)
            assert "Returns:" in text or signature.return_annotation in (None, "None") or not names
