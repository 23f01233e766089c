"""What an editor asks about a query: mistakes, completion, meanings, and where a word comes from."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import nsmallest
from pathlib import Path

from kaicep.api import parse_query
from kaicep.archive.archive import Archive, Snapshot
from kaicep.archive.stream_table import StreamTable
from kaicep.deployment.check import catalog_of
from kaicep.deployment.config import Config, load_config
from kaicep.deployment.registered import SUFFIXES, Registered, Registry, upstream
from kaicep.errors import Diagnostic, Mistake, SourceText, Unsupported
from kaicep.knowledge.annotation import Annotation, prefixes_of
from kaicep.knowledge.event_graph import HAS_TIME
from kaicep.knowledge.graph import LITERAL
from kaicep.knowledge.store import TYPE, Knowledge
from kaicep.knowledge.vocabulary import KnowledgeNames, is_standard
from kaicep.knowledge.watching import KnowledgeFiles
from kaicep.language.lexer import Report, Token, TokenKind, chi_tokens, sparql_tokens
from kaicep.optimize import optimize
from kaicep.plan.catalog import Stream
from kaicep.plan.chi import ChiQuery
from kaicep.plan.operators import FUNCTIONS
from kaicep.plan.sparql import EpQuery
from kaicep.plan.terms import RDFS, Iri, Literal, Term
from kaicep.query import Query, resolve_queries

# ----------------------------------------------------------------------------------------------------------
# The words of a knowledge base as people look for them: by their names and by their labels.

_LABEL, _COMMENT = Iri(RDFS + "label"), Iri(RDFS + "comment")
_KINDS = {"class": 0, "property": 0, "entity": 1}
_CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\-]+")


@dataclass(frozen=True, slots=True)
class Word:
    """A class, a property or an entity: its name as a query writes it, and what it is called."""

    name: str
    iri: Iri
    label: str
    kind: str
    searched: str


class OntologyWords:
    """The words of a knowledge base and of annotations.

    >>> made = OntologyWords(Knowledge.parse('''
    ...     @prefix x: <urn:x:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    ...     x:MeetingRoom rdfs:label "Besprechungsraum" . x:r1 a x:MeetingRoom .'''))
    >>> [each.name for each in made.find("besp")], [each.name for each in made.find("meeting")]
    (['x:MeetingRoom'], ['x:MeetingRoom'])
    """

    def __init__(self, knowledge: Knowledge, annotations: Iterable[Annotation] = ()) -> None:
        self.knowledge = knowledge
        given = tuple(annotations)
        self.names = KnowledgeNames(knowledge, given)
        self._carried = {
            name
            for each in given
            for name in (*(one for _, one in each.concepts), *(one.property for _, one in each.entities))
        }
        self._classes = {each.event_class for each in given if each.event_class is not None}

    @cached_property
    def words(self) -> tuple[Word, ...]:
        """All words but those about words."""
        classes = (self.knowledge.classes() or frozenset()) | self._classes
        properties = (self.knowledge.properties() or frozenset()) | self._carried | {HAS_TIME}
        terms = self.knowledge.by_number()[1]
        numbers = {number for s, _, o in self.knowledge.ever() for number in (s, o) if number & 3 != LITERAL}
        things = {term for term in map(terms.term, numbers) if isinstance(term, Iri)}
        made = [
            self._word(each, "class" if each in classes else "property" if each in properties else "entity")
            for each in (classes | properties | things)
            if not is_standard(each) or each == TYPE
        ]
        return tuple(sorted(made, key=lambda each: each.name))

    @cached_property
    def by_iri(self) -> dict[Iri, Word]:
        """The words by their IRIs."""
        return {each.iri: each for each in self.words}

    def _word(self, iri: Iri, kind: str) -> Word:
        label = self.label(iri)
        name = self.names.text(iri)
        return Word(name, iri, label, kind, f"{iri.local.lower()}\n{label.lower()}")

    def label(self, term: Term) -> str:
        """What something is called: its label, or else its local name in words.

        >>> OntologyWords(Knowledge.empty()).label(Iri("urn:x:MeetingRoom"))
        'meeting room'
        """
        if isinstance(term, Literal):
            return term.lexical
        if not isinstance(term, Iri):
            return str(term)
        found = sorted(self._texts(term, _LABEL))
        if found:
            return found[0]
        local = term.local
        if not local.isascii() or local.upper() == local or any(each.isdigit() for each in local):
            return local
        return _CAPITALS.sub(" ", local).lower()

    def comment(self, iri: Iri) -> str:
        """What the knowledge says about a word."""
        return " ".join(self._texts(iri, _COMMENT))

    def _texts(self, iri: Iri, property: Iri) -> Iterator[str]:
        for _, _, value in self.knowledge.match(iri, property, None):
            if isinstance(value, Literal):
                yield value.lexical

    def find(self, text: str, kinds: Collection[str] = (), most: int = 30) -> list[Word]:
        """The words of some kinds whose name or label has a text in it, those that begin with it first."""
        prefix, colon, local = text.partition(":")
        wanted = local.lower() if colon else text.lower()
        space = self.names.prefixes.get(prefix) if colon else None
        if colon and space is None:
            return []

        def fits(each: Word) -> bool:
            return (
                (not kinds or each.kind in kinds)
                and wanted in each.searched
                and (space is None or each.iri.value.startswith(space))
            )

        def rank(each: Word) -> tuple[int, int, int, str]:
            local, _, label = each.searched.partition("\n")
            begins = local.startswith(wanted) or label.startswith(wanted)
            inner = f" {wanted}" in label
            return (0 if begins else 1 if inner else 2, _KINDS[each.kind], len(label), each.name)

        return nsmallest(most, filter(fits, self.words), key=rank)


# ----------------------------------------------------------------------------------------------------------
# What is known of a deployment by whoever works out answers about it, as it is at the moment.


class Situation:
    """The file of a deployment, its knowledge, its streams and its registered queries; nothing is written."""

    def __init__(self, path: Path) -> None:
        self.config: Config = load_config(path)
        self.prefixes = prefixes_of(self.config.annotations)
        self._files = KnowledgeFiles(self.config.known, self.config.reasoning)
        self._tables: dict[str, StreamTable] = {}
        self.catalog = catalog_of(self.config, self.knowledge, self.snapshot())

    def snapshot(self) -> Snapshot:
        """The archive as it is now; of tables that are open already, only what is new is read."""
        archive = self.archive
        for name in archive.streams():
            if name in self._tables:
                self._tables[name].table.refresh()
            else:
                self._tables[name] = archive.stream(name)
        return Snapshot(dict(self._tables))

    def refresh(self) -> None:
        """Keeps up with the knowledge and the streams."""
        before = self.knowledge.version
        self._files.poll()
        if self.knowledge.version != before:
            self.__dict__.pop("vocabulary", None)
        self.catalog = catalog_of(self.config, self.knowledge, self.snapshot())

    @property
    def knowledge(self) -> Knowledge:
        """The knowledge as it is now."""
        return self._files.knowledge

    @cached_property
    def vocabulary(self) -> OntologyWords:
        """Its words, by their names and labels."""
        return OntologyWords(self.knowledge, self.config.annotations)

    @property
    def archive(self) -> Archive:
        """Its archive."""
        return Archive(self.config.archive)

    def registered(self) -> dict[str, Registered]:
        """The registered queries."""
        return Registry(self.config.state / "registered.json").queries

    def others(self, name: str) -> dict[str, ChiQuery | EpQuery]:
        """The registered queries besides one, as written."""
        queries = self.registered().values()
        return {each.name: each.parse(self.prefixes) for each in queries if each.name != name}


# ----------------------------------------------------------------------------------------------------------
# What an editor asks about a query: what is wrong, what could come next, what is this, where is it from.

_CLAUSES: Mapping[str, str] = {
    "SELECT": "what a match says: attributes, concepts, expressions AS names",
    "FROM": "the events: (?e, stream), or (?e, a class of events)",
    "WITHIN": "from when to when: [2012-05-07T09:00, ) or [now - 1h, )",
    "WHERE": "the conditions; the word may be left out",
    "FILTER": "a condition about one event",
    "JOIN": "a condition about several events",
    "SEQ": "the order of the events: SEQ (?a, ?b+, !?c)",
    "WINDOW": "how far apart: WINDOW (?a, ?b, 5min); or a window to aggregate over: (?e, sliding, 5min)",
    "PATH": "how the event leads to what is known: PATH {?e evt:hasSource ?s . ...}",
    "MATCH": "which events a match may skip: any, next or strict",
    "AFTER MATCH": "which matches rule out others: NO SKIP, SKIP PAST LAST, ...",
    "PARTITION BY": "patterns of their own for each value of an attribute",
    "GROUP BY": "windows grouped by an attribute",
    "HAVING": "a condition about aggregates",
    "LATEST": "the last known value of something else: FROM LATEST (?s, setpoint)",
    "ABSENT": "what of the knowledge has no event in a window: FROM ABSENT (?e, trend)",
    "PREFIX": "a short name for a namespace: PREFIX x: <http://example.org/>",
}
_EP_WORDS: Mapping[str, str] = {
    "SELECT": "what a match says",
    "CONSTRUCT": "the triples that a solution makes, which join the stream",
    "WHERE": "the patterns",
    "FILTER": "a condition",
    "OPTIONAL": "a part that may be missing",
    "UNION": "one pattern or the other",
    "BIND": "a name for a value",
    "SEQ": "the left pattern ends before the right one starts",
    "EQUALS": "both hold over the same interval",
    "OPTIONALSEQ": "a part that may come before",
    "EQUALSOPTIONAL": "a part that may hold over the same interval",
    "DURING": "the left pattern lies inside the right one",
    "MEETS": "the left pattern ends where the right one starts",
    "STARTS": "both start at once",
    "FINISHES": "both end at once",
    "PAR": "both share a point in time",
    "NOT": "nothing like the right pattern inside the left one",
    "GROUP BY": "one answer for each value",
    "HAVING": "a condition about aggregates",
    "FROM NAMED WINDOW": "a window: FROM NAMED WINDOW :w ON :stream [RANGE PT10S STEP PT5S]",
    "PREFIX": "a short name for a namespace",
}
_FUNCTIONS = (*sorted(FUNCTIONS), "PREV")
_AGGREGATES = ["AVG", "COUNT", "FIRST", "LAST", "MAX", "MIN", "STDDEV", "SUM"]
_SMALL = "AND ANY AS ASC BY IN NEXT NO OR SKIP SLIDING BATCH STRICT TO PAST TRUE FALSE DISTINCT"
KEYWORDS = frozenset(" ".join((*_CLAUSES, *_EP_WORDS, *_AGGREGATES, _SMALL)).split())

_TYPED = re.compile(r"[?$]?[\w.\-]*:?[\w\-]*$")
_MOST = 40


@dataclass(frozen=True)
class Finding:
    """What is wrong with a text, or worth knowing about it, at offsets of it."""

    start: int
    end: int
    line: int
    column: int
    severity: str
    message: str
    hint: str | None = None


@dataclass(frozen=True)
class Item:
    """Something that could stand at a place: as it is shown, as it is written, and what it is."""

    label: str
    insert: str
    kind: str
    detail: str = ""
    about: str = ""


@dataclass(frozen=True)
class Completions:
    """What could stand from an offset on, in the place of what was typed there."""

    start: int
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Hover:
    """What is to be said about the word between two offsets."""

    start: int
    end: int
    text: str


# --- what is wrong ---


def resolve(situation: Situation, name: str, suffix: str, text: str) -> Query:
    """A query that is not registered, resolved together with those whose output it reads."""
    query = parse_query(SourceText(f"{name}{suffix}", text), situation.prefixes)
    queries = with_upstream(query, _parsed_others(situation, name))
    return resolve_queries(queries, situation.catalog, situation.knowledge, 0)


def with_upstream(
    query: ChiQuery | EpQuery, others: Mapping[str, ChiQuery | EpQuery]
) -> list[ChiQuery | EpQuery]:
    """A query, and those of the others whose output it needs."""
    needed = upstream(query.name, {**others, query.name: query})
    return [query, *(others[each] for each in needed if each != query.name)]


def _parsed_others(situation: Situation, name: str) -> dict[str, ChiQuery | EpQuery]:
    try:
        return situation.others(name)
    except Mistake:
        return {}  # one that is registered and does not parse any more is no business of this one


def diagnose(situation: Situation, name: str, suffix: str, text: str) -> list[Finding]:
    """What `kaicep check` says of a query, by place."""
    try:
        query = resolve(situation, name, suffix, text)
        for plan in query.program.chi_plans:
            optimize(plan, query.catalog, query.knowledge)
        found = list(query.said(name))
    except Mistake as mistake:
        found = list(mistake.diagnostics)
    except Unsupported as error:
        found = [Diagnostic(str(error))]
    return sorted((_finding(each, text) for each in found), key=lambda each: each.start)


def _finding(said: Diagnostic, text: str) -> Finding:
    start, end = (said.span.start, said.span.end) if said.span is not None else (0, 0)
    line, column = SourceText("", text).position(start)
    return Finding(start, end, line, column, said.severity, said.message, said.hint)


# --- what could come next ---


def complete(situation: Situation, suffix: str, text: str, offset: int) -> Completions:
    """What could stand at an offset: keywords, variables, streams, attributes, words of the knowledge."""
    before = text[:offset]
    typed = _TYPED.search(before)
    fragment = typed.group() if typed else ""
    tokens = _tokens(suffix, before[: len(before) - len(fragment)])
    chi = suffix == ".chi"
    inside = not chi or _in_path(tokens)
    variable, dot, after = fragment.partition(".")
    if fragment.startswith("?") and dot and chi:
        streams = _streams_of(variable[1:], text, situation)
        carried = _attributes(streams, after, situation)
        return Completions(offset - len(after), tuple(carried)[:_MOST])
    items: Iterable[Item]
    if fragment.startswith(("?", "$")):
        items = _variables(text, fragment[1:], situation)
    elif chi and _in_from(tokens):
        items = _sources(fragment, situation)
    elif inside:
        words = _EP_WORDS if not chi else {}
        items = [*_keywords(fragment, words), *_words(fragment, situation)]
    else:
        items = [*_keywords(fragment, _CLAUSES), *_functions(fragment)]
    return Completions(offset - len(fragment), tuple(items)[:_MOST])


def _tokens(suffix: str, text: str) -> list[Token]:
    source = SourceText("<query>", text)
    report = Report(source)
    try:
        return (chi_tokens if suffix == ".chi" else sparql_tokens)(source, report)[:-1]
    except Mistake:
        return []


def _in_path(tokens: list[Token]) -> bool:
    """Whether the braces of a PATH are open."""
    opened = [
        at for at, each in enumerate(tokens) if each.text == "{" and at and tokens[at - 1].word == "PATH"
    ]
    if not opened:
        return False
    depth = tokens[opened[-1]].depth
    return all(each.depth > depth for each in tokens[opened[-1] + 1 :])


def _in_from(tokens: list[Token]) -> bool:
    """Whether the name of a stream comes next: FROM (?e, ..."""
    if not tokens or tokens[-1].text != ",":
        return False
    clauses = [each.word for each in tokens if each.depth == 0 and each.word in (*_CLAUSES, "SEQ", "WINDOW")]
    inside = [each for each in tokens if each.depth > 0]
    return bool(clauses) and clauses[-1] in ("FROM", "LATEST", "ABSENT") and bool(inside)


def _begins(text: str, fragment: str) -> bool:
    return text.lower().startswith(fragment.lower())


def _keywords(fragment: str, words: Mapping[str, str]) -> Iterator[Item]:
    for word, about in words.items():
        if _begins(word, fragment):
            yield Item(word, word, "keyword", "", about)


def _functions(fragment: str) -> Iterator[Item]:
    for name in (*_FUNCTIONS, *_AGGREGATES):
        if fragment and _begins(name, fragment):
            yield Item(name, f"{name}(", "function", "aggregate" if name in _AGGREGATES else "function")


def _variables(text: str, fragment: str, situation: Situation) -> Iterator[Item]:
    for name in dict.fromkeys(re.findall(r"[?$](\w+)", text)):
        if name != fragment and _begins(name, fragment):
            streams = ", ".join(each.name for each in _streams_of(name, text, situation, or_all=False))
            yield Item(f"?{name}", f"?{name}", "variable", streams)


_RANGE = re.compile(r"\(\s*\?(\w+)\??\s*,([^()]*)\)")


def _streams_of(variable: str, text: str, situation: Situation, or_all: bool = True) -> list[Stream]:
    """The streams that a variable ranges over; all where the query does not say."""
    known = situation.catalog.streams
    found: list[Stream] = []
    for name, sources in _RANGE.findall(text):
        if name == variable:
            found += [known[each.strip()] for each in sources.split(",") if each.strip() in known]
    return found or (list(known.values()) if or_all else [])


def _attributes(streams: Iterable[Stream], fragment: str, situation: Situation) -> Iterator[Item]:
    """Attributes, and the concepts that they carry."""
    concepts: dict[Iri, list[str]] = {}
    attributes: dict[str, list[str]] = {"ts": ["the time of the event"]}
    for stream in streams:
        for name, type in stream.attributes:
            attributes.setdefault(name, []).append(f"{type} of {stream.name}")
        for name, concept in stream.concepts:
            concepts.setdefault(concept, []).append(f"{stream.name}.{name}")
    for concept, carriers in concepts.items():
        text, label = situation.vocabulary.names.text(concept), situation.vocabulary.label(concept)
        if fragment.lower() in text.lower() or fragment.lower() in label.lower():
            yield Item(text, text, "concept", label, f"carried by {', '.join(carriers)}")
    for name, about in attributes.items():
        if _begins(name, fragment):
            yield Item(name, name, "attribute", ", ".join(about[:2]))


def _sources(fragment: str, situation: Situation) -> Iterator[Item]:
    for name, stream in situation.catalog.streams.items():
        if fragment.lower() in name.lower():
            yield Item(name, name, "stream", ", ".join(each for each, _ in stream.attributes[:5]))
    for name in situation.registered():
        if fragment.lower() in name.lower():
            yield Item(name, name, "stream", "the matches of a query")
    for stream in situation.catalog.streams.values():
        if stream.event_class is not None:
            text = situation.vocabulary.names.text(stream.event_class)
            if fragment.lower() in text.lower():
                yield Item(text, text, "concept", f"a class of events, such as {stream.name}")


def _words(fragment: str, situation: Situation) -> Iterator[Item]:
    if not fragment:
        return
    for each in situation.vocabulary.find(fragment, most=_MOST):
        kind = "entity" if each.kind == "entity" else "concept"
        detail = each.label if each.label.lower() != each.iri.local.lower() else each.kind
        yield Item(each.name, each.name, kind, detail, _about(each, situation))
    for prefix, iri in situation.vocabulary.names.declared.items():
        if _begins(prefix, fragment):
            yield Item(f"{prefix}:", f"{prefix}:", "concept", iri)


def _about(word: Word, situation: Situation) -> str:
    kind = {"class": "class", "property": "property", "entity": "thing"}[word.kind]
    comment = situation.vocabulary.comment(word.iri)
    return f"{kind} {word.name}" + (f"\n{comment}" if comment else "")


# --- what is this ---


def hover(situation: Situation, suffix: str, text: str, offset: int) -> Hover | None:
    """What is to be said about the word at an offset."""
    token = _token_at(suffix, text, offset)
    if token is None:
        return None
    said = _said_of(token, situation, text)
    return Hover(token.start, token.end, said) if said else None


def _token_at(suffix: str, text: str, offset: int) -> Token | None:
    return next((each for each in _tokens(suffix, text) if each.start <= offset <= each.end - 1), None)


def _said_of(token: Token, situation: Situation, text: str) -> str:
    streams = situation.catalog.streams
    if token.kind is TokenKind.VARIABLE:
        found = _streams_of(token.text[1:], text, situation, or_all=False)
        return "\n".join(_stream_text(each, situation) for each in found) or f"{token.text}, a variable"
    if token.kind in (TokenKind.NAME, TokenKind.IRI):
        iri = _iri_of(token, situation.vocabulary.names, text)
        return _word_text(iri, situation) if iri is not None else ""
    if token.kind is TokenKind.WORD and token.text in streams:
        return _stream_text(streams[token.text], situation)
    if token.kind is TokenKind.WORD:
        known = {**_EP_WORDS, **_CLAUSES}
        about = known.get(token.word) or next((v for k, v in known.items() if token.word in k.split()), "")
        if about:
            return f"{token.word}: {about}"
        carried = [
            f"{each.name}: {type}"
            for each in streams.values()
            for name, type in each.attributes
            if name == token.text
        ]
        return f"{token.text}, an attribute\n" + "\n".join(carried) if carried else ""
    return ""


def _iri_of(token: Token, names: KnowledgeNames, text: str) -> Iri | None:
    if token.kind is TokenKind.IRI:
        return Iri(token.text[1:-1])
    prefix, _, local = token.text.partition(":")
    own = re.search(rf"PREFIX\s+{re.escape(prefix)}:\s*<([^>]*)>", text, re.IGNORECASE)
    space = own[1] if own else names.prefixes.get(prefix)
    return Iri(space + local) if space is not None else None


def _stream_text(stream: Stream, situation: Situation) -> str:
    concepts = dict(stream.concepts)
    rows = [
        f"  {name}: {type}"
        + (f" ({situation.vocabulary.names.text(concepts[name])})" if name in concepts else "")
        for name, type in stream.attributes
    ]
    return "\n".join([f"stream {stream.name}", *rows])


def _word_text(iri: Iri, situation: Situation) -> str:
    vocabulary, knowledge = situation.vocabulary, situation.knowledge
    word = vocabulary.by_iri.get(iri)
    rows = [f"{vocabulary.label(iri)}" + (f", a {word.kind}" if word and word.kind != "entity" else "")]
    comment = vocabulary.comment(iri)
    rows += [comment] if comment else []
    carriers = [
        f"{each.name}.{name}"
        for each in situation.catalog.streams.values()
        for name, concept in each.concepts
        if concept in knowledge.properties_below(iri)
    ]
    rows += [f"carried by {', '.join(carriers)}"] if carriers else []
    rows.append(iri.value)
    return "\n".join(rows)


# --- where is it from ---


@dataclass(frozen=True)
class TextPlace:
    """A place in a file; without a path, in the text itself."""

    path: str | None
    start: int
    end: int


def find_definition(situation: Situation, suffix: str, text: str, offset: int) -> TextPlace | None:
    """Where a stream, a prefix, or a variable comes from."""
    token = _token_at(suffix, text, offset)
    if token is None:
        return None
    if token.kind is TokenKind.NAME:
        prefix = token.text.partition(":")[0]
        own = re.search(rf"PREFIX\s+({re.escape(prefix)}:)", text, re.IGNORECASE)
        return TextPlace(None, *own.span(1)) if own else _in_deployment(situation, f'"{prefix}"')
    if token.kind is TokenKind.VARIABLE:
        return next(
            (
                TextPlace(None, each.start, each.end)
                for each in _tokens(suffix, text)
                if each.kind is TokenKind.VARIABLE and each.text == token.text and _ranges(text, each.start)
            ),
            None,
        )
    if token.kind is TokenKind.WORD and token.text in situation.config.streams:
        config = situation.config.path.read_text("utf-8")
        found = re.search(rf"^\s*\[streams\.\"?({re.escape(token.text)})\"?\]", config, re.MULTILINE)
        return TextPlace(str(situation.config.path), *found.span(1)) if found else None
    return None


def _ranges(text: str, start: int) -> bool:
    """Whether a variable stands where FROM gives it its streams."""
    return any(found.start(1) - 1 == start for found in _RANGE.finditer(text))


def _in_deployment(situation: Situation, wanted: str) -> TextPlace | None:
    """Where an annotation file of the deployment says something."""
    folder = situation.config.path.parent
    named = re.findall(r'annotation\s*=\s*"([^"]+)"', situation.config.path.read_text("utf-8"))
    for each in named:
        path = folder / each
        text = path.read_text("utf-8") if path.exists() else ""
        at = text.find(wanted)
        if at >= 0:
            return TextPlace(str(path), at + 1, at + len(wanted) - 1)
    return None


def suffix_of(language: str) -> str:
    """How the name of a file in a language ends."""
    return SUFFIXES.get(language, ".chi")
