#!/usr/bin/env bash
# Sees to what tests talk to: mosquitto, Maven, which fetches Kafka and a SPARQL server, Chromium, which looks at the
# console, and on Linux strace, which sees what a deployment does to a disk, and a C compiler, for a disk
# that fails. As root on Debian and Ubuntu they are installed; elsewhere the command is printed. Without them
# those tests are skipped. The exit status says whether all of them are there now.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }

missing() {
    PATH=$PATH:/usr/sbin:/usr/local/sbin
    command -v mosquitto >/dev/null || printf 'mosquitto '
    command -v mvn >/dev/null || printf 'maven '
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null ||
        command -v google-chrome-stable >/dev/null || command -v google-chrome >/dev/null || printf 'chromium '
    [[ $(uname -s) != Linux ]] || command -v strace >/dev/null || printf 'strace '
    [[ $(uname -s) != Linux ]] || command -v cc >/dev/null || printf 'gcc libc6-dev '
}

wanted=$(missing)
[[ -z $wanted ]] && exit 0
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    say "servers: installing ${wanted% }"
    export DEBIAN_FRONTEND=noninteractive
    timeout 120 apt-get update -qq >/dev/null 2>&1 || true
    # shellcheck disable=SC2086
    timeout 300 apt-get install -y -qq --no-install-recommends $wanted >/dev/null 2>&1 || true
    wanted=$(missing)
    [[ -z $wanted ]] && exit 0
fi
say "servers: some tests are skipped without ${wanted% }. To get it:"
if [[ $(uname -s) == Darwin ]]; then
    say "          brew install ${wanted% }"
else
    say "          sudo apt-get install -y ${wanted% }    (or your system's way)"
fi
exit 1
