"""Small pieces of the source of compiled windows."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent

from kaicep.kernel.compiled.expressions import Atom
from kaicep.kernel.compiled.window_memory import Want
from kaicep.plan.types import Type

__all__ = [
    "function",
    "header",
    "inside",
    "key_words",
    "mixed",
    "null_of",
    "signed",
    "unless_grown",
    "want",
    "wanting",
    "word",
]

_NJIT = '@njit(nogil=True, cache=True, error_model="numpy")'


def inside(*lines: str) -> list[str]:
    """Statements that stand inside another one."""
    return [f"    {each}" for each in lines]


def function(name: str, parameters: Sequence[str], body: Sequence[str]) -> str:
    """A compiled function."""
    text = indent("\n".join(body), "    ")
    return f"\n\n{_NJIT}\ndef {name}({', '.join(parameters)}):\n{text}\n"


def wanting(test: str, name: str) -> list[str]:
    """Leaves a loop and asks for room where a test holds."""
    return [f"if {test}:", *inside(f"meta[WANT] = {want(name)}", "break")]


def want(name: str) -> int:
    """The number by which a kernel asks for something."""
    return int(Want[name])


def header(ints: str, at: str, ring: int) -> str:
    """The four numbers of a ring."""
    return ", ".join(f"np.int64({ints}[{at} + {ring + n}])" for n in range(4))


def unless_grown(ring: int, width: int, kind: int) -> str:
    """Goes into what follows where a ring is full and cannot grow."""
    full = f"ints[q + {ring + 3}] > ints[q + {ring + 1}]"
    return f"if {full} and not grow_ring(ints, q + {ring}, arena, meta, {width}, {kind}):"


def signed(word: int) -> int:
    """A word of 64 bits as an int64."""
    return word - 2**64 if word >= 2**63 else word


def null_of(text: str, type: Type) -> str | None:
    """The test for null of a type whose values say so themselves."""
    match type:
        case Type.FLOAT64:
            return f"({text} != {text})"
        case Type.TIMESTAMP:
            return f"({text} == NO_TIME)"
        case Type.INT64:
            return None
    return f"({text} < 0)"


def word(text: str, type: Type) -> str:
    """A value as an int64 that is the same for equal values."""
    return f"np.float64({text} + 0.0).view(np.int64)" if type is Type.FLOAT64 else f"np.int64({text})"


def key_words(atom: Atom) -> list[str]:
    """The words of a key; all nulls are one value."""
    own = word(atom.text, atom.type)
    if atom.type is Type.FLOAT64:
        return [f"NO_TIME if {atom.null} else {own}" if atom.null else own]
    if atom.type is Type.INT64:
        null = atom.null or "False"
        return [f"np.int64(0) if {null} else {own}", f"np.int64({null})"]
    return [own]


def mixed(atom: Atom) -> list[str]:
    """Mixes a value into the id in the making, as `plan.identity.value_words` has it."""
    text = atom.text
    match atom.type:
        case Type.FLOAT64:
            return [f"kind, word = number_words({text})", "a, b = joined(a, b, kind, word)"]
        case Type.STRING:
            kind, own = 2, f"words[{text}]"
        case Type.BOOL:
            kind, own = 1, f"np.uint64({text})"
        case _:
            kind, own = 3, f"np.uint64({text})"
    if atom.null is None:
        return [f"a, b = joined(a, b, np.uint64({kind}), {own})"]
    return [
        f"if {atom.null}:",
        *inside("a, b = joined(a, b, np.uint64(0), np.uint64(0))"),
        "else:",
        *inside(f"a, b = joined(a, b, np.uint64({kind}), {own})"),
    ]
