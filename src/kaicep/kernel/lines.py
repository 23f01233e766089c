"""Matches as lines of JSON, made of their columns: the bytes of `Match.to_json`, in a tenth of its time.

Everything that the matches of one query have in common is written once, as a pattern with holes. The columns
become texts, and each match fills the holes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from kaicep.kernel.columns import NO_TIME, Column, Lists, Matches, Refs, Strings
from kaicep.plan.time import format_time
from kaicep.plan.types import Type


def lines_of(matches: Matches) -> list[str]:
    """What `Match.to_json` says of each match, in their order."""
    if matches.batch or matches.derived or any(map(_has_gaps, matches.events.values())):
        return [each.to_json() for each in matches.rows]
    holes = [ids_of(matches), _times(matches.start.tolist())]
    holes.append(holes[1] if matches.start is matches.end else _times(matches.end.tolist()))
    holes += [_selected(matches, name) for name in matches.names]
    holes += [_identities(each, matches.streams) for each in matches.events.values()]
    select = ", ".join(f"{_quoted(name)}: %s" for name in matches.names)
    events = ", ".join(f"{_quoted(variable)}: %s" for variable in matches.events)
    version = f', "knowledge": {matches.version}' if matches.version else ""
    pattern = (
        f'{{"query": {_quoted(matches.query)}, "id": "%s", "start": "%s", "end": "%s", '
        f'"select": {{{select}}}, "events": {{{events}}}{version}}}'
    )
    return [pattern % row for row in zip(*holes, strict=True)]


def ids_of(matches: Matches) -> list[str]:
    """The ids of matches."""
    words = np.empty((len(matches), 2), ">u8")
    words[:, 0], words[:, 1] = matches.ids
    text = words.tobytes().hex()
    return [text[at : at + 32] for at in range(0, len(text), 32)]


def _has_gaps(refs: Refs) -> bool:
    """Whether a match may have no event for a variable: it is then not named at all."""
    return refs.offsets is not None or bool((refs.place < 0).any())


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _quoted(name: str) -> str:
    """A text of the pattern, whose percent signs are no holes."""
    return _text(name).replace("%", "%%")


def _times(instants: Iterable[int]) -> list[str]:
    return [format_time(each) for each in instants]


def _selected(matches: Matches, name: str) -> list[str]:
    if name in matches.terms:
        return [_text(each) for each in matches.terms[name]]
    column = matches.select[name]
    if isinstance(column, Lists):
        flat = _values(column.flat, matches.strings)
        return [f"[{', '.join(flat[low:high])}]" for low, high in pairwise(column.offsets.tolist())]
    return _values(column, matches.strings)


def _values(column: Column, strings: Strings) -> list[str]:
    """The values of a column as JSON writes them."""
    data = column.data.tolist()
    match column.type:
        case Type.STRING:
            texts = {code: "null" if code < 0 else _text(strings.texts[code]) for code in set(data)}
            return [texts[each] for each in data]
        case Type.FLOAT64:
            return ["null" if each != each else repr(each) for each in data]
        case Type.BOOL:
            return ["null" if each < 0 else "true" if each else "false" for each in data]
        case Type.TIMESTAMP:
            return ["null" if each == NO_TIME else f'"{format_time(each)}"' for each in data]
    if column.valid is None:
        return [str(each) for each in data]
    return [str(each) if valid else "null" for each, valid in zip(data, column.valid.tolist(), strict=True)]


def _identities(refs: Refs, streams: Sequence[str]) -> list[str]:
    heads = [f'{{"stream": {_text(each)}, "part": ' for each in streams]
    return [
        f'{heads[place]}{part}, "seq": {seq}}}'
        for place, part, seq in zip(refs.place.tolist(), refs.part.tolist(), refs.seq.tolist(), strict=True)
    ]
