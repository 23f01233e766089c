"""A query as one Spark SQL query over the archive's tables: section 5.2 of the SCEPter paper, for any size.

`events` are the rows of all streams of the query, each with its place in the order. Every variable is a
table of the events that it may take (rule 1); a match is a join of them (rule 2) on times (rules 3 and 4).
Beyond the paper: a PATH is a join with the table of the values for which it holds (`Relation`), absence is
NOT EXISTS, strict contiguity a join on the numbers of rows, a sliding window a frame over a range of time.
Rule 5, the order of the answer, is kept when matches are written down: they are sorted by end and id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kaicep.archive.as_sparql import (
    HAS_TIME,
    Applied,
    AskedPattern,
    EventSlot,
    SlotAbsence,
    SlotPath,
    asked,
    check_group,
    refusal,
    refuse_unsayable,
    window_slot,
)
from kaicep.plan.catalog import Catalog
from kaicep.plan.expressions import Expr, Field, walk
from kaicep.plan.nodes import ChiPlan, EpPlan, Interval, Pattern, QueryPlan, Semantic
from kaicep.plan.operators import SQL_TYPES, constant_sql, expression_sql, name_sql
from kaicep.plan.types import Type

OWN = ("_place", "_part", "_seq", "_ts")
"""What every event has, besides its attributes: its stream's place, its identity, its time."""

MEMBERS = "_members"
"""The column with the events of a window."""

_ORDER = "_ts, _place, _part, _seq"


@dataclass(frozen=True)
class PathTable:
    """The values for which a PATH holds, as a table: by variable the `place` of the stream and attributes.

    Its last column, `solution`, is the number of a solution: 0 where nothing is selected.
    """

    name: str
    semantic: Semantic
    attributes: Mapping[str, tuple[str, ...]]
    streams: Mapping[str, tuple[str, ...]]

    def columns(self) -> tuple[str, ...]:
        """The columns that an event is looked up by."""
        return tuple(
            f"{variable}.{name}"
            for variable in self.semantic.variables
            for name in ("_place", *self.attributes[variable])
        )


@dataclass(frozen=True)
class RewrittenSql:
    """A query as SQL, and what its answer has.

    For a pattern, `{slot}.{column}` of every slot's event; for a window, the event that triggers it, or none,
    and its `MEMBERS`. For each table of a PATH with selected variables, the number of a solution.
    """

    plan: ChiPlan
    text: str
    streams: tuple[str, ...]
    attributes: tuple[str, ...]
    slots: tuple[EventSlot, ...]
    paths: tuple[PathTable, ...]
    asked: AskedPattern | None = None

    @property
    def selected(self) -> tuple[PathTable, ...]:
        """The tables whose solutions are part of the answer."""
        return tuple(each for each in self.paths if each.semantic.selected)


def rewrite_to_sql(plan: QueryPlan, catalog: Catalog, as_seen: bool = False) -> RewrittenSql:
    """An optimised chi-CEP query as one Spark SQL query; `Unsupported` with the reason where it cannot be."""
    if isinstance(plan, EpPlan):
        raise refusal(plan, "what EP-SPARQL says: intervals are not in the tables")
    refuse_unsayable(plan)
    writer = _SqlWriter(plan, catalog, as_seen)
    return writer.pattern(asked(plan)) if isinstance(plan.body, Pattern) else writer.window()


