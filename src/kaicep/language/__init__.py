"""The two languages: the text of a query enters, a query as written (`plan.chi`, `plan.sparql`) leaves.

One file per step: `lexer` makes tokens, `parse_expressions` and `parse_sparql` read what both languages
share, `parse_chicep` and `parse_epsparql` a whole query. All errors of a text are told at once.
"""

from kaicep.language.parse_chicep import parse_chi
from kaicep.language.parse_epsparql import parse_ep

__all__ = ["parse_chi", "parse_ep"]
