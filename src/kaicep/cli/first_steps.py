"""The first commands of a new user: `kaicep demo`, `kaicep init`, `kaicep doctor` and `kaicep bench`."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from kaicep.cli.arguments import FAILED, KnowledgeFiles, Reasoning, choose, files, has_colour, reasoning_level
from kaicep.errors import Failure, Mistake, painted

if TYPE_CHECKING:
    from kaicep.demo.morning import View


# ----------------------------------------------------------------------------------------------------------
# `kaicep demo`: a campus comes alive, and the queries find what happens there.

_SCALES = ("small", "campus", "city")


def demo(
    scale: Annotated[
        str,
        typer.Option(
            "--scale",
            metavar="|".join(_SCALES),
            help="60, 10,200 or 51,000 airflow sensors; the last takes minutes.",
        ),
    ] = "campus",
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="A different seed gives a different campus.")
    ] = 7,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="N",
            help="How long to run live, by default 20; Ctrl-C ends it too.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep everything in this folder, new or empty."),
    ] = None,
    console: Annotated[
        bool,
        typer.Option(
            "--console", help="Keep the campus alive, and open its console in a browser.", show_default=False
        ),
    ] = False,
) -> None:
    """Show what kaicep does, on a simulated campus.

    The demo archives a morning of the campus, by Spark if there is Java. Thirteen queries run back in time
    over it and continue live. Each match says its room, its department, and why it is a match.

    Example: kaicep demo --scale small --keep my-campus

    Example: kaicep demo --console
    """
    began = time.perf_counter()
    choose("--scale", scale, _SCALES)
    if seconds is not None and not seconds > 0:
        raise Mistake(f"--seconds: {seconds:g} is not more than 0", hint="such as 20")

    from kaicep.cli.arguments import compile_kernel
    from kaicep.demo.morning import Options, run

    compile_kernel()
    if console:
        _keep_alive(keep, scale, seed, seconds)
    else:
        run(Options(scale, seed, seconds or 20.0, keep, _called()), _view(), began)


def _keep_alive(keep: Path | None, scale: str, seed: int, seconds: float | None) -> None:
    from kaicep.cli.deployment import stopped_by_signals
    from kaicep.deployment.check import missing_packages

    if missing := missing_packages():
        raise Mistake(missing)
    from kaicep.demo.morning import keep_alive

    def say(text: str) -> None:
        typer.echo(text)
        if "http" in text and sys.stdout.isatty():
            webbrowser.open(text[text.index("http") :])

    with TemporaryDirectory(prefix="kaicep-demo-") as made:
        folder = keep if keep is not None else Path(made)
        keep_alive(folder, scale, seed, seconds, say, stopped_by_signals)


def _view() -> View:
    from kaicep.demo.morning import PlainView, Terminal

    if not sys.stdout.isatty():
        return PlainView()
    try:
        from rich.console import Console
    except ImportError:
        return PlainView()
    return Terminal(Console())


def _called() -> str:
    """How this command is called here."""
    if shutil.which("kaicep"):
        return "kaicep"
    name = sys.argv[0]
    return name if Path(name).name == "kaicep" else f"{shlex.quote(sys.executable)} -m kaicep"


# ----------------------------------------------------------------------------------------------------------
# `kaicep init`: a folder to start from, with events, knowledge, queries and a test, all of it working.

_TEMPLATES = ("start", "building")
_UNWANTED = shutil.ignore_patterns("__pycache__", "*.pyc")
_MATCH = (
    "kaicep match queries/vaccine-at-risk.chi --stream temperature=data/temperature.jsonl "
    "--annotation annotations/temperature.json --knowledge knowledge.ttl --out table"
)
_RUN = "kaicep run kaicep.toml"
_RULES = "kaicep match --deployment kaicep.toml --out table"


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that is new or empty.", show_default=False)
    ],
    template: Annotated[
        str, typer.Option("--template", metavar="|".join(_TEMPLATES), help="Which project to create.")
    ] = "start",
) -> None:
    """Create a working project to start from.

    The project has events, knowledge, annotations, queries, a test and a deployment. It is about a cold
    store, or a building with a model, an export and sixteen rules.

    Example: kaicep init cold-store
    """
    from importlib.resources import as_file, files

    choose("--template", template, _TEMPLATES)
    _check_empty(folder)
    with as_file(files("kaicep.examples") / template) as start:
        # Not their modes: where the package is read-only, the folder is not.
        shutil.copytree(start, folder, ignore=_UNWANTED, copy_function=shutil.copyfile, dirs_exist_ok=True)

    if template == "start":
        from kaicep.examples.start.generate import write

        write(folder / "data")
        what, command = "four freezers, their contents, and five queries", _MATCH
    else:
        from kaicep.examples.building.generate import write as write_building

        write_building(folder)
        what, command = "two air handlers, four rooms, a day of 54 points, and sixteen rules", _RULES
    typer.echo(f"{folder} has {what}: see its README.md. Next:\n")
    for each in (f"cd {shlex.quote(str(folder))}", command, *_install(), _RUN):
        typer.echo(f"  {each}")


def _install() -> list[str]:
    """What a deployment keeps its archive with, where it is not here yet."""
    return [] if find_spec("deltalake") else ["pip install 'kaicep[delta]'"]


def _check_empty(folder: Path) -> None:
    if folder.is_symlink() or folder.exists():
        if not folder.is_dir():
            raise Mistake(f"{folder} is a file", hint="name a new or empty folder")
        if any(folder.iterdir()):
            hint = "nothing is overwritten: name a new or empty folder"
            raise Mistake(f"{folder} is not empty", hint=hint)


# ----------------------------------------------------------------------------------------------------------
# `kaicep doctor`: what this machine has of what kaicep needs, and how to get the rest.

_PYTHONS = ((3, 11), (3, 13))
_JAVA = 17
_SPARK = (4, 3)

_COLOURS = {"ok": "32", "missing": "33", "old": "31", "new": "31", "odd": "33"}

# Package, what it is for.
_CORE = (
    ("google-re2", "regular expressions of queries"),
    ("numba", "the kernel, which is compiled"),
    ("pyoxigraph", "knowledge, RDF streams"),
    ("typer", "the command line"),
)
# Package, what it is for, the extra that brings it.
_OPTIONAL = (
    ("pyarrow", "Arrow, Parquet files", "parquet"),
    ("deltalake", "the archive, deployments", "delta"),
    ("uvicorn", "what a deployment serves, events by HTTP", "server"),
    ("pygls", "the language server for editors", "lsp"),
    ("pandas", "the Spark hosts", "spark"),
    ("confluent-kafka", "Kafka", "kafka"),
    ("paho-mqtt", "MQTT", "mqtt"),
    ("cryptography", "encryption in the live service", "live"),
    ("scipy", "filters in the live service", "live"),
)
# Program, what it is for, the package of the system that has it, and what winget calls that.
_PROGRAMS = (
    ("dot", "pictures of live graphs", "graphviz", "Graphviz.Graphviz"),
    ("mosquitto", "the tests of MQTT", "mosquitto", "EclipseFoundation.Mosquitto"),
    ("mvn", "the tests of Kafka, and benchmarks of other engines", "maven", ""),
)


@dataclass(frozen=True, slots=True)
class Checkup:
    """One thing looked at: `ok`, `missing`, `old`, `new` or `odd`, what was seen, and the way to mend it.

    `vital` is what nothing works without.
    """

    mark: str
    name: str
    seen: str
    remedy: str = ""
    vital: bool = False


def doctor(knowledge: KnowledgeFiles = None, reasoning: Reasoning = None) -> None:
    """Check that this machine has everything that kaicep needs.

    It checks Python, Java, Spark, memory and packages, and says how to get what is missing. With
    --knowledge it also loads the knowledge, and says how large it is and how long that takes.

    Example: kaicep doctor --knowledge campus.ttl
    """
    level = reasoning_level(reasoning)
    findings = [*examine(), *_knowledge(files("--knowledge", knowledge, folders=True), level)]
    name = max(len(each.name) for each in findings)
    for each in findings:
        mark = painted(f"{each.mark:<8}", _COLOURS[each.mark] if has_colour(sys.stdout) else "")
        typer.echo(f"{mark} {each.name:<{name}}  {each.seen}")
        if each.remedy:
            typer.echo(f"{'':<8} {'':<{name}}  to get it: {each.remedy}")
    if any(each.vital and each.mark != "ok" for each in findings):
        typer.echo("\nkaicep cannot run until this is mended.")
        raise typer.Exit(FAILED)
    typer.echo("\nkaicep has everything it needs.")


def examine() -> Iterator[Checkup]:
    """Everything that is looked at, in the order it is shown."""
    yield _python(sys.version_info[:3])
    for package, purpose in _CORE:
        yield _package(package, purpose, f"pip install {package}", vital=True)
    yield _java()
    yield from _spark()
    yield from _cluster()
    for package, purpose, extra in _OPTIONAL:
        yield _package(package, purpose, f"pip install 'kaicep[{extra}]'")
    for program, purpose, package, winget in _PROGRAMS:
        yield _program(program, purpose, package, winget)
    yield Checkup("ok", "cores", str(_cores()))
    yield _real_time()
    yield Checkup("ok", "memory", _memory())
    yield _cache()


def _knowledge(paths: list[Path], reasoning: str) -> Iterator[Checkup]:
    if not paths:
        return
    from kaicep.knowledge.store import Knowledge

    known = Knowledge.load(*paths, reasoning=reasoning)
    size = f"{known.asserted:,} statements, {known.closed:,} with what follows under {reasoning}"
    yield Checkup("ok", "knowledge", f"{size}; loaded and reasoned over in {known.seconds:.2f} s")
    for each in (*known.warnings, *known.contradictions):
        yield Checkup("odd", "knowledge", each.message)


def _python(found: tuple[int, ...]) -> Checkup:
    """The Python that runs this.

    >>> _python((3, 12, 1)).mark, _python((3, 10, 2)).mark
    ('ok', 'old')
    """
    oldest, newest = _PYTHONS
    seen = ".".join(map(str, found))
    if found[:2] < oldest:
        return Checkup(
            "old", "python", f"{seen}, kaicep needs 3.11 to 3.13", "uv python install 3.13", vital=True
        )
    if found[:2] > newest:
        return Checkup("ok", "python", f"{seen}, newer than the tested 3.11 to 3.13", vital=True)
    return Checkup("ok", "python", seen, vital=True)


def _package(package: str, purpose: str, remedy: str, vital: bool = False) -> Checkup:
    try:
        return Checkup("ok", package, f"{version(package)} ({purpose})", vital=vital)
    except PackageNotFoundError:
        return Checkup("missing", package, f"for {purpose}", remedy, vital)


def _spark() -> Iterator[Checkup]:
    """PySpark, and those of the packages it needs that are missing or have the wrong version."""
    remedy = "pip install 'kaicep[spark]'"
    found = _package("pyspark", "the Spark hosts", remedy)
    if found.mark == "ok" and _numbers(found.seen)[:2] < _SPARK:
        found = Checkup("old", "pyspark", f"{found.seen}, kaicep needs 4.3", remedy)
    yield found
    if found.mark == "missing":
        return
    for package, bounds in _needed_by_spark().items():
        try:
            there = version(package)
        except PackageNotFoundError:
            if package not in ("pandas", "pyarrow"):  # these have a line of their own
                yield Checkup("missing", package, f"the Spark hosts need {package}{bounds}", remedy)
            continue
        if mark := _outside(there, bounds):
            yield Checkup(mark, package, f"{there}, the Spark hosts need {package}{bounds}", remedy)


def _needed_by_spark() -> dict[str, str]:
    """The packages that PySpark and our Spark hosts need, with the bounds of their versions."""
    found: dict[str, dict[str, None]] = {}
    for package, extra in (("pyspark", "connect"), ("kaicep", "spark")):
        for each in requires(package) or ():
            needed, _, when = each.partition(";")
            split = re.fullmatch(r"([\w.-]+)(?:\[[^]]*\])?\s*(.*)", needed.strip())
            if split and split[1] != "pyspark" and re.search(rf"extra\s*==\s*[\"']{extra}[\"']", when):
                found.setdefault(split[1], {}).update(dict.fromkeys(split[2].split(",")))
    return {name: ",".join(bounds) for name, bounds in found.items()}


def _outside(found: str, bounds: str) -> str | None:
    """Whether a version is too old or too new for some bounds.

    >>> _outside("3.0.1", ">=2.2.0,<3"), _outside("2.1", ">=2.2.0,<3"), _outside("2.2", ">=2.2.0,<3")
    ('new', 'old', None)
    """
    for each in bounds.split(","):
        limit = _numbers(each)
        own = _numbers(found)
        width = max(len(limit), len(own))
        order = (own + (0,) * (width - len(own)), limit + (0,) * (width - len(limit)))
        if each.startswith((">=", "~=")) and order[0] < order[1]:
            return "old"
        if each.startswith("<") and order[0] >= order[1]:
            return "new"
    return None


def _cluster() -> Iterator[Checkup]:
    """The cluster that a command for Spark would run on, where Spark is there at all."""
    if find_spec("pyspark") is None:
        return
    from kaicep.hosts.spark.session import configured

    url, said_by = configured()
    yield Checkup("ok", "cluster", f"{url} ({said_by})")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", text)[:3])


def _java() -> Checkup:
    home = os.environ.get("JAVA_HOME")
    at_home = Path(home, "bin", "java") if home else None
    java = str(at_home) if at_home and at_home.is_file() else shutil.which("java")
    wanted = f"the Spark hosts need {_JAVA} or later"
    if java is None:
        return Checkup("missing", "java", wanted, _java_command())
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return Checkup("missing", "java", f"{java} does not run ({error}); {wanted}", _java_command())
    found = _java_version(said.stderr + said.stdout)
    if found is None:
        return Checkup("missing", "java", f"{java} does not tell its version; {wanted}", _java_command())
    if found < _JAVA:
        return Checkup("old", "java", f"{found} ({java}); {wanted}", _java_command())
    return Checkup("ok", "java", f"{found} ({java})")


def _java_version(said: str) -> int | None:
    """The feature release in what `java -version` prints.

    >>> _java_version('openjdk version "17.0.15" 2025-04-15'), _java_version('java version "1.8.0_402"')
    (17, 8)
    """
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def _java_command() -> str:
    """The command that installs Java on this platform."""
    names = {
        "brew": "openjdk@21",
        "winget": "Microsoft.OpenJDK.21",
        "apt-get": _debian_package(),
        "pacman": "jre21-openjdk-headless",
        "apk": "openjdk21-jre-headless",
    }
    otherwise = "install a Java runtime, version 17 or 21, and set JAVA_HOME to it"
    return _install_command(names, "java-21-openjdk-headless", otherwise)


def _program(program: str, purpose: str, package: str, winget: str) -> Checkup:
    """A program of the system, wherever servers are kept too."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which(program, path=path)
    if found:
        return Checkup("ok", program, f"{found} ({purpose})")
    remedy = _install_command({"winget": winget}, package, f"install {package}")
    return Checkup("missing", program, f"for {purpose}", remedy)


