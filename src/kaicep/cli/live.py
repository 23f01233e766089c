"""`kaicep live`: the event service, from a graph in a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaicep.cli.arguments import choose, duration, group, say, warn
from kaicep.errors import Diagnostic, Failure, KaicepError, Mistake

if TYPE_CHECKING:
    from kaicep.connectors.contract import Source
    from kaicep.live.bindings import Delivery
    from kaicep.live.event_service import Service
    from kaicep.live.gateway import Receiver
    from kaicep.live.graph import Graph, Operator, Supplier
    from kaicep.live.sharing import LiveQuery
    from kaicep.live.ticking import Pulse

_NETWORK = "network"

_WAIT, _DRAIN = 0.2, 10.0

GraphFile = Annotated[
    Path, typer.Argument(metavar="GRAPH", help="A graph: .toml, or rows as in the CPEP paper.")
]
Seconds = Annotated[
    float | None, typer.Option("--seconds", metavar="N", help="Stop after N seconds.", show_default=False)
]


def check(graph: GraphFile) -> None:
    """Find what is wrong with a graph, without running it.

    Example: kaicep live check brakes.toml
    """
    found = open_graph(graph)
    counts = f"{len(found.suppliers)} suppliers, {len(found.operators)} operators"
    typer.echo(f"{found.name}: ok ({counts}, {len(found.consumers)} consumers)")


def explain(
    graph: GraphFile,
    draw: Annotated[
        Path | None,
        typer.Option("--draw", metavar="FILE", help="Draw it into a .svg, .png or .dot file (graphviz)."),
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared/--given", help="As it runs, with equal operators shared, or as given.")
    ] = True,
) -> None:
    """Show the levels of a graph, and what moves between them.

    Example: kaicep live explain brakes.toml --draw brakes.svg
    """
    from kaicep.live.graph import as_dot, as_text
    from kaicep.live.graph import draw as drawn
    from kaicep.live.sharing import shared as merged

    found = open_graph(graph)
    if shared:
        found = merged(found).graph
    if draw is None:
        typer.echo(as_text(found))
        return
    format = choose("--draw", draw.suffix.removeprefix("."), ("svg", "png", "dot"))
    draw.write_bytes(as_dot(found).encode() if format == "dot" else drawn(found, format))
    say(f"drawn into {draw}")


def run(
    graph: GraphFile,
    seconds: Seconds = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Accept suppliers and consumers here.")
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(
            "--token-env", metavar="NAME", help="The environment variable with the token that they must send."
        ),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option("--metrics", metavar="FILE", help="Write metrics for Prometheus, every second."),
    ] = None,
    apart: Annotated[
        bool,
        typer.Option("--apart", help="Run simulated suppliers, and the consumers, as processes."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics at the end as JSON.")] = False,
    real_time: Annotated[
        bool, typer.Option("--real-time/--no-real-time", help="SCHED_FIFO if the system allows it.")
    ] = True,
) -> None:
    """Run a graph, and print the metrics of each consumer.

    It runs until interrupted, for --seconds, or until all sources have ended. With --apart,
    `kaicep live feed` and `kaicep live consume` run beside it, as they could on other machines.

    Example: kaicep live run brakes.toml --seconds 10
    """
    found = open_graph(graph)

    from kaicep.live.event_service import Service, Settings
    from kaicep.live.metrics import figures, shown

    with ExitStack() as stack:
        if not apart:
            found = _with_outputs(found, stack)
        settings = Settings(real_time=None if real_time else False)
        service = Service(
            found,
            settings,
            on_dead_letter=lambda each: say(f"warning: {each.node} failed: {each.error!r}"),
            on_hanging=lambda each: say(f"warning: {each.node} has not returned for {each.seconds:.1f} s"),
        )
        pulses, sources = list(_pulses(service, apart)), dict(_connected(service, graph.parent))
        if apart and listen is None:
            listen = "127.0.0.1:0"
        if not pulses and not sources and listen is None:
            raise Mistake(
                f"{graph}: no supplier has a source",
                hint='give them one, such as source = {kind = "wave"}, or take them from --listen',
            )
        if not service.real_time:
            say("priorities by queues alone: no SCHED_FIFO")
        feeds = [_feed(service, name, source, stack) for name, source in sources.items()]
        endless = bool(pulses) or listen is not None
        door = None if listen is None else _door(listen, token_env)
        others = graph if apart else None
        _go(service, pulses, door, metrics, seconds, stack, [] if endless else feeds, others, token_env)
        result = figures(service)
    typer.echo(json.dumps(result, indent=2) if as_json else shown(result))


Where = Annotated[
    str, typer.Argument(metavar="HOST:PORT", help="Where `kaicep live run --listen` runs the graph.")
]
TokenEnv = Annotated[
    str | None, typer.Option("--token-env", metavar="NAME", help="The environment variable with the token.")
]


def feed(graph: GraphFile, where: Where, seconds: Seconds = None, token_env: TokenEnv = None) -> None:
    """Simulate the suppliers of a graph, and send their events to where it runs.

    Example: kaicep live feed brakes.toml 127.0.0.1:7070 --seconds 10
    """
    from kaicep.live.bindings import as_bytes
    from kaicep.live.gateway import Sender
    from kaicep.live.ticking import GENERATED, Pulse, Ticker, payloads

    found = open_graph(graph)
    simulated = [each for each in found.suppliers.values() if _is_apart(each)]
    if not simulated:
        kinds = ", ".join(each for each in GENERATED if each != "clock")
        raise Mistake(f"{graph}: no supplier is simulated", hint=f"a source of kind {kinds}")
    address, token = _door(where, token_env, serves=False)
    sender = Sender(address, [each.name for each in simulated], token)

    def beat(name: str, made: Iterator[Any]) -> Callable[[], None]:
        return lambda: sender.push((name, as_bytes(next(made))))

    ticker = Ticker([Pulse(each.period or 1, beat(each.name, payloads(each))) for each in simulated])
    ticker.start()
    until = None if seconds is None else time.monotonic() + seconds
    try:
        while ticker.failed is None and (until is None or time.monotonic() < until):
            time.sleep(0.1)
    finally:
        ticker.stop()
        sender.close()
    if ticker.failed is not None and not isinstance(ticker.failed, OSError):
        raise ticker.failed


def consume(graph: GraphFile, where: Where, token_env: TokenEnv = None) -> None:
    """Receive what the consumers of a graph get where it runs, and write it to their outputs.

    Example: kaicep live consume brakes.toml 127.0.0.1:7070
    """
    from kaicep.live.gateway import Receiver

    found = open_graph(graph)
    address, token = _door(where, token_env, serves=False)
    with ExitStack() as stack:
        threads = []
        for each in found.consumers.values():
            receiver = Receiver(address, each.name, token)
            stack.callback(receiver.close)
            write = _lines(each.output, stack) if each.output else None
            threads.append(threading.Thread(target=_receive, args=(each.name, receiver, write), daemon=True))
            threads[-1].start()
        say(f"receiving for {len(threads)} consumers")
        for thread in threads:
            thread.join()


def _receive(name: str, receiver: Receiver, write: Callable[[str], None] | None) -> None:
    from kaicep.live.bindings import received_line

    with suppress(OSError):
        for each in receiver:
            if write is not None:
                write(received_line(name, each.payload, each.timely))


def _is_apart(supplier: Supplier) -> bool:
    """Whether a supplier is simulated by `feed`; the time comes from the service itself."""
    from kaicep.live.ticking import GENERATED

    kind = supplier.source.get("kind")
    return kind in GENERATED and kind != "clock" and supplier.period is not None


def top(
    once: Annotated[bool, typer.Option("--once", help="Print the metrics once and exit.")] = False,
) -> None:
    """Watch the services that `kaicep live run` runs on this machine.

    Example: kaicep live top --once
    """
    from kaicep.live.metrics import shown

    while True:
        found = [shown(each) for each in _running()]
        if not found:
            raise Failure("no service runs here: `kaicep live run GRAPH` starts one")
        clear = "\x1b[2J\x1b[H" if sys.stdout.isatty() and not once else ""
        typer.echo(clear + "\n\n".join(found))
        if once:
            return
        time.sleep(1)


# --- the graph ---------------------------------------------------------------------------------------------


def open_graph(path: Path) -> Graph:
    """Reads a graph, checks it, compiles its queries, and sees whether keys and functions are there."""
    from kaicep.live.graph import load_graph
    from kaicep.live.kinds import function_of

    graph = load_graph(path)
    wrong: list[Diagnostic] = []
    operators: dict[str, Operator] = {}
    for name, each in graph.operators.items():
        try:
            operators[name] = made = _settled(each, path.parent)
            if made.kind in ("aes", "python"):
                function_of(made)
        except Mistake as mistake:
            wrong.extend(mistake.diagnostics)
    for supplier in graph.suppliers.values():
        wrong.extend(_source_problems(supplier))
    if wrong:
        raise Mistake(wrong)
    return replace(graph, operators=operators)


def _source_problems(supplier: Supplier) -> Iterator[Diagnostic]:
    from kaicep.connectors.registry import SOURCES
    from kaicep.live.graph import problem
    from kaicep.live.ticking import GENERATED

    if not supplier.source:
        return
    kind = supplier.source.get("kind")
    known = (*GENERATED, *SOURCES, _NETWORK)
    if kind not in known:
        yield problem(supplier, f"no kind of source is named {kind}", ("source",), str(kind), known)
    elif kind in GENERATED and supplier.period is None:
        yield problem(supplier, f"{supplier.name}: a {kind} needs a period", ("source",))
    elif kind in SOURCES and supplier.type != "records":
        hint = 'type = "records"'
        yield problem(supplier, f"{supplier.name}: {kind} gives records", ("type", "source"), hint=hint)


def _settled(operator: Operator, folder: Path) -> Operator:
    """The operator with its files found, relative to the graph, and its query compiled."""
    if operator.kind == "query":
        return replace(operator, function=_compiled(operator, folder))
    if isinstance(operator.settings.get("key_file"), str):
        found = str(folder / operator.settings["key_file"])
        return replace(operator, settings={**operator.settings, "key_file": found})
    return operator


def _compiled(operator: Operator, folder: Path) -> LiveQuery:
    from kaicep.api import build_run, read_query
    from kaicep.connectors.files import StreamData
    from kaicep.knowledge.annotation import load_annotations
    from kaicep.knowledge.store import Knowledge
    from kaicep.live.sharing import CLOCK, LiveQuery

    has = operator.settings
    annotations = [one for each in has.get("annotation", ()) for one in load_annotations(folder / each)]
    prefixes = {name: iri for each in annotations for name, iri in each.prefixes}
    parsed = read_query(folder / has["query"], prefixes)
    files = (folder / each for each in has.get("knowledge", ()))
    knowledge = Knowledge.load(*files, reasoning=has.get("reasoning", "rdfs"))
    lateness = duration("lateness", has.get("lateness", "0s")) or 0
    streams = [each for each in operator.inputs if each != CLOCK]
    data = [StreamData(name, (), ()) for name in streams]
    compiled = build_run([parsed], data, annotations, knowledge, lateness)
    warn(compiled.diagnostics)
    batch = int(has.get("batch", 64))
    return LiveQuery.of(compiled, lateness=lateness, batch=batch)


def _with_outputs(graph: Graph, stack: ExitStack) -> Graph:
    """The consumers with callbacks that write to their files."""
    consumers = {
        name: replace(each, callback=_writer(each.output, stack)) if each.output else each
        for name, each in graph.consumers.items()
    }
    return replace(graph, consumers=consumers)


def _writer(output: str, stack: ExitStack) -> Callable[[Delivery], None]:
    from kaicep.live.bindings import line

    write = _lines(output, stack)
    return lambda delivery: write(line(delivery))


def _lines(output: str, stack: ExitStack) -> Callable[[str], Any]:
    """Writes lines to a file, or with `-` to stdout."""
    if output == "-":
        return sys.stdout.write
    file = Path(output).open("w", encoding="utf-8")  # noqa: SIM115, the stack closes it
    stack.callback(file.close)
    return file.write


# --- running -----------------------------------------------------------------------------------------------


def _pulses(service: Service, apart: bool) -> Iterator[Pulse]:
    """What pushes the events of the suppliers that make them up, but for those that another process does."""
    from kaicep.live.ticking import GENERATED, Pulse, payloads

    for supplier in service.graph.suppliers.values():
        kind = supplier.source.get("kind")
        if kind in GENERATED and supplier.period is not None and not (apart and _is_apart(supplier)):
            yield Pulse(supplier.period, _push(service, supplier.name, payloads(supplier)))


def _push(service: Service, name: str, payloads: Iterator[Any]) -> Callable[[], None]:
    def beat() -> None:
        service.push(name, next(payloads))

    return beat


def _connected(service: Service, folder: Path) -> Iterator[tuple[str, Source]]:
    """The connectors of the suppliers that have one; a path is relative to the graph."""
    from kaicep.connectors.registry import SOURCES, make_source
    from kaicep.connectors.shape import Form

    for supplier in service.graph.suppliers.values():
        if supplier.source.get("kind") in SOURCES:
            options = dict(supplier.source)
            form = Form(supplier.name, str(options.pop("time", "ts")), {}, "time" in supplier.source)
            if isinstance(options.get("path"), str):
                options["path"] = str(folder / options["path"])
            yield supplier.name, make_source(form, options)


def _feed(service: Service, name: str, source: Source, stack: ExitStack) -> threading.Thread:
    """Pushes what a connector gives, batch by batch, in a thread of its own until the stack is left."""
    stopping = threading.Event()

    def work() -> None:
        with source:
            try:
                source.open()
                while not stopping.is_set():
                    batch = source.next_batch(_WAIT)
                    for each in batch.dead:
                        say(f"warning: {name}: {each.reason}")
                    if batch.events:
                        service.push(name, batch.events)
                    if batch.ended:
                        return
            except KaicepError as error:
                say(f"warning: {name} brings no more events: {error}")

    thread = threading.Thread(target=work, name=f"kaicep-live-source-{name}", daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(stopping.set)
    return thread


def _beside(stack: ExitStack, *command: str) -> subprocess.Popen[bytes]:
    """Starts a command of ours in another process, until the stack is left."""
    from kaicep.processes import bound

    process = subprocess.Popen(bound([sys.executable, "-m", "kaicep", *command]), stderr=subprocess.DEVNULL)
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def _door(listen: str, token_env: str | None, serves: bool = True) -> tuple[tuple[str, int], str | None]:
    """Where suppliers and consumers are taken, and the token that they must show."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise Mistake(f"{listen}: not a host and a port", hint="such as 127.0.0.1:7070")
    from kaicep.connectors.http import is_loopback

    if serves and token_env is None and not is_loopback(host):
        hint = "name an environment variable that has one: --token-env KAICEP_TOKEN"
        raise Mistake(f"{host} can be reached by others, and there is no token", hint=hint)
    token = None if token_env is None else os.environ.get(token_env, "")
    if token == "":
        hint = f"such as export {token_env}=$(openssl rand -hex 32)"
        raise Mistake(f"the variable {token_env} has no token", hint=hint)
    return (host, int(port)), token


