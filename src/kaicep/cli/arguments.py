"""What the commands share: options and their texts, how a command ends, a progress bar."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec, TextIO

import typer

from kaicep.errors import Diagnostic, Failure, Mistake, Unsupported, did_you_mean
from kaicep.plan.time import DURATION_UNITS, parse_duration, parse_time, time_from_number
from kaicep.storage.places import place_of

if TYPE_CHECKING:
    from rich.progress import Progress

    from kaicep.hosts.spark.session import Cluster
    from kaicep.knowledge.annotation import Annotation

# ----------------------------------------------------------------------------------------------------------
# How a command ends: every error becomes a message on stderr and an exit status (semantics 5).

FAILED, MISTAKEN, INTERRUPTED = 1, 2, 130

P = ParamSpec("P")


def say(text: str) -> None:
    """Writes a message to stderr."""
    print(text, file=sys.stderr, flush=True)


def has_colour(stream: TextIO) -> bool:
    """Whether what is written there may be coloured: on a terminal, unless NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def warn(diagnostics: Iterable[Diagnostic], hints: bool = False) -> None:
    """Writes warnings to stderr; matters of style only where they are wanted."""
    for each in diagnostics:
        if hints or each.severity == "warning":
            say(each.render(has_colour(sys.stderr)) + "\n")


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """The command, with its errors told as messages. KAICEP_DEBUG=1 shows where they come from."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except typer.Exit:
            raise
        except BrokenPipeError:
            # Whoever read our output has seen enough. Python flushes stdout once more when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (Exception, KeyboardInterrupt) as error:
            if os.environ.get("KAICEP_DEBUG") == "1":
                import traceback

                traceback.print_exc()
            message, status = _last_words(error)
            say(message)
            raise typer.Exit(status) from None

    return run


def group(name: str, help: str, *commands: Callable[..., None]) -> typer.Typer:
    """Commands that have a first word in common, each guarded."""
    made = typer.Typer(
        name=name,
        help=help,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    for each in commands:
        made.command()(guarded(each))
    return made


def _last_words(error: BaseException) -> tuple[str, int]:
    """What to say about an error, and the exit status."""
    if isinstance(error, Mistake):
        colour = has_colour(sys.stderr)
        return "\n\n".join(each.render(colour) for each in error.diagnostics), MISTAKEN
    if isinstance(error, Unsupported):
        return _said(str(error)), MISTAKEN
    if isinstance(error, Failure | OSError):
        return _said(str(error)), FAILED
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", INTERRUPTED
    if isinstance(error, MemoryError):
        return _said("this does not fit into memory"), FAILED
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    way = "this is a defect of kaicep; with KAICEP_DEBUG=1 it shows where it happened"
    return f"internal error: {what}\n  = help: {way}", FAILED


def _said(text: str) -> str:
    return Diagnostic(text).render(has_colour(sys.stderr))


# ----------------------------------------------------------------------------------------------------------
# What is shown on stderr of work that takes longer than a moment, where somebody is looking.

PATIENCE = 1.0
"""Seconds before a bar appears."""


@contextmanager
def progress(text: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Shows a bar while the work inside goes on; the work says how far it has come, if it knows."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    bar: Progress | None = None
    reached = 0

    def appear() -> None:
        nonlocal bar
        with suppress(ImportError):
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
            bar.add_task(text, total=total, completed=reached)
            bar.start()

    def advance(done: int) -> None:
        nonlocal reached
        reached = done
        if bar is not None and bar.task_ids:
            bar.update(bar.task_ids[0], completed=done)

    timer = threading.Timer(PATIENCE, appear)
    timer.daemon = True
    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        timer.join()
        if bar is not None:
            bar.stop()


@contextmanager
def progress_of(text: str, streams: Iterable[tuple[str, Path]]) -> Iterator[None]:
    """Shows a bar that follows the bytes of the files of streams, while these are read inside."""
    from kaicep.connectors.files import files_of
    from kaicep.connectors.records import watching

    total = sum(file.stat().st_size for name, path in streams for file in files_of(name, path))
    read: dict[Path, int] = {}
    with progress(text, total or None) as advance:

        def moved(path: Path, position: int) -> None:
            read[path] = position
            advance(sum(read.values()))

        with watching(moved):
            yield


def compile_kernel() -> None:
    """Compiles the kernel, and says so, where that was not done when kaicep was installed.

    Where nobody is looking, each part is compiled when it is first needed, as quietly.
    """
    if not sys.stderr.isatty():
        return
    from kaicep.kernel.warm import can_be_warm, is_warm, warm

    if can_be_warm() and not is_warm():
        say("compiling the kernel, once for this installation ...")
        warm()


# ----------------------------------------------------------------------------------------------------------
# The arguments that commands share, and what is found wrong with them before any work starts.

_REASONING = ("none", "rdfs", "owl-rl")
_LANGUAGES = (".chi", ".epsparql")
_DATA = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
_RDF = (".ttl", ".nt", ".rdf", ".owl", ".xml", ".jsonld", ".trig", ".nq")
_OPTIONS = dict.fromkeys(_DATA, "--stream NAME=") | dict.fromkeys(_RDF, "--knowledge ")

Queries = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="QUERY...",
        help="Query files: .chi (chi-CEP) or .epsparql (EP-SPARQL); by default those of the deployment.",
        show_default=False,
    ),
]
Streams = Annotated[
    list[str] | None,
    typer.Option(
        "--stream",
        metavar="NAME=FILE",
        help="A stream: .jsonl, .csv, .parquet, RDF, or a folder of these. May be given several times.",
    ),
]
KnowledgeFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--knowledge",
        metavar="FILE",
        help="A knowledge file: RDF, or .epsparql with CONSTRUCT rules. May be given several times.",
    ),
]
Annotations = Annotated[
    list[Path] | None,
    typer.Option("--annotation", metavar="FILE", help="An annotation file. May be given several times."),
]
DeploymentFile = Annotated[
    Path | None,
    typer.Option(
        "--deployment",
        metavar="TOML",
        help="Use the annotations, the knowledge and the streams of files of this deployment; "
        "your other options add to these, or replace them.",
    ),
]
Reasoning = Annotated[
    str | None,
    typer.Option(
        "--reasoning",
        metavar="|".join(_REASONING),
        help="What is inferred from the knowledge; by default rdfs.",
        show_default=False,
    ),
]
Now = Annotated[
    str | None, typer.Option("--now", metavar="TIME", help="The time that `now` means in the queries.")
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="The Spark cluster, such as spark://head:7077 or local[4]."),
]
Remote = Annotated[
    str | None,
    typer.Option("--remote", metavar="URL", help="A Spark Connect server, such as sc://head:15002."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's. May be given several times."),
]


@dataclass(frozen=True)
class Inputs:
    """What a command reads, checked: queries, streams, knowledge and annotations, as files and as read."""

    queries: list[Path]
    streams: list[tuple[str, Path]]
    knowledge: list[Path]
    annotations: list[Path | Annotation]
    reasoning: str
    archive: Path | None = None

    @property
    def known(self) -> tuple[list[Path], list[Path | Annotation], str]:
        """What is known of the streams: the knowledge, the annotations, and how far to reason."""
        return self.knowledge, self.annotations, self.reasoning

    @property
    def files(self) -> list[Path]:
        """All files and folders among them, which no output may overwrite."""
        said = [each for each in self.annotations if isinstance(each, Path)]
        return [*self.queries, *self.knowledge, *said, *(path for _, path in self.streams)]

    @contextmanager
    def looked_beside(self) -> Iterator[None]:
        """Inside, a mistake that a forgotten annotation explains says which file was forgotten."""
        try:
            yield
        except Mistake as mistake:
            beside = [] if self.annotations else list(_annotations_beside(self.streams))
            if not beside:
                raise
            option = " ".join(f"--annotation {each}" for each in beside)
            hint = f"did you forget the annotation? There is one beside the data: {option}"
            raise Mistake(
                [
                    replace(each, hint=hint) if _UNANNOTATED.match(each.message) else each
                    for each in mistake.diagnostics
                ]
            ) from None


def inputs_of(
    queries: Sequence[Path] | None,
    streams: Sequence[str] | None,
    knowledge: Sequence[Path] | None,
    annotations: Sequence[Path] | None,
    reasoning: str | None,
    deployment: Path | None,
) -> Inputs:
    """What a command reads, by its options and by the deployment that they name."""
    named = dict(named_streams(streams or ()))
    known: list[Path] = []
    said: list[Path | Annotation] = []
    archive = None
    level = reasoning_level(reasoning)
    paths = list(queries or ())
    if deployment is not None:
        from kaicep.deployment.config import load_config
        from kaicep.knowledge.loading import expanded

        config = load_config(deployment)
        named = {**config.files, **named}
        known, said, archive = (
            list(expanded(config.knowledge)),
            list(config.typed_annotations),
            config.archive,
        )
        level = level if reasoning else config.reasoning
        paths = paths or sorted(each for each in config.queries.iterdir() if each.suffix in _LANGUAGES)
    if not paths:
        hint = "give a file such as QUERY.chi, or --deployment kaicep.toml"
        raise Mistake("no query is given", hint=hint)
    found = query_files(paths, list(named.items()))
    known += files("--knowledge", knowledge, folders=True)
    said += files("--annotation", annotations)
    return Inputs(found, list(named.items()), known, said, level, archive)


def _annotations_beside(streams: Sequence[tuple[str, Path]]) -> Iterator[Path]:
    """The files near a stream's data that look like its annotation."""
    for name, path in streams:
        folder = path if path.is_dir() else path.parent
        places = (folder, folder / "annotations", folder.parent, folder.parent / "annotations")
        for each in (place / f"{name}.json" for place in places):
            if each != path and each.is_file() and '"stream"' in each.read_text("utf-8", "replace"):
                yield each
                break


