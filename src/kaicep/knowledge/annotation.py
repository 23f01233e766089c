"""Annotations: what a stream's attributes mean, from a JSON file (semantics 2, annotation file)."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from kaicep.errors import Mistake, SourceText, did_you_mean
from kaicep.knowledge.loading import Places, read_json
from kaicep.plan import sparql
from kaicep.plan.catalog import WELL_KNOWN_PREFIXES, Catalog, Entity, Stream, Vocabulary
from kaicep.plan.rdf_text import FORMATS
from kaicep.plan.sparql import MOST_DERIVED
from kaicep.plan.terms import Iri
from kaicep.plan.time import TIME_UNITS, is_zone, zone_names
from kaicep.plan.types import USUAL, Dialect, Notation, RdfTimes, Type, Wide

_KEYS = (
    "stream",
    "prefixes",
    "class",
    "time",
    "attributes",
    "entities",
    "types",
    "units",
    "time_unit",
    "time_format",
    "time_zone",
    "nulls",
    "csv",
    "wide",
    "blank_nodes",
    "rdf",
)
_ENTITY_KEYS = ("property", "iri", "lookup", "datatype", "attributes")
_CSV_KEYS = ("delimiter", "decimal", "thousands", "encoding")
_WIDE_KEYS = ("columns", "point", "value", "keep")
_RDF_KEYS = ("start", "end", "format")
_FORMAT_HINT = 'such as "%d.%m.%Y %H:%M", with the codes of strptime'
_PATH_TOKEN = re.compile(r"<[^<>]*>|[/|^()*+?]|[^\s/|^()*+?<>]+")
_PATH_SIGNS = re.compile(r"[/|^()*+?]")
_ABSOLUTE = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*://|urn:)\S+")
_NOT_IN_IRI = re.compile(r'[\x00-\x20<>"{}|\\^`]')


_REPEATS = {"*": (0, True), "+": (1, True), "?": (0, False)}

Way = Iri | sparql.Path
"""A property or a property path."""


@dataclass(frozen=True)
class Annotation:
    """What is said of one stream; concepts and entities are in the order of the file.

    `zone` and `most_derived` are those of the whole deployment (`plan.catalog.Catalog`).
    """

    stream: str
    prefixes: tuple[tuple[str, str], ...] = ()
    event_class: Iri | None = None
    time: str = "ts"
    concepts: tuple[tuple[str, Iri], ...] = ()
    entities: tuple[tuple[str, Entity], ...] = ()
    types: tuple[tuple[str, Type], ...] = ()
    notation: Notation = USUAL
    zone: str | None = None
    most_derived: int | None = None
    units: tuple[tuple[str, Iri | str], ...] = ()


def load_annotations(path: str | Path) -> tuple[Annotation, ...]:
    """The annotations of a file, which holds one of them or a list."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or str(error)
        raise Mistake(f"cannot read the annotation file {path}: {reason}") from None
    except UnicodeDecodeError:
        raise Mistake(f"cannot read the annotation file {path}: it is not UTF-8") from None
    source = SourceText(str(path), text)
    value, places = read_json(source)
    return _annotations(value, source, places)


def parse_annotations(value: Mapping[str, Any] | list[Any]) -> tuple[Annotation, ...]:
    """The annotations of a value as JSON gives it.

    >>> parse_annotations({"stream": "s", "prefixes": {"x": "urn:x:"}, "class": "x:C"})[0].event_class
    Iri(value='urn:x:C')
    """
    return _annotations(value, None, {})


def stream_of(annotation: Annotation, attributes: tuple[tuple[str, Type], ...]) -> Stream:
    """The stream with these attributes, as annotated.

    A declared type wins; where the source does not show the attribute (yet), it is one all the same.

    >>> stream_of(Annotation("s", types=(("x", Type.FLOAT64),)), (("x", Type.INT64),)).attributes
    (('x', Type.FLOAT64),)
    """
    types = {**dict(attributes), **dict(annotation.types)}
    return Stream(
        annotation.stream,
        tuple(types.items()),
        annotation.time,
        annotation.event_class,
        annotation.concepts,
        annotation.entities,
        notation=annotation.notation,
        rdf=annotation.notation.rdf is not None,
        units=annotation.units,
    )


