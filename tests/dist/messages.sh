#!/bin/bash
# messages.sh <mpirun> <programs>: what goes wrong on one rank, before, after and beside the
# exchanges, ends the run soon, with one message that says where and why.
set -euo pipefail
mpirun="$1" bin="$2"
here="$(cd "$(dirname "$0")" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export BRRR_NUM_THREADS=1 BRRR_DIST_LIMIT=2
fail() { echo "FAILED: $*"; exit 1; }

# ends <seconds> <expected message> <command...>: on two ranks, not well.
ends() {
  local most="$1" words="$2" begin=$SECONDS status=0
  shift 2
  timeout 60 bash "$here/launch.sh" "$mpirun" 2 "$@" >"$work/ranks" 2>&1 || status=$?
  [[ $status -ne 0 ]] || { cat "$work/ranks"; fail "ended well: $*"; }
  grep -aEq -- "$words" "$work/ranks" || { cat "$work/ranks"; fail "nobody says: $words"; }
  (( SECONDS - begin <= most )) || fail "ended only after $((SECONDS - begin)) s: $words"
  grep -aEo -m 1 -- "$words.*" "$work/ranks"
}
# on_rank_1 <what>: bash's part of a command that does so before the program, or instead of it.
on_rank_1() {
  echo "if [[ \${OMPI_COMM_WORLD_RANK:-\${PMI_RANK:-}} == 1 ]]; then $1; fi; exec \"\$0\" \"\$@\""
}

tests="$bin/brrr_dist_tests"
for early in "exit 0" "sleep 30"; do
  ends 10 "brrr: rank 0 of 2: waited 2 s for the other processes to start" \
    bash -c "$(on_rank_1 "$early")" "$tests"
done
BRRR_DIST_LIMIT=abc ends 10 "BRRR_DIST_LIMIT is 'abc'" \
  bash -c "$(on_rank_1 'sleep 30')" "$tests"
ends 10 "brrr: rank 1: bad thing on purpose" "$tests" --test-case="zz fault: an exception*"
ends 15 "brrr: rank [01]: the lost one: waited 2 s for rank" "$tests" --test-case="zz fault: a job*"
ends 15 "brrr: rank 1: too late" "$tests" --test-case="zz fault: abort*"

for which in "1, which is in all_reduce of float32.3." "0, which is in bucket 0"; do
  BRRR_DIST_CHECK=1 ends 15 "waited 2 s for rank $which .BRRR_DIST_LIMIT sets" \
    "$tests" --test-case="zz fault: a collective*"
done