def _install_command(names: Mapping[str, str], usual: str, otherwise: str) -> str:
    """The command that installs a package on this platform, which may have a name of its own for it."""
    if sys.platform == "darwin":
        return f"brew install {names.get('brew', usual)}"
    if sys.platform == "win32":
        return f"winget install {names['winget']}" if names["winget"] else otherwise
    sudo = "" if os.geteuid() == 0 else "sudo "
    for tool, command in (
        ("apt-get", f"apt-get update && {sudo}apt-get install -y"),
        ("dnf", "dnf install -y"),
        ("zypper", "zypper install -y"),
        ("pacman", "pacman -S --noconfirm"),
        ("apk", "apk add"),
    ):
        if shutil.which(tool):
            return f"{sudo}{command} {names.get(tool, usual)}"
    return otherwise


def _debian_package() -> str:
    """Debian's default is recent enough; Ubuntu's is not in every release."""
    try:
        ubuntu = platform.freedesktop_os_release().get("ID") == "ubuntu"
    except OSError:
        ubuntu = False
    return "openjdk-17-jre-headless" if ubuntu else "default-jre-headless"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _real_time() -> Checkup:
    """Whether the threads of the live service may have priorities of the system's."""
    from kaicep.live.ticking import allowed

    if allowed():
        return Checkup("ok", "real-time", "SCHED_FIFO is allowed (the live service)")
    remedy = "run as root, or with CAP_SYS_NICE, or raise the limit: ulimit -r 80"
    return Checkup("missing", "real-time", "the live service has priorities by queues alone", remedy)


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return "unknown"
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (allowed := limit.read_text().strip()).isdigit():
        size = min(size, int(allowed))
    return f"{size / 2**30:.1f} GiB"


