"""Files and topics into the archive: what is not there yet, each record once, and what cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kaicep.archive.archive import Archive
from kaicep.connectors.shape import DeadLetter, Form
from kaicep.endtoend.interrupts import interrupted_later
from kaicep.endtoend.taking import Origin, Piece, Plan, covered_by, gathered, planned, rows_of_piece

if TYPE_CHECKING:
    import pyarrow

    from kaicep.endtoend.materialise import Materialise

__all__ = ["Ingested", "ingest"]

BATCH = 250_000
"""So many records are appended at a time, about."""


@dataclass(frozen=True)
class Ingested:
    """What was added to a stream's table: rows, those of them that are late, and what could not be read."""

    stream: str
    rows: int = 0
    late: int = 0
    dead: tuple[DeadLetter, ...] = ()
    positions: Mapping[int, int] = field(default_factory=dict)
    behind: int | None = None
    """How many records are still to come, where the source can tell."""

    def plus(self, rows: int, late: int, dead: Sequence[DeadLetter]) -> Ingested:
        """With one more batch."""
        return replace(self, rows=self.rows + rows, late=self.late + late, dead=(*self.dead, *dead))


def ingest(
    archive: Archive,
    form: Form,
    origin: Origin,
    lateness: int | None = None,
    tell: Callable[[Ingested], None] = lambda done: None,
    waiting: Callable[[str], None] = lambda trouble: None,
    growing: bool = False,
    materialise: Materialise | None = None,
    history: bool = False,
) -> Ingested:
    """Appends the records of files, or of a topic up to its end, that the archive does not hold yet.

    Types that the archive has are kept: a value that does not fit is a bad record, as anywhere else. A new
    attribute is taken in where it is declared, or appears at the beginning of a file that is new. `tell`
    hears of every batch, `waiting` of a broker that is down. With `growing`, half a line waits for the rest.
    `materialise` says what else to write beside the events. With `history`, the files are that of a stream
    whose live source is something else: each has a part of its own, whatever other files there are.
    """
    plan = planned(archive, form, origin, waiting, growing, materialise=materialise, history=history)
    if plan is None:
        return Ingested(form.stream)
    done = Ingested(form.stream, positions=plan.held)
    for group in gathered(plan.pieces, BATCH):
        rows, dead = _read(plan, group)
        covered = covered_by(group, done.positions)
        with interrupted_later():  # what is committed is told too
            archive.dead_letters.append(form.stream, [each.to_dict() for each in dead], covered)
            added = plan.table.append(rows, covered, plan.shape, lateness, plan.sources)
            positions = plan.table.positions
            done = replace(
                done.plus(added.rows, added.late, dead), positions=positions, behind=plan.behind(positions)
            )
            tell(done)
    return done


def _read(plan: Plan, group: Sequence[Piece]) -> tuple[pyarrow.Table, list[DeadLetter]]:
    import pyarrow

    read = [rows_of_piece(each, plan.form, plan.schema, plan.origin) for each in group]
    rows = pyarrow.concat_tables([rows for rows, _ in read])
    rows = plan.knowing.beside(rows) if plan.knowing is not None else rows
    return rows, [each for _, dead in read for each in dead]
