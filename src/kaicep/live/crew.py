"""The threads of a service, on the seats of the levels and of consumers, and a watchdog over them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kaicep.live import priorities
from kaicep.live.bindings import RunningConsumer, RunningOperator
from kaicep.live.processor import Dispatcher, EventProcessor, Seat

__all__ = ["BLOCKED", "LOCKED", "Crew", "Hanging"]

BLOCKED = 0.02
"""After how many seconds a callback has blocked: it gets a thread of its own, and its worker another."""


LOCKED = 0.02
"""For how many seconds an operator may keep the interpreter lock before that is counted."""
_MOSTLY = 0.8


@dataclass(frozen=True)
class Hanging:
    """An operator or a consumer that does not come back, and for how many seconds when it was noticed."""

    node: str
    seconds: float


class Crew:
    """As many workers for each level as there are cores, and a mover.

    `process` works a seat's task off. All methods want the lock to be held, except `leave`.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        real_time: bool,
        process: Callable[[Seat], None],
        rest: Callable[[], None],
    ) -> None:
        self.dispatcher = dispatcher
        self.real_time = real_time
        self._process = process
        self._rest = rest
        self._seats: list[Seat] = []
        self._intakes: dict[int, Callable[[], EventProcessor]] = {}
        self._processes: dict[int, Callable[[], RunningOperator | None]] = {}
        self._used: dict[int, float] = {}

    def fill(self, processor: EventProcessor) -> None:
        """Fills the seats of a level, if the service runs."""
        if not self.dispatcher.running:
            return
        while len(processor.workers) < self.dispatcher.cores:
            seat = Seat(processor)
            processor.workers.append(seat)
            processor.idle.append(seat)
            self._employ(seat)
        if not processor.movers:
            seat = Seat(processor, mover=True)
            processor.movers.append(seat)
            processor.idle_movers.append(seat)
            self._employ(seat)

    def attend(self, consumer: RunningConsumer) -> None:
        """Gives a consumer a thread of its own, if the service runs and it has none."""
        consumer.own = True
        if self.dispatcher.running and consumer.seat is None:
            consumer.seat = Seat(consumer.processor, consumer=consumer)
            self._employ(consumer.seat)
            self.rank()
            self.dispatcher.enqueue(consumer)

    def release(self, consumer: RunningConsumer) -> None:
        """Lets the thread of a consumer end, after what it delivers now."""
        seat, consumer.seat, consumer.own = consumer.seat, None, False
        if seat is None:
            return
        seat.lost = True
        if seat.task is None:
            seat.ended = True
            seat.wake()

    def take_in(self, level: Callable[[], EventProcessor]) -> Callable[[], None]:
        """Ranks the calling thread, which takes events in, with the workers of a level, whatever it is then.

        Call what is returned when it takes in no more; without the lock, both.
        """
        me = threading.get_native_id()
        with self.dispatcher.lock:
            self._intakes[me] = level
            self.rank()

        def leave() -> None:
            with self.dispatcher.lock:
                self._intakes.pop(me, None)

        return leave

    def _employ(self, seat: Seat) -> None:
        what = "mover" if seat.mover else "worker" if seat.consumer is None else "output"
        name = f"kaicep-live-{what}-{seat.processor.priority}"
        seat.thread = threading.Thread(target=self._work, args=(seat,), name=name, daemon=True)
        self._seats.append(seat)
        seat.thread.start()

    def _work(self, seat: Seat) -> None:
        """What a thread does all its life."""
        while not seat.ended:
            seat.park()
            if seat.bundle is not None:
                with self.dispatcher.lock:
                    self.dispatcher.moved(seat)
            elif seat.task is not None:
                self._process(seat)
            if not seat.processor.has_work:
                self._rest()

    def rank(self) -> None:
        """Gives the threads their priorities.

        In each level: workers and intake, then movers, then output, which is above the next level's workers.
        """
        if not (self.real_time and self.dispatcher.running):
            return
        first = {id(each): 3 * number for number, each in enumerate(self.dispatcher.processors)}
        for seat in self._seats:
            if seat.thread is not None and seat.thread.native_id is not None:
                below = 1 if seat.mover else 2 if seat.consumer is not None else 0
                rank = first[id(seat.processor)] + below
                priorities.real_time(seat.thread.native_id, priorities.TOP - 1 - rank)
        for pid, whose in tuple(self._processes.items()):
            operator = whose()
            if operator is not None and not priorities.real_time(
                pid, priorities.TOP - 1 - first[id(operator.processor)]
            ):
                del self._processes[pid]  # it has ended
        for thread, level in self._intakes.items():
            priorities.real_time(thread, priorities.TOP - 1 - first[id(level())])

    def rank_process(self, pid: int, whose: Callable[[], RunningOperator | None]) -> None:
        """Ranks a process that works for an operator, once that is there, with the workers of its level.

        Without the lock.
        """
        with self.dispatcher.lock:
            self._processes[pid] = whose
            self.rank()

    def lockers(self, waited: float) -> list[RunningOperator]:
        """The operators that have computed all the while that somebody waited in vain for the interpreter."""
        found: list[RunningOperator] = []
        used: dict[int, float] = {}
        if hasattr(time, "pthread_getcpuclockid"):
            for seat in self._seats:
                reader = seat.task[0] if seat.task is not None else None
                if isinstance(reader, RunningOperator) and seat.thread and seat.thread.ident:
                    spent = time.clock_gettime(time.pthread_getcpuclockid(seat.thread.ident))
                    used[id(seat)] = spent
                    if waited > LOCKED and spent - self._used.get(id(seat), spent) > _MOSTLY * waited:
                        found.append(reader)
        self._used = used
        return found

    def busy_seconds(self) -> float:
        """The CPU time that the threads have used so far; 0 if the system does not report it."""
        if not hasattr(time, "pthread_getcpuclockid"):
            return 0.0
        idents = [each.thread.ident for each in self._seats if each.thread and each.thread.is_alive()]
        return sum(time.clock_gettime(time.pthread_getcpuclockid(each)) for each in idents if each)

    def watch(self, now: int, patience: float) -> list[Hanging]:
        """Finds workers that do not return, and gives their place to others.

        A callback that blocks keeps its thread, which is its own from then on.
        """
        found: list[Hanging] = []
        changed = False
        for seat in tuple(self._seats):
            seconds = (now - seat.since) / 1e9 if seat.since else 0.0
            if seat.lost or seat.task is None or seat.reported:
                continue
            reader = seat.task[0]
            if isinstance(reader, RunningConsumer) and seat.consumer is None and seconds > BLOCKED:
                reader.counters.blocked += 1
                reader.own, reader.seat, seat.consumer = True, seat, reader
                self._replace(seat)
                changed = True
            if seconds > patience:
                found.append(Hanging(reader.name, seconds))
                seat.reported = True
                if seat.consumer is None:
                    self._give_up(seat)
                    self._replace(seat)
                    changed = True
        self._seats = [each for each in self._seats if not each.ended]
        if changed:
            self.rank()
            self.dispatcher.dispatch()
        return found

    def _replace(self, seat: Seat) -> None:
        seat.processor.workers.remove(seat)
        self.fill(seat.processor)

    def _give_up(self, seat: Seat) -> None:
        seat.lost = True
        seat.processor.busy -= seat.counted
        seat.counted = False

    def dismiss(self) -> list[Seat]:
        """Lets all threads end when they are done with what they do; gives the seats they sat on."""
        seats, self._seats = self._seats, []
        for seat in seats:
            self._give_up(seat)
            if seat.consumer is not None:
                seat.consumer.seat = None
                if seat.task is None and not seat.ended:
                    seat.ended = True
                    seat.wake()
        for processor in self.dispatcher.processors:
            for seat in (*processor.idle, *processor.idle_movers):
                seat.ended = True
                seat.wake()
            for seat in processor.resuming:
                seat.wake()
            processor.resuming.clear()
            for each in (processor.workers, processor.movers, processor.idle, processor.idle_movers):
                each.clear()
        return seats


def leave(seats: list[Seat], timeout: float) -> None:
    """Waits for the threads of these seats; one that hangs is left behind."""
    until = time.monotonic() + timeout
    for seat in seats:
        if seat.thread is not None and seat.thread is not threading.current_thread():
            seat.thread.join(max(0.0, until - time.monotonic()))