def _cache() -> Checkup:
    """Whether the folder for the compiled kernel can be written, or made, and whether it is in there."""
    from kaicep.kernel.warm import is_warm
    from kaicep.storage.disk import cache_folder

    folder = cache_folder("kernels")
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        state = "the kernel is compiled" if is_warm() else "the kernel is compiled on first use"
        return Checkup("ok", "cache", f"{folder} ({state})")
    seen = f"{folder} cannot be written; every process compiles the kernel again"
    return Checkup("missing", "cache", seen, "set KAICEP_CACHE_DIR to a folder that you may write to")


# ----------------------------------------------------------------------------------------------------------
# `kaicep bench`: what kaicep costs on this machine.


def bench(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The benchmark. Without it, list them.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Use little input, to see that it works.")] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="`constructs` beside Esper, which needs Java and Maven.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="Where `figures` leaves its files (default: benchmarks/results).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure how fast kaicep is on this machine. Needs a clone of the repository.

    Without a name, list the benchmarks.

    Example: kaicep bench startup --json
    """
    if find_spec("kaicep_bench") is None:
        raise Mistake(
            "the benchmarks are not installed: they are in kaicep's repository, not in its package",
            hint="clone the repository and run `pip install -e '.[all]'` in it",
        )
    from kaicep_bench import BENCHMARKS, run
    from kaicep_bench.table import as_json as for_machines
    from kaicep_bench.table import as_text

    if name is None:
        width = max(map(len, BENCHMARKS))
        for each, what in BENCHMARKS.items():
            typer.echo(f"{each:{width}}  {what}")
        typer.echo("\n`kaicep bench NAME` runs one of them.")
        return
    choose("bench", name, BENCHMARKS)
    if output is not None and name != "figures":
        raise Mistake(f"{name} leaves no files", hint="--output is for `kaicep bench figures`")
    if peers and name != "constructs":
        raise Mistake(f"{name} has no choice of peers", hint="--peers is for `kaicep bench constructs`")
    report = run(name, quick, output, peers)
    typer.echo(json.dumps(for_machines(report), indent=2) if as_json else as_text(report))
    if report.failures:
        raise Failure("not everything could be measured:\n" + "\n".join(report.failures))