_UNANNOTATED = re.compile("unknown prefix |no attribute of .* carries ")


def query_files(paths: Sequence[Path], streams: Sequence[tuple[str, Path]] = ()) -> list[Path]:
    """The query files, checked: they exist, their names differ from each other and from the streams'."""
    found = [each for path in paths for each in _query_problems(path)]
    names = [path.stem for path in paths]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            twins = " and ".join(str(path) for path in paths if path.stem == name)
            found.append(
                Diagnostic(f"two queries are named {name}: {twins}", hint="a file's stem is the query's name")
            )
        if name in dict(streams):
            found.append(
                Diagnostic(
                    f"{name} is the name of a query and of a stream",
                    hint="a query's output is a stream of its name: rename the query file or the stream",
                )
            )
    if found:
        raise Mistake(found)
    return list(paths)


def _query_problems(path: Path) -> Iterator[Diagnostic]:
    if path.suffix not in _LANGUAGES:
        hint = "a query file ends in .chi (chi-CEP) or .epsparql (EP-SPARQL)"
        name, equals, rest = str(path).partition("=")
        if equals and not path.exists():
            hint = f"every stream needs its own option: --stream {name}={rest}"
        elif path.suffix.lower() in _OPTIONS:
            hint = f"this looks like the value of an option: {_OPTIONS[path.suffix.lower()]}{path}"
        yield Diagnostic(f"{path} is not a query file", hint=hint)
    elif problem := _unreadable(path, "the query", _LANGUAGES):
        yield problem


