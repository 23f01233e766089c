"""What is built from `console/` is what the package ships."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = ROOT / "console"
BUILT = ROOT / "src" / "kaicep" / "console" / "static"


def test_the_lock_file_has_no_addresses_and_all_is_pinned() -> None:
    lock = (SOURCES / "package-lock.json").read_text()
    assert "resolved" not in lock
    assert "http" not in lock.replace("https://opencollective", "").replace("https://github.com/sponsors", "")
    about = json.loads((SOURCES / "package.json").read_text())
    versions = {**about["dependencies"], **about["devDependencies"]}
    assert all(each[0].isdigit() for each in versions.values())


@pytest.mark.servers
@pytest.mark.slow
def test_the_built_files_are_those_of_the_sources(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("Node is not here, so the console's scripts cannot be built again")
    sources = tmp_path / "console"
    shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("node_modules"))
    settings = {**os.environ, "npm_config_cache": str(tmp_path / "cache")}
    done = subprocess.run(["npm", "ci"], cwd=sources, env=settings, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the packages cannot be fetched: {done.stderr[-300:]}")
    made = tmp_path / "static"
    made.mkdir()
    subprocess.run(["node", "build.mjs", str(made)], cwd=sources, check=True)
    assert {each.name for each in made.iterdir()} == {each.name for each in BUILT.iterdir()}
    for each in made.iterdir():
        assert each.read_bytes() == (BUILT / each.name).read_bytes(), f"{each.name}: build it again"


def test_what_is_loaded_is_small_and_licensed() -> None:
    import gzip

    scripts = b"".join(each.read_bytes() for each in BUILT.glob("*.js"))
    assert len(gzip.compress(scripts)) < 250_000
    texts = (BUILT / "LICENSES.txt").read_text()
    assert all(name in texts for name in ("htmx.org", "@codemirror/view", "@lezer/common"))
