"""EP-SPARQL, evaluated incrementally over columns of dictionary codes, with state that can be saved.

The plans of a run's queries and the occurrences of triples, in the order of their end, enter; matches
leave as soon as an instant is over, or at once where nothing can change them. `lowered` makes the operators
of a plan, `batches` takes instants through rules and queries, `run` is the whole.
"""

from __future__ import annotations

from kaicep.kernel.epsparql.answers import pushed
from kaicep.kernel.epsparql.run import EpOperator
from kaicep.kernel.epsparql.state import Sent

__all__ = ["EpOperator", "Sent", "pushed"]
