"""What differs from the W3C suite on purpose, with the reasons, and the score by folder.

    .venv/bin/python -m tests.w3c.score

runs the suite and writes score.json, from which `scripts/docs.py` makes a table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.w3c.suite import EVALUATION, PARTS, POSITIVE, Case, cases, folder_of_suite, plan_of, run, same

from kaicep.errors import Failure, Mistake

SCORE = Path(__file__).parent / "score.json"
HOSTS = ("reference", "inprocess")

OUT_OF_SCOPE = {
    "entailment": "other regimes than ours; the reasoning has tests of its own",
    "delete-insert": "SPARQL Update",
    "csv-tsv-res": "forms of results",
    "service": "needs servers, and SERVICE is refused",
    "syntax-fed": "SERVICE is refused",
}
"""Folders that ask for something else than the evaluation of a query over one graph."""

REFUSED = {
    "ASK ": "ASK: whether there is an answer changes with the next triple",
    "ORDER BY ": "ORDER BY, LIMIT, OFFSET: matches come in the order of their end, and there is no last one",
    "DESCRIBE ": "DESCRIBE: what it gives is up to whoever implements it",
    "expected WINDOW after FROM NAMED": "FROM NAMED: a window over a stream; all named graphs may be asked",
    "FROM ": "FROM: streams and knowledge are given where the query is run",
    "expected a template of triples after CONSTRUCT, found FROM": "FROM: as above",
    "UUID() ": "the same events must give the same answers",
    "STRUUID() ": "the same events must give the same answers",
    "unknown function ": "a function that nobody knows is an error of the query",
}
"""How the message begins with which a query is refused, and why it is."""

_TIMELESS = "a solution needs a time, which only a triple of the stream gives"
_STATED = "what is stated in a named graph of the knowledge has no time, and is no answer by itself"
_OLD_PATHS = "p{n,m} was taken out of SPARQL 1.1 before it was done"
_OLD_STRINGS = "written for RDF 1.0; since RDF 1.1 a plain string is an xsd:string"
_OLD_NUMBERS = "since SPARQL 1.1, `456.` is a number and a dot"

DIFFERENT = {
    "agg-empty-group": _TIMELESS,
    "bnode02": _TIMELESS,
    "if02": _TIMELESS,
    "iri01": _TIMELESS,
    "pp02": _TIMELESS,
    "pp28a": _TIMELESS,
    **dict.fromkeys((f"dawg-graph-{each}" for each in ("03", "06", "07", "11")), _STATED),
    **dict.fromkeys((f"subquery{each:02}" for each in (1, 2, 3, 4, 5, 7)), _STATED),
    **dict.fromkeys(("exists03", "pp07", "pp34", "pp35"), _STATED),
    **dict.fromkeys((f"pp{each:02}" for each in (4, 5, 13, 15, 20, 22, 24, 26, 27, 29)), _OLD_PATHS),
    "strdt03": _OLD_STRINGS,
    "strlang03": _OLD_STRINGS,
    "strafter01": "since SPARQL 1.1 nothing found is the simple literal",
    "strbefore01": "since SPARQL 1.1 nothing found is the simple literal",
    "term-6": _OLD_NUMBERS,
    "term-7": _OLD_NUMBERS,
    "syntax-lit-08": _OLD_NUMBERS,
    "date-1": "a date without a zone is one of UTC, as XPath compares with an implicit zone",
    "dawg-optional-filter-005-simplified": "one of two readings; the other is that of SPARQL 1.1",
    "construct-3": "what a rule derives joins the stream, and this one speaks of every triple",
    "construct-4": "what a rule derives joins the stream, and this one speaks of every triple",
    "syntax-general-12": "`?x<?y` is a comparison: no IRI that one would write begins with a question mark",
    "syn-bad-26": "`?x<?y` is a comparison: no IRI that one would write begins with a question mark",
    "test_52": "an escaped colon, which test_pn_bad_06 forbids",
    "temporal-proximity-by-exclusion-minus-1": "its files are not in the suite",
}
"""Single tests by name."""


def folders() -> dict[str, Path]:
    """The folders in scope, by a short name."""
    root = folder_of_suite()
    found = {}
    for part, version in zip(PARTS, ("1.0", "1.1"), strict=True):
        for manifest in sorted((root / part).glob("*/manifest.ttl")):
            name = manifest.parent.name
            if name not in OUT_OF_SCOPE and cases(manifest.parent):
                found[f"{version} {name}"] = manifest.parent
    return found


def outcome(case: Case, host: str) -> str:
    """`exact`, a reason why it differs, or what is wrong."""
    if reason := DIFFERENT.get(case.name):
        return reason
    if case.kind != EVALUATION:
        return _syntax(case)
    try:
        found, expected = run(case, host)
    except Mistake as mistake:
        return _refused(mistake)
    except Failure as failure:
        return f"WRONG: {failure}"
    return "exact" if same(found, expected) else f"WRONG: {found} and not {expected}"


def _syntax(case: Case) -> str:
    try:
        plan_of(case)
    except Mistake as mistake:
        return _refused(mistake) if case.kind == POSITIVE else "exact"
    return "exact" if case.kind == POSITIVE else "WRONG: it is not a query, and was taken for one"


def _refused(mistake: Mistake) -> str:
    message = mistake.diagnostics[0].message
    return next((why for begin, why in REFUSED.items() if message.startswith(begin)), f"WRONG: {message}")


def outcomes(folder: Path, host: str) -> dict[str, str]:
    """What became of each test of a folder."""
    return {each.name: outcome(each, host) for each in cases(folder)}


def score(found: Mapping[str, str]) -> dict[str, int]:
    """How many tests are exact, and how many differ for a reason."""
    exact = list(found.values()).count("exact")
    return {"exact": exact, "different": len(found) - exact}


if __name__ == "__main__":
    made = {name: score(outcomes(folder, "reference")) for name, folder in folders().items()}
    SCORE.write_text(json.dumps(made, indent=1) + "\n")
