"""The event service runs a graph: it takes events and calls consumers, by priority and in time."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kaicep.errors import Failure, KaicepError, Mistake, did_you_mean
from kaicep.live import ticking
from kaicep.live.bindings import (
    MISSED,
    Counters,
    Delivery,
    Event,
    EventStore,
    RunningConsumer,
    RunningOperator,
    RunningReader,
    RunningSupplier,
    connect,
    derived,
    is_outdated,
)
from kaicep.live.graph import KINDS, Consumer, Graph, Node, Operator
from kaicep.live.kinds import Isolated, check_isolable, function_of
from kaicep.live.processor import (
    Admission,
    Crew,
    Dispatcher,
    EventProcessor,
    Hanging,
    NodeCounts,
    Seat,
    leave,
)
from kaicep.live.sharing import LiveQuery, Shared, in_order, separated, shared

if TYPE_CHECKING:
    from kaicep.live.gateway import Offset

_LETTERS = 1000
_INTERVAL = 0.05
_TOO_OFTEN = 3


@dataclass(frozen=True)
class Settings:
    """How a service works.

    `cores` are those for operators; one of the machine's is left for what takes events in, as in the paper.
    `real_time` asks for SCHED_FIFO: None takes it where it is allowed, False does without. `prioritised`,
    `sharing` and `admission` (leaving out whom nothing reaches in time) can be switched off to compare. An
    operator or a callback that runs for longer than `patience` seconds is reported as hanging; another worker
    takes the place of its own.
    `switch` is how long, in seconds, one thread may hold the interpreter while another waits for it.
    """

    cores: int | None = None
    real_time: bool | None = None
    prioritised: bool = True
    sharing: bool = True
    admission: bool = True
    patience: float = 1.0
    switch: float = 0.0005


@dataclass(frozen=True)
class DeadEvent:
    """A node that raised, or an event that was refused: what came, and the error."""

    node: str
    payloads: tuple[Any, ...]
    error: Exception


class Service:
    """Runs a graph. Start and stop it, or use it in a `with`; push events from any thread.

    >>> from kaicep.live.graph import consumer, operator, supplier
    >>> numbers = supplier("numbers")
    >>> @operator(numbers)
    ... def doubled(number):
    ...     return 2 * number
    >>> got = []
    >>> @consumer(doubled, priority="high")
    ... def listener(delivery):
    ...     got.append(delivery.payload)
    >>> with Service(Graph.of(numbers, doubled, listener)) as service:
    ...     for number in range(3):
    ...         _ = service.push("numbers", number)
    ...     _ = service.drain()
    >>> got
    [0, 2, 4]
    """

    def __init__(
        self,
        graph: Graph,
        settings: Settings | None = None,
        *,
        on_dead_letter: Callable[[DeadEvent], None] | None = None,
        on_hanging: Callable[[Hanging], None] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.settings = settings or Settings()
        wanted = self.settings.real_time
        self.real_time = ticking.allowed() if wanted is None else wanted and ticking.allowed()
        self.clock = clock
        self.store = EventStore()
        self.dead_letters: deque[DeadEvent] = deque(maxlen=_LETTERS)
        self.hanging: deque[Hanging] = deque(maxlen=_LETTERS)
        self.failed = 0
        self.by_priority: dict[int, Counters] = {}
        self.suppliers: dict[str, RunningSupplier] = {}
        self.operators: dict[str, RunningOperator] = {}
        self.consumers: dict[str, RunningConsumer] = {}
        cores = self.settings.cores or graph.cores or _cores()
        lock = ticking.guard(self.real_time)
        self.dispatcher = Dispatcher(cores, graph.discard, clock, lock, self._shed)
        self.crew = Crew(self.dispatcher, self.real_time, self._process, self._rest)
        self.admission = Admission()
        self._paths: dict[str, list[str]] = {}
        self.started = 0
        self._lock = lock
        self._on_dead_letter = on_dead_letter
        self._on_hanging = on_hanging
        self._quiet = threading.Condition()
        self._stopping = threading.Event()
        self._switch = sys.getswitchinterval()
        self._draining = 0
        self.given = graph
        self._shared = Shared(graph)
        self._changing = threading.RLock()
        self._guests: set[str] = set()
        self.connected: dict[int, tuple[str, Offset]] = {}
        """Who is connected over the network, and what is known of its clock."""
        self._install(graph, shared(graph) if self.settings.sharing else None)

    # --- the graph, and what changes in it ---

    def add(self, *nodes: Node) -> None:
        """Adds suppliers, operators, queries and consumers, also while the service runs.

        What is not valid together with the rest is refused as a whole. An operator that remembers, such as
        a query, starts with what comes from now on, even if an equal one runs already.
        """
        with self._changing:
            self._add(*nodes)

    def _add(self, *nodes: Node) -> None:
        given = self.given.with_nodes(*nodes)
        new = [each for each in in_order(given) if each in nodes]
        self._install(given, self._shared.extended(new) if self.settings.sharing else None)

    def remove(self, consumer: str) -> None:
        """Removes a consumer, and the operators that no other consumer needs."""
        with self._changing:
            given = self.given.without(consumer)
            self._install(given, self._shared.without(consumer) if self.settings.sharing else None)

    def _install(self, given: Graph, arranged: Shared | None) -> None:
        """Lets the service run a graph, where nothing is shared as it is given; what ran before goes on.

        Making operators may take its time (kernels are loaded, queries compiled): it is done before anything
        is stopped for the change.
        """
        arranged = arranged or Shared(separated(given))
        graph = arranged.graph
        made = {
            name: self._running(each) for name, each in graph.operators.items() if name not in self.operators
        }
        with self._lock:
            self.given, self._shared = given, arranged
            self.operators.update(made)
            for name in graph.suppliers:
                self.suppliers.setdefault(name, RunningSupplier(name))
            for name, each in graph.consumers.items():
                self.consumers.setdefault(name, RunningConsumer(name, each.callback, each.queue))
            self._drop(graph)
            levels = graph.priorities()
            for level in sorted(set(levels.values()), reverse=True):
                self.by_priority.setdefault(level, Counters())
                self.crew.fill(self._processor(level))
            nodes = self._nodes()
            for node in nodes:
                node.priority = levels[node.name]
                node.processor = self._processor(node.priority)
                if isinstance(node, RunningConsumer) and node.seat is not None:
                    node.seat.processor = node.processor
            connect(graph, nodes, self.store)
            self.crew.rank()
            self._paths = {
                name: [each for each in graph.order() if each in graph.upstream(name)] + [name]
                for name in self.consumers
            }
            self._admit()
            self.dispatcher.dispatch()

    def _nodes(self) -> tuple[RunningSupplier | RunningReader, ...]:
        return *self.suppliers.values(), *self.operators.values(), *self.consumers.values()

    def _drop(self, graph: Graph) -> None:
        """Lets go of what is not in the graph any more."""
        for name in self.operators.keys() - graph.operators.keys():
            self._dismiss(self.operators.pop(name))
            self.store.rings.pop(name, None)
        for name in self.consumers.keys() - graph.consumers.keys():
            consumer = self.consumers.pop(name)
            self.crew.release(consumer)
            self._dismiss(consumer)

    def _running(self, operator: Operator) -> RunningOperator:
        function = self._isolated(operator) if operator.isolate else function_of(operator)
        made = RunningOperator(
            operator.name,
            operator.inputs,
            function,
            KINDS[operator.kind].each,
            operator.queue,
            operator.parallel,
        )
        if isinstance(operator.function, LiveQuery):
            made.places = operator.function.places
        return made

    def _isolated(self, operator: Operator) -> Isolated:
        """The function of an operator in a process of its own, ranked with the workers of its level."""

        def ranked(pid: int) -> None:
            self.crew.rank_process(pid, lambda: self.operators.get(operator.name))

        return Isolated(operator, ranked if self.real_time else lambda pid: None)

    def _dismiss(self, reader: RunningReader) -> None:
        if isinstance(reader, RunningOperator) and isinstance(reader.function, Isolated):
            reader.function.close()
        reader.admitted = False
        reader.forget(self._shed, "removed")

    @property
    def graph(self) -> Graph:
        """The graph as it runs: with equal operators as one, or each consumer with its own."""
        return self._shared.graph

    def _processor(self, priority: int) -> EventProcessor:
        return self.dispatcher.level(priority if self.settings.prioritised else 0)

    # --- consumers elsewhere ---

    def attach(self, name: str, send: Callable[[Delivery], None]) -> str:
        """Ties somebody elsewhere to a consumer: `send` gets its deliveries, in a thread of its own.

        The first one gets what the consumer itself would, others the same beside it, each under a name of its
        own, which is returned. A delivery counts when `acknowledge` says that it has arrived.
        """
        with self._changing:
            like = self.given.consumers.get(name)
            if like is None:
                raise Failure(f"no consumer is named {name}")
            if self.consumers[name].callback is not None:
                name = self._beside(like)
            with self._lock:
                consumer = self.consumers[name]
                consumer.callback, consumer.remote = send, True
                self.crew.attend(consumer)
        return name

    def _beside(self, like: Consumer) -> str:
        """Adds a consumer of the same events beside another; gives its name."""
        name = next(found for each in count(2) if (found := f"{like.name}#{each}") not in self.consumers)
        self._add(replace(like, name=name, callback=None, place=None))
        self._guests.add(name)
        return name

    def detach(self, name: str) -> None:
        """Ends what `attach` began."""
        with self._lock:
            consumer = self.consumers.get(name)
            if consumer is not None:  # it may have been removed meanwhile
                consumer.callback, consumer.remote = None, False
                self.crew.release(consumer)
        if name in self._guests:
            self._guests.discard(name)
            self.remove(name)

    def acknowledge(self, name: str, delivery: Delivery, received: int) -> None:
        """Counts a delivery that somebody elsewhere got at a time, in nanoseconds of the service's clock."""
        latency = delivery.latency + received - delivery.at
        with self._lock:
            self.dispatcher.sent -= 1
            if name in self.consumers:
                self._count(self.consumers[name], delivery, latency, received < delivery.end)

    def give_up(self, name: str, number: int) -> None:
        """Counts deliveries that were sent, and will not be acknowledged, as shed."""
        with self._lock:
            self.dispatcher.sent -= number
            if name in self.consumers:
                self._shed(self.consumers[name], "unacknowledged", number)

    # --- start and stop ---

    def start(self) -> Service:
        """Starts the threads; what was pushed before is worked off now. Starting twice changes nothing."""
        with self._lock:
            if self.dispatcher.running:
                return self
            self.dispatcher.running = True
            self.started = self.clock()
            for processor in self.dispatcher.processors:
                self.crew.fill(processor)
            for consumer in self.consumers.values():
                if consumer.own:
                    self.crew.attend(consumer)
            self.crew.rank()
            self._switch = sys.getswitchinterval()
            sys.setswitchinterval(self.settings.switch)
            self._stopping = threading.Event()
            self._keeper = threading.Thread(
                target=self._keep, args=(self._stopping,), name="kaicep-live-keeper", daemon=True
            )
            self._keeper.start()
            self.dispatcher.dispatch()
        return self

    def stop(self, timeout: float = 5.0) -> None:
        """Stops when what runs is done; what waits stays, and goes on after another `start`.

        An operator that hangs is left behind after `timeout` seconds. Stopping twice changes nothing.
        """
        with self._lock:
            if not self.dispatcher.running:
                return
            self.dispatcher.running = False
            seats = self.crew.dismiss()
            self._stopping.set()
            sys.setswitchinterval(self._switch)
        with self._quiet:
            self._quiet.notify_all()
        leave(seats, timeout)
        if self._keeper is not threading.current_thread():  # what it reports to may stop the service
            self._keeper.join(timeout)

    def __enter__(self) -> Service:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def drain(self, timeout: float | None = None) -> bool:
        """Waits until nothing waits and no worker is busy; False after `timeout` seconds."""
        with self._quiet:
            self._draining += 1
            try:
                return self._quiet.wait_for(lambda: not self.dispatcher.running or self._is_quiet(), timeout)
            finally:
                self._draining -= 1

    def _is_quiet(self) -> bool:
        with self._lock:
            return self.dispatcher.is_quiet

    # --- events ---

    def push(
        self, supplier: str, payload: Any, *, created: int | None = None, wall: int | None = None
    ) -> bool:
        """Takes an event of a supplier; False if it was not admitted.

        It is valid from `created` on (nanoseconds of the monotonic clock; now, where nothing is said).
        `wall` is its event time in microseconds since 1970, for queries over what has no time of its own.
        """
        return self.push_all(((supplier, payload, created),), wall) == 1

    def push_all(
        self,
        events: Iterable[tuple[str, Any, int | None]],
        wall: int | None = None,
        sent: int | None = None,
    ) -> int:
        """Takes events of several suppliers at once (name, payload, creation); returns how many it took.

        `sent` is when they were sent from elsewhere, in nanoseconds of the service's clock.
        """
        now = self.clock()
        moment = time.time_ns() // 1000 if wall is None else wall
        admitted = 0
        with self._lock:
            for name, payload, created in events:
                supplier = self.suppliers.get(name)
                if supplier is None:
                    hint = did_you_mean(name, self.suppliers)
                    raise Mistake(f"no supplier is named {name}", hint=hint)
                supplier.counters.offered += 1
                self.by_priority[supplier.priority].offered += 1
                if supplier.admitted:
                    begin = now if created is None else created
                    event = supplier.event(payload, begin, now, moment, sent)
                    self.dispatcher.arrive(supplier, event)
                    admitted += 1
                else:
                    self._shed(supplier, "hopeless", 1)
            self.dispatcher.dispatch()
        return admitted

    def refuse(self, supplier: str, payload: Any, reason: str) -> None:
        """Counts an event of a supplier that cannot be taken, and keeps it with the reason."""
        with self._lock:
            self.suppliers[supplier].counters.offered += 1
            self.by_priority[self.suppliers[supplier].priority].offered += 1
        self._bury(self.suppliers[supplier], (payload,), Failure(reason), "refused")

    # --- work ---

    def _process(self, seat: Seat) -> None:
        """Works the task of a seat off."""
        assert seat.task is not None
        reader, taken = seat.task
        made: list[Any] = []
        delivery: Delivery | None = None
        failed = False
        began = self.clock()
        try:
            if isinstance(reader, RunningOperator):
                made = reader.run(taken, lambda: self.dispatcher.checkpoint(seat))
            elif isinstance(reader, RunningConsumer) and not (
                self.dispatcher.discard and is_outdated(taken[0][1], began)
            ):
                if reader.remote:
                    with self._lock:
                        self.dispatcher.sent += 1
                delivery = reader.deliver(taken[0][1], began)
        except Exception as error:
            failed = True
            self._bury(reader, tuple(event.payload for _, event in taken), error, "error")
        with self._lock:
            if isinstance(reader, RunningOperator):
                parts = [event for _, event in taken]
                self._spread(reader, seat.number, parts, made, self.clock() - began)
            elif isinstance(reader, RunningConsumer) and delivery is not None:
                if not reader.remote:
                    self._count(reader, delivery, delivery.latency, delivery.timely)
            elif not failed:
                self._shed(reader, "outdated", 1)
            self.dispatcher.finish(seat)

    def _count(self, consumer: RunningConsumer, delivery: Delivery, latency: int, timely: bool) -> None:
        size = _size(delivery.payload) if timely else 0
        for counters in (consumer.counters, self.by_priority[consumer.priority]):
            counters.count(latency, delivery.inside, timely, size)

    def _spread(
        self, operator: RunningOperator, number: int, parts: list[Event], made: list[Any], took: int
    ) -> None:
        operator.counters.ran += 1
        operator.counters.busy += took
        for those, payloads in operator.in_turn(number, parts, made):
            for payload in payloads:
                event = derived(operator.seq, payload, those)
                operator.seq += 1
                self.dispatcher.spread(operator, event)

    def _bury(
        self, node: RunningReader | RunningSupplier, payloads: tuple[Any, ...], error: Exception, reason: str
    ) -> None:
        letter = DeadEvent(node.name, payloads, error)
        with self._lock:
            self.dead_letters.append(letter)
            self.failed += 1
            self._shed(node, reason, 1)
        if self._on_dead_letter is not None:
            self._on_dead_letter(letter)

    def _rest(self) -> None:
        """Wakes those who wait for the service to be quiet, if it is."""
        if self._draining and self._is_quiet():
            with self._quiet:
                self._quiet.notify_all()

    # --- counting, shedding, watching ---

    def _shed(self, node: RunningReader | RunningSupplier, reason: str, count: int) -> None:
        node.counters.shed[reason] += count
        self.by_priority[node.priority].shed[reason] += count

    def _keep(self, stopping: threading.Event) -> None:
        """Looks after the service from time to time: who hangs, and who may be admitted."""
        if self.real_time:
            ticking.real_time(0, ticking.TOP)
        began = time.monotonic()
        while not stopping.wait(_INTERVAL):
            waited = time.monotonic() - began - _INTERVAL
            self._watch()
            with self._lock:
                locking = self.crew.lockers(waited)
                for each in locking:
                    each.counters.locked += 1
            for each in locking:
                self._set_apart(each)
            if self.settings.admission and self.dispatcher.discard:
                with self._lock:
                    pressed, self.dispatcher.pressed = self.dispatcher.pressed, False
                    if self.admission.observe(self._paths, self._passed, pressed):
                        self._admit()
            self._rest()
            began = time.monotonic()

    def _set_apart(self, running: RunningOperator) -> None:
        """Moves an operator that keeps the interpreter lock to a process, where that changes nothing else.

        What may remember something stays where it is; the figures name it.
        """
        operator = self.graph.operators.get(running.name)
        if operator is None or running.counters.locked < _TOO_OFTEN or isinstance(running.function, Isolated):
            return
        if not (operator.parallel or not KINDS[operator.kind].stateful):
            return
        try:
            check_isolable(operator)
            function = self._isolated(operator)
        except KaicepError:
            return
        with self._lock:
            running.function = function

    def _passed(self, name: str) -> NodeCounts:
        counters = (self.operators.get(name) or self.consumers[name]).counters
        missed = counters.late + sum(counters.shed[reason] for reason in MISSED)
        return NodeCounts(counters.ran + counters.timely, missed)

    def _watch(self) -> None:
        with self._lock:
            found = self.crew.watch(self.clock(), self.settings.patience)
            self.hanging.extend(found)
        if self._on_hanging is not None:
            for each in found:
                self._on_hanging(each)

    def _admit(self) -> None:
        """Tells every node whether a consumer needs it that is not left out."""
        graph, hopeless = self.graph, self.admission.hopeless
        paths = {each: (each, *graph.upstream(each)) for each in self.consumers}
        wanted = {node for path in paths.values() for node in path}
        needed = {node for each, path in paths.items() if each not in hopeless for node in path}
        for node in self._nodes():
            admitted = node.name in needed or node.name not in wanted
            if node.admitted and not admitted and isinstance(node, RunningReader):
                node.forget(self._shed, "hopeless")
            node.admitted = admitted

    def count_anew(self) -> None:
        """Sets all figures back to nothing, such as after a time to warm up."""
        with self._lock:
            self.started = self.clock()
            self.by_priority = {priority: Counters() for priority in self.by_priority}
            for node in self._nodes():
                node.counters = Counters()


def _cores() -> int:
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, found - 1)


def _size(payload: Any) -> int:
    """How many bytes a payload has; 0 where that cannot be said."""
    size = getattr(payload, "nbytes", None)
    if size is None and isinstance(payload, bytes | bytearray):
        size = len(payload)
    return size or 0
