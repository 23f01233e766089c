"""One query for each construct of chi-CEP, as data: what `constructs` measures, for tests and pages too.

All are about data set A (`bench.data`), in which a sensor reports every twenty seconds on average, a flow
rate is anything below 1,000, and every five sensors are in one room. They are keyed by sensor or by room, so
that a data set with fewer sensors and proportionally fewer events a second has as many matches an event. The
levels are chosen for about one match in ten events, by a search on A with the windows as they stand here: a
window and its level are changed together.

A query with a second stream has every other event of A as a `command`, by which somebody sets a sensor's
level. `epl` is what Esper is asked instead, where it has the construct.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kaicep_bench.pattern import query3
from kaicep_bench.queries import SHAPES

__all__ = ["CONSTRUCTS", "REFERENCE_ROW", "Construct"]

REFERENCE_ROW = "query 3 any"
"""The construct that the speeds of all others are given as multiples of."""

# A time window of Esper excludes its bound, as a sliding window does; a WINDOW around a pattern includes it.
_FIVE_MINUTES = "300 seconds 1 microseconds"
_OUT = "@name('out') "


@dataclass(frozen=True)
class Construct:
    """A construct of the language, a query that uses it, and what that query needs."""

    group: str
    name: str
    text: str
    beside: Mapping[str, str] = field(default_factory=dict)
    """The queries that run in the same engine, by name: it may read their matches."""
    all_count: bool = False
    """Whether the matches of those are counted as well."""
    commands: bool = False
    """Whether it reads the second stream."""
    changes: str | None = None
    """How the knowledge changes while the stream runs: "always" what is added holds from the beginning of
    time, "from now" it holds from that instant on."""
    epl: str | None = None

    @property
    def texts(self) -> dict[str, str]:
        """All queries by name; the construct's own is the last and is called `query`."""
        return {**self.beside, "query": self.text}

    @property
    def asks_the_knowledge(self) -> bool:
        """Whether there is a PATH in it."""
        return "PATH {" in self.text


# --- texts that come back ---------------------------------------------------------------------------------

_SAME_ROOM = """PATH {?a evt:hasSource/bd:hasLocation ?room . ?b evt:hasSource/bd:hasLocation ?room}"""
_IN_DEPARTMENT = """PATH {?e evt:hasSource/bd:hasLocation ?room . ?room bd:belongsTo org:D0}"""


def _pair(levels: str, end: str = "WINDOW (?a, ?b, 5min)", start: str = "?a.sensorID") -> str:
    """Two events of a sensor, one after the other."""
    return f"SELECT {start}, ?b.flowrate\n{levels}\nJOIN (?b.sensorID = ?a.sensorID)\nSEQ (?a, ?b)\n{end}"


def _loop(conditions: str, match: str, rounds: str = "?b+", after: str = "", extra: str = "") -> str:
    """An event of a sensor and a loop of others after it."""
    lines = (
        f"SELECT ?a.sensorID, LAST(?b.flowrate) AS reached{extra}",
        conditions,
        f"SEQ (?a, {rounds})",
        f"MATCH {match}",
        "WINDOW (?a, ?b, 5min)",
        "PARTITION BY ?a.sensorID",
        after,
    )
    return "\n".join(line for line in lines if line)


def _joined(level: float, condition: str, window: str = _FIVE_MINUTES) -> str:
    """What Esper is asked for two events of a sensor: a keyed join, which is how one tunes it."""
    return (
        f"{_OUT}select a.sensorID, a.index, b.index, b.flowrate from Report as b unidirectional, "
        f"Report(flowrate > {level})#time({window}) as a where a.sensorID = b.sensorID and {condition};"
    )


def _recognised(pattern: str, define: str, measures: str = "A.index as head") -> str:
    """What Esper is asked for events of a sensor that follow each other immediately."""
    return (
        f"{_OUT}select * from Report#time({_FIVE_MINUTES}) match_recognize (partition by sensorID "
        f"measures {measures} all matches after match skip to current row "
        f"pattern ({pattern}) define {define});"
    )


# --- events, steps, knowledge -----------------------------------------------------------------------------


