#!/usr/bin/env bash
# Sees to Java 17 or later, which Spark needs. As root on Debian and Ubuntu it is installed; elsewhere
# the command is printed. The exit status says whether there is one now.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }

java_version() {
    "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

enough() {
    local version
    version=$(java_version || true)
    [[ -n $version && $version -ge 17 ]]
}

# The newest long-term release that the distribution offers.
debian_package() {
    local release
    for release in 21 17; do
        if [[ -n $(apt-cache policy "openjdk-$release-jre-headless" 2>/dev/null | grep 'Candidate: [0-9]') ]]; then
            printf 'openjdk-%s-jre-headless\n' "$release"
            return
        fi
    done
    return 1
}

command_for_this_platform() {
    local sudo='sudo '
    [[ $(id -u) == 0 ]] && sudo=''
    if [[ $(uname -s) == Darwin ]]; then
        echo 'brew install openjdk@21'
    elif command -v apt-get >/dev/null; then
        echo "${sudo}apt-get update && ${sudo}apt-get install -y $(debian_package || echo openjdk-17-jre-headless)"
    elif command -v dnf >/dev/null; then
        echo "${sudo}dnf install -y java-21-openjdk-headless"
    elif command -v zypper >/dev/null; then
        echo "${sudo}zypper install -y java-21-openjdk-headless"
    elif command -v pacman >/dev/null; then
        echo "${sudo}pacman -S --noconfirm jre21-openjdk-headless"
    elif command -v apk >/dev/null; then
        echo "${sudo}apk add openjdk21-jre-headless"
    else
        echo 'install a Java runtime, version 17 or 21, and set JAVA_HOME to it'
    fi
}

install_on_debian() {
    export DEBIAN_FRONTEND=noninteractive
    timeout 120 apt-get update -qq || true
    timeout 300 apt-get install -y -qq --no-install-recommends "$(debian_package)"
}

enough && exit 0
if [[ -n ${JAVA_HOME:-} ]]; then
    say "java: JAVA_HOME leads to no Java from 17 on: $JAVA_HOME"
elif [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    say "java: there is none from 17 on; installing one"
    if install_on_debian >/dev/null 2>&1 && enough; then
        say "java: Java $(java_version) is installed"
        exit 0
    fi
    say "java: that did not work"
else
    say "java: there is none from 17 on"
fi
say "java: only Spark needs it, and everything else runs without. To get it:"
say "          $(command_for_this_platform)"
exit 1
