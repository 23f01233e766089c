"""Queries that are compiled while they run, once so many events have come that it pays.

Nobody waits for the compiler: it works beside the engine, on a shape without any data. When it is done, the
compiled operator is given the events that the interpreted one holds (`held`), and takes over between two
batches. Where they are not all that it has to know, it waits until nothing is held.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from kaicep.hosts.columnar import asks_the_knowledge, attribute_types, compiled_operator, why_interpreted
from kaicep.kernel.operator import Limits, Nobody
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event
from kaicep.plan.nodes import Pattern, Project, QueryPlan, WindowAggregate

__all__ = ["Growth"]

_log = logging.getLogger("kaicep")


class Growth:
    """Plans, optimised, that are being compiled for an engine; a plan that cannot be is never ready."""

    def __init__(self, plans: Sequence[QueryPlan], catalog: Catalog, limits: Limits) -> None:
        self._plans = plans
        self._catalog = catalog
        self._limits = limits
        self._ready: list[QueryPlan] = []
        self._thread = threading.Thread(target=self._work, name="kaicep-compiler", daemon=True)
        self._thread.start()

    def is_ready(self, plan: QueryPlan) -> bool:
        """Whether one of the plans is compiled."""
        return any(each is plan for each in self._ready)

    def is_over(self, plans: Sequence[QueryPlan]) -> bool:
        """Whether the work is done, and there are others to compile by now."""
        known = {id(each) for each in self._plans}
        return not self._thread.is_alive() and any(id(each) not in known for each in plans)

    def wait(self) -> None:
        """Waits until all is compiled."""
        self._thread.join()

    def _work(self) -> None:
        for plan in self._plans:
            if why_interpreted(plan, self._catalog) is not None:
                continue
            try:
                self._compile(plan)
            except Exception:  # the query goes on interpreted, and somebody should hear of it
                _log.exception("%s could not be compiled, and goes on interpreted", plan.name)
            else:
                self._ready.append(plan)

    def _compile(self, plan: QueryPlan) -> None:
        """Compiles by use: one event without values, in a dictionary of its own, judged by nobody."""
        from kaicep.kernel.batches import ColumnSorter, batch_of_events
        from kaicep.kernel.columns import Strings
        from kaicep.kernel.sort import Parts

        strings = Strings()
        operator = compiled_operator(
            [plan], self._catalog, Nobody(), strings, self._limits, asks_the_knowledge(plan)
        )
        assert isinstance(plan.root, Project)
        assert isinstance(plan.root.input, Pattern | WindowAggregate)
        streams = plan.root.input.streams
        sorter = ColumnSorter(streams, Parts(0), attribute_types(operator, plan, self._catalog), strings)
        known = dict(self._catalog.streams[streams[0]].attributes)
        sorter.offer(batch_of_events(streams[0], [Event(streams[0], 0, 0, 0)], known, strings))
        sorter.parts.finished = True
        table = sorter.release()
        assert table is not None
        for _ in operator.feed(table):
            pass
        for _ in operator.advance(0):
            pass