def _steps() -> Iterator[Construct]:
    yield Construct(
        "events",
        "filter",
        "SELECT ?e.sensorID, ?e.flowrate FILTER (?e.flowrate > 900)",
        epl=f"{_OUT}select sensorID, index, flowrate from Report(flowrate > 900);",
    )
    yield Construct("events", "semantic filter", f"SELECT ?e.sensorID, ?e.flowrate\n{_IN_DEPARTMENT}")
    yield Construct(
        "events",
        "semantic filter, value of the knowledge",
        """SELECT ?e.sensorID
PATH {?e hvc:airflow ?rate . hvc:Highest hvc:hasValue ?limit . FILTER (?rate > ?limit)}""",
    )
    yield Construct(
        "events",
        "PATH variable in a condition",
        """SELECT ?e.sensorID
FILTER (?e.flowrate > ?limit)
PATH {hvc:Highest hvc:hasValue ?limit}""",
    )
    yield Construct(
        "events",
        "selected PATH variable",
        """SELECT ?e.sensorID, ?room
FILTER (?e.flowrate > 900)
PATH {?e evt:hasSource/bd:hasLocation ?room}""",
    )
    yield Construct(
        "steps",
        "two steps",
        _pair("FILTER (?a.flowrate > 825)\nJOIN (?b.flowrate - ?a.flowrate > 50)"),
        epl=_joined(825, "b.flowrate - a.flowrate > 50"),
    )
    yield Construct(
        "steps",
        "three steps",
        """SELECT ?a.sensorID, ?c.flowrate
FILTER (?a.flowrate > 808)
JOIN (?b.sensorID = ?a.sensorID) JOIN (?c.sensorID = ?a.sensorID)
JOIN (?b.flowrate > ?a.flowrate) JOIN (?c.flowrate > ?b.flowrate)
SEQ (?a, ?b, ?c)
WINDOW (?a, ?c, 5min)""",
        epl=f"{_OUT}select a.sensorID, a.index, b.index, c.index, c.flowrate "
        f"from Report as c unidirectional, Report(flowrate > 808)#time({_FIVE_MINUTES}) as a, "
        f"Report(flowrate > 808)#time({_FIVE_MINUTES}) as b where a.sensorID = c.sensorID "
        "and b.sensorID = c.sensorID and b.index > a.index and c.index > b.index "
        "and b.flowrate > a.flowrate and c.flowrate > b.flowrate;",
    )
    yield Construct(
        "steps",
        "PATH over two events",
        f"""SELECT ?a.sensorID, ?b.sensorID AS other
FILTER (?a.flowrate > 887)
JOIN (?b.flowrate - ?a.flowrate > 50) JOIN (?b.sensorID != ?a.sensorID)
SEQ (?a, ?b)
WINDOW (?a, ?b, 5min)
{_SAME_ROOM}""",
    )
    yield Construct(
        "steps",
        "PATH over two events, its variable selected",
        f"""SELECT ?a.sensorID, ?b.sensorID AS other, ?room
FILTER (?a.flowrate > 894)
JOIN (?b.flowrate - ?a.flowrate > 50)
SEQ (?a, ?b)
WINDOW (?a, ?b, 5min)
{_SAME_ROOM}""",
    )
    yield Construct(
        "steps",
        "PARTITION BY a PATH variable",
        f"""SELECT ?room, ?a.sensorID, ?b.sensorID AS other
FILTER (?a.flowrate > 894)
JOIN (?b.flowrate - ?a.flowrate > 50)
SEQ (?a, ?b)
WINDOW (?a, ?b, 5min)
{_SAME_ROOM}
PARTITION BY ?room""",
    )
    yield Construct(
        "steps",
        "conjunction",
        """SELECT ?b.sensorID, ?b.flowrate, ?c.flowrate AS low
FILTER (?b.flowrate > 910) FILTER (?c.flowrate < 50)
JOIN (?b.sensorID = ?c.sensorID)
WINDOW (?b, ?c, 5min)""",
    )
    yield Construct(
        "steps",
        "conjunction after a step",
        """SELECT ?a.sensorID, ?b.flowrate, ?c.flowrate AS low
FILTER (?a.flowrate > 900) FILTER (?b.flowrate > 900) FILTER (?c.flowrate < 60)
SEQ (?a, (?b & ?c))
WINDOW (?a, ?b, ?c, 5min)
PARTITION BY ?a.sensorID""",
    )
    yield Construct(
        "steps",
        "disjunction",
        """SELECT ?a.sensorID, ?b.flowrate, ?c.flowrate AS low
FILTER (?a.flowrate > 900) FILTER (?b.flowrate > 960) FILTER (?c.flowrate < 40)
SEQ (?a, (?b | ?c))
WINDOW (?a, ?b, ?c, 5min)
PARTITION BY ?a.sensorID""",
        epl="@name('out') select a.sensorID, a.index, b.index, b.flowrate from Report(flowrate > 960 or "
        f"flowrate < 40) as b unidirectional, Report(flowrate > 900)#time({_FIVE_MINUTES}) as a "
        "where a.sensorID = b.sensorID and a.index < b.index;",
    )


