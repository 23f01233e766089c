"""The threads of a service: they sit on the seats of the levels, and a watchdog looks after them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kaicep.live import priorities
from kaicep.live.processor import Dispatcher, EventProcessor, Seat

__all__ = ["Crew", "Hanging"]


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

    def _employ(self, seat: Seat) -> None:
        what = "mover" if seat.mover else "worker"
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
        """Gives the threads their priorities: workers above their movers above the next level's workers."""
        if not (self.real_time and self.dispatcher.running):
            return
        for number, processor in enumerate(self.dispatcher.processors):
            for seats, rank in ((processor.workers, 2 * number), (processor.movers, 2 * number + 1)):
                for seat in seats:
                    if seat.thread is not None and seat.thread.native_id is not None:
                        priorities.real_time(seat.thread.native_id, priorities.TOP - 1 - rank)

    def busy_seconds(self) -> float:
        """The CPU time that the threads have used so far; 0 if the system does not report it."""
        if not hasattr(time, "pthread_getcpuclockid"):
            return 0.0
        idents = [each.thread.ident for each in self._seats if each.thread and each.thread.is_alive()]
        return sum(time.clock_gettime(time.pthread_getcpuclockid(each)) for each in idents if each)

    def watch(self, now: int, patience: float) -> list[Hanging]:
        """Finds workers that do not return, and gives their place to others."""
        found: list[Hanging] = []
        for seat in tuple(self._seats):
            seconds = (now - seat.since) / 1e9 if seat.since else 0.0
            if seconds <= patience or seat.lost or seat.task is None:
                continue
            found.append(Hanging(seat.task[0].name, seconds))
            self._give_up(seat)
            seat.processor.workers.remove(seat)
            self.fill(seat.processor)
        self._seats = [each for each in self._seats if not each.ended]
        if found:
            self.rank()
            self.dispatcher.dispatch()
        return found

    def _give_up(self, seat: Seat) -> None:
        seat.lost = True
        seat.processor.busy -= seat.counted
        seat.counted = False

    def dismiss(self) -> list[Seat]:
        """Lets all threads end when they are done with what they do; gives the seats they sat on."""
        seats, self._seats = self._seats, []
        for seat in seats:
            self._give_up(seat)
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
