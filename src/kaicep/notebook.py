"""Queries in cells of a notebook: `%load_ext kaicep`, then `%%chi` and `%%epsparql`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from kaicep.compiling import compile
from kaicep.engine import MatchList, run
from kaicep.query import Query

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_EXPRESSION = "an expression of Python, mostly the name of a variable"


def _options(magic: Any) -> Any:
    for each in (
        argument("name", nargs="?", default="query", help="the query's name, and the variable that gets it"),
        argument("--over", help=f"run it over these events; {_EXPRESSION}"),
        argument("--streams", help="the streams and their types, as `kai.compile` takes them"),
        argument("--knowledge", help="the knowledge"),
        argument("--annotations", help="the annotations"),
        argument("--lateness", help="how late events may come, such as 5min; without it they are sorted"),
        magic_arguments(),
    ):
        magic = each(magic)
    return magic


@magics_class
class QueryMagics(Magics):  # type: ignore[misc]
    """A cell with a query in it: it is compiled, and run where events are given."""

    @cell_magic  # type: ignore[untyped-decorator]
    @_options
    def chi(self, line: str, cell: str) -> Query | MatchList:
        """A query in chi-CEP."""
        return self._answer(parse_argstring(self.chi, line), cell, "chi-CEP")

    @cell_magic  # type: ignore[untyped-decorator]
    @_options
    def epsparql(self, line: str, cell: str) -> Query | MatchList:
        """A query in EP-SPARQL."""
        return self._answer(parse_argstring(self.epsparql, line), cell, "EP-SPARQL")

    def _answer(self, given: Any, text: str, language: str) -> Query | MatchList:
        query = compile(
            text,
            knowledge=self._value(given.knowledge),
            streams=self._value(given.streams),
            annotations=self._value(given.annotations) or (),
            name=given.name,
            language=language,
        )
        self.shell.push({given.name: query})
        if given.over is None:
            return query
        return MatchList(run(query, self._value(given.over), lateness=given.lateness))

    def _value(self, expression: str | None) -> Any:
        return None if expression is None else self.shell.ev(expression)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """What `%load_ext kaicep` calls."""
    shell.register_magics(QueryMagics)