# --- loops, absence, strategies ---------------------------------------------------------------------------


def _loops() -> Iterator[Construct]:
    plain = "FILTER (?a.flowrate > {}) FILTER (?b.flowrate > {})".format
    rising = "JOIN (?b.flowrate > ?a.flowrate)\nFILTER (?b.flowrate > PREV(?b.flowrate))"
    yield Construct("loops", "b+, any", _loop(plain(960, 900), "any"))
    yield Construct("loops", "b+, next", _loop(plain(910, 910), "next"))
    yield Construct(
        "loops",
        "b+, strict",
        _loop(plain(800, 667), "strict"),
        epl=_recognised("A B+", "A as A.flowrate > 800, B as B.flowrate > 667"),
    )
    yield Construct(
        "loops",
        "b{2,4}, strict",
        _loop(plain(500, 630), "strict", "?b{2,4}"),
    )
    yield Construct("loops", "b?, next", _loop("FILTER (?a.flowrate > 922)\n" + rising, "next", "?b?, ?c"))
    yield Construct(
        "loops",
        "b+ with PREV",
        _loop("FILTER (?a.flowrate > 585)\n" + rising, "strict"),
        epl=_recognised(
            "A B+",
            "A as A.flowrate > 585, B as B.flowrate > prev(B.flowrate, 1)",
        ),
    )
    yield Construct("loops", "b+ with PREV, next", _loop("FILTER (?a.flowrate > 850)\n" + rising, "next"))
    yield Construct(
        "loops",
        "b+ with AVG and COUNT",
        _loop(
            "FILTER (?a.flowrate > 600) FILTER (?b.flowrate > 500)\n"
            "JOIN (AVG(?b.flowrate) > ?a.flowrate + 60)",
            "strict",
            extra=", COUNT(?b) AS rounds",
        ),
    )
    yield Construct(
        "loops",
        "b+ with SUM, MIN and MAX",
        _loop(
            "FILTER (?a.flowrate > 200) FILTER (?b.flowrate > 400)",
            "strict",
            "?b{2,}",
            "HAVING (SUM(?b.flowrate) > 1800 && MIN(?b.flowrate) > ?a.flowrate && MAX(?b.flowrate) < 950)",
        ),
    )


def _absence() -> Iterator[Construct]:
    yield Construct(
        "absence",
        "between",
        """SELECT ?a.sensorID, ?c.flowrate
FILTER (?a.flowrate > 775) FILTER (?n.flowrate < 500) FILTER (?c.flowrate > 775)
SEQ (?a, !?n, ?c)
WINDOW (?a, ?c, 5min)
PARTITION BY ?a.sensorID""",
        epl=f"{_OUT}select a.sensorID, a.index, c.index, c.flowrate "
        f"from pattern [every a=Report(flowrate > 775) -> "
        f"(every c=Report(flowrate > 775, sensorID = a.sensorID) where timer:within({_FIVE_MINUTES}) "
        "and not Report(flowrate < 500, sensorID = a.sensorID))];",
    )
    yield Construct(
        "absence",
        "at the end",
        """SELECT ?a.sensorID, ?a.flowrate
SEQ (?a, !?n)
WINDOW (?a, ?n, 45s)
PARTITION BY ?a.sensorID""",
        epl=f"{_OUT}select a.sensorID, a.index, a.flowrate from pattern [every a=Report -> "
        "(timer:interval(45 seconds 1 microseconds) and not Report(sensorID = a.sensorID))];",
    )


