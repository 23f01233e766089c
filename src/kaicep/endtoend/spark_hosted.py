"""A query of a deployment whose live part runs in Spark: `host = "spark-stream"`.

The past is gone through by a hand-off in this process. Then Spark is given the last window before the mark
once more, in silence, and from there on what comes, a file for each micro-batch; one is under way at a time,
and what comes meanwhile waits. What Spark has not answered when a process is lost is in the archive, so its
own checkpoint need not survive: every start makes a new one.

How far Spark stands is known from the sources alone. At the very instant of its watermark it may have told
some matches and not others; so the mark is that of a clock which is a microsecond behind, and beside it stand
those that were told beyond it.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from kaicep.archive.columns import LATE, PART, SEQ, rows_of
from kaicep.archive.cut import Cut
from kaicep.archive.snapshot import Snapshot
from kaicep.endtoend.history import History
from kaicep.endtoend.joint import HandOff, Mark, engine_for
from kaicep.endtoend.reach import reach_of
from kaicep.endtoend.seam import Stretch
from kaicep.errors import Diagnostic, Failure, KaicepError, Mistake
from kaicep.hosts.settings import Settings
from kaicep.kernel.sort import Lateness, allowed_lateness
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import Interval

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["SparkHosted", "check_for_spark"]


def check_for_spark(history: History, lateness: Lateness) -> int:
    """The lateness of all streams that a query reads together; a `Mistake` where Spark cannot run it."""
    named = history.program.queries[-1].name
    if len(history.program.queries) > 1 or history.program.ep_plans:
        hint = "leave its host away: it runs in process"
        what = "chi-CEP queries that read no other's output"
        raise Mistake(Diagnostic(f"{named}: spark-stream is for {what}", hint=hint))
    for stream in history.spans():
        names = [name for name, _ in history.catalog.streams[stream].attributes]
        clash = next((each for each in ("part", "seq") if each in names), None)
        if clash is not None or history.catalog.streams[stream].rdf:
            why = f"has an attribute {clash}" if clash else "is one of triples"
            raise Mistake(Diagnostic(f"{named}: spark-stream cannot read {stream}, which {why}"))
    found = [allowed_lateness(lateness, stream) for stream in history.spans()]
    if None in found:
        hint = 'such as lateness = "1min" at each stream that it reads'
        raise Mistake(Diagnostic(f"{named}: spark-stream needs a lateness", hint=hint))
    return max(each for each in found if each is not None)


class SparkHosted:
    """A hand-off to Spark. It is driven as the other plans are; `close` ends what runs there.

    A part that is silent holds it back: Spark learns how far time has come from events alone.
    """

    at_once = False

    def __init__(self, first: HandOff, lateness: Lateness, settings: Settings, folder: Path) -> None:
        self.history = first.history
        self.allowed = check_for_spark(self.history, lateness)
        self._first = first
        self._lateness = lateness
        self._settings = settings
        self._folder = folder
        self._query: StreamingQuery | None = None
        self._taken = first.snapshot
        self._clock = engine_for(self.history, first.snapshot, self.allowed + 1, settings)
        self._mark: Mark | None = None
        self._told: dict[str, int] = {}
        self._handed = self._ready = self._news = False
        self._under_way: Future[None] | None = None
        self._found: list[Match] = []
        self._number = 0

    # --- how far it is ---

    @property
    def leg(self) -> int:
        """How many marks of those who were told were passed."""
        return self._first.leg

    @property
    def cut(self) -> Cut:
        """The source positions that the answers so far are made from."""
        return self.mark.cut

    @property
    def mark(self) -> Mark:
        """Where the answer stands."""
        return self._mark if self._mark is not None else self._first.mark

    @property
    def beyond(self) -> list[str]:
        """The ids of matches that were told although the mark does not cover them."""
        return sorted(self._told) if self._mark is not None else []

    @property
    def watermark(self) -> float:
        """The time up to which everything is told."""
        return self.mark.watermark

    @property
    def size(self) -> int:
        """How many matches are remembered; what Spark holds is not known."""
        return len(self._told)

    @property
    def waiting(self) -> bool:
        """Whether there are events that were not answered yet."""
        return self._under_way is not None or self._news

    # --- past ---

    def past(self) -> Iterator[list[Match]]:
        """Works through the archive in this process, then lets Spark come to where that stands."""
        yield from self._first.past()
        mark, self._handed = self._first.mark, True
        self._taken = Snapshot(self._archived().tables, mark.cut)
        again = HandOff(self.history, self._taken, self._lateness, self._settings, mark)
        for some in again.told_before(mark):
            self._told |= {each.id: each.end_us for each in some}
            yield []
        parts, *rest = mark.standing
        self._clock.settle([[[*each[:4], False] for each in parts], *rest])
        yield from _until(_aside(self._start))
        for stream in self.history.spans():
            for rows in self._taken.batches(stream, self._window(mark), as_seen=True):
                self._write(stream, rows)
                yield []
        yield from _until(self._answered())
        self._found.clear()  # Spark stands where the hand-off stood, and all of this was told
        self._ready = True

    def _archived(self) -> Snapshot:
        tables = self.history.archive.snapshot().tables
        return Snapshot({stream: tables[stream] for stream in self.history.spans()})

    def _window(self, mark: Mark) -> Interval:
        """The last window before the mark; every part shows in it how far it had come."""
        newest = [ts for each in self._taken.tables.values() for ts in each.newest.values()]
        low = min([mark.watermark, *(ts - self.allowed for ts in newest)]) - reach_of(self.history.program)
        return Interval(low=int(low)) if math.isfinite(low) else Interval()

    def _start(self) -> None:
        from kaicep.hosts.spark.session import own_session
        from kaicep.spark import deliver

        shutil.rmtree(self._folder, ignore_errors=True)
        spark = own_session()
        frames = {}
        for stream in self.history.spans():
            (self._folder / "events" / stream).mkdir(parents=True)
            shape = self.history.archive.stream(stream).shape
            empty = spark.createDataFrame(_plain(rows_of([], shape)))
            reader = spark.readStream.schema(empty.schema)
            frames[stream] = reader.parquet(str(self._folder / "events" / stream))
        self._query = deliver(
            frames,
            self.history,
            lambda _, matches: self._found.extend(matches),
            lateness=self.allowed,
            checkpoint=self._folder / "checkpoint",
            parts={stream: self._settings.parts.get(stream, (0,)) for stream in frames},
            engine="driver",
        )

    def _write(self, stream: str, rows: pyarrow.RecordBatch | pyarrow.Table) -> None:
        """Gives Spark a file, all at once: it does not look at names that begin with an underscore."""
        import pyarrow
        import pyarrow.parquet

        table = rows if isinstance(rows, pyarrow.Table) else pyarrow.Table.from_batches([rows])
        self._number += 1
        folder = self._folder / "events" / stream
        new = folder / f"_{self._number}.parquet"
        pyarrow.parquet.write_table(_plain(table), new)
        new.replace(folder / f"{self._number:010d}.parquet")

    def _answered(self) -> Future[None]:
        """A moment at which Spark has answered all files that are there now."""
        query = self._query
        assert query is not None
        return _aside(query.processAllAvailable)

    # --- present ---

    def live(self, stretch: Stretch) -> list[Match]:
        """Takes what the live source has; matches that are certain by now."""
        return self.live_all([stretch])

    def live_all(self, stretches: Iterable[Stretch]) -> list[Match]:
        """Takes what has come, and returns what Spark has found by now."""
        if not self._handed:
            return self._first.live_all(stretches)
        self._news = self._news or any(True for _ in stretches)
        return self._go_on() if self._ready else []

    def poll(self, snapshot: Snapshot) -> list[Match]:
        """Looks whether the archive has something new."""
        return self.live_all([]) if self._handed else self._first.poll(snapshot)

    def _go_on(self) -> list[Match]:
        """Takes what Spark has answered; then gives it what the archive has got meanwhile, marks and all."""
        found = self._collected() if self._under_way is not None and self._under_way.done() else []
        if self._under_way is None and self._news:
            self._news = False
            new, taken = self._archived(), self._taken
            # What was taken up to a cut may be in files that hold more than that.
            known = taken if taken.until is None else Snapshot({}, taken.cut)
            for stream in new.tables:
                for rows in Snapshot(new.tables, None, known).batches(stream, as_seen=True):
                    self._write(stream, rows)
            self._taken = new
            self._under_way = self._answered()
        return found

    def _collected(self) -> list[Match]:
        """What Spark has made of the micro-batch that was under way, and where it stands now."""
        assert self._under_way is not None
        answered, self._under_way = self._under_way, None
        answered.result()
        for file in (self._folder / "events").glob("*/*.parquet"):
            file.unlink()
        found, self._found = self._found, []
        news = [each for each in found if each.id not in self._told]
        for stream, table in self._taken.tables.items():
            for part, newest in table.newest.items():
                self._clock.stand(stream, part, newest, table.positions[part])
        reached = self._clock.watermark
        self._mark = Mark(self._taken.cut, self._clock.standing, reached, self._clock.lateness)
        self._told |= {each.id: each.end_us for each in news}
        self._told = {id: end for id, end in self._told.items() if end >= reached}
        return news

    def idle(self, stream: str, part: int) -> list[Match]:
        """Spark waits for a part that is silent; so nothing comes of that here."""
        return []

    def has_passed(self, event: Event) -> bool:
        """Whether it went on as if this event would not come, which it never does."""
        return False

    def finish(self) -> list[Match]:
        """The source has ended: what was not told yet is found in this process."""
        rest = HandOff(self.history, self._archived(), self._lateness, self._settings, self.mark)
        found = [each for some in rest.past() for each in some] + rest.finish()
        self.close()
        return [each for each in found if each.id not in self.beyond]

    def edited(self, history: History) -> str | None:
        """Another text of the query begins anew: what Spark holds cannot be looked at."""
        return "it runs in Spark"

    def close(self) -> None:
        """Ends what runs in Spark."""
        if self._query is not None:
            self._query.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def _aside(what: Callable[[], None]) -> Future[None]:
    """Does something in a thread of its own.

    Spark is started like that too: in the main thread it would take the signals that stop a deployment.
    """
    done = Future[None]()

    def work() -> None:
        try:
            what()
            done.set_result(None)
        except KaicepError as error:
            done.set_exception(error)
        except Exception as error:
            done.set_exception(Failure(f"Spark: {str(error).splitlines()[0]}"))

    Thread(target=work, name="kaicep-spark", daemon=True).start()
    return done


def _until(done: Future[None]) -> Iterator[list[Match]]:
    """Lets others work until something is done."""
    while not done.done():
        wait([done], 0.05)
        yield []
    done.result()


def _plain(rows: pyarrow.Table) -> pyarrow.Table:
    """Rows of the archive as Spark is given events: what is marked as late is not among them."""
    import pyarrow.compute as pc

    kept = rows.filter(pc.invert(rows.column(LATE))).drop_columns([LATE])
    return kept.rename_columns([{PART: "part", SEQ: "seq"}.get(each, each) for each in kept.column_names])
