"""From a chi-CEP query as written to its plan: names resolved, types checked, mistakes reported.

The checks stand in the order in which a reader would make them: what are the events, what is the
pattern, what do the conditions say, what comes out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kaicep.errors import Span, did_you_mean
from kaicep.plan.algebra import visible_variables
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.chi import (
    Absent,
    AggregateWindow,
    Bound,
    ChiQuery,
    Choice,
    Element,
    From,
    Loop,
    Place,
    SelectColumn,
    SpanWindow,
    Together,
    may_be_left_out,
    span_bound,
)
from kaicep.plan.expressions import (
    Aggregate,
    Attribute,
    Call,
    Concept,
    Const,
    Expr,
    Field,
    Previous,
    VariableRef,
    type_of,
    variables_of,
    walk,
)
from kaicep.plan.nodes import (
    Chain,
    ChiPlan,
    Interval,
    Latest,
    OutputColumn,
    Pattern,
    Semantic,
    WindowAggregate,
)
from kaicep.plan.paths import (
    has_path_values,
    is_decided_by_one_event,
    path_references,
    path_variables,
    restricted,
    semantic_conditions,
    tie,
    warn_of_unknown_words,
    without_event,
)
from kaicep.plan.sparql import Bind, Group
from kaicep.plan.terms import Iri
from kaicep.plan.text import iri_text
from kaicep.plan.types import Type, unify
from kaicep.plan.typing import Problems, Scope, Typer, Units, resolve_field

_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")


def resolve_chi(query: ChiQuery, catalog: Catalog, now: int) -> ChiPlan:
    """The plan of a query over the streams of a catalogue; `now` is what the word means in WITHIN.

    Raises `Mistake` with everything that is wrong with the query.
    """
    return _Resolver(query, catalog, now).plan()


def streams_of_class(catalog: Catalog, concept: Iri) -> tuple[Stream, ...]:
    """The streams annotated with a class or a subclass of it, by name (semantics 2)."""
    narrower = catalog.vocabulary.classes_below(concept)
    return tuple(stream for _, stream in sorted(catalog.streams.items()) if stream.event_class in narrower)


def output_stream(plan: ChiPlan) -> Stream:
    """The stream that a query's matches are: a column is an attribute; lists are left out."""
    columns = [(each.name, each.type or Type.STRING) for each in plan.columns if not each.many]
    return Stream(plan.name, tuple(columns), derived=True)


