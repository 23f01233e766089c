"""Whatever comes in by a file or a request, and however it is broken: an answer or a mistake, nothing else.

`tests/corpus` and the examples are changed at random, bit by bit, word by word, by pieces of each other.
`KAICEP_FUZZ_SECONDS` says for how long each reader is tried, `KAICEP_FUZZ_SEED` from which seed: a failure
names its own, and leaves the input in a file.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy
import pytest

from kaicep.api import parse_query
from kaicep.connectors.shape import Form
from kaicep.connectors.sources.files import FileSource, FileSourceOptions
from kaicep.deployment.config import load_config
from kaicep.deployment.registered import Registry
from kaicep.errors import KaicepError, SourceText
from kaicep.kernel.state import read_state, write_state
from kaicep.knowledge.annotation import load_annotations
from kaicep.plan.types import Type
from kaicep.storage.disk import read_sealed, replace_sealed

pytestmark = pytest.mark.random

SECONDS = float(os.environ.get("KAICEP_FUZZ_SECONDS", "1.5"))
SEED = int(os.environ.get("KAICEP_FUZZ_SEED", "0"))
SLOW = 20.0
"""So many seconds a single input may take, where others work beside it."""
ROOT = Path(__file__).parent.parent
CORPUS = ROOT / "tests" / "corpus"
ODD = [
    *(b"", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\n", b"\r", b'"', b"'", b"\\", b"\\u0000", b"\\ud800"),
    *(b"1e999", b"-0", b"9" * 400, b"NaN", b"null", b"[]", b"{}", b"()", b"{{{{", b"(((((", b"]]]]", b"/*"),
    *(b"2012-02-30T25:61:61Z", b"-9999-01-01", b"99999d", b"?e.x", b"<urn:x>", b"a:", b"now", b"#", b"true"),
    *(b"\xe2\x80\xa8", b"\xf0\x9f\x98\x80", b" " * 500, b"a" * 5_000, b"=", b"[x]\n", b"FILTER (", b"PATH {"),
]


def mutated(chosen: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds, changed at some places."""
    text = bytearray(chosen.choice(seeds))
    for _ in range(chosen.choice([1, 1, 2, 3, 8])):
        at = chosen.randrange(len(text) + 1)
        until = min(len(text), at + chosen.choice([0, 1, 1, 2, 8, 40]))
        kind = chosen.randrange(6)
        if kind == 0 and at < len(text):
            text[at] ^= 1 << chosen.randrange(8)
        elif kind == 1:
            text[at:until] = chosen.choice(ODD)
        elif kind == 2:
            text[at:at] = text[at:until] * chosen.choice([1, 2, 50])
        elif kind == 3:
            other = chosen.choice(seeds)
            begin = chosen.randrange(len(other) + 1)
            text[at:until] = other[begin : begin + chosen.choice([1, 10, 100])]
        elif kind == 4:
            del text[at:until]
        else:
            del text[at:]
    return bytes(text)


def _texts(suffix: str) -> list[bytes]:
    paths = [*CORPUS.glob(f"*{suffix}"), *ROOT.glob(f"examples/*/queries/*{suffix}")]
    return [each.read_bytes() for each in sorted(paths)]


def _query(suffix: str) -> Callable[[Path, bytes], object]:
    def read(folder: Path, text: bytes) -> object:
        try:
            decoded = text.decode()
        except UnicodeDecodeError:
            return None
        return parse_query(SourceText(f"fuzzed{suffix}", decoded), {"v": "urn:v:"})

    return read


def _file(name: str, read: Callable[[Path], object]) -> Callable[[Path, bytes], object]:
    def attempt(folder: Path, text: bytes) -> object:
        path = folder / name
        path.write_bytes(text)
        return read(path)

    return attempt


def _records(path: Path) -> object:
    form = Form.of("s", None, {"x": Type.INT64, "y": Type.FLOAT64, "k": Type.STRING})
    with FileSource(form, FileSourceOptions(path)) as source:
        source.open()
        count = 0
        while not (batch := source.next_batch(0)).ended and count < 100:
            count += 1
        return list(batch.events)


def _registry(folder: Path, text: bytes) -> object:
    replace_sealed(folder / "registered.json", text)
    found = Registry(folder / "registered.json")
    for each in found.queries.values():
        each.parse({})
    return found


def _sealed(folder: Path, text: bytes) -> object:
    path = folder / "state"
    replace_sealed(path, SEALED)
    whole = path.read_bytes()
    path.write_bytes(mutated(random.Random(len(text)), [whole]) if text != SEALED else whole)
    found = read_sealed(path)
    assert found == SEALED, "what is damaged was read as if it were whole"
    return found


def _state(folder: Path, text: bytes) -> object:
    return read_state("engine", text)


SEALED = b'{"mark": {"cut": {"s": {"0": 4}}}}\n' + bytes(range(256))
STATE = write_state("engine", {"queries": {"q": "text"}, "parts": []}, {"q": numpy.arange(20)})


READERS: dict[str, tuple[Callable[[], Sequence[bytes]], Callable[[Path, bytes], object]]] = {
    "chi-CEP": (lambda: _texts(".chi"), _query(".chi")),
    "EP-SPARQL": (lambda: _texts(".epsparql"), _query(".epsparql")),
    "annotations": (lambda: [(CORPUS / "annotation.json").read_bytes()], _file("a.json", load_annotations)),
    "kaicep.toml": (lambda: [(CORPUS / "deployment.toml").read_bytes()], _file("kaicep.toml", load_config)),
    "JSON Lines": (lambda: [(CORPUS / "records.jsonl").read_bytes()], _file("s.jsonl", _records)),
    "CSV": (lambda: [(CORPUS / "records.csv").read_bytes()], _file("s.csv", _records)),
    "sealed files": (lambda: [SEALED], _sealed),
    "states": (lambda: [STATE], _state),
    "registered queries": (lambda: [(CORPUS / "registered.json").read_bytes()], _registry),
}


@pytest.mark.parametrize("name", READERS)
def test_anything_is_read_or_refused(name: str, tmp_path: Path) -> None:
    seeds, read = READERS[name]
    known = seeds()
    (tmp_path / "queries").mkdir()
    for each in known[:1]:  # the first time takes long
        with suppress(KaicepError):
            read(tmp_path, each)
    until, seed = time.monotonic() + SECONDS, SEED
    while time.monotonic() < until:
        text = mutated(random.Random(seed), known)
        begun = time.monotonic()
        try:
            str(read(tmp_path, text))
        except KaicepError:
            pass
        except Exception as error:
            (tmp_path / "input").write_bytes(text)
            message = f"KAICEP_FUZZ_SEED={seed}: {name} from {tmp_path / 'input'} raised {error!r}"
            raise AssertionError(message) from error
        assert time.monotonic() - begun < SLOW, f"KAICEP_FUZZ_SEED={seed}: {name} took too long"
        seed += 1
    assert seed > SEED
    print(f"{name}: {seed - SEED} inputs, seeds {SEED} to {seed - 1}")
