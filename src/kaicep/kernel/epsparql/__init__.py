"""EP-SPARQL, evaluated incrementally: binarised joins, rules closed at each instant, state that can be saved.

The plans of a run's queries and the occurrences of triples, in the order of their end, enter; matches
leave as soon as an instant is over. `build` makes the operators of a plan, `run` drives them. Plans that
only join and filter are run over columns by compiled kernels (`lowered`, `columnar`, `kernels`) once there
is enough input; they give the same answers and go on from the same state.
"""

from __future__ import annotations

from kaicep.kernel.epsparql.run import EpOperator, Sent

__all__ = ["EpOperator", "Sent"]