class _Resolver:
    """Holds what is known of one query while it is resolved."""

    def __init__(self, query: ChiQuery, catalog: Catalog, now: int) -> None:
        self.query = query
        self.catalog = catalog
        self.now = now
        self.problems = Problems(query.source)

    def plan(self) -> ChiPlan:
        query = self.query
        self.variables = self._event_variables()
        self.latest = {each.variable: each for each in query.froms if each.latest}
        self.places = tuple(each for each in self.variables if each not in self.latest)
        self._check_latest()
        self.nothing = next((each for each in query.froms if each.absent), None)
        if self.nothing is not None and len(self.variables) > 1:
            self.problems.error(
                "ABSENT must be alone in FROM",
                self.nothing.span,
                f"inside a pattern, SEQ (?a, !?{self.nothing.variable}) says that an event does not come",
            )
        self.problems.check()
        self.sequence = self._sequence()
        self.positive = tuple(each for each in self.places if each not in self.absent)
        self.window = self._aggregate_window()
        self._check_absent_window()
        self.problems.check()
        self.paths = path_variables(query.paths, self.variables)
        self.scope = Scope(
            self.variables,
            self.catalog.vocabulary,
            frozenset(self.loops),
            self.paths,
            self.window.variable if self.window else None,
            dict(self.catalog.known_prefixes(query.prefixes)),
            "declare it in FROM, or bind it in a PATH",
            self.catalog.zone,
            either=len(query.paths) > 1,
        )
        self.typer = Typer(self.scope, self.problems)
        streams = {each.name: each for some in self.variables.values() for each in some}
        self.units = Units(self.variables, streams, self.catalog.vocabulary, query.paths, self.problems)
        columns, having = self._columns()
        having = [self.units.in_one_unit(each) for each in having]
        every = self._conditions(having)
        self.units.compare_inside()
        if self.units.asked or self.units.points or self.units.paths != query.paths:
            keys = (*query.group_by, *self.units.helpers_of(query.group_by))
            self.query = query = replace(query, paths=self.units.with_asked, group_by=keys)
            self.paths = path_variables(query.paths, self.variables)
        self._check_bindings()
        self._check_words()
        self.judging = tuple(each for each in every if has_path_values(each))
        conditions = [each for each in every if not has_path_values(each)]
        body: Pattern | WindowAggregate
        if self.window:
            body = self._window_plan(conditions, columns, having)
        else:
            body = self._pattern_plan(conditions, columns)
        self.problems.check()
        return ChiPlan(
            query.name,
            query.source.text if query.source else "",
            body,
            columns,
            self.streams,
            tuple(self.variables),
            self.catalog.known_prefixes(query.prefixes),
            tuple(self.problems.warnings),
            query.source,
        )

    # --- what are the events? ---

    def _event_variables(self) -> dict[str, tuple[Stream, ...]]:
        if not self.query.froms:
            return self._implicit_variables()
        found: dict[str, tuple[Stream, ...]] = {}
        for clause in self.query.froms:
            if clause.variable in found:
                self.problems.error(
                    f"?{clause.variable} is declared twice", clause.span, "list all its streams in one place"
                )
                continue
            streams: list[Stream] = []
            spans = clause.source_spans or (clause.span,) * len(clause.sources)
            for source, span in zip(clause.sources, spans, strict=False):
                streams += [each for each in self._from_source(source, span) if each not in streams]
            found[clause.variable] = tuple(streams)
        return found

    def _from_source(self, source: str | Iri, span: Span | None) -> tuple[Stream, ...]:
        if isinstance(source, Iri):
            found = streams_of_class(self.catalog, source)
            if not found:
                prefixes = dict(self.catalog.known_prefixes(self.query.prefixes))
                given = [each.event_class for each in self.catalog.streams.values() if each.event_class]
                self.problems.error(
                    f"no stream is annotated with the class {source.local} or a subclass of it",
                    span,
                    did_you_mean(iri_text(source, prefixes), [iri_text(each, prefixes) for each in given])
                    or 'give an annotation with "class" for a stream (--annotation)',
                )
            return found
        stream = self.catalog.streams.get(source)
        if stream is not None:
            if stream.rdf:
                self.problems.error(
                    f"{source} is a stream of triples; chi-CEP reads streams of records",
                    span,
                    "query it with EP-SPARQL",
                )
            return (stream,)
        if all(each.derived for each in self.catalog.streams.values()):
            said = f"nothing is known of the stream {source}: its attributes are not checked"
            if all(each.message != said for each in self.problems.warnings):
                self.problems.warn(said, span, f"pass it with --stream {source}=FILE")
            return (Stream(source, open=True),)
        self.problems.error(f"unknown stream {source}", span, did_you_mean(source, self.catalog.streams))
        return ()

    def _implicit_variables(self) -> dict[str, tuple[Stream, ...]]:
        names = list(dict.fromkeys(_mentioned_events(self.query)))
        records = [each for each in self.catalog.streams.values() if not (each.rdf or each.derived)]
        if len(records) != 1:
            known = ", ".join(sorted(each.name for each in records)) or "none"
            self.problems.error(
                f"FROM may be left out only if one stream is known; known here: {known}",
                Span(0, len("SELECT")) if self.query.source else None,
                f"add FROM (?{names[0] if names else 'e'}, STREAM) after the SELECT clause",
            )
            return {}
        if not names:
            names = ["e"]
        return dict.fromkeys(names, (records[0],))

    def _check_latest(self) -> None:
        for clause in self.latest.values():
            if not self.places:
                self.problems.error(
                    f"LATEST ?{clause.variable} needs another event to be looked up for",
                    clause.span,
                    "declare the event that it is looked up for: FROM (?e, STREAM), LATEST (?s, STREAM)",
                )

    # --- what is the pattern? ---

    def _sequence(self) -> tuple[Element, ...]:
        self.loops: dict[str, Loop] = {}
        self.absent: dict[str, Absent] = {}
        given = self.query.sequence
        if given is None:
            places = tuple(Place(each) for each in self.places)
            return places if len(places) == 1 else (Together(places),)
        seen: set[str] = set()
        for element in given:
            self._check_element(element, seen, inside=False)
        missing = [each for each in self.places if each not in seen]
        if missing:
            names = ", ".join(f"?{each}" for each in missing)
            self.problems.error(
                f"SEQ leaves out {names}",
                self.query.sequence_span,
                f"put {names} where it belongs in SEQ, or drop it from FROM; (?a & ?b) is for any order",
            )
        self._check_absences(given)
        return given

    def _check_element(self, element: Element, seen: set[str], inside: bool) -> None:
        match element:
            case Place() | Loop():
                self._check_variable(element, seen)
            case Absent():
                self._check_absent(element, seen, inside)
            case Choice() | Together():
                for each in element.members:
                    self._check_element(each, seen, inside=True)

    def _check_variable(self, element: Place | Loop, seen: set[str]) -> None:
        name = element.variable
        if name not in self.variables:
            self._unknown_variable(name, element.span)
        elif name in self.latest:
            self.problems.error(
                f"?{name} is LATEST and cannot be in SEQ",
                element.span,
                "leave it out of SEQ; it is looked up for the events that are there",
            )
        elif name in seen:
            self.problems.error(
                f"?{name} is in SEQ twice", element.span, "declare a second variable for the second event"
            )
        seen.add(name)
        if isinstance(element, Loop):
            self.loops[name] = element

    def _unknown_variable(self, name: str, span: Span | None) -> None:
        near = did_you_mean(f"?{name}", [f"?{each}" for each in self.variables]) or ""
        hint = near if near.startswith("did you mean") else f"declare it in FROM: FROM (?{name}, STREAM)"
        self.problems.error(f"unknown event variable ?{name}", span, hint)

    def _check_absent(self, element: Absent, seen: set[str], inside: bool) -> None:
        if not isinstance(element.of, Place):
            what = "a loop" if isinstance(element.of, Loop) else "a group"
            self.problems.error(f"{what} cannot be absent", element.span, "write !?b: no ?b occurs")
            self._check_element(element.of, seen, inside)
            return
        self._check_variable(element.of, seen)
        if inside:
            self.problems.error(
                f"!?{element.variable} cannot stand inside a group",
                element.span,
                "put it between two places of the sequence",
            )
        self.absent[element.variable] = element

    def _check_absences(self, sequence: tuple[Element, ...]) -> None:
        trailing = [each for _, each in _trailing_absences(sequence)]
        for index, element in enumerate(sequence):
            if isinstance(element, Absent) and all(may_be_left_out(each) for each in sequence[:index]):
                self.problems.error(
                    "a sequence cannot begin with an absence: there is no event to count from",
                    element.span,
                    "put an event that always occurs before it",
                )
        if len(trailing) > 1:
            self.problems.error(
                "two absences at the end of the sequence", trailing[1].span, "only the last place can wait"
            )

    def _deadline(self) -> int | None:
        trailing = [each for _, each in _trailing_absences(self.sequence)]
        if not trailing:
            return None
        spans = [each for each in self.query.windows if isinstance(each, SpanWindow)]
        naming = [each for each in spans if trailing[0].variable in each.variables]
        whole = [each for each in spans if set(self.positive) <= set(each.variables)]
        chosen = naming or whole or (spans if len(spans) == 1 else [])
        if not chosen:
            names = ", ".join(f"?{each}" for each in self.places)
            self.problems.error(
                f"!?{trailing[0].variable} at the end needs a WINDOW: for how long must it stay away?",
                trailing[0].span,
                f"add WINDOW ({names}, 5min)",
            )
            return None
        return min(each.width for each in chosen)

    # --- windows, bounds, partitions ---

    def _aggregate_window(self) -> AggregateWindow | None:
        windows = [each for each in self.query.windows if isinstance(each, AggregateWindow)]
        for window in self.query.windows:
            names = (window.variable,) if isinstance(window, AggregateWindow) else window.variables
            for name in names:
                if name not in self.variables:
                    self._unknown_variable(name, window.span)
        if not windows:
            if self.query.group_by:
                self.problems.error(
                    "GROUP BY groups what is inside a window, and there is none",
                    self.query.group_by[0].span,
                    "add WINDOW (?e, sliding, 5min), or use PARTITION BY for patterns",
                )
            return None
        window = windows[0]
        if len(windows) > 1:
            self.problems.error("two windows to aggregate over", windows[1].span, "keep one of them")
        if self.latest:
            self.problems.error(
                "LATEST belongs to patterns, not to a window of aggregates",
                next(iter(self.latest.values())).span,
                "split it into two queries: one looks it up, the other aggregates its output",
            )
        if len(self.places) > 1:
            self.problems.error(
                "a window of aggregates is over one event variable",
                window.span,
                "split it into two queries: one aggregates, the other reads its output",
            )
        if len(windows) < len(self.query.windows):
            self.problems.error("WINDOW between events makes no sense with aggregates", window.span)
        if self.query.sequence or self.query.match or self.query.skip:
            self.problems.error(
                "SEQ, MATCH and AFTER MATCH belong to patterns, not to a window of aggregates", window.span
            )
        return window

    def _check_absent_window(self) -> None:
        """ABSENT stands alone, over a batch window, and gives variables of the PATH (semantics 2)."""
        given, query, problems = self.nothing, self.query, self.problems
        if given is None:
            return
        if self.window is None or self.window.kind != "batch" or self.window.width is None:
            problems.error(
                f"ABSENT ?{given.variable} needs a batch WINDOW: in which time must nothing come?",
                given.span,
                f"add WINDOW (?{given.variable}, batch, 1h)",
            )
        for word, clause in (
            ("GROUP BY", query.group_by),
            ("PARTITION BY", query.partition),
            ("HAVING", query.having),
        ):
            if clause:
                problems.error(
                    f"{word} has no meaning with ABSENT: there are no events",
                    clause[0].span,
                    "SELECT alone says what to look for",
                )
        if not query.paths:
            problems.error(
                f"ABSENT ?{given.variable} needs a PATH: what should have an event?",
                given.span,
                f"add PATH {{?{given.variable} evt:hasSource ?point . ?point a ...}}",
            )
        elif len(query.paths) > 1:
            problems.error(
                "the PATH of ABSENT is joined by OR",
                query.paths[1][0].span,
                "write the alternatives inside one PATH, with UNION",
            )
        if not problems.errors:
            self._check_what_is_absent(given)

    def _check_what_is_absent(self, given: From) -> None:
        """The columns are variables that the PATH asks of the knowledge alone."""
        blocks = self.query.paths[0] if self.query.paths else ()
        whole = Group(tuple(element for each in blocks for element in each.group.elements))
        self.without_event, obstacle = without_event(whole, given.variable)
        if obstacle is not None:
            self.problems.error(
                f"the PATH of ABSENT mentions ?{given.variable} elsewhere than at the beginning of a pattern",
                obstacle.span,
                f"write ?{given.variable} PROPERTY ?x, and the rest about ?x",
            )
            return
        known = visible_variables(self.without_event)
        for column in self.query.select or (SelectColumn(VariableRef(given.variable), span=given.span),):
            if not (isinstance(column.expr, VariableRef) and column.expr.name in known):
                self.problems.error(
                    "ABSENT can select only variables of the PATH that need no event",
                    column.span or column.expr.span,
                    f"known without an event: {', '.join(f'?{each}' for each in sorted(known)) or 'none'}",
                )

    def _expected(self) -> Semantic | None:
        """What ABSENT asks of the knowledge alone."""
        if self.nothing is None:
            return None
        columns = self.query.select or ()
        names = tuple(dict.fromkeys(name for each in columns for name in path_references(each.expr)))
        judging = tuple(each for each in self.judging if not variables_of(each) & self.variables.keys())
        return Semantic((self.without_event,), (), names, conditions=judging)

    def _within(self) -> Interval:
        given = self.query.within
        if given is None:
            return Interval()
        low, high = self._instant(given.low), self._instant(given.high)
        if low is not None and high is not None and low > high:
            self.problems.error("WITHIN ends before it begins", given.span, "swap the bounds")
        return Interval(
            low,
            given.low.inclusive if given.low else True,
            high,
            given.high.inclusive if given.high else False,
        )

    def _instant(self, bound: Bound | None) -> int | None:
        if bound is None:
            return None
        return bound.at if bound.at is not None else self.now + bound.offset

    @property
    def streams(self) -> tuple[str, ...]:
        """All streams in the order of their first mention (semantics 1)."""
        return tuple(dict.fromkeys(each.name for streams in self.variables.values() for each in streams))

    def _partition(self) -> tuple[Expr, ...]:
        """PARTITION BY reads the attribute on every stream, whichever variable is named."""
        keys: list[Expr] = []
        names = dict.fromkeys(each.name for place in self.places for each in self.variables[place])
        everywhere = tuple(self.catalog.streams.get(each) or Stream(each, open=True) for each in names)
        for given in self.query.partition:
            if self._is_path_variable(given):
                keys.append(given)
                continue
            named = self.typer.value(given)
            if not (isinstance(named, Field) and isinstance(given, Attribute | Concept)):
                if not self.problems.errors:
                    self.problems.error(
                        "PARTITION BY takes attributes, and variables of the PATH",
                        given.span,
                        "such as ?e.sensorID",
                    )
                continue
            sources, types = resolve_field(given, everywhere, self.catalog.vocabulary)
            joined = named.type
            for stream, found in types:
                both = unify(joined, found) if joined and found else joined
                if joined and found and both is None:
                    self.problems.error(
                        f"{named.name} is {joined} on one stream but {found} on {stream}", given.span
                    )
                joined = both
            keys.append(replace(named, sources=sources, type=joined))
        return tuple(keys)

    def _is_path_variable(self, expr: Expr) -> bool:
        return isinstance(expr, VariableRef) and expr.name in self.paths

    def _ties(self) -> tuple[Semantic, ...]:
        """How the events of each variable are in the partitions of a PATH's variables (semantics 2)."""
        wanted = {each.name: each for each in self.query.partition if isinstance(each, VariableRef)}
        names = tuple(name for name in wanted if name in self.paths)
        if not names:
            return ()
        found: list[Semantic] = []
        for place in self.places:
            made = tie(self.query.paths, self.variables, place, names, self.judging)
            if made is None:
                self._not_tied(place, wanted)
            else:
                found.append(made)
        return tuple(found)

    def _not_tied(self, place: str, wanted: Mapping[str, VariableRef]) -> None:
        for name, given in wanted.items():
            if len(self.query.paths) > 1:
                self.problems.error(
                    f"PARTITION BY ?{name}: its PATH is joined by OR",
                    given.span,
                    "write the alternatives inside one PATH, with UNION",
                )
            elif tie(self.query.paths, self.variables, place, (name,), ()) is None:
                self.problems.error(
                    f"PARTITION BY ?{name}: no PATH ties ?{place} to ?{name} by itself",
                    given.span,
                    f"add a PATH that mentions no other event: PATH {{ ?{place} ... ?{name} }}",
                )

    # --- what do the conditions say? ---

    def _conditions(self, having: list[Expr]) -> list[Expr]:
        """All conditions, resolved; in a pattern HAVING is one more."""
        found: list[Expr] = []
        for each in self.query.conditions:
            resolved = self.typer.condition(each.expr, each.keyword)
            mentioned = variables_of(resolved) & self.variables.keys()
            better = "JOIN" if len(mentioned) > 1 else "FILTER"
            if mentioned and each.keyword != better:
                what = "several events" if better == "JOIN" else "one event"
                self.problems.advise(f"{each.keyword} on {what}", each.span, f"{better} says it better")
            if self.window and any(isinstance(node, Aggregate) for node in walk(resolved)):
                self.problems.error(
                    f"{each.keyword} tests single events, before they are aggregated",
                    each.span,
                    "use HAVING (...) for a condition on an aggregate",
                )
            for node in walk(resolved):
                if isinstance(node, Call) and node.op in _COMPARISONS and any(map(_is_null, node.args)):
                    self.problems.warn(
                        "a comparison with null is never true",
                        node.span,
                        "coalesce(?e.x, 0) replaces a missing value",
                    )
            absent = sorted(mentioned & self.absent.keys())
            if len(absent) > 1:
                self.problems.error(
                    f"the condition ties two absent events, ?{absent[0]} and ?{absent[1]}",
                    each.span,
                    "an absence is tested against the events of the match",
                )
            found.append(self.units.in_one_unit(resolved))
        return found if self.window else found + having

    def _check_bindings(self) -> None:
        """Blocks that AND ties are one group, in which a BIND must make a new variable."""
        for blocks in self.query.paths:
            seen: set[str] = set()
            for element in (each for block in blocks for each in block.group.elements):
                if isinstance(element, Bind) and element.variable in seen:
                    self.problems.error(
                        f"?{element.variable} is bound already",
                        element.span,
                        "BIND to another name, and compare the two with FILTER",
                    )
                seen |= set(visible_variables(element))

    def _check_words(self) -> None:
        if self.query.paths:
            streams = [each for streams in self.variables.values() for each in streams]
            prefixes = self.scope.prefixes
            warn_of_unknown_words(self.query.paths, streams, self.catalog, prefixes, self.problems)

    def _check_semantics(self, semantics: tuple[Semantic, ...]) -> None:
        for each in semantics:
            looked_up = [name for name in self.latest if name in each.variables]
            if len(looked_up) > 1:
                first, second = looked_up[:2]
                self.problems.error(
                    f"a PATH ties two LATEST variables together, ?{first} and ?{second}",
                    next((block.span for blocks in self.query.paths for block in blocks), None),
                    f"tie each of them to an event of the match separately: PATH {{ ... ?{first} ... }} "
                    f"PATH {{ ... ?{second} ... }}, with different variables",
                )
            for variable in each.variables:
                if not each.selected:
                    continue
                kind = "a loop" if variable in self.loops else "absent" if variable in self.absent else None
                if kind:
                    name = each.selected[0]
                    self.problems.error(
                        f"?{name} cannot be selected: its PATH is about ?{variable}, which is {kind}",
                        self._column_span(name),
                        "select a PATH variable of an event that is matched once",
                    )

    def _column_span(self, name: str) -> Span | None:
        for column in self.query.select or ():
            if name in path_references(column.expr):
                return column.span or column.expr.span
        return None

    # --- what comes out? ---

    def _columns(self) -> tuple[tuple[OutputColumn, ...], list[Expr]]:
        having = [self.typer.condition(each, "HAVING") for each in self.query.having]
        if self.query.select is None:
            return self._all_columns(), having
        made: list[OutputColumn] = []
        for column, name in zip(self.query.select, self._column_names(self.query.select), strict=True):
            expr = column.expr
            if isinstance(expr, Call) and expr.op in _COMPARISONS and isinstance(expr.args[0], Aggregate):
                having.append(self.typer.condition(expr, "SELECT"))
                expr = expr.args[0]
            made.append(self._column(column, name, expr))
        return tuple(made), having

    def _column(self, column: SelectColumn, name: str, expr: Expr) -> OutputColumn:
        if isinstance(expr, VariableRef) and expr.name in self.paths and expr.name not in self.variables:
            self._check_batch_values(expr)
            return OutputColumn(name, expr, None)
        resolved = self.typer.value(expr)
        many = isinstance(resolved, Field) and resolved.variable in self.loops
        self._check_column(resolved, column.span or expr.span, many)
        return OutputColumn(name, resolved, type_of(resolved), many)

    def _check_batch_values(self, expr: Expr) -> None:
        """What a PATH says of an event has one value for a batch only where that is grouped by."""
        if not self.window or self.window.kind != "batch" or self.nothing is not None:
            return
        for node in walk(expr):
            if isinstance(node, VariableRef) and node not in (*self.query.group_by, *self.query.partition):
                self.problems.error(
                    f"?{node.name} differs between the events of a batch",
                    node.span,
                    f"add GROUP BY ?{node.name}, or use a sliding window: it takes that of the newest event",
                )

    def _check_column(self, expr: Expr, span: Span | None, many: bool) -> None:
        self._check_batch_values(expr)
        for node in _outside_aggregates(expr):
            if isinstance(node, Previous):
                self.problems.error("PREV can only be used in conditions", node.span)
            if not isinstance(node, Field):
                continue
            if node.variable in self.absent:
                self.problems.error(f"?{node.variable} is absent: it has no {node.name}", node.span or span)
            if node.variable in self.loops and not many:
                self.problems.error(
                    f"?{node.variable}.{node.name} has one value for each round of the loop",
                    node.span or span,
                    f"aggregate it, as in LAST(?{node.variable}.{node.name}), or select it by itself",
                )
            if self.window and self.window.kind == "batch" and not self._grouped(node):
                self.problems.error(
                    f"?{node.variable}.{node.name} differs between the events of a batch",
                    node.span or span,
                    f"add GROUP BY ?{node.variable}.{node.name}, or aggregate it",
                )

    def _grouped(self, node: Field) -> bool:
        return any(
            isinstance(each, Field) and each.sources == node.sources for each in self._group_by(quiet=True)
        )

    def _group_by(self, quiet: bool = False) -> tuple[Expr, ...]:
        typer = Typer(self.scope, Problems(None)) if quiet else self.typer
        keys = tuple(
            each if self._is_path_variable(each) else typer.value(each) for each in self.query.group_by
        )
        for key, given in zip(keys, self.query.group_by, strict=True):
            if not quiet and not isinstance(key, Field | VariableRef) and not self.problems.errors:
                what = "GROUP BY takes attributes, and variables of the PATH"
                self.problems.error(what, given.span, "for example ?e.sensorID")
        return keys

    def _column_names(self, columns: Sequence[SelectColumn]) -> list[str]:
        """Named by AS, else by the attribute, else `var.attr` where two clash (semantics 2)."""
        plain = [column.alias or _plain_name(column.expr) for column in columns]
        names: list[str] = []
        for column, name in zip(columns, plain, strict=True):
            if name is None:
                self.problems.error(
                    "this column needs a name", column.span or column.expr.span, "add AS and a name after it"
                )
                name = f"column{len(names) + 1}"
            elif plain.count(name) > 1 and column.alias is None:
                name = f"{_variable_name(column.expr)}.{name}"
            if name in names and column.alias is None and columns[names.index(name)].expr == column.expr:
                self.problems.error(
                    f"{name.rpartition('.')[2]} is selected twice", column.span or column.expr.span
                )
            elif name in names:
                self.problems.error(
                    f"two columns are named {name}", column.span or column.expr.span, "rename one with AS"
                )
            names.append(name)
        return names

    def _all_columns(self) -> tuple[OutputColumn, ...]:
        columns: list[OutputColumn] = []
        shown = [each for each in self.variables if each not in self.absent]
        for variable in shown:
            streams = self.variables[variable]
            names = dict.fromkeys(name for each in streams for name, _ in each.attributes)
            for name in names:
                expr = self.typer.value(Attribute(variable, name))
                label = name if len(shown) == 1 else f"{variable}.{name}"
                if (
                    self.window
                    and self.window.kind == "batch"
                    and not (isinstance(expr, Field) and self._grouped(expr))
                ):
                    continue
                columns.append(OutputColumn(label, expr, type_of(expr), variable in self.loops))
        return tuple(columns)

    # --- the plan ---

    def _chain(self, variable: str, conditions: Iterable[Expr], semantics: Iterable[Semantic]) -> Chain:
        streams = self.variables[variable]
        mentioning = [each for each in semantics if variable in each.variables]
        return Chain(
            variable,
            tuple(each.name for each in streams),
            self._within(),
            bool(mentioning),
            tuple(replace(each, selected=()) for each in mentioning if is_decided_by_one_event(each)),
            tuple(each for each in conditions if _is_filter_of(each, variable)),
        )

    def _semantics(self, wanted: Sequence[str], without: Iterable[str] = ()) -> tuple[Semantic, ...]:
        return semantic_conditions(
            self.query.paths, self.variables, wanted, self.judging, self.latest, tuple(without)
        )

    def _pattern_plan(self, conditions: list[Expr], columns: tuple[OutputColumn, ...]) -> Pattern:
        selected = tuple(dict.fromkeys(name for each in columns for name in path_references(each.expr)))
        every = self._semantics(selected)
        self._check_semantics(every)
        looked_up = [each for each in every if not self.latest.keys().isdisjoint(each.variables)]
        semantics = self._semantics(selected, without=self.latest) if self.latest else every
        plain, latest = self._latest(conditions, looked_up)
        skip = self.query.skip
        if skip and skip.variable is not None and skip.variable not in self.positive:
            hint = did_you_mean(f"?{skip.variable}", [f"?{each}" for each in self.positive])
            self.problems.error(f"?{skip.variable} is not an event of the pattern", skip.span, hint)
        windows = tuple(
            each
            for each in self.query.windows
            if isinstance(each, SpanWindow) and self.latest.keys().isdisjoint(each.variables)
        )
        deadline = self._deadline()
        self._warn_if_unbounded(windows)
        if self.query.match == "next":
            self._warn_of_waiting(plain)
        return Pattern(
            tuple(self._chain(each, plain, semantics) for each in self.places),
            self.streams,
            self.sequence,
            tuple(each for each in plain if not any(_is_filter_of(each, v) for v in self.places)),
            (*_beyond_one_event(semantics), *(each for each in looked_up if self._is_about_absence(each))),
            windows,
            self.query.match or "any",
            skip.mode if skip else "none",
            skip.variable if skip else None,
            self._partition(),
            deadline,
            latest=latest,
            ties=self._ties(),
        )

    def _warn_of_waiting(self, conditions: Iterable[Expr]) -> None:
        """Under MATCH next, "at least so long after" passes over what comes sooner for what is later."""
        order = {name: index for index, name in enumerate(self.places)}
        for each in conditions:
            for later, earlier in _lower_bounds(each):
                if order.get(later, -1) > order.get(earlier, len(order)):
                    self.problems.warn(
                        f"MATCH next does not stop at a ?{later} that comes too early for this condition: "
                        "it skips it and takes a later one",
                        each.span,
                        f"to ask for no such event in that time, write SEQ (?{earlier}, !?{later}) with "
                        f"WINDOW (?{earlier}, ?{later}, DURATION)",
                    )

    # --- LATEST ---

    def _latest(
        self, conditions: Iterable[Expr], semantics: Sequence[Semantic]
    ) -> tuple[list[Expr], tuple[Latest, ...]]:
        """The conditions that the pattern itself decides, and the LATEST variables with all others.

        A condition that mentions a LATEST variable counts by its parts, where && joins them (semantics 2).
        """
        plain: list[Expr] = []
        filters: dict[str, list[Expr]] = {name: [] for name in self.latest}
        keys: dict[str, list[tuple[Expr, Expr]]] = {name: [] for name in self.latest}
        remaining: dict[str, list[Expr]] = {name: [] for name in self.latest}
        for part in (part for each in conditions for part in self._parts(each)):
            named = [name for name in self.latest if name in variables_of(part)]
            key = self._key(part)
            if not named or not variables_of(part).isdisjoint(self.absent):
                plain.append(part)
            elif _is_filter_of(part, named[-1]):
                filters[named[-1]].append(part)
            elif key is not None:
                keys[named[-1]].append(key)
            else:
                remaining[named[-1]].append(part)
        made = tuple(
            self._latest_of(name, filters[name], keys[name], remaining[name], semantics)
            for name in self.latest
        )
        return plain, made

    def _latest_of(
        self,
        name: str,
        filters: Iterable[Expr],
        keys: Iterable[tuple[Expr, Expr]],
        remaining: Iterable[Expr],
        semantics: Iterable[Semantic],
    ) -> Latest:
        mine = [each for each in semantics if name in each.variables]
        bound = {*self.positive, name}
        judged = [found for each in mine if (found := restricted(each, bound)) and name in found.variables]
        spans = [each for each in self.query.windows if isinstance(each, SpanWindow)]
        naming = [each for each in spans if name in each.variables]
        bounded = self.query.within is not None and self.query.within.high is not None
        if not naming and not bounded:
            others = ", ".join(f"?{each}" for each in self.positive[:1])
            self.problems.warn(
                f"no WINDOW names ?{name}: on an endless stream it keeps one event for each key for ever",
                self.latest[name].span,
                f"add WINDOW ({others}, ?{name}, 1h)",
            )
        return Latest(
            name,
            self._chain(name, filters, judged),
            self.latest[name].optional,
            tuple(keys),
            tuple(_beyond_one_event(judged)),
            tuple(remaining),
            tuple(each for each in naming if name == self._last_latest(each.variables)),
        )

    def _last_latest(self, names: Collection[str]) -> str | None:
        return next((each for each in reversed(tuple(self.latest)) if each in names), None)

    def _parts(self, expr: Expr) -> Iterator[Expr]:
        if isinstance(expr, Call) and expr.op == "and" and not variables_of(expr).isdisjoint(self.latest):
            for each in expr.args:
                yield from self._parts(each)
        else:
            yield expr

    def _key(self, expr: Expr) -> tuple[Expr, Expr] | None:
        """An equality with a LATEST variable alone on one side, and single events on the other."""
        if not (isinstance(expr, Call) and expr.op == "="):
            return None
        for own, other in (expr.args, expr.args[::-1]):
            names, others = variables_of(own), variables_of(other)
            single = others and others <= set(self.positive) - self.loops.keys()
            if len(names) == 1 and names <= self.latest.keys() and single:
                return own, other
        return None

    def _is_about_absence(self, condition: Semantic) -> bool:
        return not self.absent.keys().isdisjoint(condition.variables)

    # --- windows of aggregates ---

    def _window_plan(
        self, conditions: list[Expr], columns: tuple[OutputColumn, ...], having: list[Expr]
    ) -> WindowAggregate:
        assert self.window is not None
        expected = self._expected()
        group_by = self._group_by()
        if expected is not None:
            group_by = tuple(VariableRef(each) for each in expected.selected)
        wanted = [*(each.expr for each in columns), *group_by, *having]
        semantics = self._semantics(tuple(dict.fromkeys(n for each in wanted for n in path_references(each))))
        self._check_semantics(semantics)
        (variable,) = self.variables
        chain = self._chain(variable, conditions, semantics)
        constant = tuple(each for each in conditions if not variables_of(each))
        chain = replace(chain, conditions=chain.conditions + constant)
        for each in having:
            self._check_batch_values(each)
        for node in (node for each in having for node in _outside_aggregates(each)):
            if isinstance(node, Field) and self.window.kind == "batch" and not self._grouped(node):
                self.problems.error(
                    f"?{node.variable}.{node.name} differs between the events of a batch",
                    node.span,
                    f"add GROUP BY ?{node.variable}.{node.name}, or aggregate it",
                )
        return WindowAggregate(
            chain,
            self.streams,
            self.window,
            group_by,
            self._partition(),
            tuple(having),
            tuple(_beyond_one_event(semantics)),
            self._ties(),
            expected,
        )

    def _warn_if_unbounded(self, windows: tuple[SpanWindow, ...]) -> None:
        """A pattern of several events that no WINDOW ties together keeps events for ever."""
        if self.query.within is not None and self.query.within.high is not None:
            return
        if span_bound(self.sequence, windows) is None:
            names = ", ".join(f"?{each}" for each in self.positive)
            self.problems.warn(
                f"no WINDOW ties {names} together: on an endless stream they are kept for ever",
                self.query.sequence_span,
                f"add WINDOW ({names}, 5min)",
            )


