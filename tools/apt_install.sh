#!/bin/sh
# Installs Debian packages that a set-up step found missing, or says how to. Prints one line, and apt's words if it fails.
set -eu
echo "==> Debian packages: $*"
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing: $*; install them as root (apt-get install $*) and run this again" >&2
    exit 1
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y --no-install-recommends "$@" >>"$log" 2>&1; }
# The lists may be missing or too old to find what the mirror has today.
install "$@" || { apt-get update >>"$log" 2>&1 && install "$@"; } || { cat "$log" >&2; exit 1; }
