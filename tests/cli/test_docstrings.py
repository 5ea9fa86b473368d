"""Options of commands, as their docstrings describe them."""

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from rankgrad.cli import app as rankgrad
from rankgrad.cli._docstrings import add_command


def example(
    path: Annotated[str, typer.Argument(metavar="PATH")],
    depth: Annotated[int | None, typer.Option("--depth", "-d", min=1)] = None,
    keep_all: bool = False,
    test: str = "t",
) -> None:
    """Do it.

    In one go, however
    long it takes.

    Inputs:
        path: A file.

    Options:
        depth: How deep,
            at most. [default: all the
            way]
        keep_all: Leave nothing: not even one out.

    How it is tested:
        test: Which test.

    \b
    Examples:
      example x
      example y
    """
    print(path, depth, keep_all, test)


@pytest.fixture
def app():
    app = typer.Typer()
    add_command(app, "example", example, "page.md")
    return app


def test_the_docstring_describes_the_options(app):
    command = typer.main.get_command(app)
    found = {each.name: each for each in command.params}
    examples = "\b\nExamples:\n  example x\n  example y"
    assert command.help == f"Do it.\n\nIn one go, however long it takes.\n\n{examples}"
    assert command.epilog == "Documentation: docs/page.md"
    assert (found["depth"].help, found["depth"].show_default) == (
        "How deep, at most.",
        "all the way",
    )
    assert found["depth"].opts == ["--depth", "-d"]
    assert found["keep_all"].help == "Leave nothing: not even one out."
    assert (found["keep_all"].opts, found["keep_all"].secondary_opts) == (["--keep-all"], [])
    assert [found[name].rich_help_panel for name in ("keep_all", "test")] == [
        None,
        "How it is tested",
    ]
    assert (found["path"].help, found["path"].show_default) == ("A file.", False)


def test_the_command_runs(app):
    run = CliRunner().invoke
    assert run(app, ["x", "-d", "3", "--keep-all"]).output == "x 3 True t\n"
    assert run(app, ["x", "-d", "0"]).exit_code == 2


def test_every_option_is_described():
    def commands(group, name="rankgrad"):
        yield name, group
        for key, own in getattr(group, "commands", {}).items():
            yield from commands(own, f"{name} {key}")

    lacking = [
        f"{name} {option.name}"
        for name, command in commands(typer.main.get_command(rankgrad))
        for option in command.params
        if not option.help
    ]
    assert not lacking
