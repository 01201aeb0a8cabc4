#!/bin/bash
# launch.sh <mpirun> <ranks> <program> [arguments]: starts that many processes on this machine,
# however few cores it has, also as root (containers).
set -euo pipefail
mpirun="$1" ranks="$2"
shift 2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
options=()
# Open MPI counts cores; other launchers do not know the option.
if "$mpirun" --version 2>&1 | grep -q "Open MPI\|OpenRTE"; then options=(--oversubscribe); fi
# If two launchers share a folder, the one that ends removes it from under the one that starts (Open
# MPI 4.1: 4 of 2,400 runs). A background process removes this one, also after a signal.
folder="$(mktemp -d)"
export TMPDIR="$folder"
{ trap "" HUP TERM; tail --pid=$$ -f /dev/null || true; rm -rf "$folder"; } </dev/null >/dev/null 2>&1 &
exec "$mpirun" "${options[@]}" -np "$ranks" "$@"