def _strategies() -> Iterator[Construct]:
    rise = "FILTER (?a.flowrate > {})\nJOIN (?b.flowrate - ?a.flowrate > 50)".format
    yield Construct(
        "MATCH",
        "any",
        _pair(rise(825), "MATCH any\nWINDOW (?a, ?b, 5min)"),
        epl=_joined(825, "b.flowrate - a.flowrate > 50"),
    )
    yield Construct(
        "MATCH",
        "next",
        _pair(rise(770), "MATCH next\nWINDOW (?a, ?b, 5min)"),
        epl=f"create window Waiting#time({_FIVE_MINUTES}) as Report;create index Keyed on Waiting (sensorID);"
        f"{_OUT}on Report as b select and delete a.sensorID, a.index, b.index, b.flowrate from Waiting as a "
        "where a.sensorID = b.sensorID and b.flowrate - a.flowrate > 50;"
        "insert into Waiting select * from Report(flowrate > 770);",
    )
    yield Construct(
        "MATCH",
        "strict",
        """SELECT ?a.sensorID, ?b.flowrate
FILTER (?a.flowrate > 500)
JOIN (?b.flowrate - ?a.flowrate > 50)
SEQ (?a, ?b)
MATCH strict
WINDOW (?a, ?b, 5min)
PARTITION BY ?a.sensorID""",
        epl=_recognised("A B", "A as A.flowrate > 500, B as B.flowrate - A.flowrate > 50"),
    )
    levels = {
        "NO SKIP": (910, 910),
        "SKIP TO NEXT": (880, 850),
        "SKIP PAST LAST": (800, 800),
        "SKIP TO FIRST ?b": (880, 850),
        "SKIP TO LAST ?b": (860, 860),
    }
    for mode, (first, others) in levels.items():
        conditions = f"FILTER (?a.flowrate > {first}) FILTER (?b.flowrate > {others})"
        yield Construct("AFTER MATCH", mode, _loop(conditions, "next", after=f"AFTER MATCH {mode}"))


# --- windows ----------------------------------------------------------------------------------------------

_FLOW = "?e.flowrate"
# By aggregate, the one in ten values that a sliding window of 5 minutes, and one of ten events, is asked for.
_SLIDING: Mapping[str, tuple[str, str]] = {
    f"COUNT({_FLOW})": ("> 20", "< 6"),
    f"SUM({_FLOW})": ("> 10500", "> 6100"),
    f"AVG({_FLOW})": ("> 610", "> 628"),
    f"MIN({_FLOW})": ("> 205", "> 250"),
    f"MAX({_FLOW})": ("< 795", "< 750"),
    f"STDDEV({_FLOW})": ("> 337", "> 347"),
    f"FIRST({_FLOW})": ("> 900", "> 900"),
    f"LAST({_FLOW})": ("> 900", "> 900"),
    f"COUNT(DISTINCT {_FLOW})": ("> 20", "< 6"),
}


def _windows() -> Iterator[Construct]:
    for aggregate, (by_time, by_count) in _SLIDING.items():
        name = aggregate.replace("(?e.flowrate)", "").replace("(DISTINCT ?e.flowrate)", " DISTINCT")
        esper = aggregate.lower().replace("?e.", "")
        yield Construct(
            "sliding windows by time",
            name,
            f"SELECT ?e.sensorID, {aggregate} {by_time} AS found\nWINDOW (?e, sliding, 5min)\n"
            "PARTITION BY ?e.sensorID",
            epl=f"{_OUT}select sensorID, index, {esper} from Report#time(5 min) group by sensorID "
            f"having {esper} {by_time};",
        )
        yield Construct(
            "sliding windows by count",
            name,
            f"SELECT ?e.sensorID, {aggregate} {by_count} AS found\nWINDOW (?e, sliding, 10)\n"
            "PARTITION BY ?e.sensorID",
            epl=f"{_OUT}select sensorID, index, {esper} from Report#groupwin(sensorID)#length(10) "
            f"group by sensorID having {esper} {by_count};",
        )
        yield Construct(
            "batch windows by time",
            name,
            f"SELECT ?e.sensorID, {aggregate} AS found\nWINDOW (?e, batch, 200s)\nGROUP BY ?e.sensorID",
            epl=f"{_OUT}select sensorID, {esper} from Report#time_batch(200 seconds) group by sensorID "
            "having count(*) > 0;",
        )
        yield Construct(
            "batch windows by count",
            name,
            f"SELECT {aggregate} AS found\nWINDOW (?e, batch, 10)\nPARTITION BY ?e.sensorID",
            epl=f"{_OUT}select sensorID, {esper} from Report#groupwin(sensorID)#length_batch(10) "
            "group by sensorID having count(*) > 0;",
        )
    yield Construct(
        "groups",
        "GROUP BY an attribute",
        "SELECT ?e.sensorID, AVG(?e.flowrate) AS average\nWINDOW (?e, batch, 200s)\nGROUP BY ?e.sensorID",
        epl=f"{_OUT}select sensorID, avg(flowrate) from Report#time_batch(200 seconds) group by sensorID "
        "having count(*) > 0;",
    )
    yield Construct(
        "groups",
        "GROUP BY an attribute, sliding",
        "SELECT ?e.sensorID, AVG(?e.flowrate) > 610 AS average\nWINDOW (?e, sliding, 5min)\n"
        "GROUP BY ?e.sensorID",
        epl=f"{_OUT}select sensorID, index, avg(flowrate) from Report#time(5 min) "
        "group by sensorID having avg(flowrate) > 610;",
    )
    yield Construct(
        "groups",
        "GROUP BY a PATH variable",
        """SELECT ?room, AVG(?e.flowrate) AS average
PATH {?e evt:hasSource/bd:hasLocation ?room}
WINDOW (?e, batch, 40s)
GROUP BY ?room""",
    )


