"""The processors of the levels, with workers and movers, and one dispatcher that decides what starts."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from kaicep.live.bindings import RunningConsumer, RunningOperator, RunningReader, RunningSupplier
from kaicep.live.rings import Event, Slot, is_outdated
from kaicep.live.ticking import Lock

# ----------------------------------------------------------------------------------------------------------
# EventProcessors, one for each priority level, and the rule by which they start work (CPEP, section III.A).
#
# Each has three queues: InputQ (suppliers' events), PendingQ (operators and consumers that have what they
# need), MovingQ (events for readers of lower levels); Workers, who empty the first two, pending before
# input, and Movers, who empty the third. What may start is decided in one place, `Dispatcher.dispatch`,
# under one lock: from the most urgent level down, processing before moving, and nothing below while
# anything above is ready and not started. Threads have interleaved priorities besides, where the system has
# them; then the kernel also takes the core from what is running already.
#


Task = tuple[RunningReader, list[tuple[int, Event]]]
"""A reader, and the events that it gets."""
Bundle = tuple[RunningReader, int, Slot]
"""A reader, which of its inputs is meant, and the slot of the event."""
Start = Callable[["Seat"], None]

INPUTS = 4096
"""How many suppliers' events may wait at a level; beyond that the oldest go."""


class Seat:
    """A place for a thread: it is given a task, works it off, and waits for the next.

    A worker's seat and a mover's belong to a level, that of a `consumer` to it alone. `number` is the place
    of its task among those of an operator that works on several at once.
    """

    def __init__(
        self, processor: EventProcessor, mover: bool = False, consumer: RunningConsumer | None = None
    ) -> None:
        self.processor = processor
        self.mover = mover
        self.consumer = consumer
        self.reported = False
        self.number = 0
        self.task: Task | None = None
        self.bundle: Bundle | None = None
        self.ended = False
        self.lost = False
        self.since = 0
        self.counted = False
        self.thread: threading.Thread | None = None
        self._parking = threading.Lock()
        self._parking.acquire()

    def wake(self) -> None:
        """Lets the thread go on; it may be that it does not wait yet."""
        self._parking.release()

    def park(self) -> None:
        """Waits until woken."""
        self._parking.acquire()