# --- small questions about queries -------------------------------------------------------------------


def _beyond_one_event(semantics: Iterable[Semantic]) -> Iterator[Semantic]:
    """The PATHs that the chain of one variable does not decide, or that it does not give the values of."""
    return (each for each in semantics if each.selected or not is_decided_by_one_event(each))


def _mentioned_events(query: ChiQuery) -> Iterator[str]:
    """The names that a query without FROM uses as events, SEQ first, then in the order of the clauses."""
    for element in query.sequence or ():
        yield from _element_variables(element)
    exprs = [column.expr for column in query.select or ()]
    exprs += [each.expr for each in query.conditions]
    exprs += [*query.having, *query.partition, *query.group_by]
    for expr in exprs:
        for node in walk(expr):
            if isinstance(node, Attribute | Concept) or (isinstance(node, Aggregate) and node.variable):
                yield node.variable or ""
    for window in query.windows:
        yield from (window.variable,) if isinstance(window, AggregateWindow) else window.variables


def _element_variables(element: Element) -> Iterator[str]:
    match element:
        case Place() | Loop():
            yield element.variable
        case Absent():
            yield from _element_variables(element.of)
        case Choice() | Together():
            for each in element.members:
                yield from _element_variables(each)


def _trailing_absences(sequence: tuple[Element, ...]) -> list[tuple[int, Absent]]:
    return [
        (index, element)
        for index, element in enumerate(sequence)
        if isinstance(element, Absent)
        and isinstance(element.of, Place)
        and all(may_be_left_out(each) for each in sequence[index + 1 :])
    ]


