"""What is made in the documentation, not written: what is supported, the Python API, the table of operators.

    .venv/bin/python scripts/docs.py

writes docs/support.md, docs/api.md, and the table in docs/chi-cep.md. A test (tests/test_generated_docs.py)
says when they are out of date.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from kaicep.plan.operators import OPERATORS, Argument, Operator, TypeRule

ROOT = Path(__file__).parent.parent
SUITE = ROOT / "tests" / "conformance"
HOSTS = ("reference", "inprocess", "spark-batch", "spark-stream")
RENEW = "`.venv/bin/python scripts/docs.py` renews this page."

# --- what is supported -------------------------------------------------------------------------------------

SUPPORT = f"""# What runs where

This page is generated from the conformance suite, `tests/conformance/`. Each row is a test that says what a
query must find in a small table of events. Every test runs on every host, and all hosts must give the same
matches with the same ids. *Yes*: the test runs on that host. *Refused*: the host must say that it cannot run
it, and it does.
{RENEW}
"""


def support() -> str:
    """The page of what is supported: a table for each file of the suite."""
    lines = [SUPPORT, *_summary()]
    for title, tests in _suite().items():
        lines += ["", f"## {title}", "", _head("a test says")]
        lines += [_row(text, [_answer(host, refused) for host in HOSTS]) for text, refused in tests.items()]
    return "\n".join([*lines, _w3c(), ""])


W3C = """
## SPARQL, as the W3C tests it

The tests of SPARQL 1.0 and 1.1 run on the reference and in process (`tests/w3c/`), all data of a test at one
instant, and its named graphs as knowledge. *Different* are those that differ on purpose: query forms that
have no place in a stream, answers without a time. Each of them stands with its reason in
`tests/w3c/score.py`. A test that is neither exact nor in that list fails.

| tests of SPARQL | exact | different |
|---|:-:|:-:|
"""


def _w3c() -> str:
    scores = json.loads((ROOT / "tests" / "w3c" / "score.json").read_text("utf-8"))
    whole = {kind: sum(each[kind] for each in scores.values()) for kind in ("exact", "different")}
    rows = [_row(name, [each["exact"], each["different"]]) for name, each in {**scores, "all": whole}.items()]
    return W3C + "\n".join(rows)


def _summary() -> Iterator[str]:
    yield _head("tests that run, of all")
    for title, tests in _suite().items():
        counts = [sum(host not in refused for refused in tests.values()) for host in HOSTS]
        link = f"[{title}](#{re.sub(r'[^a-z0-9 -]', '', title.lower()).replace(' ', '-')})"
        yield _row(link, [f"{count} of {len(tests)}" for count in counts])


def _suite() -> dict[str, dict[str, Mapping[str, str]]]:
    """By file: what each test says, and the hosts that must refuse it, with the reason."""
    found = {}
    for path in sorted(SUITE.glob("test_*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        title = (ast.get_docstring(tree) or path.stem).splitlines()[0].rstrip(".").replace("`", "")
        tests = [
            each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
        ]
        whole = dict(_refused(_marks_of(tree)))
        found[title] = {_sentence(each.name): whole | dict(_refused(each.decorator_list)) for each in tests}
    return found


def _marks_of(tree: ast.Module) -> list[ast.expr]:
    """The marks that all tests of a file have."""
    for each in tree.body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "pytestmark":
            return each.value.elts if isinstance(each.value, ast.List) else [each.value]
    return []


def _refused(marks: list[ast.expr]) -> Iterator[tuple[str, str]]:
    for mark in marks:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("mark.notimpl"):
            host, reason = (str(ast.literal_eval(each)) for each in mark.args)
            yield host, reason


def _sentence(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def _answer(host: str, refused: Mapping[str, str]) -> str:
    return f"refused: {refused[host]}" if host in refused else "yes"


def _head(first: str) -> str:
    return _row(first, HOSTS) + "\n|---|" + ":-:|" * len(HOSTS)


def _row(first: str, cells: Any) -> str:
    return "| " + " | ".join([first, *map(str, cells)]) + " |"


# --- the Python API ----------------------------------------------------------------------------------------

API = f"""# Python API