def _go(
    service: Service,
    pulses: list[Pulse],
    door: tuple[tuple[str, int], str | None] | None,
    metrics: Path | None,
    seconds: float | None,
    stack: ExitStack,
    feeds: list[threading.Thread],
    apart: Path | None,
    token_env: str | None,
) -> None:
    """Runs until the time is over, or until all of the feeds, if there are any, have ended."""
    from kaicep.live.gateway import Gateway
    from kaicep.live.metrics import figures, prometheus
    from kaicep.live.ticking import Ticker

    stack.enter_context(service)
    others: list[subprocess.Popen[bytes]] = []
    file = _folder() / f"{os.getpid()}.json"
    stack.callback(file.unlink, missing_ok=True)
    _replace(file, json.dumps(figures(service)))
    if door is not None:
        gateway = Gateway(service, *door)
        stack.callback(gateway.close)
        where = f"{gateway.address[0]}:{gateway.address[1]}"
        say(f"listening on {where}")
        if apart is not None:
            options = [str(apart), where, *(("--token-env", token_env) if token_env else ())]
            others = [_beside(stack, "live", each, *options) for each in ("consume", "feed")]
            while len(service.connected) <= len(service.consumers):
                if any(each.poll() is not None for each in others):
                    raise Failure("the suppliers or the consumers did not start")
                time.sleep(0.01)
            service.count_anew()
    ticker = Ticker(pulses, service.real_time)
    ticker.start()
    stack.callback(ticker.stop)
    until = None if seconds is None else time.monotonic() + seconds
    while until is None or time.monotonic() < until:
        if ticker.failed is not None:
            raise ticker.failed
        if feeds and not any(each.is_alive() for each in feeds):
            break
        found = figures(service)
        _replace(file, json.dumps(found))
        if metrics is not None:
            _replace(metrics, prometheus(found))
        time.sleep(1 if until is None else max(0.0, min(1.0, until - time.monotonic())))
    ticker.stop()
    for each in others[1:]:
        _end(each)
    service.drain(_DRAIN)
    if metrics is not None:
        _replace(metrics, prometheus(figures(service)))


def _folder() -> Path:
    """Where running services leave their figures for `top`; nobody else may read or write there."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"kaicep-live-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _replace(path: Path, text: str) -> None:
    """Writes a file as a whole: whoever reads it sees the old text or the new."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, "utf-8")
    beside.replace(path)


def _running() -> Iterator[Mapping[str, Any]]:
    """The figures of the services whose processes are alive."""
    for path in sorted(_folder().glob("*.json")):
        try:
            os.kill(int(path.stem), 0)
            yield json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            path.unlink(missing_ok=True)


live = group(
    "live",
    "Run a graph of operators by priority and in time.\n\nExample: kaicep live run brakes.toml --seconds 10",
    check,
    explain,
    run,
    feed,
    consume,
    top,
)
