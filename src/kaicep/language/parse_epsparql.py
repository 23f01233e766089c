"""The parser of EP-SPARQL: text in, `EpQuery` out.

The layouts of the paper (its section 4.1) are read as printed: a WHERE without braces around it, bare
names, a template without braces. Groups and expressions are those of `parse_sparql`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kaicep.errors import Mistake, SourceText
from kaicep.language.lexer import (
    Cursor,
    Names,
    Report,
    Stuck,
    Token,
    TokenKind,
    near,
    refuse_deep,
    sparql_tokens,
)
from kaicep.language.parse_sparql import Groups, TripleBlocks, is_all_windows
from kaicep.plan.expressions import Aggregate, Call, TermConst
from kaicep.plan.sparql import (
    Construct,
    EpQuery,
    Group,
    Node,
    Path,
    Projection,
    Select,
    TripleBlock,
    TriplePattern,
)
from kaicep.plan.terms import XSD, Blank, Literal, Variable
from kaicep.plan.text import EP_PREFIXES

_POLICIES = ("unrestricted", "recent", "chronological")
_REFUSED = {"DESCRIBE": "DESCRIBE is not supported"}
_ASKED = "ASK is not possible on a stream: the answer could change with the next triple"


def parse_ep(
    source: SourceText, name: str = "query", prefixes: Mapping[str, str] = MappingProxyType({})
) -> EpQuery:
    """The EP-SPARQL query that a text holds; `prefixes` are known besides those that it declares.

    >>> query = parse_ep(SourceText("q.epsparql", "SELECT ?x WHERE { ?x p 1 } SEQ { ?x q 2 }"))
    >>> query.form.columns
    (Projection(name='x', expr=None),)
    """
    report = Report(source)
    cursor = Cursor(sparql_tokens(source, report), report)
    query = _EpParser(cursor, Names(report, prefixes, EP_PREFIXES)).query(name)
    if query is not None:
        refuse_deep(query, report)
    report.finish()
    assert query is not None, "a query is missing only where an error was reported"
    return query


def parse_rules(
    source: SourceText, name: str, prefixes: Mapping[str, str] = MappingProxyType({})
) -> list[EpQuery]:
    """The CONSTRUCT rules that a text holds, one after the other; prefixes are declared for all of them.

    >>> rules = "CONSTRUCT { ?x q ?y } WHERE { ?x p ?y } CONSTRUCT { ?y r ?x } WHERE { ?x q ?y }"
    >>> [each.name for each in parse_rules(SourceText("rules.epsparql", rules), "rules")]
    ['rules_1', 'rules_2']
    """
    report = Report(source)
    starts: list[tuple[int, bool]] = []
    for token in sparql_tokens(source, report):
        if token.depth == 0 and token.word in ("CONSTRUCT", "SELECT", "ASK", "PREFIX", "BASE", "CONSUMPTION"):
            starts.append((token.start, token.word in ("CONSTRUCT", "SELECT", "ASK")))
    report.finish()
    ends = [*(start for start, _ in starts[1:]), len(source.text)]
    rules = [(start, end) for (start, is_rule), end in zip(starts, ends, strict=True) if is_rule]
    found: list[EpQuery] = []
    for i, own in enumerate(rules):
        text = source.text
        for start, end in rules:
            if (start, end) != own:  # what is left stands where it stood, so that errors show it there
                blank = "".join(each if each == "\n" else " " for each in text[start:end])
                text = text[:start] + blank + text[end:]
        query = parse_ep(
            SourceText(source.name, text), f"{name}_{i + 1}" if len(rules) > 1 else name, prefixes
        )
        if not isinstance(query.form, Construct):
            hint = "give a SELECT as a query of its own"
            span = query.form.where.span
            raise Mistake("a rule of the knowledge is a CONSTRUCT", span, source, hint)
        found.append(query)
    if not found:
        raise Mistake(f"{source.name} has no rule", hint="CONSTRUCT { ... } WHERE { ... }")
    return found


class _EpParser:
    """One query being read."""

    def __init__(self, cursor: Cursor, names: Names) -> None:
        self.cursor = cursor
        self.names = names
        self.groups = Groups(cursor, names, temporal=True)
        self.template = TripleBlocks(cursor, self.groups.terms, template=True)
        self.consumption = "unrestricted"

    def query(self, name: str) -> EpQuery | None:
        """The whole text, or None after an error that leaves no query."""
        try:
            while self._prologue():
                pass
            form = self._form()
            if not self.cursor.at_end:
                raise self.cursor.expected("the end of the query")
        except Stuck as stuck:
            self.cursor.report.add(stuck.diagnostic)
            return None
        return EpQuery(
            form,
            self.consumption,
            self.names.listing(),
            self.names.base,
            name=name,
            source=self.cursor.report.source,
        )

    def _prologue(self) -> bool:
        """One declaration: PREFIX, BASE or CONSUMPTION."""
        if not self.cursor.accept_word("CONSUMPTION"):
            return self.names.prologue(self.cursor)
        token = self.cursor.token
        if token.text.lower() not in _POLICIES:
            raise self.cursor.expected(f"a policy ({', '.join(_POLICIES)})", near(token.text, _POLICIES))
        self.consumption = self.cursor.advance().text.lower()
        return True

    def _form(self) -> Select | Construct:
        if self.cursor.accept_word("SELECT"):
            return self.groups.select()
        if start := self.cursor.accept_word("CONSTRUCT"):
            return self._construct(start)
        if start := self.cursor.accept_word("ASK"):
            return self._ask(start)
        token = self.cursor.token
        if token.word in _REFUSED:
            raise self.cursor.stuck(_REFUSED[token.word], token.span, "use SELECT or CONSTRUCT")
        known = ["SELECT", "CONSTRUCT", "PREFIX", "BASE", "CONSUMPTION"]
        hint = near(token.text, known) if token.kind is TokenKind.WORD else None
        raise self.cursor.expected("SELECT or CONSTRUCT", hint)

    def _ask(self, start: Token) -> Select:
        """`ASK WHERE { WINDOW :w { ... } }`: whether there is any solution, at each evaluation."""
        windows = self.groups.windows()
        where = self.groups.where()
        if not is_all_windows(where):
            hint = "put the whole pattern into a WINDOW, or use SELECT or CONSTRUCT"
            raise self.cursor.stuck(_ASKED, start.span, hint)
        some = Call(">", (Aggregate("COUNT", None), TermConst(Literal("0", XSD + "integer"))))
        return Select((Projection("ask", some, span=start.span),), where, windows=windows)

    def _construct(self, start: Token) -> Construct:
        """`CONSTRUCT { ... } WHERE ...`, the template without braces, or `CONSTRUCT WHERE { ... }`."""
        if self.cursor.at_word("WHERE"):
            where = self._where()
            return Construct(self._template_of(where, start), where)
        braces = self.cursor.accept("{")
        template: tuple[TriplePattern, ...] = ()
        if not braces or not self.cursor.at("}"):
            if not self.template.at_subject():
                raise self.cursor.expected("a template of triples after CONSTRUCT")
            template = self.template.block().patterns
        if braces:
            self.cursor.expect("}", "to close the template")
        windows = self.groups.windows()
        return Construct(template, self._where(), windows)

    def _where(self) -> Group:
        where = self.groups.where()
        if self.cursor.at_word("GROUP", "HAVING"):
            hint = "group in a subselect: WHERE { SELECT ... GROUP BY ... }"
            raise self.cursor.stuck(
                f"CONSTRUCT takes no {self.cursor.token.word}", self.cursor.token.span, hint
            )
        return where

    def _template_of(self, where: Group, start: Token) -> tuple[TriplePattern, ...]:
        """The triples of the group as a template, for `CONSTRUCT WHERE { ... }`."""
        only = where.elements[0] if len(where.elements) == 1 else None
        if not isinstance(only, TripleBlock) or any(
            isinstance(each.predicate, Path) for each in only.patterns
        ):
            hint = "for anything else write CONSTRUCT { ... } WHERE { ... }"
            raise self.cursor.stuck(
                "CONSTRUCT WHERE takes plain triples only", self.cursor.since(start), hint
            )
        return tuple(
            TriplePattern(_made(each.subject), each.predicate, _made(each.object), span=each.span)
            for each in only.patterns
        )


def _made(node: Node) -> Node:
    """A blank node of a pattern as one of a template."""
    return Blank(node.name[2:]) if isinstance(node, Variable) and node.name.startswith("_:") else node