# --- streams, queries of queries, knowledge that changes --------------------------------------------------


def _others() -> Iterator[Construct]:
    yield Construct(
        "streams",
        "LATEST",
        """SELECT ?e.sensorID, ?c.level
FROM (?e, airflowReport), LATEST (?c, command)
FILTER (?e.flowrate > 600)
JOIN (?c.sensorID = ?e.sensorID) JOIN (?c.level < ?e.flowrate - 300)
WINDOW (?e, ?c, 5min)""",
        commands=True,
        epl=f"{_OUT}select e.sensorID, e.index, c.index, c.flowrate from Report(flowrate > 600) as e "
        f"unidirectional, Command#unique(sensorID)#time({_FIVE_MINUTES}) as c "
        "where c.sensorID = e.sensorID and c.flowrate < e.flowrate - 300;",
    )
    yield Construct(
        "streams",
        "two streams",
        """SELECT ?a.sensorID, ?c.level
FROM (?a, airflowReport), (?c, command)
FILTER (?a.flowrate > 700)
JOIN (?c.sensorID = ?a.sensorID) JOIN (?c.level - ?a.flowrate > 50)
SEQ (?a, ?c)
WINDOW (?a, ?c, 5min)""",
        commands=True,
        epl=f"{_OUT}select a.sensorID, a.index, c.index, c.flowrate from Command as c unidirectional, "
        f"Report(flowrate > 700)#time({_FIVE_MINUTES}) as a "
        "where a.sensorID = c.sensorID and c.flowrate - a.flowrate > 50;",
    )
    yield Construct(
        "streams",
        "query over a query's output",
        """SELECT ?a.sensorID, ?b.flowrate
FROM (?a, high), (?b, high)
JOIN (?b.sensorID = ?a.sensorID) JOIN (?b.flowrate > ?a.flowrate)
SEQ (?a, ?b)
WINDOW (?a, ?b, 5min)""",
        beside={"high": "SELECT ?e.sensorID, ?e.flowrate FILTER (?e.flowrate > 875)"},
        epl="insert into High select * from Report(flowrate > 875);"
        f"{_OUT}select a.sensorID, a.index, b.index, b.flowrate from High as b unidirectional, "
        f"High#time({_FIVE_MINUTES}) as a where a.sensorID = b.sensorID and b.flowrate > a.flowrate;",
    )
    in_department = f"SELECT ?e.sensorID, ?e.flowrate\n{_IN_DEPARTMENT}"
    yield Construct("knowledge", "statements added", in_department, changes="always")
    yield Construct("knowledge", "statements added, valid from then on", in_department, changes="from now")
    *others, last = SHAPES
    yield Construct(
        "together",
        "ten queries of ten shapes",
        SHAPES[last],
        beside={name: SHAPES[name] for name in others},
        all_count=True,
    )


CONSTRUCTS: tuple[Construct, ...] = (
    Construct(
        "events",
        REFERENCE_ROW,
        query3(),
        epl=_joined(500, "b.flowrate - a.flowrate > 50"),
    ),
    *_steps(),
    *_loops(),
    *_absence(),
    *_strategies(),
    *_windows(),
    *_others(),
)
"""All of them, in the order of the tables."""
