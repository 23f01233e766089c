"""Mistakes on the command line: each is told, with a way out, before any work starts."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CASES = """\
$ rise.chi
error: no stream is given
  = help: such as --stream NAME=FILE.jsonl, or --deployment kaicep.toml

$ rise.chi --stream air.jsonl
error: --stream air.jsonl: a name and a file are needed
  = help: such as --stream air=air.jsonl

$ rise.chi --stream =air.jsonl
error: --stream =air.jsonl: a name and a file are needed
  = help: such as --stream air=air.jsonl

$ rise.chi --stream air=air.jsonl --stream air=other.jsonl
error: two streams are named air: air.jsonl and other.jsonl
  = help: put several files of one stream into one folder: --stream NAME=FOLDER

$ rise.chi other/rise.chi --stream air=air.jsonl
error: cannot read the query other/rise.chi: No such file or directory

error: two queries are named rise: rise.chi and other/rise.chi
  = help: a file's stem is the query's name

$ rise.chi --stream rise=air.jsonl
error: rise is the name of a query and of a stream
  = help: a query's output is a stream of its name: rename the query file or the stream

$ rize.chi --stream air=air.jsonl
error: cannot read the query rize.chi: No such file or directory
  = help: did you mean rise.chi?

$ rise.sql --stream air=air.jsonl
error: rise.sql is not a query file
  = help: a query file ends in .chi (chi-CEP) or .epsparql (EP-SPARQL)

$ rise.chi --stream air=air.jsonl meter=meter.csv
error: meter=meter.csv is not a query file
  = help: every stream needs its own option: --stream meter=meter.csv

$ rise.chi campus.ttl --stream air=air.jsonl
error: campus.ttl is not a query file
  = help: this looks like the value of an option: --knowledge campus.ttl

$ rise.chi --stream air=air.jsonl --knowledge campus.ttl --knowledge city.ttl
error: cannot read --knowledge campus.ttl: No such file or directory

error: cannot read --knowledge city.ttl: No such file or directory

$ rise.chi --stream air=air.jsonl --annotation .
error: cannot read --annotation .: Is a directory

$ rise.chi --stream air=air.jsonl --host refrence
error: --host refrence: there is no such host
  = help: did you mean reference?

$ rise.chi --stream air=air.jsonl --reasoning owlrl
error: --reasoning owlrl: choose one of none, rdfs, owl-rl
  = help: did you mean owl-rl?

$ rise.chi --stream air=air.jsonl --out xml
error: --out xml: choose one of jsonl, table, csv, parquet, srj, sparql-xml, sparql-csv, nt, trig

$ rise.chi --stream air=air.jsonl --lateness '5 minutes'
error: --lateness 5 minutes: not a duration
  = help: a number and a unit, such as 5min (us, ms, s, min, h, d)

$ rise.chi --stream air=air.jsonl --now today
error: --now today: not a time
  = help: ISO 8601, such as 2012-05-07T09:00, or epoch seconds

$ rise.chi --stream air=air.jsonl --output none/out.jsonl
error: --output: cannot write none/out.jsonl: No such file or directory
  = help: there is no folder none

$ rise.chi --stream air=air.jsonl --output air.jsonl
error: --output air.jsonl would write over what is read: air.jsonl

$ rise.chi --stream air=air.jsonl --late x --dead-letters x
error: --dead-letters and --late both write x

$ rise.chi --stream air=ari.jsonl
error: stream air: cannot read ari.jsonl: No such file or directory
  = help: did you mean air.jsonl?

$ rise.chi --stream air=rise.chi
error: stream air: the format of rise.chi is unknown
  = help: a stream is read from .jsonl, .csv, .parquet or RDF, not from files that end in .chi
"""


def cases() -> list[tuple[str, str]]:
    """Each command line and what is said to it."""
    found = [each.split("\n", 1) for each in CASES.removeprefix("$ ").split("\n$ ")]
    return [(line, said.rstrip("\n") + "\n") for line, said in found]


@pytest.mark.parametrize(("line", "said"), cases(), ids=[line for line, _ in cases()])
def test_a_mistake_is_told_and_nothing_is_written(
    run: Callable[..., Any], folder: Path, line: str, said: str
) -> None:
    before = sorted(folder.rglob("*"))
    result = run("match", *shlex.split(line))
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", said)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("command", ["check", "explain"])
def test_check_and_explain_look_at_their_arguments_too(run: Callable[..., Any], command: str) -> None:
    for args in (("none.chi",), ("rise.chi", "--stream", "air"), ("rise.chi", "--reasoning", "all")):
        result = run(command, *args)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("error: ")
