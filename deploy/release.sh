#!/usr/bin/env bash
# deploy/release.sh [FOLDER] builds a release of the checked-out commit into FOLDER (dist): archives for Linux and macOS,
# a list of the modules in each binary (CycloneDX), Debian packages, a container image, and SHA256SUMS. The version is
# the tag of the commit, such as v0.1.0. It needs Go and git, no root and no container engine. docs/design/0053 says how.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${1:-$root/dist}
case $out in /*) ;; *) out=$PWD/$out ;; esac
exec go -C "$root/tools" run ./release -root "$root" -out "$out" "${@:2}"
