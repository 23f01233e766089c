"""The pattern operator: every strategy, loops, groups, absences and skipping, event by event (semantics 2).

A partial match points to the one that it extends, so no list of events is ever copied. It waits, once for
each frontier of its state, in cells that are found by what the next event must agree with it in. An event
therefore touches only partial matches that it may extend. Cells are swept when their WINDOWs have passed,
whether or not an event ever comes for them again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any

from kaicep.kernel.chains import Chain
from kaicep.kernel.conditions import Heads, Round
from kaicep.kernel.expressions import key_function
from kaicep.kernel.operator import Found, Key, Limits, Rows, Semantics, refuse
from kaicep.kernel.skip import Candidate, Skipping, Start
from kaicep.kernel.states import Compiled, Frontier, Opening, State
from kaicep.plan.events import Event
from kaicep.plan.nodes import Interval, Pattern

__all__ = ["PatternOperator", "place_in_order"]

_SWEEPS_PER_WINDOW = 16
_BYTES_EACH = 512  # about what a partial match takes, its event and its places in lists included


class Partial:
    """Part of a match: the event bound last, at which place of the order, and the part before it.

    `heads` is what every variable stands for; `anchors` the time of the first event under each WINDOW;
    `owed` the absences that only the finished match can judge, with the places that they lie between.
    """

    __slots__ = ("anchors", "event", "heads", "owed", "parent", "place", "position", "rows", "start", "state")

    def __init__(
        self,
        parent: Partial | None,
        place: int,
        event: Event,
        position: int,
        state: State,
        start: Start,
        heads: Heads,
        anchors: tuple[int | None, ...],
        rows: Rows,
        owed: tuple[tuple[str, int, int], ...],
    ) -> None:
        self.parent = parent
        self.place = place
        self.event = event
        self.position = position
        self.state = state
        self.start = start
        self.heads = heads
        self.anchors = anchors
        self.rows = rows
        self.owed = owed

    def path(self) -> tuple[Partial, ...]:
        """This and all before it, in order."""
        found = [self]
        while found[-1].parent is not None:
            found.append(found[-1].parent)
        found.reverse()
        return tuple(found)


class Item:
    """A partial match that waits at one frontier, for events up to `until`."""

    __slots__ = ("frontier", "live", "partial", "until")

    def __init__(self, partial: Partial, frontier: Frontier, until: float) -> None:
        self.partial = partial
        self.frontier = frontier
        self.until = until
        self.live = True


class Cell:
    """The items of one partition that wait at one opening for one value."""

    __slots__ = ("due", "index", "items", "key", "part")

    def __init__(self, part: Part, index: dict[Any, Cell], key: Any) -> None:
        self.part = part
        self.index = index
        self.key = key
        self.items: list[Item] = []
        self.due = math.inf


class Absences:
    """The events of one partition that must be absent from a match, in order and by key."""

    __slots__ = ("by_key", "in_order")

    def __init__(self) -> None:
        self.in_order: deque[tuple[int, Any]] = deque()
        self.by_key: dict[Any, deque[tuple[int, Event]]] = {}

    def add(self, position: int, key: Any, event: Event) -> None:
        """Notes an event at its place in the order."""
        self.in_order.append((position, key))
        self.by_key.setdefault(key, deque()).append((position, event))

    def forget(self, before: float) -> int:
        """Drops what lies before a place in the order; how many that were."""
        count = 0
        while self.in_order and self.in_order[0][0] < before:
            key = self.in_order.popleft()[1]
            self.by_key[key].popleft()
            if not self.by_key[key]:
                del self.by_key[key]
            count += 1
        return count


class Complete:
    """A match that has all its events; it may still have to pass absences until a deadline."""

    __slots__ = ("absent", "deadline", "partial", "version")

    def __init__(self, partial: Partial, absent: tuple[str, ...], deadline: int | None, version: int) -> None:
        self.partial = partial
        self.absent = absent
        self.deadline = deadline
        self.version = version


class Part:
    """The state of one partition."""

    __slots__ = ("absences", "awaited", "count", "key", "skipping", "starts", "waiting")

    def __init__(self, key: Key, skip: str) -> None:
        self.key = key
        self.waiting: dict[Opening, dict[Any, Cell]] = {}
        self.starts: deque[Start] = deque()
        self.absences: dict[str, Absences] = {}
        self.skipping = Skipping(skip) if skip != "none" else None
        self.awaited: list[Candidate] = []
        self.count = 0
        """Items, and complete matches that await a deadline."""


class PatternOperator:
    """A `Pattern`, one event at a time."""

    def __init__(
        self, pattern: Pattern, semantics: Semantics, limits: Limits | None = None, name: str = "the pattern"
    ) -> None:
        self.pattern = pattern
        self.version = 0
        self.name = name
        self.compiled = Compiled(pattern, semantics)
        self._semantics = semantics
        self._limits = limits or Limits()
        self._limit = self._limits.most(_BYTES_EACH)
        self._strict = pattern.match == "strict"
        self._next = pattern.match == "next"
        self._routes = _routes(self.compiled.chains)
        self._all_count = any(not each.semantics for each in self.compiled.chains)
        self._key_of = key_function(pattern.partition, pattern.streams) if pattern.partition else None
        self._absent = {self.compiled.places[name]: name for name in self.compiled.absences.values()}
        self._may_be = {name: self.compiled.may_be(name) for name in self._absent.values()}
        first = [each for frontier in self.compiled.first.frontiers for each in frontier.openings]
        self._initial = [
            [each for each in first if each.place == place] for place in range(len(self.compiled.variables))
        ]
        self._nothing: Heads = (None,) * len(self.compiled.variables)
        self._no_anchors: tuple[int | None, ...] = (None,) * len(pattern.windows)
        widths = [each.width for each in pattern.windows]
        self._grain = max(1, min(widths) // _SWEEPS_PER_WINDOW) if widths else 1
        self._crossing = lru_cache(maxsize=None)(self.compiled.crossing)
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.parts: dict[Key, Part] = {}
        self.now: float = -math.inf
        self.position = 0
        self._held = 0
        self._buffered = 0
        self._serial = 0
        self.shed = 0
        self._deadlines: list[tuple[int, int, Part, Candidate]] = []
        self._buckets: dict[int, list[Cell]] = {}
        self._bucket_order: list[int] = []

    @property
    def size(self) -> int:
        """How many events and partial matches are held."""
        return self._held + self._buffered

    def feed(self, events: Iterable[Event]) -> list[Found]:
        """What is found by these events, the next ones in order."""
        found: list[Found] = []
        for event in events:
            if event.ts > self.now:
                self._move(event.ts, found)
            self._take(event, found)
            while self._limits.shed and self.size > self._limit and self._held:
                self._shed()
        return found

    def advance(self, watermark: float) -> list[Found]:
        """What is found by knowing that no event below the watermark will come."""
        found: list[Found] = []
        if watermark > self.now:
            self._move(watermark, found)
        return found

    def promise(self, watermark: float) -> float:
        """The smallest end of any match that is still to be found."""
        ends = [watermark]
        deadline = self.pattern.deadline
        if deadline is None or watermark == math.inf:
            return watermark
        for part in self.parts.values():
            # A match may be completed after its deadline, and what skipping holds back has ended.
            ends += [part.starts[0].ts + deadline] if part.starts else []
            if part.skipping is not None:
                ends += [
                    self._end(each.match)
                    for group in part.skipping.groups
                    for each in group.members
                    if not each.emitted
                ]
        return min(ends)

    # --- time passes ---

    def _move(self, now: float, found: list[Found]) -> None:
        """What only had to wait is answered, what can be forgotten is."""
        self.now = now
        while self._deadlines and self._deadlines[0][0] < now:
            _, _, part, candidate = heappop(self._deadlines)
            self._decide(part, candidate, found)
        while self._bucket_order and (self._bucket_order[0] + 1) * self._grain <= now:
            bucket = heappop(self._bucket_order)
            for cell in self._buckets.pop(bucket):
                # A cell that was swept since then has nothing to forget now, or stands in a later bucket too.
                if cell.due == (bucket + 1) * self._grain:
                    self._sweep(cell)
                    self._forget(cell.part)

    def _schedule(self, cell: Cell, until: float) -> None:
        """Has the cell swept when `until` has passed, unless it will be by then."""
        if until >= cell.due or until == math.inf:
            return
        bucket = int(until // self._grain)
        cell.due = (bucket + 1) * self._grain
        if bucket not in self._buckets:
            self._buckets[bucket] = []
            heappush(self._bucket_order, bucket)
        self._buckets[bucket].append(cell)

    def _sweep(self, cell: Cell) -> None:
        """Forgets the items whose time has passed."""
        part = cell.part
        for item in cell.items:
            if item.live and (item.until < self.now or self._is_ruled_out(part, item.partial.start)):
                self._drop(part, item)
        cell.items = [item for item in cell.items if item.live]
        cell.due = math.inf
        if cell.items:
            self._schedule(cell, min(item.until for item in cell.items))
        elif cell.index.get(cell.key) is cell:
            del cell.index[cell.key]

    def _shed(self) -> None:
        """Lets go of a tenth of the partial matches, those that began first."""
        waiting = [
            (item.partial.start.position, part, item)
            for part in list(self.parts.values())
            for index in part.waiting.values()
            for cell in index.values()
            for item in cell.items
            if item.live
        ]
        waiting.sort(key=lambda each: each[0])
        for _, part, item in waiting[: max(1, len(waiting) // 10)]:
            if item.live:  # it waits at each place of its frontier
                self._drop(part, item)
                self.shed += 1
        for part in list(self.parts.values()):
            self._forget(part)

    def _drop(self, part: Part, item: Item) -> None:
        item.live = False
        self._let_go(part, item.partial.start)

    def _let_go(self, part: Part, start: Start) -> None:
        start.live -= 1
        part.count -= 1
        self._held -= 1

    def _forget(self, part: Part) -> None:
        """Forgets what no partial match of the partition needs, and the partition where there is none."""
        starts = part.starts
        while starts and starts[0].live == 0:
            starts.popleft()
        if len(starts) > 2 * part.count + 16:  # most of them are over, behind one that is not
            part.starts = starts = deque(each for each in starts if each.live)
        if part.absences:
            needed = starts[0].position if starts else math.inf
            for each in part.absences.values():
                self._buffered -= each.forget(needed)
        if part.count == 0 and self.parts.get(part.key) is part:
            del self.parts[part.key]

    def _is_ruled_out(self, part: Part, start: Start) -> bool:
        skipping = part.skipping
        return skipping is not None and (start.used or start.position < skipping.resume)

    # --- an event comes ---

    def _take(self, event: Event, found: list[Found]) -> None:
        route = self._routes.get(event.stream)
        if route is None:
            return
        places, counts = self._judge(event, route)
        if not (counts if self._strict else places):
            return
        self.position += 1
        key = () if self._key_of is None else self._key_of(event)
        part = self.parts.get(key)
        fits: list[tuple[Partial | None, Opening, Round | None]] = []
        taken: list[tuple[Item, Cell]] = []
        if part is not None:
            for place in places:
                if place in self._absent:
                    self._record(part, self._absent[place], event, found)
                else:
                    self._look(part, place, event, fits, taken)
            for item, _ in taken:
                if item.live:
                    self._drop(part, item)
            for cell in {id(cell): cell for _, cell in taken}.values():
                self._sweep(cell)
            if self._strict:
                self._wipe(part)
        for place in places:
            for opening in self._initial[place]:
                round = (
                    self.compiled.conditions.round(opening.variable, event, None) if opening.is_loop else None
                )
                if all(test(self._nothing, event, round) for test in opening.tests):
                    fits.append((None, opening, round))
        if fits:
            if part is None:
                part = self.parts[key] = Part(key, self.pattern.skip)
            self._go_on(part, event, fits, found)
        if part is not None and (part.count == 0 or taken or self._strict):
            self._forget(part)

    def _judge(
        self, event: Event, route: Sequence[tuple[int, Chain, Interval | None]]
    ) -> tuple[list[int], bool]:
        """The variables that the event may be of, and whether it counts for contiguity."""
        places: list[int] = []
        counts = False
        for place, chain, within in route:
            if within is not None and event.ts not in within:
                continue
            counts = counts or self._all_count
            if not chain.semantics:
                if chain.passes is None or chain.passes(event):
                    places.append(place)
            elif not self._strict and chain.passes is not None and not chain.passes(event):
                continue
            elif chain.means(event, self._semantics):
                counts = True
                if chain.passes is None or chain.passes(event):
                    places.append(place)
        return places, counts

    def _look(
        self,
        part: Part,
        place: int,
        event: Event,
        fits: list[tuple[Partial | None, Opening, Round | None]],
        taken: list[tuple[Item, Cell]],
    ) -> None:
        """Finds the partial matches that the event fits as the variable at this place."""
        ts, skips = event.ts, part.skipping is not None
        for opening in self.compiled.openings[place]:
            index = part.waiting.get(opening)
            if not index:
                continue
            cell = index.get(None if opening.key is None else opening.key.of_event(event))
            if cell is None:
                continue
            gone, tests, is_loop, after_last = False, opening.tests, opening.is_loop, opening.after_last
            for item in cell.items:
                if not item.live:
                    gone = True
                    continue
                partial = item.partial
                if ts > item.until or (skips and self._is_ruled_out(part, partial.start)):
                    self._drop(part, item)
                    gone = True
                    continue
                if ts <= partial.event.ts and (after_last or not _is_later(partial, opening, ts)):
                    continue
                round = None
                if is_loop:
                    round = self.compiled.conditions.round(opening.variable, event, partial.heads[place])
                for test in tests:
                    if not test(partial.heads, event, round):
                        break
                else:
                    fits.append((partial, opening, round))
                    if self._next:
                        taken.append((item, cell))
            if gone:
                self._sweep(cell)

    def _wipe(self, part: Part) -> None:
        """Under `strict`, what the event does not go on with is over."""
        for index in part.waiting.values():
            for cell in index.values():
                for item in cell.items:
                    if item.live:
                        self._drop(part, item)
                cell.items = []
        part.waiting.clear()

    def _go_on(
        self,
        part: Part,
        event: Event,
        fits: list[tuple[Partial | None, Opening, Round | None]],
        found: list[Found],
    ) -> None:
        """Makes of each partial match that the event fits a longer one."""
        complete: list[Complete] = []
        start: Start | None = None
        for parent, opening, round in fits:
            if parent is None and start is None:
                start = Start(self.position, event.ts)
            first = start if parent is None else parent.start
            assert first is not None
            partial = self._extended(part, parent, opening, event, first, round)
            if partial is None:
                continue
            if partial.state.may_end:
                done = self._completed(part, partial)
                if done is not None:
                    complete.append(done)
            for frontier in partial.state.frontiers:
                self.wait(part, partial, frontier)
        if complete:
            self._finish(part, complete, found)
        if start is not None and start.live:
            part.starts.append(start)

    def _extended(
        self,
        part: Part,
        parent: Partial | None,
        opening: Opening,
        event: Event,
        start: Start,
        round: Round | None,
    ) -> Partial | None:
        """The partial match with the event, unless no match can come of it."""
        made = self.bound(parent, opening.place, event, self.position, opening.target, start, round)
        if made is None:
            return None
        if parent is not None and self._absent:
            element = self.compiled.element
            left = element[self.compiled.variables[parent.place]]
            for name in self._crossing(left, element[opening.variable]):
                if not self.compiled.is_settled(name, made.state):
                    made.owed += ((name, parent.position, self.position),)
                elif self._occurs(part, made, name, parent.position, self.position, math.inf):
                    return None
        for condition in opening.selecting:
            binding = {name: self._event_of(made, name) for name in condition.variables}
            made.rows += ((condition.selected, tuple(self._semantics.solutions(condition, binding))),)
        return made

    def _event_of(self, partial: Partial, variable: str) -> Event:
        head: Any = partial.heads[self.compiled.places[variable]]
        return head.event if isinstance(head, Round) else head

    def bound(
        self,
        parent: Partial | None,
        place: int,
        event: Event,
        position: int,
        state: State,
        start: Start,
        round: Round | None,
    ) -> Partial | None:
        """The partial match with the event, unless a WINDOW does not hold."""
        anchors = self._no_anchors if parent is None else parent.anchors
        for index, width in self.compiled.window_places[place]:
            first = anchors[index]
            if first is None:
                anchors = (*anchors[:index], event.ts, *anchors[index + 1 :])
            elif event.ts - first > width:
                return None
        heads = self._nothing if parent is None else parent.heads
        heads = (*heads[:place], event if round is None else round, *heads[place + 1 :])
        if parent is None:
            return Partial(None, place, event, position, state, start, heads, anchors, (), ())
        return Partial(parent, place, event, position, state, start, heads, anchors, parent.rows, parent.owed)

    def wait(self, part: Part, partial: Partial, frontier: Frontier) -> None:
        """Lets the partial match wait for the events of a frontier."""
        until = -math.inf
        for opening in frontier.openings:
            limit = math.inf
            for index, width in opening.windows:
                first = partial.anchors[index]
                if first is not None and first + width < limit:
                    limit = first + width
            until = max(until, limit)
        if until < self.now:
            return
        item = Item(partial, frontier, until)
        reachable = False
        for opening in frontier.openings:
            key = None
            if opening.key is not None:
                key = opening.key.of_heads(partial.heads)
                if key is None:
                    continue  # null equals nothing
            reachable = True
            index_of = part.waiting.get(opening)
            if index_of is None:
                index_of = part.waiting[opening] = {}
            cell = index_of.get(key)
            if cell is None:
                cell = index_of[key] = Cell(part, index_of, key)
            cell.items.append(item)
            if until < cell.due:
                self._schedule(cell, until)
        if reachable:
            self._hold(part, partial.start)

    def _hold(self, part: Part, start: Start) -> None:
        start.live += 1
        part.count += 1
        self._held += 1
        if self._held + self._buffered > self._limit * (1 + self._limits.shed):
            raise refuse(
                f"{self.name} (MATCH {self.pattern.match})",
                self.size,
                "add a WINDOW that ties its events together, or make it narrower; an equality in a JOIN, "
                "PARTITION BY, or MATCH next in place of any also lets it hold less",
            )

    # --- absence ---

    def _record(self, part: Part, name: str, event: Event, found: list[Found]) -> None:
        """Remembers an event that must be absent, for the matches it may fall into."""
        if not all(test(self._nothing, event, None) for test in self._may_be[name]):
            return
        self.keep_absent(part, name, self.position, event)
        if part.skipping is not None and part.awaited:
            # What it decides against may hold others back.
            for each in [each for each in part.awaited if name in each.match.absent]:
                if event.ts <= each.match.deadline and not self._stands(part, each.match):
                    each.valid = False
                    self._settle(part, found)

    def keep_absent(self, part: Part, name: str, position: int, event: Event) -> None:
        """Keeps an event that must be absent, by what a match must agree with it in."""
        key = self.compiled.absent_keys[name]
        value = None if key is None else key.of_event(event)
        if key is None or value is not None:  # null equals nothing
            part.absences.setdefault(name, Absences()).add(position, value, event)
            self._buffered += 1

    def _occurs(self, part: Part, partial: Partial, name: str, left: int, right: float, until: float) -> bool:
        """Whether an event that must be absent lies between two places of the order, up to a time."""
        kept = part.absences.get(name)
        if kept is None:
            return False
        watch = partial.state.watch(name)
        key = None
        if watch.key is not None:
            key = watch.key.of_heads(partial.heads)
            if key is None:
                return False
        for position, event in reversed(kept.by_key.get(key, ())):
            if position <= left:
                return False
            inside = position < right and event.ts <= until
            if inside and all(test(partial.heads, event, None) for test in watch.tests):
                return True
        return False

    def _stands(self, part: Part, match: Complete) -> bool:
        partial, deadline = match.partial, match.deadline
        assert deadline is not None
        return not any(
            self._occurs(part, partial, name, partial.position, math.inf, deadline) for name in match.absent
        )

    # --- a match is complete ---

    def _completed(self, part: Part, partial: Partial) -> Complete | None:
        """The match, if everything that judges a whole match holds, but for what comes after it."""
        if not all(test(partial.heads, None, None) for test in partial.state.tests):
            return None
        if any(self._occurs(part, partial, *each, math.inf) for each in partial.owed):
            return None
        if not self._absent:
            return Complete(partial, (), None, self.version)
        last = self.compiled.element[self.compiled.variables[partial.place]]
        trailing = self._crossing(last, len(self.pattern.sequence))
        if not trailing:
            return Complete(partial, (), None, self.version)
        assert self.pattern.deadline is not None
        return Complete(partial, trailing, partial.start.ts + self.pattern.deadline, self.version)

    def _finish(self, part: Part, complete: list[Complete], found: list[Found]) -> None:
        """Answers, or waits with, the matches that one event completed."""
        if self.compiled.ambiguous and len(complete) > 1:
            ways = {tuple((p.place, p.position) for p in each.partial.path()): each for each in complete}
            complete = list(ways.values())
        skipping = part.skipping
        candidates: list[Candidate] = []
        for match in complete:
            if skipping is None and match.deadline is None:
                found.append(self._found(part, match))
                continue
            candidate = self.candidate(match)
            candidates.append(candidate)
            if match.deadline is None:
                candidate.valid = True
            elif match.deadline >= self.now:
                self.await_deadline(part, candidate)
            else:
                candidate.valid = self._stands(part, match)
                if skipping is None and candidate.valid:
                    found.append(self._found(part, match))
        if skipping is not None:
            skipping.add(candidates)
            self._settle(part, found)

    def candidate(self, match: Complete) -> Candidate:
        """The match, as skipping looks at it."""
        path = match.partial.path()
        positions = tuple(each.position for each in path)
        return Candidate(match, positions, match.partial.start, self._resume(path))

    def _resume(self, path: tuple[Partial, ...]) -> int:
        """The place in the order before which no later match may begin, if this one is taken."""
        mode, variable = self.pattern.skip, self.pattern.skip_variable
        if mode == "past_last":
            return path[-1].position + 1
        if mode in ("first", "last") and variable is not None:
            place = self.compiled.places[variable]
            at = [each.position for each in path if each.place == place]
            return at[0 if mode == "first" else -1] if at else -1
        return -1

    def await_deadline(self, part: Part, candidate: Candidate) -> None:
        """Lets a complete match wait for the deadline of its trailing absence."""
        self._serial += 1
        heappush(self._deadlines, (candidate.match.deadline, self._serial, part, candidate))
        if part.skipping is not None:
            part.awaited.append(candidate)
        self._hold(part, candidate.start)

    def _decide(self, part: Part, candidate: Candidate, found: list[Found]) -> None:
        """A deadline has passed."""
        if candidate.valid is None:
            candidate.valid = self._stands(part, candidate.match)
        self._let_go(part, candidate.start)
        if part.skipping is None:
            if candidate.valid:
                found.append(self._found(part, candidate.match))
        else:
            part.awaited.remove(candidate)
            self._settle(part, found)
        self._forget(part)

    def _settle(self, part: Part, found: list[Found]) -> None:
        assert part.skipping is not None
        found.extend(self._found(part, each.match) for each in part.skipping.settle())

    def _end(self, match: Complete) -> int:
        return match.partial.event.ts if match.deadline is None else match.deadline

    def _found(self, part: Part, match: Complete) -> Found:
        partial = match.partial
        rounds = {
            name: [each.event for each in head.all()] if isinstance(head, Round) else (head,)
            for name, head in zip(self.compiled.variables, partial.heads, strict=True)
            if head is not None
        }
        return Found(part.key, rounds, partial.start.ts, self._end(match), partial.rows, match.version)

    # --- saved state ---

    def items(self, part: Part) -> Iterator[Item]:
        """What waits in a partition and may still be gone on with; at several openings, several times."""
        for index in part.waiting.values():
            for cell in index.values():
                for item in cell.items:
                    over = item.until < self.now or self._is_ruled_out(part, item.partial.start)
                    if item.live and not over:
                        yield item

    def candidates(self, part: Part) -> list[Candidate]:
        """The complete matches of a partition that are not settled, in the order of their events."""
        if part.skipping is not None:
            return [each for group in part.skipping.groups for each in group.members]
        mine = [each for _, _, owner, each in self._deadlines if owner is part]
        return sorted(mine, key=lambda each: place_in_order(each.match.partial))

    def snapshot(self) -> bytes:
        """The state."""
        from kaicep.kernel.saved import save_pattern

        return save_pattern(self)

    def restore(self, state: bytes) -> None:
        """Goes on from a state."""
        from kaicep.kernel.saved import load_pattern

        load_pattern(self, state)


def _routes(chains: Sequence[Chain]) -> dict[str, list[tuple[int, Chain, Interval | None]]]:
    """By stream, the variables that its events may be of."""
    found: dict[str, list[tuple[int, Chain, Interval | None]]] = {}
    for place, chain in enumerate(chains):
        bounded = chain.within.low is not None or chain.within.high is not None
        for stream in chain.streams:
            found.setdefault(stream, []).append((place, chain, chain.within if bounded else None))
    return found


def place_in_order(partial: Partial) -> list[tuple[int, int, str]]:
    """What partial matches are sorted by where their order must not depend on how they were found."""
    return [(each.position, each.place, repr(each.state.rest)) for each in partial.path()]


def _is_later(partial: Partial, opening: Opening, ts: int) -> bool:
    """Whether the event comes strictly after all that must come before it."""
    if partial.place in opening.after:
        return ts > partial.event.ts
    for place in opening.after:
        head = partial.heads[place]
        if ts <= (head.event.ts if isinstance(head, Round) else head.ts):
            return False
    return True
