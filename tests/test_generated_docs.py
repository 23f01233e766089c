"""Pages that are made are up to date; every public name and every command says what it is for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from scripts import docs, pictures

from kaicep.cli.main import app

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "kaicep"


@pytest.mark.parametrize("page", docs.PAGES)
def test_made_pages_are_up_to_date(page: str) -> None:
    wanted = docs.PAGES[page]()
    assert (ROOT / "docs" / page).read_text("utf-8") == wanted, "renew: .venv/bin/python scripts/docs.py"


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_are_up_to_date(name: str) -> None:
    wanted = pictures.PICTURES[name]()
    found = (ROOT / "docs" / "pictures" / name).read_text("utf-8")
    assert found == wanted, "renew: .venv/bin/python scripts/pictures.py"


def test_the_hosts_of_the_table_are_those_of_the_suite() -> None:
    from kaicep.api import HOSTS

    assert set(docs.HOSTS) == set(HOSTS)


def test_a_refusal_would_be_shown() -> None:
    [test] = ast.parse("@pytest.mark.notimpl('spark-stream', 'no key')\ndef test_a(check): ...").body
    assert isinstance(test, ast.FunctionDef)
    refused = dict(docs._refused(test.decorator_list))
    assert docs._answer("spark-stream", refused) == "refused: no key"
    assert docs._answer("reference", refused) == "yes"


def test_a_refusal_of_a_whole_file_would_be_shown() -> None:
    tree = ast.parse("pytestmark = [pytest.mark.notimpl('inprocess', 'not yet')]")
    assert dict(docs._refused(docs._marks_of(tree))) == {"inprocess": "not yet"}


def undocumented(tree: ast.Module | ast.ClassDef, within: str = "") -> Iterator[str]:
    """The public functions and classes without a docstring. A property is described where it is read."""
    for each in tree.body:
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            marks = [ast.unparse(mark) for mark in each.decorator_list]
            if each.name.startswith("_") or any(mark.endswith((".setter", "overload")) for mark in marks):
                continue
            if not ast.get_docstring(each):
                yield f"{within}{each.name}"
            if isinstance(each, ast.ClassDef):
                yield from undocumented(each, f"{each.name}.")


def undescribed(tree: ast.Module) -> Iterator[str]:
    """What a module exports by `__all__`, besides functions and classes, with no text below it."""
    exported: list[str] = []
    for each, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if names == ["__all__"] and each.value:
                exported = ast.literal_eval(each.value)
            elif not docs._is_text(below):
                yield from (name for name in names if name in exported and not name.startswith("__"))


def test_what_has_no_docstring_would_be_found() -> None:
    tree = ast.parse("def _hidden(): ...\nclass A:\n    '''Says.'''\n    def b(self): ...")
    assert list(undocumented(tree)) == ["A.b"]
    assert list(undescribed(ast.parse("__all__ = ['A', 'B']\nA = 1\nB = 2\n'Two.'\nC = 3"))) == ["A"]


def test_every_public_name_has_a_docstring() -> None:
    missing = []
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        if tree.body and not ast.get_docstring(tree):
            missing.append(f"{path.relative_to(PACKAGE)}")
        found = [*undocumented(tree), *undescribed(tree)]
        missing += [f"{path.relative_to(PACKAGE)}: {each}" for each in found]
    assert not missing


def commands() -> Iterator[object]:
    """Every command and group, by what is typed for it."""
    waiting = [("kaicep", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        yield pytest.param(name, command, id=name)
        waiting += [(f"{name} {each}", below) for each, below in getattr(command, "commands", {}).items()]


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_the_help_of_every_command_shows_an_example(name: str, command: typer.main.TyperCommand) -> None:
    shown = (command.help or "").rpartition("Example")[2]
    assert f": {name} " in shown or f" {name} " in shown, f"{name} --help has no example"