class EventProcessor:
    """The queues and the threads of one level."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.input: deque[tuple[RunningSupplier, Event]] = deque()
        self.pending: deque[RunningReader] = deque()
        self.moving: list[tuple[int, int, Bundle]] = []
        self.resuming: deque[Seat] = deque()
        self.workers: list[Seat] = []
        self.movers: list[Seat] = []
        self.idle: list[Seat] = []
        self.idle_movers: list[Seat] = []
        self.busy = 0
        self.busy_movers = 0

    @property
    def has_work(self) -> bool:
        """Whether anything waits to be processed."""
        return bool(self.pending or self.input or self.resuming)


class Dispatcher:
    """Decides what starts. Callers of its methods have the lock, unless a method says otherwise."""

    def __init__(
        self,
        cores: int,
        discard: bool,
        clock: Callable[[], int],
        lock: Lock,
        count_shed: Callable[[RunningReader | RunningSupplier, str, int], None],
    ) -> None:
        self.cores = cores
        self.discard = discard
        self.clock = clock
        self.lock = lock
        self.shed = count_shed
        self.processors: list[EventProcessor] = []
        self.running = False
        self.pressed = False
        """Whether anything had to wait since somebody set this back, because all cores were in use."""
        self.on_start: Callable[[Seat], None] | None = None
        """Called when a seat gets something to do, with the lock held: for tests that watch the order."""
        self._stamps = count()
        self._under_way = 0
        self.sent = 0
        """How many deliveries are on their way to consumers elsewhere, who have not acknowledged them."""

    def level(self, priority: int) -> EventProcessor:
        """The processor of a priority; a new one takes its place among the others."""
        for each in self.processors:
            if each.priority == priority:
                return each
        made = EventProcessor(priority)
        self.processors.append(made)
        self.processors.sort(key=lambda each: -each.priority)
        return made

    # --- what comes in ---

    def arrive(self, supplier: RunningSupplier, event: Event) -> None:
        """A supplier's event waits in the InputQ of its level."""
        queue = supplier.processor.input
        if len(queue) >= INPUTS:
            self.shed(queue.popleft()[0], "full", 1)
        queue.append((supplier, event))

    def spread(self, source: RunningSupplier | RunningOperator, event: Event) -> None:
        """Puts an event into its slot and notifies its readers, those of other levels through a mover."""
        slot = source.ring.put(event)
        for reader, input in source.followers:
            if not reader.admitted:
                continue
            if reader.processor is source.processor:
                self.bind(reader, input, slot)
            else:
                slot.pins += 1  # it is bound once it has been moved
                bundle = (reader, input, slot)
                heapq.heappush(source.processor.moving, (-reader.priority, next(self._stamps), bundle))

    def bind(self, reader: RunningReader, input: int, slot: Slot) -> None:
        """Binds a reader to a slot, and lets it wait for a worker if that was all it needs."""
        reader.bind(input, slot, self.shed)
        self.enqueue(reader)

    def enqueue(self, reader: RunningReader) -> None:
        """Puts a reader into the PendingQ if it is ready and not there yet; consumers go first."""
        if reader.queued:
            return
        if self.discard and len(reader.waiting) > 1 and (now := self.clock()) >= reader.due:
            reader.release_outdated(now, "unpaired", self.shed)
        if not reader.is_ready(self.shed):
            return
        if isinstance(reader, RunningConsumer) and reader.own:
            self._hand(reader)
            return
        reader.queued = True
        if isinstance(reader, RunningConsumer):
            reader.processor.pending.appendleft(reader)
        else:
            reader.processor.pending.append(reader)

    def _hand(self, consumer: RunningConsumer) -> None:
        """Gives the thread of a consumer what it delivers next; no worker is needed, and no core reckoned."""
        if consumer.seat is None or not self.running:
            return
        taken = consumer.take(self.clock(), self.discard, self.shed)
        if taken is not None:
            consumer.queued = True
            consumer.seat.task = consumer, taken
            self._start(consumer.seat)

    # --- what starts ---

    def dispatch(self) -> None:
        """Starts all that may start."""
        if not self.running:
            return
        used = 0
        for processor in self.processors:
            used += processor.busy
            while processor.pending or processor.input or processor.resuming:
                if used >= self.cores:
                    self.pressed = True
                    return
                if processor.resuming:
                    used += 1
                    self._resume(processor)
                    continue
                if not processor.idle:
                    return
                task = self._pick(processor)
                if task is not None:
                    seat = processor.idle.pop()
                    seat.task = task
                    if isinstance(task[0], RunningOperator):
                        seat.number = task[0].taken
                        task[0].taken += 1
                    seat.counted = not isinstance(task[0], RunningConsumer)  # a callback may block
                    processor.busy += seat.counted
                    used += seat.counted
                    self._start(seat)
            used += processor.busy_movers
            while processor.moving:
                if used >= self.cores or not processor.idle_movers:
                    self.pressed = True
                    return
                seat = processor.idle_movers.pop()
                seat.bundle = heapq.heappop(processor.moving)[2]
                processor.busy_movers += 1
                used += 1
                self._start(seat)

    def _start(self, seat: Seat) -> None:
        seat.since = self.clock()
        self._under_way += 1
        if self.on_start is not None:
            self.on_start(seat)
        seat.wake()

    def _resume(self, processor: EventProcessor) -> None:
        seat = processor.resuming.popleft()
        seat.counted = True
        processor.busy += 1
        seat.since = self.clock()
        seat.wake()

    def _pick(self, processor: EventProcessor) -> Task | None:
        """The next task of a level: pending before input; what is outdated is dropped on the way."""
        now = self.clock()
        while processor.pending:
            reader = processor.pending.popleft()
            taken = reader.take(now, self.discard, self.shed)
            if taken is None or reader.parallel:
                reader.queued = False
            if taken is not None:
                if reader.parallel:
                    self.enqueue(reader)
                return reader, taken
        if processor.input:
            supplier, event = processor.input.popleft()
            if self.discard and is_outdated(event, now):
                self.shed(supplier, "outdated", 1)
            else:
                self.spread(supplier, event)
        return None

    # --- what ends ---

    def finish(self, seat: Seat) -> None:
        """A worker is done with its task: it is free, and what it worked for may be ready again."""
        assert seat.task is not None
        reader = seat.task[0]
        seat.task = None
        self._under_way -= 1
        seat.since = 0
        if seat.counted:
            seat.processor.busy -= 1
            seat.counted = False
        seat.reported = False
        if not reader.parallel:
            reader.queued = False
        self.enqueue(reader)
        self.free(seat)

    def moved(self, seat: Seat) -> None:
        """A mover takes its bundle to the readers' level."""
        assert seat.bundle is not None
        reader, input, slot = seat.bundle
        seat.bundle = None
        self._under_way -= 1
        seat.since = 0
        seat.processor.busy_movers -= 1
        slot.pins -= 1
        if reader.admitted:
            self.bind(reader, input, slot)
        self.free(seat)

    def free(self, seat: Seat) -> None:
        """A seat has nothing to do; one that was given up for lost, or has no service any more, ends."""
        if seat.lost or not self.running:
            seat.ended = True
        elif seat.consumer is not None:
            pass  # it waits for what is next for its consumer
        elif seat.mover:
            seat.processor.idle_movers.append(seat)
        else:
            seat.processor.idle.append(seat)
        self.dispatch()

    def checkpoint(self, seat: Seat) -> None:
        """Lets more urgent work go first, if there is any; takes the lock itself.

        Whoever comes here does not hang, however long all of its steps take together.
        """
        seat.since = self.clock()
        if not self._is_pressed(seat.processor) or seat.lost:
            return
        with self.lock:
            if not self.running:
                return
            seat.processor.busy -= seat.counted
            seat.counted = False
            seat.since = 0
            seat.processor.resuming.append(seat)
            self.dispatch()
        seat.park()

    def _is_pressed(self, processor: EventProcessor) -> bool:
        used = 0
        for each in self.processors:
            if each is processor:
                return False
            used += each.busy + each.busy_movers
            if each.has_work or each.moving or used >= self.cores:
                return True
        return False

    @property
    def is_quiet(self) -> bool:
        """Whether nothing waits, nothing is on its way, and no worker is busy."""
        waits = any(each.has_work or each.moving for each in self.processors)
        return not waits and not self._under_way and not self.sent

    def queues(self) -> dict[int, dict[str, Any]]:
        """How much waits, by priority and queue."""
        return {
            each.priority: {
                "input": len(each.input),
                "pending": len(each.pending),
                "moving": len(each.moving),
            }
            for each in self.processors
        }