def _is_filter_of(expr: Expr, variable: str) -> bool:
    """Whether one event of the variable decides the condition by itself."""
    if variables_of(expr) != {variable}:
        return False
    return not any(isinstance(node, Aggregate | Previous) for node in walk(expr))


def _outside_aggregates(expr: Expr) -> Iterator[Expr]:
    yield expr
    if not isinstance(expr, Aggregate):
        for child in expr.children():
            yield from _outside_aggregates(child)


def _plain_name(expr: Expr) -> str | None:
    match expr:
        case Attribute() | VariableRef():
            return expr.name
        case Concept():
            return expr.iri.local
    return None


def _variable_name(expr: Expr) -> str:
    return expr.variable if isinstance(expr, Attribute | Concept) else ""


def _is_null(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value is None


def _lower_bounds(condition: Expr) -> Iterator[tuple[str, str]]:
    """The pairs of events of which the first must come so long after the second: `?b.ts - ?a.ts > 2min`."""
    if not isinstance(condition, Call):
        return
    if condition.op == "and":
        for each in condition.args:
            yield from _lower_bounds(each)
    elif condition.op in (">", ">=", "<", "<="):
        greater, smaller = condition.args if condition.op[0] == ">" else reversed(condition.args)
        signs = [*_times(greater, 1), *_times(smaller, -1)]
        plus, minus = ({name for name, sign in signs if sign == each} for each in (1, -1))
        yield from ((later, earlier) for later in sorted(plus) for earlier in sorted(minus))


def _times(expr: Expr, sign: int) -> Iterator[tuple[str, int]]:
    """The events whose time is added in an expression, or subtracted."""
    if isinstance(expr, Field) and type_of(expr) is Type.TIMESTAMP:
        yield expr.variable, sign
    elif isinstance(expr, Call) and expr.op in ("+", "-"):
        yield from _times(expr.args[0], sign)
        for each in expr.args[1:]:
            yield from _times(each, sign if expr.op == "+" else -sign)