def build_catalog(
    streams: Iterable[Stream],
    annotations: Sequence[Annotation],
    vocabulary: Vocabulary,
    others: Container[str] | None = None,
) -> Catalog:
    """The catalogue of these streams, with what annotations say of them.

    An annotation of another stream gives an open one: nothing is known of its attributes but what is
    declared. With `others`, only those of these names do.

    >>> said = [Annotation("s", time="at"), Annotation("t")]
    >>> made = build_catalog([Stream("s")], said, Vocabulary())
    >>> [(each.name, each.time, each.open) for each in made.streams.values()]
    [('s', 'at', False), ('t', 'ts', True)]
    """
    said = {each.stream: each for each in annotations}
    made: dict[str, Stream] = {}
    for each in streams:
        found = said.get(each.name)
        if found is not None:
            as_said = stream_of(found, each.attributes)
            each = replace(as_said, rdf=each.rdf or as_said.rdf, open=each.open)
        made[each.name] = each
    for name, annotation in said.items():
        if name not in made and (others is None or name in others):
            made[name] = replace(stream_of(annotation, ()), open=True)
    zone = next((each.zone for each in annotations if each.zone), None)
    derived = next((each.most_derived for each in annotations if each.most_derived), MOST_DERIVED)
    return Catalog(made, prefixes_of(annotations), vocabulary, zone, derived)


def prefixes_of(annotations: Iterable[Annotation]) -> dict[str, str]:
    """The prefixes that annotations declare; they have to agree."""
    prefixes: dict[str, str] = {}
    for annotation in annotations:
        for name, iri in annotation.prefixes:
            if prefixes.setdefault(name, iri) != iri:
                raise Mistake(
                    f"the annotations disagree on the prefix {name}: <{prefixes[name]}> and <{iri}>",
                    hint="use one prefix for each namespace",
                )
    return prefixes


def _annotations(value: object, source: SourceText | None, places: Places) -> tuple[Annotation, ...]:
    if isinstance(value, list):
        return tuple(
            _AnnotationReader(source, places, (at,)).annotation(each) for at, each in enumerate(value)
        )
    return (_AnnotationReader(source, places, ()).annotation(value),)


