"""The morning into the archive: by Spark where there is Java, in this process where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from kaicep.archive.archive import Archive
from kaicep.demo.folder import Folder
from kaicep.endtoend.ingest import ingest
from kaicep.errors import Diagnostic, Mistake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Starting", "archive_here", "archive_on_spark", "missing", "need_delta"]


def missing() -> str | None:
    """What Spark lacks on this machine; None where all is here."""
    if find_spec("pyspark") is None:
        return "PySpark is not installed: pip install 'kaicep[spark]'"
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        return "no Java was found, and Spark needs Java 17 or later: `kaicep doctor` tells how to get it"
    return None


def need_delta() -> None:
    """Refuses to begin without what an archive is kept with."""
    if find_spec("deltalake") is None or find_spec("pyarrow") is None:
        raise Mistake(Diagnostic("the demo keeps an archive", hint="pip install 'kaicep[delta]'"))


@contextmanager
def _hushed() -> Iterator[None]:
    """Without what a JVM writes to stderr while it starts: it would stand in the middle of the picture."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class Starting:
    """A Spark session that starts in the background: a JVM takes a while."""

    def __init__(self) -> None:
        self._session: SparkSession | None = None
        self._trouble: str | None = None
        self._thread = Thread(target=self._start, name="spark", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        from kaicep.hosts.spark.session import own_session

        try:
            with _hushed():
                self._session = own_session()
        except Exception as error:  # whatever it is, the demo can do without
            self._trouble = (str(error) or type(error).__name__).splitlines()[0]

    def wait(self) -> tuple[SparkSession | None, str | None]:
        """The session, once it is there, or what kept it from starting."""
        self._thread.join()
        return self._session, self._trouble

    def stop(self) -> None:
        """Ends the session; one that has not started yet ends with the process."""
        if self._session is not None:
            self._session.stop()


def archive_here(folder: Folder) -> int:
    """Archives what the files have that the archive does not, in this process; says how many events."""
    archive = Archive(folder.archive)
    return sum(ingest(archive, folder.form(each), folder.data(each)).rows for each in folder.next)


def archive_on_spark(folder: Folder, session: SparkSession) -> int:
    """The same by Spark, whose workers read the files and write those of the archive."""
    from kaicep.endtoend.spark_ingest import ingest as ingest_on_spark

    archive = Archive(folder.archive)
    return sum(
        ingest_on_spark(session, archive, folder.form(each), folder.data(each)).rows for each in folder.next
    )