class _SqlWriter:
    """Writes one query."""

    def __init__(self, plan: ChiPlan, catalog: Catalog, as_seen: bool) -> None:
        self.plan, self.node, self.catalog, self.as_seen = plan, plan.body, catalog, as_seen
        self.streams = self.node.streams
        for name in self.streams:
            if catalog.streams[name].derived or catalog.streams[name].rdf:
                raise refusal(plan, f"what {name} is: not a table of records")
        self.paths: list[PathTable] = []
        self.attributes = tuple(dict.fromkeys(self._read()))
        if taken := {*OWN, "_row", "_late", MEMBERS, "_window"}.intersection(self.attributes):
            raise refusal(plan, f"an attribute that is called {min(taken)}")
        self.keys = [f"_key{number}" for number in range(len(self.node.partition))]

    def _read(self) -> Iterator[str]:
        """The attributes that the query reads of any stream."""
        exprs = [*self.node.partition, *(each.expr for each in self.plan.columns)]
        exprs += [each for chain in self.node.chains for each in chain.conditions]
        if isinstance(self.node, Pattern):
            exprs += self.node.conditions
        else:
            exprs += [*self.node.having, *self.node.group_by]
        for semantic in self.node.all_semantics:
            yield from (name for each in self._path_attributes(semantic).values() for name in each)
        for expr in exprs:
            for each in walk(expr):
                if isinstance(each, Field):
                    yield from (name for _, read in each.sources for name in read if name != "ts")

    def _path_attributes(self, semantic: Semantic) -> dict[str, tuple[str, ...]]:
        """The attributes by which a PATH is decided, for each of its variables."""
        if semantic.relation is None:
            return self._graph_attributes(semantic)
        read: dict[str, dict[str, None]] = {each: {} for each in semantic.variables}
        for root in semantic.relation.roots:
            for stream, names in (*root.literals, *root.entities):
                own = self.catalog.streams[stream].reads(*names)
                read[root.variable].update(dict.fromkeys(each for each in own if each != "ts"))
        return {variable: tuple(names) for variable, names in read.items()}

    def _graph_attributes(self, semantic: Semantic) -> dict[str, tuple[str, ...]]:
        """All that makes the graph of an event, where a PATH is decided by that as a whole."""
        for group in semantic.alternatives:
            check_group(self.plan, group, semantic)
            if HAS_TIME.value in str(group):
                raise refusal(self.plan, "a PATH about the time of an event")
        chains = {each.variable: each for each in self.node.chains}
        found: dict[str, tuple[str, ...]] = {}
        for variable in semantic.variables:
            streams = [self.catalog.streams[name] for name in chains[variable].streams]
            names = [name for each in streams for name in each.graph_attributes]
            if any(each.time in names for each in streams):
                raise refusal(self.plan, "a PATH about the time of an event")
            found[variable] = tuple(dict.fromkeys(names))
        return found

    # --- the events of all streams ---

    def _events(self, within: Interval | None, numbered: bool) -> Iterator[str]:
        """The table of all events; with a number of each in its partition where neighbours matter."""
        rows = []
        for place, name in enumerate(self.streams):
            known = dict(self.catalog.streams[name].attributes)
            cells = [f"{place} AS _place", "_part", "_seq", "unix_micros(ts) AS _ts"]
            cells += [f"{self._cell(each, known)} AS {name_sql(each)}" for each in self.attributes]
            seen = " WHERE NOT _late" if self.as_seen else ""
            rows.append(f"SELECT {', '.join(cells)} FROM {name_sql(name)}{seen}")
        text = " UNION ALL ".join(rows)
        more = [
            f"{self._expression(each, '')} AS {key}"
            for key, each in zip(self.keys, self.node.partition, strict=True)
        ]
        bounds = list(_within(within or Interval(), ""))
        where = f" WHERE {' AND '.join(bounds)}" if bounds else ""
        if more or where:
            text = f"SELECT {', '.join(['*', *more])} FROM ({text}){where}"
        if numbered:
            number = f"row_number() OVER (PARTITION BY {self._partition()} ORDER BY {_ORDER}) AS _row"
            text = f"SELECT *, {number} FROM ({text})"
        yield f"_events AS ({text})"

    def _cell(self, attribute: str, known: Mapping[str, Type]) -> str:
        if attribute not in known:
            return "NULL"
        name = name_sql(attribute)
        return f"unix_micros({name})" if known[attribute] is Type.TIMESTAMP else name

    def _partition(self) -> str:
        return ", ".join(self.keys) or "0"

    def _variable(
        self, slot: EventSlot, filters: Sequence[Expr], paths: Sequence[Semantic], more: str = ""
    ) -> str:
        """The table of the events that a variable may take."""
        tests: list[str] = []
        places = [self.streams.index(each) for each in slot.streams]
        if len(places) < len(self.streams):
            tests.append(f"_place IN ({', '.join(map(str, places))})")
        tests += _within(slot.within, "_events")
        tests += [self._expression(each, "_events") for each in filters]
        joins = [
            f" LEFT SEMI JOIN {table.name} ON {self._known(table, {slot.variable: '_events'})}"
            for table in (self._table(each, {slot.variable: slot.streams}) for each in paths)
        ]
        where = f" WHERE {' AND '.join(tests)}" if tests else ""
        return f"{name_sql(slot.variable)} AS (SELECT _events.*{more} FROM _events{''.join(joins)}{where})"

    def _table(self, semantic: Semantic, streams: Mapping[str, tuple[str, ...]]) -> PathTable:
        attributes = self._path_attributes(semantic)
        for each in self.paths:
            if each.semantic == semantic and each.streams == streams:
                return each
        made = PathTable(f"_path{len(self.paths) + 1}", semantic, attributes, dict(streams))
        self.paths.append(made)
        return made

    def _known(self, table: PathTable, aliases: Mapping[str, str]) -> str:
        """Whether a table has the values of some events."""
        tests = [
            f"{aliases[variable]}.{name_sql(name)} <=> {table.name}.{name_sql(f'{variable}.{name}')}"
            for variable in table.semantic.variables
            for name in ("_place", *table.attributes[variable])
        ]
        return " AND ".join(tests) or "TRUE"

    # --- patterns ---

    def pattern(self, question: AskedPattern) -> RewrittenSql:
        """Rules 1 to 4, and what goes beyond them."""
        withins = {each.within for each in question.slots}
        tables = list(self._events(withins.pop() if len(withins) == 1 else None, bool(question.adjacent)))
        single: dict[str, EventSlot] = {}
        for each in question.slots:
            single.setdefault(each.variable, each)
        own: dict[str, list[Expr]] = {each: [] for each in single}
        between: list[Applied] = []
        for applied in question.conditions:
            alone = set(applied.slots) if not applied.previous else set()
            if len(alone) == 1:
                (variable,) = alone
                own[variable] += [] if applied.expr in own[variable] else [applied.expr]
            else:
                between.append(applied)
        semi: dict[str, list[Semantic]] = {each: [] for each in single}
        joined: list[SlotPath] = []
        for path in question.paths:
            if len(path.slots) == 1 and not path.semantic.selected:
                (variable,) = path.slots
                semi[variable] += [] if path.semantic in semi[variable] else [path.semantic]
            else:
                joined.append(path)
        for variable, slot in single.items():
            tables.append(self._variable(slot, own[variable], semi[variable]))
        lines = self._joined(question, between)
        for number, path in enumerate(joined):
            lines.append(self._path_join(question, path, number))
        absent = [self._absence(each, question, tables) for each in question.absences]
        where = f"WHERE {' AND '.join(absent)}" if absent else ""
        return self._written(question, tables, lines, where, joined)

    def _written(
        self,
        question: AskedPattern,
        tables: list[str],
        lines: list[str],
        where: str,
        joined: Sequence[SlotPath],
    ) -> RewrittenSql:
        shown = [
            f"{name_sql(slot.name)}.{name_sql(each)} AS {name_sql(f'{slot.name}.{each}')}"
            for slot in question.slots
            for each in (*OWN, *self.attributes)
        ]
        shown += [
            f"_joined{number}.solution AS {self._table_of(path, question).name}"
            for number, path in enumerate(joined)
            if path.semantic.selected
        ]
        text = _statement(tables, shown, lines, where)
        return RewrittenSql(
            self.plan, text, self.streams, self.attributes, question.slots, tuple(self.paths), question
        )

    def _joined(self, question: AskedPattern, conditions: Sequence[Applied]) -> list[str]:
        """The slots, each joined with those before it on all that can be told by then."""
        lines: list[str] = []
        bound: set[str] = set()
        for slot in question.slots:
            before, bound = set(bound), {*bound, slot.name}
            table = f"{name_sql(slot.variable)} AS {name_sql(slot.name)}"
            if not before:
                lines.append(f"FROM {table}")
                continue
            tests = list(self._due(question, conditions, before, bound))
            tests += [f"{name_sql(min(before))}.{key} <=> {name_sql(slot.name)}.{key}" for key in self.keys]
            lines.append(f"JOIN {table} ON {' AND '.join(tests) or 'TRUE'}")
        return lines

    def _due(
        self, question: AskedPattern, conditions: Sequence[Applied], before: set[str], bound: set[str]
    ) -> Iterator[str]:
        def due(*names: str) -> bool:
            return bound.issuperset(names) and not before.issuperset(names)

        for each in conditions:
            if due(*each.slots.values(), *each.previous.values()):
                yield self._applied(each)
        for first, then in question.earlier:
            if due(first, then):
                yield f"{name_sql(first)}._ts < {name_sql(then)}._ts"
        for first, then in question.adjacent:
            if due(first, then):
                yield f"{name_sql(then)}._row = {name_sql(first)}._row + 1"
        for one, other in question.apart:
            if due(one, other):
                yield f"NOT ({_identity(one)} = {_identity(other)})"
        for first, last, width in question.spans:
            if due(first, last):
                yield f"{name_sql(last)}._ts - {name_sql(first)}._ts <= {width}L"

    def _table_of(self, path: SlotPath, question: AskedPattern) -> PathTable:
        streams = {each.variable: each.streams for each in question.slots}
        return self._table(path.semantic, {each: streams[each] for each in path.semantic.variables})

    def _path_join(self, question: AskedPattern, path: SlotPath, number: int) -> str:
        """A PATH between several events, or one whose solutions are selected."""
        table = self._table_of(path, question)
        aliases = {variable: name_sql(slot) for variable, slot in path.slots.items()}
        kind = "JOIN" if path.semantic.selected else "LEFT SEMI JOIN"
        known = self._known(table, aliases).replace(f"{table.name}.", f"_joined{number}.")
        return f"{kind} {table.name} AS _joined{number} ON {known}"

    def _absence(self, absence: SlotAbsence, question: AskedPattern, tables: list[str]) -> str:
        """No such event between its neighbours, or up to the deadline."""
        slot, name = absence.slot, name_sql(absence.slot.name)
        if any(len(path.slots) > 1 for path in absence.paths):
            raise refusal(self.plan, "a PATH that ties an absent event to others")
        own = [each.expr for each in absence.conditions if set(each.slots) == {slot.variable}]
        tables.append(self._variable(slot, own, [path.semantic for path in absence.paths]))
        first = name_sql(question.slots[0].name)
        tests = [f"{first}.{key} <=> {name}.{key}" for key in self.keys]
        tests += [self._applied(each) for each in absence.conditions if set(each.slots) != {slot.variable}]
        tests += [f"{_place(each)} < {_place(slot.name)}" for each in absence.after]
        tests += [f"{_place(slot.name)} < {_place(each)}" for each in absence.before]
        if absence.width is not None:
            times = ", ".join(f"{name_sql(each)}._ts" for each in absence.first)
            earliest = f"least({times})" if len(absence.first) > 1 else times
            tests.append(f"{name}._ts - {earliest} <= {absence.width}L")
        return f"NOT EXISTS (SELECT 1 FROM {name} WHERE {' AND '.join(tests)})"

    # --- windows ---

    def window(self) -> RewrittenSql:
        """Every event with those in its window; or the events of each batch together."""
        node, slot, filters, paths = window_slot(self.plan)
        width = node.window.width
        assert width is not None
        number = f", row_number() OVER (PARTITION BY {self._partition()} ORDER BY {_ORDER}) AS _row"
        # What is selected has to hold of the members, too.
        every = [*paths, *node.semantics]
        tables = [*self._events(slot.within, False), self._variable(slot, filters, every, number)]
        member = f"struct({', '.join([*OWN, '_row', *map(name_sql, self.attributes)])})"
        variable = name_sql(slot.variable)
        columns = [*OWN, *map(name_sql, self.attributes)]
        if node.window.kind == "sliding":
            frame = f"ORDER BY _ts RANGE BETWEEN {width - 1} PRECEDING AND CURRENT ROW"
            window = f"collect_list({member}) OVER (PARTITION BY {self._partition()} {frame}) AS _window"
            tables.append(f"_windows AS (SELECT *, {window} FROM {variable})")
            # A frame ends with all events of its last instant, and a window with its own event.
            shown = [f"_windows.{each}" for each in columns]
            shown.append(f"filter(_window, each -> each._row <= _windows._row) AS {MEMBERS}")
            lines = ["FROM _windows"]
            for semantic in node.semantics:
                table = self._table(semantic, {slot.variable: slot.streams})
                shown.append(f"{table.name}.solution AS {table.name}")
                lines.append(f"JOIN {table.name} ON {self._known(table, {slot.variable: '_windows'})}")
            text = _statement(tables, shown, lines, "")
        else:
            by = [f"_ts - pmod(_ts, {width}L)", *self.keys]
            by += [self._expression(each, variable) for each in node.group_by]
            lines = [f"FROM {variable}"]
            text = _statement(
                tables, [f"collect_list({member}) AS {MEMBERS}"], lines, f"GROUP BY {', '.join(by)}"
            )
        return RewrittenSql(self.plan, text, self.streams, self.attributes, (slot,), tuple(self.paths))

    # --- expressions ---

    def _applied(self, applied: Applied) -> str:
        def value(found: Field, previous: bool) -> str:
            places = applied.previous if previous else applied.slots
            return self._field(found, name_sql(places[found.variable]))

        return expression_sql(applied.expr, value, self.plan.name)

    def _expression(self, expr: Expr, alias: str) -> str:
        """An expression about one event, whichever variable it names."""
        return expression_sql(expr, lambda found, _: self._field(found, alias), self.plan.name)

    def _field(self, field: Field, alias: str) -> str:
        """An attribute of an event: by stream the first of its names that is not null."""
        if field.type is None:
            raise refusal(self.plan, f"{field.name}, whose type is not known")
        dot = f"{alias}." if alias else ""
        ways: dict[str, list[int]] = {}
        for stream, names in field.sources:
            if stream in self.streams:
                cells = [f"{dot}_ts" if each == "ts" else f"{dot}{name_sql(each)}" for each in names]
                text = (
                    "NULL" if not cells else cells[0] if len(cells) == 1 else f"coalesce({', '.join(cells)})"
                )
                ways.setdefault(text, []).append(self.streams.index(stream))
        if len(ways) == 1:
            (text,) = ways
        else:
            cases = [
                f"WHEN {dot}_place IN ({', '.join(map(str, places))}) THEN {way}"
                for way, places in ways.items()
            ]
            text = f"CASE {' '.join(cases)} END" if cases else "NULL"
        return text if self._is_plain(field) else f"CAST({text} AS {SQL_TYPES[field.type]})"

    def _is_plain(self, field: Field) -> bool:
        """Whether every stream holds the attribute as the type that the query takes it for."""
        types = {
            dict(self.catalog.streams[stream].attributes).get(name, field.type)
            for stream, names in field.sources
            for name in names
            if name != "ts" and stream in self.streams
        }
        return bool(types) and types == {field.type}


def _statement(tables: Sequence[str], shown: Sequence[str], lines: Sequence[str], rest: str) -> str:
    below = ",\n".join(f"  {each}" for each in tables)
    columns = ",\n  ".join(shown)
    return "\n".join([f"WITH\n{below}", f"SELECT\n  {columns}", *lines, *((rest,) if rest else ())]) + "\n"


def _within(within: Interval, alias: str) -> Iterator[str]:
    dot = f"{alias}." if alias else ""
    if within.low is not None:
        yield f"{dot}_ts {'>=' if within.low_inclusive else '>'} {constant_sql(within.low, Type.TIMESTAMP)}"
    if within.high is not None:
        yield f"{dot}_ts {'<=' if within.high_inclusive else '<'} {constant_sql(within.high, Type.TIMESTAMP)}"


def _identity(slot: str) -> str:
    name = name_sql(slot)
    return f"struct({name}._place, {name}._part, {name}._seq)"


def _place(slot: str) -> str:
    """The place of an event in the order."""
    name = name_sql(slot)
    return f"struct({name}._ts, {name}._place, {name}._part, {name}._seq)"