def named_streams(given: Sequence[str]) -> list[tuple[str, Path]]:
    """The streams of `NAME=FILE`, each name once.

    >>> named_streams(["meter=data/meter.csv"])
    [('meter', PosixPath('data/meter.csv'))]
    """
    streams: dict[str, Path] = {}
    for each in given:
        name, equals, file = each.partition("=")
        if not (name and equals and file):
            file = file or ("FILE" if equals else name) or "FILE"
            hint = f"such as --stream {name if equals and name else Path(file).stem}={file}"
            raise Mistake(f"--stream {each}: a name and a file are needed", hint=hint)
        if name in streams:
            raise Mistake(
                f"two streams are named {name}: {streams[name]} and {file}",
                hint="put several files of one stream into one folder: --stream NAME=FOLDER",
            )
        streams[name] = Path(file)
    return list(streams.items())


def files(option: str, paths: Sequence[Path] | None, folders: bool = False) -> list[Path]:
    """The files of an option, checked: they can be read. With `folders`, a folder will do too."""
    places = [place_of(path, option) for path in paths or ()]
    checked = [path for path in places if not (folders and path.is_dir())]
    found = [problem for path in checked if (problem := _unreadable(path, option, ()))]
    if found:
        raise Mistake(found)
    return places


def _unreadable(path: Path, role: str, suffixes: Sequence[str]) -> Diagnostic | None:
    try:
        with path.open("rb"):
            return None
    except FileNotFoundError as error:
        from kaicep.connectors.files import near_files

        hint = near_files(path, suffixes or (path.suffix,))
        return Diagnostic(f"cannot read {role} {path}: {error.strerror}", hint=hint)
    except OSError as error:
        return Diagnostic(f"cannot read {role} {path}: {error.strerror}")


