"""The rooms of the house import in one direction only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "kaicep"

# What each room may import, besides itself and `errors`. A module that stands in no room (`api.py`,
# `__init__.py`) counts as a room of its own name; the package's `__init__` is called `kaicep`.
MAY_IMPORT = {
    "errors": set(),
    "plan": set(),
    "processes": set(),
    # `api` for `Query.explain`, which speaks of every host; `optimize` for PATHs that hold for nothing.
    "query": {"plan", "knowledge", "optimize", "api"},
    "language": {"plan"},
    "knowledge": {"plan", "storage"},
    "kernel": {"plan"},
    "connectors": {"plan", "storage"},
    "archive": {"plan", "storage"},
    "storage": {"plan"},
    "optimize": {"plan", "knowledge"},
    "reference": {"plan", "knowledge", "query"},
    "hosts": {"plan", "knowledge", "optimize", "kernel", "archive", "reference", "query", "storage"},
    "live": {"plan", "kernel", "hosts", "processes", "query"},
    "examples": {"kaicep", "api", "testing"},
}
TOP = {
    "__main__",
    "api",
    "assist",
    "cli",
    "console",
    "demo",
    "endtoend",
    "engine",
    "kaicep",
    "notebook",
    "queries",
    "running",
    "server",
    "spark",
    "spark_sql",
    "tables",
    "testing",
    "why",
}


def room_of(module: Path) -> str:
    """The first name of a module's path below the package."""
    name = module.parts[0].removesuffix(".py")
    return "kaicep" if name == "__init__" else name


def imported(tree: ast.AST) -> Iterator[str]:
    """The rooms that a module imports, wherever in it the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            names = [f"kaicep.<relative import, line {node.lineno}>"]
        elif isinstance(node, ast.ImportFrom) and node.module == "kaicep":
            names = [f"kaicep.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            if name == "kaicep":
                yield "kaicep"
            elif name.startswith("kaicep."):
                yield name.split(".")[1]


def violations(module: Path, text: str) -> list[str]:
    """The imports of a module (its path below the package) that its room may not make."""
    room = room_of(module)
    if room in TOP:
        return []
    allowed = MAY_IMPORT[room] | {room, "errors"}
    return [f"{module}: {room} imports {each}" for each in imported(ast.parse(text)) if each not in allowed]


def test_imports_point_one_way() -> None:
    modules = sorted(PACKAGE.rglob("*.py"))
    assert modules
    found = [each for m in modules for each in violations(m.relative_to(PACKAGE), m.read_text("utf-8"))]
    assert not found, "\n".join(found)


def test_every_room_is_known() -> None:
    rooms = {room_of(each.relative_to(PACKAGE)) for each in PACKAGE.rglob("*.py")}
    assert rooms <= MAY_IMPORT.keys() | TOP


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("plan/nodes.py", "from kaicep.language.chicep import parse_chi"),
        ("plan/nodes.py", "import kaicep.knowledge.store"),
        ("kernel/join.py", "def late():\n    from kaicep.knowledge import Knowledge"),
        ("knowledge/store.py", "from kaicep import reference"),
        ("language/chicep.py", "from ..plan import chi"),
        ("examples/campus.py", "from kaicep.plan.nodes import Scan"),
        ("errors.py", "from kaicep.plan.time import format_time"),
        ("reference/host.py", "import kaicep"),
    ],
)
def test_a_wrong_import_is_found(module: str, text: str) -> None:
    assert len(violations(Path(module), text)) == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (
            "plan/nodes.py",
            "from kaicep.errors import Mistake\nfrom kaicep.plan.chi import Place\nimport json",
        ),
        ("language/chicep.py", "from kaicep.plan.chi import ChiQuery"),
        ("reference/host.py", "from kaicep.knowledge.store import Store"),
        ("cli/match.py", "from kaicep.reference import run\nimport kaicep"),
        ("api.py", "from kaicep.language.chicep import parse_chi"),
    ],
)
def test_a_right_import_passes(module: str, text: str) -> None:
    assert violations(Path(module), text) == []