@dataclass
class _AnnotationReader:
    """Reads one annotation; `root` is where it stands in its file."""

    source: SourceText | None
    places: Places
    root: tuple[str | int, ...]

    def annotation(self, value: object) -> Annotation:
        if not isinstance(value, Mapping):
            raise self.mistake((), 'an annotation is an object, such as {"stream": "airflowReport"}')
        self.known_keys((), value, _KEYS)
        if "stream" not in value:
            raise self.mistake((), 'an annotation needs "stream", the name of the stream it speaks of')
        prefixes = {name: self.text(path, iri) for path, name, iri in self.members(value, "prefixes")}
        words = {**WELL_KNOWN_PREFIXES, **prefixes}
        return Annotation(
            self.text(("stream",), value["stream"]),
            tuple(prefixes.items()),
            self.iri(("class",), value["class"], words) if "class" in value else None,
            self.text(("time",), value.get("time", "ts")),
            tuple(
                (name, self.iri(path, one, words)) for path, name, one in self.members(value, "attributes")
            ),
            tuple(
                (name, self.entity(path, one, words)) for path, name, one in self.members(value, "entities")
            ),
            tuple((name, self.type(path, one)) for path, name, one in self.members(value, "types")),
            self.notation(value, words),
            units=tuple(
                (name, self.unit(path, one, words, value.get("entities", {})))
                for path, name, one in self.members(value, "units")
            ),
        )

    def unit(
        self, path: tuple[str, ...], value: object, words: Mapping[str, str], entities: object
    ) -> Iri | str:
        """A unit, or the attribute that names the point which has it."""
        if not isinstance(value, Mapping):
            return self.iri(path, value, words)
        self.known_keys(path, value, ("of",))
        name = self.text((*path, "of"), value.get("of"))
        if not isinstance(entities, Mapping) or name not in entities:
            hint = '"of" is one of "entities": the attribute that names the point whose unit it is'
            raise self.mistake((*path, "of"), f'"{name}" names no entity', hint)
        return name

    def notation(self, value: Mapping[str, Any], words: Mapping[str, str]) -> Notation:
        """How the values are written."""
        return Notation(
            self.choice(("time_unit",), value.get("time_unit", "s"), tuple(TIME_UNITS)),
            self.choice(("blank_nodes",), value.get("blank_nodes", "record"), ("record", "stream")),
            self.texts(("nulls",), value.get("nulls", []), empty=True),
            self.time_format(value["time_format"]) if "time_format" in value else None,
            self.time_zone(value["time_zone"]) if "time_zone" in value else None,
            self.dialect(value.get("csv", {})),
            self.wide(value["wide"], value.get("time", "ts")) if "wide" in value else None,
            self.rdf(value["rdf"], words) if "rdf" in value else None,
        )

    def rdf(self, value: object, words: Mapping[str, str]) -> RdfTimes:
        """When triples hold: properties of documents, which are IRIs, or attributes of records."""
        path = ("rdf",)
        if not isinstance(value, Mapping):
            raise self.mistake(path, '"rdf" is an object, such as {"start": "sosa:resultTime"}')
        self.known_keys(path, value, _RDF_KEYS)
        made: dict[str, Any] = {}
        for key, properties in (("start", "starts"), ("end", "ends")):
            if key in value:
                text = self.text((*path, key), value[key])
                if text.partition(":")[0] in words or text.startswith("<") or _ABSOLUTE.fullmatch(text):
                    made[properties] = (self.iri((*path, key), text, words).value,)
                else:
                    made[key] = text
        if "format" in value:
            made["format"] = self.choice((*path, "format"), value["format"], tuple(FORMATS))
        return RdfTimes(**made)

    def time_format(self, value: object) -> str:
        text, path = self.text(("time_format",), value), ("time_format",)
        day = datetime(2001, 2, 3)
        try:
            shown = datetime.strptime(day.strftime(text), text)
        except ValueError as error:
            raise self.mistake(path, f'"{text}" is no format of a time: {error}', _FORMAT_HINT) from None
        if shown.date() != day.date():
            raise self.mistake(path, f'"{text}" does not say the year, the month and the day', _FORMAT_HINT)
        return text

    def time_zone(self, value: object) -> str:
        name = self.text(("time_zone",), value)
        if not is_zone(name):
            hint = did_you_mean(name, zone_names()) or 'such as "Europe/Berlin"'
            raise self.mistake(("time_zone",), f"no time zone is called {name}", hint)
        return name

    def dialect(self, value: object) -> Dialect:
        path = ("csv",)
        if not isinstance(value, Mapping):
            raise self.mistake(path, '"csv" is an object, such as {"delimiter": ";", "decimal": ","}')
        self.known_keys(path, value, _CSV_KEYS)
        usual = Dialect()
        delimiter = self.text((*path, "delimiter"), value.get("delimiter", usual.delimiter))
        if len(delimiter) != 1 or delimiter in '"\r\n' or not delimiter.isascii():
            raise self.mistake((*path, "delimiter"), "a delimiter is one character: ; or , or \\t or |")
        decimal = self.choice((*path, "decimal"), value.get("decimal", usual.decimal), (".", ","))
        thousands = value.get("thousands", usual.thousands)
        if thousands not in ("", ".", ",", "'", " ", "\u00a0", "\u202f", "\u2019") or thousands == decimal:
            hint = 'one of . , \' or a space, and another than "decimal"'
            raise self.mistake((*path, "thousands"), f'"thousands" cannot be {thousands}', hint)
        return Dialect(delimiter, decimal, thousands, self.encoding((*path, "encoding"), value))

    def encoding(self, path: tuple[str, ...], value: Mapping[str, Any]) -> str:
        """UTF-8, or an encoding in which each byte is a character, and the first 128 are those of ASCII."""
        name = self.text(path, value.get("encoding", "utf-8"))
        try:
            known = codecs.lookup(name).name
            if known in ("utf-8", "utf-8-sig", "ascii"):
                return "utf-8"
            text = bytes(range(256)).decode(known, "replace")
            if len(text) == 256 and text[:128].encode("ascii") == bytes(range(128)):
                return known
        except (LookupError, ValueError):
            pass
        hint = "utf-8, or one with a byte for each character, such as latin-1 or cp1252; or save it as UTF-8"
        raise self.mistake(path, f"files cannot be read in the encoding {name}", hint)

    def wide(self, value: object, time: object) -> Wide:
        path = ("wide",)
        if not isinstance(value, Mapping):
            hint = '{"columns": "*", "point": "name", "value": "reading"}'
            raise self.mistake(path, f'"wide" is an object, such as {hint}')
        self.known_keys(path, value, _WIDE_KEYS)
        columns = value.get("columns", "*")
        made = Wide(
            () if columns == "*" else self.texts((*path, "columns"), columns),
            self.text((*path, "point"), value.get("point", "name")),
            self.text((*path, "value"), value.get("value", "reading")),
            self.texts((*path, "keep"), value.get("keep", [])),
        )
        names = (time, made.point, made.value, *made.keep)
        for name in names:
            if names.count(name) > 1:
                raise self.mistake(path, f"the events would have two attributes {name}")
        return made

    def texts(self, path: tuple[str, ...], value: object, empty: bool = False) -> tuple[str, ...]:
        """A list of texts, which may be `empty` ones."""
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.mistake(path, f'"{path[-1]}" is a list of texts')
        if not empty and "" in value:
            raise self.mistake(path, f'"{path[-1]}" has an empty text')
        return tuple(value)

    def choice(self, path: tuple[str, ...], value: object, choices: Sequence[str]) -> str:
        text = self.text(path, value)
        if text not in choices:
            raise self.mistake(path, f'"{path[-1]}" cannot be {text}', f"it is one of {', '.join(choices)}")
        return text

    def entity(self, path: tuple[str, ...], value: object, prefixes: Mapping[str, str]) -> Entity:
        if not isinstance(value, Mapping):
            raise self.mistake(path, 'an entity is an object with "property", and "iri" or "lookup"')
        self.known_keys(path, value, _ENTITY_KEYS)
        if "property" not in value:
            raise self.mistake(path, 'an entity needs "property", which leads from the event to it')
        if ("iri" in value) == ("lookup" in value):
            problem = "both" if "iri" in value else "neither"
            hint = '"iri": "ee:{value}" makes its name; "lookup": "ee:tag" finds it by a property'
            raise self.mistake(path, f'an entity has "iri" or "lookup"; this has {problem}', hint)
        leads = self.iri((*path, "property"), value["property"], prefixes)
        if "lookup" in value:
            return self.lookup(path, value, leads, prefixes)
        for key in ("datatype", "attributes"):
            if key in value:
                raise self.mistake((*path, key), f'"{key}" goes with "lookup", not with "iri"')
        return Entity(leads, template=self.template((*path, "iri"), value["iri"], prefixes))

    def lookup(
        self, path: tuple[str, ...], value: Mapping[str, Any], leads: Iri, prefixes: Mapping[str, str]
    ) -> Entity:
        """An entity that is found by properties, or property paths, of which each has its attribute."""
        attributes = self.texts((*path, "attributes"), value.get("attributes", []))
        several = isinstance(value["lookup"], list)
        texts = self.texts((*path, "lookup"), value["lookup"]) if several else (value["lookup"],)
        if len(texts) != max(1, len(attributes)):
            many = f"{len(texts)} and {max(1, len(attributes))}"
            hint = '{"attributes": ["device", "object"], "lookup": ["bacnet:device", "bacnet:object"], ..}'
            raise self.mistake((*path, "lookup"), f"there is one lookup for each attribute, not {many}", hint)
        ways = tuple(self.way((*path, "lookup"), each, prefixes) for each in texts)
        types = value.get("datatype")
        named = types if isinstance(types, list) else [types] * len(ways)
        if len(named) != len(ways):
            raise self.mistake((*path, "datatype"), "there is one datatype, or one for each lookup")
        datatypes = tuple(
            None if each is None else self.iri((*path, "datatype"), each, prefixes) for each in named
        )
        return Entity(leads, None, ways, datatypes if types else (), attributes)

    def way(self, path: tuple[str, ...], value: object, prefixes: Mapping[str, str]) -> Way:
        """A property, or a property path."""
        text = self.text(path, value)
        tokens = _PATH_TOKEN.findall(text)
        if _ABSOLUTE.fullmatch(text) or not any(_PATH_SIGNS.fullmatch(each) for each in tokens):
            return self.iri(path, text, prefixes)
        reader = _PathReader(tokens, lambda name: self.iri(path, name, prefixes))
        found = reader.alternative()
        if found is None or reader.tokens:
            hint = "such as ee:hasTag/ee:value or ^ee:tagOf"
            raise self.mistake(path, f'"{text}" is no property path', hint)
        return found

    def template(self, path: tuple[str, ...], value: object, prefixes: Mapping[str, str]) -> str:
        text = self.text(path, value)
        if "{value}" not in text:
            hint = 'such as "ee:{value}"'
            raise self.mistake(path, f'"{text}" gives every event the same entity: it lacks {{value}}', hint)
        if text == "{value}":  # a whole IRI
            return text
        # What will stand for {value} is made fit for an IRI when it is known.
        return self.iri(path, text.replace("{value}", "\0"), prefixes).value.replace("\0", "{value}")

    def iri(self, path: tuple[str, ...], value: object, prefixes: Mapping[str, str]) -> Iri:
        text = self.text(path, value)
        prefix, colon, local = text.partition(":")
        if text.startswith("<") and text.endswith(">"):
            name = text[1:-1]
        elif colon and prefix in prefixes:
            name = prefixes[prefix] + local
        elif _ABSOLUTE.fullmatch(text):
            name = text
        elif colon:
            raise self.mistake(path, f"unknown prefix {prefix}: in {text}", did_you_mean(prefix, prefixes))
        else:
            hint = "write prefix:name, or a whole IRI"
            raise self.mistake(path, f'"{text}" is not a name of the knowledge base', hint)
        if _NOT_IN_IRI.search(name.replace("\0", "")):
            raise self.mistake(path, f'"{text}" has a character that no IRI may have')
        return Iri(name)

    def type(self, path: tuple[str, ...], value: object) -> Type:
        text = self.text(path, value)
        names = [each.value for each in Type]
        if text not in names:
            raise self.mistake(path, f"unknown type {text}", f"the types are {', '.join(names)}")
        return Type(text)

    def members(self, value: Mapping[str, Any], key: str) -> Iterator[tuple[tuple[str, ...], str, object]]:
        """Path, name and value of each member of an object that may be left out."""
        inside = value.get(key, {})
        if not isinstance(inside, Mapping):
            raise self.mistake((key,), f'"{key}" is an object: names and what they stand for')
        for name, each in inside.items():
            yield (key, name), name, each

    def text(self, path: tuple[str, ...], value: object) -> str:
        if not isinstance(value, str) or not value:
            raise self.mistake(path, f'"{path[-1]}" should be a text')
        return value

    def known_keys(self, path: tuple[str, ...], value: Mapping[str, Any], keys: Iterable[str]) -> None:
        for key in value:
            if key not in keys:
                raise self.mistake((*path, key), f'unknown key "{key}"', did_you_mean(key, keys))

    def mistake(self, path: tuple[str, ...], message: str, hint: str | None = None) -> Mistake:
        span = self.places.get((*self.root, *path))
        return Mistake(message, span, self.source, hint)