def reasoning_level(given: str | None) -> str:
    """The value of `--reasoning`."""
    return choose("--reasoning", given or "rdfs", _REASONING)


def choose(option: str, value: str, choices: Collection[str]) -> str:
    """The value of an option, if it is one of the choices."""
    if value not in choices:
        raise Mistake(f"{option} {value}: choose one of {', '.join(choices)}", hint=_near(value, choices))
    return value


def _near(value: str, choices: Collection[str]) -> str | None:
    hint = did_you_mean(value, choices)
    return hint if hint and hint.startswith("did you mean") else None


def duration(option: str, text: str | None) -> int | None:
    """The value of an option in microseconds; None where it is not given."""
    if text is None:
        return None
    micros = parse_duration(text)
    if micros is None:
        units = ", ".join(DURATION_UNITS)
        raise Mistake(f"{option} {text}: not a duration", hint=f"a number and a unit, such as 5min ({units})")
    return micros


def choose_cluster(
    master: str | None, remote: str | None, conf: Sequence[str] | None, spark: bool = True, hint: str = ""
) -> Cluster | None:
    """Says where Spark is to run, of the options for it; they are for what runs on `spark`."""
    given = {"--master": master, "--remote": remote, "--conf": conf}
    if not any(given.values()):
        return None
    if not spark:
        option = next(name for name, value in given.items() if value)
        raise Mistake(f"{option} is for what runs on Spark", hint=hint)
    from kaicep.hosts.spark.session import Cluster, configured, use_cluster

    settings: dict[str, str] = {}
    for each in conf or ():
        name, equals, value = each.partition("=")
        if not (name and equals):
            hint = "such as --conf spark.executor.memory=2g"
            raise Mistake(f"--conf {each}: a name and a value are needed", hint=hint)
        settings[name] = value
    cluster = Cluster(master, remote, settings)
    configured(cluster)
    use_cluster(cluster)
    return cluster


def moment(option: str, text: str | None) -> int | None:
    """The value of an option as an instant; None where it is not given."""
    if text is None:
        return None
    micros = parse_time(text)
    if micros is None:
        try:
            micros = time_from_number(float(text))
        except ValueError:
            micros = None
    if micros is None:
        raise Mistake(
            f"{option} {text}: not a time", hint="ISO 8601, such as 2012-05-07T09:00, or epoch seconds"
        )
    return micros
