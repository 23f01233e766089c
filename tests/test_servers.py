"""The servers for tests stop by themselves, and one that cannot be had is said."""

from __future__ import annotations

import signal
import subprocess
import sys
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
        servers.without(missing)
    monkeypatch.setenv("KAICEP_REQUIRE_SERVERS", "1")
    with pytest.raises(pytest.fail.Exception, match="no such program"):
        servers.without(missing)


@pytest.mark.servers
def test_a_server_does_not_outlive_the_run(own_mosquitto: Mosquitto, tmp_path: Path) -> None:
    run = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    server = Mosquitto(tmp_path / "other", owner=run.pid)
    server.start()
    run.kill()
    run.wait()
    assert server._process is not None
    assert server._process.wait(300) == -signal.SIGKILL
