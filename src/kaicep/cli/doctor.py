"""`kaicep doctor`: what this machine has of what kaicep needs, and how to get the rest."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

import typer

from kaicep.cli.arguments import FAILED, KnowledgeFiles, Reasoning, files, has_colour, reasoning_level
from kaicep.errors import painted

__all__ = ["Checkup", "doctor", "examine"]

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

    Looks at Python, Java, Spark, memory and packages, and says how to get what is missing. With
    --knowledge, also at what is known: how much it is, and how long it takes to load and to close.

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
    yield Checkup("ok", "knowledge", f"{size}; loaded and closed in {known.seconds:.2f} s")
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
    return _install(names, "java-21-openjdk-headless", otherwise)


def _program(program: str, purpose: str, package: str, winget: str) -> Checkup:
    """A program of the system, wherever servers are kept too."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which(program, path=path)
    if found:
        return Checkup("ok", program, f"{found} ({purpose})")
    remedy = _install({"winget": winget}, package, f"install {package}")
    return Checkup("missing", program, f"for {purpose}", remedy)


def _install(names: Mapping[str, str], usual: str, otherwise: str) -> str:
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
    from kaicep.live.sources import allowed

    if allowed():
        return Checkup("ok", "real-time", "SCHED_FIFO is allowed (the live service)")
    remedy = "run as root, or with CAP_SYS_NICE, or raise the limit: ulimit -r 80"
    return Checkup("missing", "real-time", "the live service keeps its order by queues alone", remedy)


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
    from kaicep.plan.cache import cache_folder

    folder = cache_folder("kernels")
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        state = "the kernel is compiled" if is_warm() else "the kernel is compiled on first use"
        return Checkup("ok", "cache", f"{folder} ({state})")
    seen = f"{folder} cannot be written; every process compiles the kernel again"
    return Checkup("missing", "cache", seen, "set KAICEP_CACHE_DIR to a folder that you may write to")