Every public name of `kaicep`, `kaicep.spark` and `kaicep.testing`, generated from the docstrings. The tests
run the examples. For an introduction see [Python](python.md) and [Spark](spark.md). {RENEW}
"""
MODULES = ("kaicep", "kaicep.spark", "kaicep.testing")


def api() -> str:
    """The page of the API."""
    lines = [API]
    for name in MODULES:
        module = import_module(name)
        lines += [f"## `{name}`", "", *_described(inspect.getdoc(module))]
        for each in sorted(module.__all__, key=str.lower):
            thing = getattr(module, each)
            if not isinstance(thing, (str, ModuleType)):
                lines += _thing(f"{name.replace('kaicep', 'kai', 1)}.{each}", thing)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines).rstrip()) + "\n"


def _thing(name: str, thing: Any) -> Iterator[str]:
    yield f"### `{name}`"
    yield ""
    if not callable(thing):
        yield from (f"A {type(thing).__name__}.", "")
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    if isinstance(tree, ast.ClassDef):
        yield from _described(inspect.getdoc(thing))
        yield from _members(tree)
    elif isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield from _signature(name, tree)
        yield from _described(ast.get_docstring(tree))


def _members(tree: ast.ClassDef) -> Iterator[str]:
    """The fields of a class, and what it can do, in the order of the source."""
    for each, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign) and _public(ast.unparse(each.target)):
            said = after.value.value if _is_text(after) else ""  # type: ignore[union-attr]
            yield f"* `{_field(each)}`" + (f": {' '.join(str(said).split())}" if said else "")
    yield ""
    for each in tree.body:
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and _public(each.name):
            marks = [ast.unparse(mark) for mark in each.decorator_list]
            if any(mark.endswith(".setter") for mark in marks):
                continue
            if "property" in marks:
                yield f"**`{each.name}`** -> `{ast.unparse(each.returns) if each.returns else ''}`"
                yield ""
            else:
                yield from _signature(f"{tree.name}.{each.name}", each)
            yield from _described(ast.get_docstring(each))


def _field(node: ast.AnnAssign) -> str:
    """A field with its type; with its default, where that is plain to see."""
    plain = node.value is not None and not isinstance(node.value, ast.Call)
    default = f" = {ast.unparse(node.value)}" if plain and node.value else ""
    return f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}{default}"


def _is_text(node: ast.stmt | None) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _public(name: str) -> bool:
    return not name.startswith("_")


def _signature(name: str, tree: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    given = [each for each in ast.unparse(tree.args).split(", ") if each not in ("self", "cls")]
    back = f" -> {ast.unparse(tree.returns)}" if tree.returns else ""
    yield from ("```text", *textwrap.wrap(f"{name}({', '.join(given)}){back}", 110, subsequent_indent="    "))
    yield from ("```", "")


def _described(text: str | None) -> Iterator[str]:
    """A docstring as Markdown: its examples in fences."""
    inside = False
    for line in (text or "").splitlines():
        begins = line.startswith(">>> ")
        if begins and not inside:
            yield "```pycon"
            inside = True
        elif inside and not line:
            yield "```"
            inside = False
        yield line
    if inside:
        yield "```"
    yield ""


# --- the operators of chi-CEP ------------------------------------------------------------------------------

TABLE = re.compile(r"(<!-- operators: .* -->\n).*(?=<!-- end of operators -->)", re.DOTALL)


def chi_cep() -> str:
    """The page of the language, with its table of operators and functions."""
    page = (ROOT / "docs" / "chi-cep.md").read_text("utf-8")
    rows = "\n".join(map(_operator, (each for each in OPERATORS.values() if each.usage)))
    head = "| | takes | gives | with a null | is | rewritten to |\n|---|---|---|---|---|---|"
    made, count = TABLE.subn(lambda found: f"{found[1]}{head}\n{rows}\n", page)
    assert count == 1, "docs/chi-cep.md has lost the marks of its table"
    return made


def _operator(own: Operator) -> str:
    takes = own.takes.value if isinstance(own.takes, TypeRule) else ", ".join(map(_argument, own.takes))
    gives = str(own.gives) if own.gives else "the same"
    null = own.null_rule.removeprefix("null if an argument is") or "null"
    languages = {"Spark SQL": own.sql, "SPARQL": own.sparql}
    said = ", ".join(name for name, say in languages.items() if say is not None) or "-"
    cells = [f"`{own.usage}`", takes, gives, null, own.doc, said]
    return "| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |"


def _argument(argument: Argument) -> str:
    return " or ".join(map(str, argument.types)) + (" literal" if argument.check else "")


PAGES: Mapping[str, Callable[[], str]] = {"support.md": support, "api.md": api, "chi-cep.md": chi_cep}

if __name__ == "__main__":
    for page, made in PAGES.items():
        (ROOT / "docs" / page).write_text(made(), "utf-8")
        print(f"docs/{page}")
