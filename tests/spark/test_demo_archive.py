"""The morning of the demo, archived by Spark and by this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kaicep.archive.archive import Archive
from kaicep.demo.campus import SCALES, Campus, Folder, Morning
from kaicep.demo.morning import archive_here, archive_on_spark

pytestmark = pytest.mark.spark


def test_spark_archives_what_this_process_would(spark: Any, tmp_path: Path) -> None:
    campus = Campus.make(SCALES["small"])
    folders = [Folder(tmp_path / name, campus) for name in ("here", "spark")]
    for folder in folders:
        for some in Morning(campus).minutes(0, 2):
            folder.write(some)
        archive_here(folder)
        for some in Morning(campus).minutes(2, 5):
            folder.write(some)
    assert archive_here(folders[0]) == archive_on_spark(folders[1], spark) > 0
    here, there = (Archive(each.archive).snapshot() for each in folders)
    assert here.cut == there.cut
    for stream in here.tables:
        one, other = list(here.events(stream)), list(there.events(stream))
        assert [(each, dict(each.values)) for each in one] == [(each, dict(each.values)) for each in other]
