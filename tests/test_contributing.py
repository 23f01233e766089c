"""The worked examples of CONTRIBUTING.md are followed to the letter: a function, a connector, a rule."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from kaicep import optimize, testing
from kaicep.connectors import registry
from kaicep.language import parse_expressions as language
from kaicep.plan import operators
from kaicep.reference import expressions as reference

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def blocks(section: str) -> list[str]:
    """The blocks of a section, each with the line that says where it goes."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```py\n(# (?:src|tests)/.*?)^```$", text, re.MULTILINE | re.DOTALL)


FUNCTION = blocks("A new scalar function")
CONNECTOR = blocks("A new connector")
RULE = blocks("A new optimiser rule")


def place(block: str) -> tuple[Path, str]:
    """The file of a block, and the table in it."""
    path, _, table = block.splitlines()[0].removeprefix("# ").partition(", ")
    return ROOT / path, table


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch):
    """Puts a block into the module that it is for, for the time of a test."""

    def done(block: str) -> ModuleType:
        path, _ = place(block)
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(block, path.name, "exec"), vars(module))
        return module

    return done


def run_tests(block: str, **given: object) -> None:
    """Calls the tests of a block."""
    space: dict[str, object] = {}
    exec(block, space)
    tests = [each for name, each in space.items() if name.startswith("test_")]
    assert tests
    for each in tests:
        each(**given)  # type: ignore[operator]


@pytest.fixture
def length(monkeypatch: pytest.MonkeyPatch) -> operators.Operator:
    """The function of the example, for the time of a test."""
    row, line, _ = FUNCTION
    (made,) = eval(f"({row})", vars(operators))
    for table in (operators.OPERATORS, operators.FUNCTIONS):
        monkeypatch.setitem(table, made.name, made)
    monkeypatch.setitem(language._CANONICAL, made.name.lower(), made.name)
    for name, value in eval(f"{{{line}}}", vars(reference)).items():
        monkeypatch.setitem(reference._WITHOUT_NULLS, name, value)
    return made


@pytest.mark.parametrize("host", ["reference", "inprocess"])
def test_a_function_is_a_row_a_line_and_a_test(length: operators.Operator, host: str) -> None:
    run_tests(FUNCTION[2], check=partial(testing.check, host=host))


def test_a_connector_is_a_class_a_line_and_a_test(put, monkeypatch, tmp_path) -> None:
    module, line, test = CONNECTOR
    put(module)
    monkeypatch.setattr(registry, "SINKS", {**registry.SINKS, **eval(f"{{{line}}}", vars(registry))})
    run_tests(test, tmp_path=tmp_path)


def test_a_rule_is_a_function_a_line_and_a_test(put, monkeypatch) -> None:
    module, line, test = RULE
    made = put(module)
    rules = eval(f"({line})", {**vars(optimize), **vars(made)})
    monkeypatch.setattr(optimize, "RULES", (*optimize.RULES, *rules))
    monkeypatch.setattr(optimize.optimize, "__defaults__", (optimize.RULES,))
    run_tests(test)


def test_the_blocks_name_files_and_tables_that_are_there() -> None:
    for block in (*FUNCTION, *CONNECTOR, *RULE):
        path, table = place(block)
        if table:
            assert f"\n{table}" in path.read_text("utf-8")
        else:
            assert path.parent.is_dir()