@dataclass
class _PathReader:
    """Reads a property path of SPARQL from its tokens, as far as it is one; None where it is none."""

    tokens: list[str]
    iri: Callable[[str], Iri]

    def alternative(self) -> Way | None:
        return self._several("|", self._sequence, sparql.Alternative)

    def _sequence(self) -> Way | None:
        return self._several("/", self._step, sparql.Steps)

    def _several(
        self, sign: str, read: Callable[[], Way | None], make: Callable[[tuple[Way, ...]], sparql.Path]
    ) -> Way | None:
        parts = [read()]
        while self._accept(sign):
            parts.append(read())
        known = tuple(each for each in parts if each is not None)
        return None if len(known) < len(parts) else known[0] if len(known) == 1 else make(known)

    def _step(self) -> Way | None:
        if self._accept("^"):
            inner = self._step()
            return None if inner is None else sparql.Inverse(inner)
        found = self._primary()
        for sign, (least, unbounded) in _REPEATS.items():
            if found is not None and self._accept(sign):
                return sparql.Repeat(found, least, unbounded)
        return found

    def _primary(self) -> Way | None:
        if self._accept("("):
            inner = self.alternative()
            return inner if self._accept(")") else None
        if not self.tokens or _PATH_SIGNS.fullmatch(self.tokens[0]):
            return None
        return self.iri(self.tokens.pop(0))

    def _accept(self, sign: str) -> bool:
        if self.tokens and self.tokens[0] == sign:
            del self.tokens[0]
            return True
        return False
