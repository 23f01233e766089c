"""The servers for tests stop by themselves, and one that cannot be had is said."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import servers
from tests.servers import Mosquitto


def test_a_missing_server_skips_with_the_reason_unless_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = servers.Missing("no such program")
    monkeypatch.delenv("KAICEP_REQUIRE_SERVERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no such program"):
        servers._without(missing)
    monkeypatch.setenv("KAICEP_REQUIRE_SERVERS", "1")
    with pytest.raises(pytest.fail.Exception, match="no such program"):
        servers._without(missing)


@pytest.mark.servers
def test_a_server_does_not_outlive_the_process_that_it_serves(
    own_mosquitto: Mosquitto, tmp_path: Path
) -> None:
    served = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    server = Mosquitto(tmp_path / "other", watched=served.pid)
    server.start()
    served.kill()
    served.wait()
    deadline = time.monotonic() + 30
    while server._answers():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server.stop()
