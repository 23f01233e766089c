"""The rooms of the house import in one direction only."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "kaicep"

# What each room may import, besides itself, `errors` and the version; nobody is exempt. A module that stands
# in no room (`api.py`, `__init__.py`) counts as a room of its own name; the package's `__init__` is `kaicep`.
_CORE = {"plan", "knowledge", "optimize", "kernel", "query"}
_HOSTED = _CORE | {"hosts", "archive", "storage", "connectors"}
MAY_IMPORT = {
    "errors": set(),
    "plan": set(),
    "processes": set(),
    "storage": set(),
    "language": {"plan"},
    "kernel": {"plan", "storage"},
    "knowledge": {"plan", "storage"},
    "connectors": {"plan", "storage"},
    "archive": {"plan", "storage"},
    "optimize": {"plan", "knowledge"},
    # `api` for `Query.explain`, which speaks of every host; `optimize` for PATHs that hold for nothing.
    "query": {"plan", "knowledge", "optimize", "api"},
    "reference": {"plan", "knowledge", "query"},
    "hosts": {"plan", "knowledge", "optimize", "kernel", "query", "storage"},
    "live": {"plan", "hosts", "processes", "query"},
    # `deployment` and `history` for what `explain` says of a query over past and present.
    "api": {*_CORE - {"kernel"}, "language", "connectors", "hosts", "reference", "history", "deployment"},
    "history": _HOSTED | {"api", "reference"},
    "join": {"plan", "archive", "connectors", "kernel", "hosts", "history"},
    "ingest": (_HOSTED - {"kernel"}) | {"language"},
    "deployment": _HOSTED | {"api", "history", "join", "ingest", "spark"},
    "engine": {"plan", "kernel", "connectors", "hosts", "query"},
    "compiling": {"plan", "kernel", "knowledge", "query", "api"},
    "notebook": {"engine", "compiling", "query"},
    "spark": _HOSTED - {"optimize"} | {"history", "ingest", "spark_sql"},
    "spark_sql": {"plan", "knowledge", "hosts", "engine", "compiling", "query"},
    "why": {"api", "archive", "connectors", "deployment", "history", "join", "knowledge", "plan", "query"}
    | {"reference", "server", "storage"},
    "assist": {"api", "archive", "deployment", "knowledge", "language", "optimize", "plan", "query"},
    # The pages are part of the application that the server serves: each of the two needs the other.
    "console": {"api", "archive", "assist", "connectors", "deployment", "history", "knowledge", "plan"}
    | {"reference", "server", "storage", "why"},
    "server": {"api", "assist", "connectors", "console", "deployment", "optimize", "plan", "processes"}
    | {"query", "storage"},
    "testing": {"plan", "knowledge", "connectors", "api"},
    "demo": _HOSTED - {"kernel", "optimize"}
    | {"api", "deployment", "history", "ingest", "join", "server", "why"},
    "cli": _HOSTED - {"optimize"}
    | {
        "api",
        "assist",
        "demo",
        "deployment",
        "examples",
        "history",
        "ingest",
        "live",
        "processes",
        "server",
        "why",
    },
    "examples": {"kaicep", "api", "testing"},
    "kaicep": {"engine", "hosts", "knowledge", "notebook", "plan", "compiling", "query", "spark"},
    "__main__": {"cli"},
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
    allowed = MAY_IMPORT[room] | {room, "errors", "__version__"}
    return [f"{module}: {room} imports {each}" for each in imported(ast.parse(text)) if each not in allowed]


def test_imports_point_one_way() -> None:
    modules = sorted(PACKAGE.rglob("*.py"))
    assert modules
    found = [each for m in modules for each in violations(m.relative_to(PACKAGE), m.read_text("utf-8"))]
    assert not found, "\n".join(found)


def test_every_room_is_known() -> None:
    rooms = {room_of(each.relative_to(PACKAGE)) for each in PACKAGE.rglob("*.py")}
    assert rooms == MAY_IMPORT.keys()


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("plan/nodes.py", "from kaicep.language.parse_chicep import parse_chi"),
        ("plan/nodes.py", "import kaicep.knowledge.store"),
        ("kernel/join.py", "def late():\n    from kaicep.knowledge import Knowledge"),
        ("knowledge/store.py", "from kaicep import reference"),
        ("language/parse_chicep.py", "from ..plan import chi"),
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
        ("language/parse_chicep.py", "from kaicep.plan.chi import ChiQuery"),
        ("reference/host.py", "from kaicep.knowledge.store import Store"),
        ("cli/match.py", "from kaicep.api import read_query\nfrom kaicep import __version__"),
        ("api.py", "from kaicep.language.parse_chicep import parse_chi"),
    ],
)
def test_a_right_import_passes(module: str, text: str) -> None:
    assert violations(Path(module), text) == []


# Two that are public under the same name on purpose: an engine over records and one over plans, an event of a
# stream and one of the live service, operators of expressions and of graphs, services, settings.
SHARED_NAMES = {"Engine", "Event", "Operator", "Service", "Settings"}


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, set[Path]] = {}
    for module in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, set()).add(module.relative_to(PACKAGE))
    assert {name for name, some in places.items() if len(some) > 1} == SHARED_NAMES


# Two modules of these names hold the same for two things: a command and what it is about, a language and its
# reference, columns of chi-CEP and of EP-SPARQL.
SHARED_MODULES = {
    "archive",
    "batches",
    "columnar",
    "delta",
    "expressions",
    "files",
    "graph",
    "match",
    "on_spark",
    "output",
    "queries",
    "shape",
    "sparql",
    "state",
    "tables",
    "text",
}


def test_a_module_name_means_one_thing() -> None:
    modules = [
        each
        for each in PACKAGE.rglob("*.py")
        if each.name != "__init__.py" and room_of(each.relative_to(PACKAGE)) != "examples"
    ]
    counts = Counter(each.stem for each in modules)
    assert {name for name, count in counts.items() if count > 1} == SHARED_MODULES


def runtime_imports(tree: ast.Module) -> Iterator[str]:
    """The modules, or their names, that a module imports when it is imported itself."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_modules_do_not_import_in_circles() -> None:
    paths = {
        ".".join(("kaicep", *path.relative_to(PACKAGE).with_suffix("").parts)): path
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    }
    graph = {
        name: {
            known
            for each in runtime_imports(ast.parse(path.read_text("utf-8")))
            if (known := each if each in paths else each.rpartition(".")[0]) in paths
        }
        for name, path in paths.items()
    }
    TopologicalSorter(graph).prepare()  # which raises a CycleError that names them


# What users import says by `__all__` what they may; inside, a leading underscore says what stays in a module.
SURFACE = {"__init__.py", "spark.py"}


def test_only_what_users_import_lists_its_names() -> None:
    for module in PACKAGE.rglob("*.py"):
        if module.name not in SURFACE:
            tree = ast.parse(module.read_text("utf-8"))
            assert not any(isinstance(each, ast.Name) and each.id == "__all__" for each in ast.walk(tree)), (
                module
            )
