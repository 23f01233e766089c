"""The local log: numbers, durability, torn ends, segments, many threads, a killed process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaicep.connectors.log import Log
from kaicep.errors import Failure, Mistake
from kaicep.processes import bound


def everything(log: Log) -> list[bytes]:
    return log.read(log.first, 1_000_000)


def reopened(folder: Path) -> list[bytes]:
    log = Log(folder)
    try:
        return everything(log)
    finally:
        log.close()


def test_records_get_numbers_from_zero_on(tmp_path: Path) -> None:
    log = Log(tmp_path)
    assert log.append([b"a", b""]) == range(2)
    assert log.append([b"c"]) == range(2, 3)
    assert log.read(0, 2) == [b"a", b""]
    assert log.read(2, 9) == [b"c"]
    assert log.read(3, 9) == []
    log.close()
    again = Log(tmp_path)
    assert again.end == 3
    assert again.append([b"d"]) == range(3, 4)
    again.close()
    assert reopened(tmp_path) == [b"a", b"", b"c", b"d"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=4), max_size=8), st.integers(1, 60))
def test_what_goes_in_comes_out_whatever_the_segments(batches: list[list[bytes]], segment: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        written: list[bytes] = []
        log = Log(Path(folder), segment)
        for batch in batches:
            assert log.append(batch) == range(len(written), len(written) + len(batch))
            written += batch
        for seq in range(len(written) + 1):
            assert log.read(seq, 3) == written[seq : seq + 3]
        log.close()
        assert reopened(Path(folder)) == written


def test_a_record_larger_than_a_chunk(tmp_path: Path) -> None:
    large = os.urandom(3 << 20)
    log = Log(tmp_path)
    log.append([b"a", large, b"b"])
    assert log.read(0, 10) == [b"a", large, b"b"]
    log.close()
    assert reopened(tmp_path) == [b"a", large, b"b"]


@pytest.mark.parametrize("tail", [b"\0" * 30, b"\x05\0\0\0", b"\x05\0\0\0abcdab", b"\xff" * 50])
def test_a_torn_end_is_cut_off_and_kept_beside(tmp_path: Path, tail: bytes) -> None:
    log = Log(tmp_path)
    log.append([b"a", b"b"])
    log.close()
    [segment] = tmp_path.glob("*.log")
    with segment.open("ab") as file:
        file.write(tail)
    again = Log(tmp_path)
    assert everything(again) == [b"a", b"b"]
    assert again.append([b"c"]) == range(2, 3)
    again.close()
    assert reopened(tmp_path) == [b"a", b"b", b"c"]
    [torn] = tmp_path.glob("*.torn")
    assert torn.read_bytes() == tail


def test_every_cut_of_a_segment_leaves_the_records_before_it(tmp_path: Path) -> None:
    records = [b"first", b"", b"third"]
    log = Log(tmp_path / "whole")
    log.append(records)
    log.close()
    [segment] = (tmp_path / "whole").glob("*.log")
    data = segment.read_bytes()
    for cut in range(len(data)):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / segment.name).write_bytes(data[:cut])
        left = reopened(folder)
        assert left == records[: len(left)]
        assert sum(8 + len(each) for each in left) <= cut


def test_damage_in_an_old_segment_is_said(tmp_path: Path) -> None:
    log = Log(tmp_path, segment=1)
    log.append([b"a"])
    log.append([b"b"])
    log.close()
    oldest = min(tmp_path.glob("*.log"))
    oldest.write_bytes(oldest.read_bytes()[:-1] + b"x")
    again = Log(tmp_path)
    with pytest.raises(Failure, match="damaged at byte 0, in record 0"):
        again.read(0, 1)
    again.close()


def test_what_is_forgotten_goes_by_whole_segments(tmp_path: Path) -> None:
    log = Log(tmp_path, segment=1)
    for each in (b"a", b"b", b"c"):
        log.append([each])
    log.forget(2)
    assert (log.first, log.end) == (2, 3)
    log.forget(3)
    assert log.end == 3, "numbers never begin again"
    with pytest.raises(Failure, match=r"1 is asked"):
        log.read(1, 1)
    log.close()
    again = Log(tmp_path)
    assert again.append([b"d"]) == range(3, 4)
    again.close()


def test_two_processes_cannot_share_it(tmp_path: Path) -> None:
    log = Log(tmp_path)
    with pytest.raises(Mistake, match="in use by another process"):
        Log(tmp_path)
    log.close()
    Log(tmp_path).close()


def test_many_threads_append(tmp_path: Path) -> None:
    log = Log(tmp_path, segment=500)
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda i: (i, log.append([b"%d" % i, b"%d'" % i])), range(100)))
    for i, seqs in numbers:
        assert log.read(seqs.start, 2) == [b"%d" % i, b"%d'" % i]
    assert sorted(each.start for _, each in numbers) == list(range(0, 200, 2))
    log.close()


def test_a_reader_waits_for_news(tmp_path: Path) -> None:
    log = Log(tmp_path)
    assert not log.wait(0, 0)
    writer = threading.Thread(target=log.append, args=([b"a"],))
    writer.start()
    assert log.wait(0, 10)
    writer.join()
    log.close()
    assert not log.wait(1, 10), "closing wakes whoever waits"


def test_a_full_disk_is_said_and_nothing_half_written_stays(tmp_path: Path) -> None:
    """The limit on the size of a file stands for the end of the disk."""
    program = """
        import resource, signal, sys
        from pathlib import Path
        from kaicep.connectors.log import Log
        from kaicep.errors import Failure
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        log = Log(Path(sys.argv[1]))
        log.append([b"before"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        try:
            log.append([b"x" * 5000])
        except Failure as failure:
            print(failure)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(log.append([b"after"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        f"cannot write to the log {tmp_path}: File too large",
        "range(1, 2)",
    ], done.stderr
    assert reopened(tmp_path) == [b"before", b"after"]


@pytest.mark.slow
def test_what_was_appended_survives_kill_9(tmp_path: Path) -> None:
    program = """
        import sys
        from pathlib import Path
        from kaicep.connectors.log import Log
        log = Log(Path(sys.argv[1]), segment=2000)
        while True:
            seqs = log.append([b"record %d" % seq for seq in range(log.end, log.end + 7)])
            print(seqs.stop, flush=True)
    """
    promised = 0
    for turn in range(5):
        process = subprocess.Popen(
            bound([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for _ in range(3 + 7 * turn):
            promised = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().splitlines()
        process.wait()
        promised = int(rest[-1]) if rest else promised
        records = reopened(tmp_path)
        assert len(records) >= promised
        assert records == [b"record %d" % seq for seq in range(len(records))]
