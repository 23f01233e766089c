"""Fifty pages follow while a thousand matches a second come: the deployment loses none, and stays small."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.deployment.processes import environment, write

from kaicep.deployment.config import load_config
from kaicep.deployment.running import Deployment
from kaicep.processes import bound
from kaicep.server.service import Service

FOLLOWERS, RATE, SECONDS, WARM = 50, 1_000, 60, 20
TOML = """
tick = "50ms"
[streams.s]
types = {sent = "float64", n = "int64"}
source = {kind = "files", path = "s.jsonl", follow = true}
[sinks.out]
kind = "files"
path = "out.jsonl"
"""


async def follow(url: str, seconds: float) -> list[float]:
    """What fifty followers see of the page's stream: how old each newest row was when it came, in seconds."""
    host, port = url.removeprefix("http://").split(":")
    ages: list[float] = []

    async def one() -> None:
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 22)
        writer.write(f"GET /console/live/matches HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            line = await asyncio.wait_for(reader.readline(), seconds)
            if line.startswith(b'data: {"id": "rows"'):
                newest = max(map(float, re.findall(r"sent</i> <b>([0-9.]+)", json.loads(line[6:])["html"])))
                ages.append(time.time() % 100_000 - newest)
        writer.close()

    await asyncio.gather(*(one() for _ in range(FOLLOWERS)))
    return ages


def resident() -> float:
    """The memory of this process, in megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.night
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_fifty_follow_a_thousand_matches_a_second(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "kaicep.toml": TOML,
            "queries/all.chi": "SELECT ?e.sent, ?e.n FROM (?e, s) WITHIN [2012-01-01, )",
            "s.jsonl": "",
        },
    )
    deployment = Deployment(load_config(tmp_path / "kaicep.toml"))
    with Service(deployment) as service:
        thread = threading.Thread(target=deployment.run)
        thread.start()
        follower = subprocess.Popen(
            bound([sys.executable, __file__, service.url, str(SECONDS - 5)]),
            env=environment() | {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])},
            stdout=subprocess.PIPE,
        )
        count, begun, sizes = 0, time.monotonic(), []
        with (tmp_path / "s.jsonl").open("a") as file:
            while (passed := time.monotonic() - begun) < SECONDS:
                while count < passed * RATE:
                    row = {"ts": 1336381200 + count / 1_000, "sent": time.time() % 100_000, "n": count}
                    file.write(json.dumps(row) + "\n")
                    count += 1
                file.flush()
                if passed > WARM:
                    sizes.append(resident())
                time.sleep(0.02)
        said, _ = follower.communicate(timeout=120)
        out = tmp_path / "out.jsonl"
        until = time.monotonic() + 120
        while time.monotonic() < until and out.read_bytes().count(b"\n") < count:
            time.sleep(0.2)
        deployment.stop()
        thread.join()
    found = [json.loads(line)["select"]["n"] for line in out.read_text().splitlines()]
    ages = json.loads(said)
    middle, worst = (sorted(ages)[int(share * (len(ages) - 1))] for share in (0.5, 0.99))
    print(
        f"{count} matches, {len(ages)} pushes to {FOLLOWERS} pages: median {middle:.3f} s, p99 {worst:.3f} s"
    )
    print(f"memory after {WARM} s {sizes[0]:.0f} MB, at the end {sizes[-1]:.0f} MB")
    assert sorted(found) == list(range(count))
    assert len(ages) > FOLLOWERS
    assert sizes[-1] < sizes[0] + 100


if __name__ == "__main__":
    print(json.dumps(asyncio.run(follow(sys.argv[1], float(sys.argv[2])))))
