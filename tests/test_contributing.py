"""The worked example of CONTRIBUTING.md: a scalar function is a row of the table, a line, and a test."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from kaicep import testing
from kaicep.language import expressions as language
from kaicep.plan import operators
from kaicep.reference import expressions as reference

PAGE = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text("utf-8")
ROW, LINE, TEST = re.findall(r"^```py\n(# (?:src|tests)/.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def length(monkeypatch: pytest.MonkeyPatch) -> operators.Operator:
    """The function of the example, for the time of a test."""
    (row,) = eval(f"({ROW})", vars(operators))
    for table in (operators.OPERATORS, operators.FUNCTIONS):
        monkeypatch.setitem(table, row.name, row)
    monkeypatch.setitem(language._CANONICAL, row.name.lower(), row.name)
    for name, value in eval(f"{{{LINE}}}", vars(reference)).items():
        monkeypatch.setitem(reference._WITHOUT_NULLS, name, value)
    return row


@pytest.mark.parametrize("host", ["reference", "inprocess"])
def test_a_function_is_a_row_a_line_and_a_test(length: operators.Operator, host: str) -> None:
    space: dict[str, object] = {}
    exec(TEST, space)
    space["test_length"](check=partial(testing.check, host=host))  # type: ignore[operator]


def test_the_blocks_name_files_and_tables_that_are_there() -> None:
    for block in (ROW, LINE):
        path, table = block.splitlines()[0].removeprefix("# ").split(", ")
        assert f"\n{table}" in (Path(__file__).parent.parent / path).read_text("utf-8")
