"""kaicep: complex event processing that knows what your events are about.

Say "kai-CEP", from the Greek letter chi.

>>> import kaicep as kai
>>> query = kai.compile("SELECT ?e.x FROM (?e, s) FILTER (?e.x > 2)", streams={"s": {"x": "float64"}})
>>> [match.select for match in kai.run(query, [{"ts": 1, "x": 3}, {"ts": 2, "x": 1}])]
[{'x': 3.0}]

`kaicep.testing` is the kit to test queries with; the command line is `kaicep`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kaicep.errors import Failure, KaicepError, Mistake, Unsupported

if TYPE_CHECKING:
    import kaicep.spark as spark
    from kaicep.compiling import compile
    from kaicep.engine import Engine, MatchList, run, run_arrow, run_async, to_arrow, to_pandas, to_polars
    from kaicep.hosts.queries import Settings
    from kaicep.knowledge.store import Knowledge
    from kaicep.notebook import load_ipython_extension as load_ipython_extension
    from kaicep.plan.events import Event, Match
    from kaicep.query import Query

__version__ = "0.1.0"

__all__ = [
    "Engine",
    "Event",
    "Failure",
    "KaicepError",
    "Knowledge",
    "Match",
    "MatchList",
    "Mistake",
    "Query",
    "Settings",
    "Unsupported",
    "__version__",
    "compile",
    "run",
    "run_arrow",
    "run_async",
    "spark",
    "to_arrow",
    "to_pandas",
    "to_polars",
]

# What is asked for is imported when it is asked for: the command line starts without most of it.
_HOMES = {
    "Engine": "engine",
    "Event": "plan.events",
    "Knowledge": "knowledge.store",
    "Match": "plan.events",
    "MatchList": "engine",
    "Query": "query",
    "Settings": "hosts.queries",
    "compile": "compiling",
    "run": "engine",
    "run_arrow": "engine",
    "run_async": "engine",
    "to_arrow": "engine",
    "to_pandas": "engine",
    "to_polars": "engine",
    "load_ipython_extension": "notebook",  # `%load_ext kaicep`
}


def __getattr__(name: str) -> Any:
    if name == "spark":
        return import_module("kaicep.spark")
    if name not in _HOMES:
        raise AttributeError(f"module 'kaicep' has no attribute {name!r}")
    return getattr(import_module(f"kaicep.{_HOMES[name]}"), name)
