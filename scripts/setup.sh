#!/usr/bin/env bash
# Makes .venv with kaicep (editable) and everything its tests need. Safe to run again: it does nothing
# as long as pyproject.toml and constraints.txt are what they were.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '%s\n' "$*" >&2; }

# A name on the path is not yet an interpreter (pyenv's shims may lead nowhere), so each is tried.
suitable() {
    "$1" -c 'import sys, venv; raise SystemExit(not (3, 11) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in ${KAICEP_PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
        if suitable "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# The folder is part of the key: a virtual environment does not survive being moved.
key() { { pwd && cat pyproject.toml constraints.txt scripts/*.sh; } | cksum; }

stamp=.venv/.kaicep-setup
if [[ -x .venv/bin/kaicep && -f $stamp && $(<"$stamp") == "$(key)" ]] && suitable .venv/bin/python; then
    exit 0
fi

uv=$(command -v uv || true)
if python=$(find_python); then
    say "setup: $("$python" --version), installing with $([[ -n $uv ]] && echo uv || echo pip)"
elif [[ -n $uv ]]; then
    python=3.13
    say "setup: no Python 3.11 to 3.13 here, so uv is asked for one"
else
    say "setup: kaicep needs Python 3.11, 3.12 or 3.13, and none was found on the path."
    say "       Debian/Ubuntu: apt-get install python3 python3-venv    macOS: brew install python@3.13"
    say "       Or name one: KAICEP_PYTHON=/path/to/python3.12 make setup"
    exit 1
fi

# The pins hold for the build backend too; each tool and version has its own name for that.
export PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt UV_BUILD_CONSTRAINT=constraints.txt
rm -rf .venv
if [[ -n $uv ]]; then
    "$uv" venv --quiet --python "$python" .venv
    "$uv" pip install --quiet --python .venv/bin/python --constraint constraints.txt --editable '.[dev]'
else
    if ! "$python" -m venv .venv; then
        say "setup: this Python cannot make virtual environments. Debian/Ubuntu: apt-get install python3-venv"
        exit 1
    fi
    .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --constraint constraints.txt --editable '.[dev]'
fi

bash scripts/java.sh || true    # only Spark and Kafka need it; everything else runs without
bash scripts/servers.sh || true # only some tests need them
if ! .venv/bin/python -c 'import sys; from kaicep.kernel.warm import is_warm; sys.exit(not is_warm())'; then
    say "setup: compiling the kernel, once for this installation (a minute at most)"
    .venv/bin/python -c 'from kaicep.kernel.warm import warm; warm()'
fi
key >"$stamp"
say "setup: done; .venv/bin/kaicep is there"
