#!/bin/bash
# faults.sh <mpirun> <programs> [kills]: kills processes at random moments. Every run must end by
# itself, report why, and leave a checkpoint that leads to the bits of an undisturbed run.
set -euo pipefail
mpirun="$1" bin="$2" kills="${3:-${BRRR_LONG_TESTS:+50}}"
kills="${kills:-3}"
here="$(cd "$(dirname "$0")" && pwd)" root="$(cd "$(dirname "$0")/../.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
ranks() { bash "$here/launch.sh" "$mpirun" "$@"; }
processes() { pgrep -f "^$bin/train_gpt .*$work/ck" || true; }
sum_of() { sed -n 's/.*parameters \([0-9a-f]\{16\}\).*/\1/p' "$1"; }
options=(--eval-every 0 --eval-batches 2 --log-every 100)
gpt=("$bin/train_gpt" --data "$root/models/gpt.cpp" --steps 1500 --batch 2 --layers 1 --width 32
  --dropout 0.1 "${options[@]}")

ranks 2 "${gpt[@]}" >"$work/whole"
whole="$(sum_of "$work/whole")"
[[ -n "$whole" ]] || fail "no checksum"

from_start=0 from_checkpoint=0 longest=0 stuck=0
for (( i = 0; i < kills; ++i )); do
  rm -f "$work/ck"
  bash "$here/launch.sh" "$mpirun" 2 "${gpt[@]}" --checkpoint "$work/ck" --save-every 7 \
    >"$work/killed" 2>&1 &
  run=$!
  sleep "0.$(( RANDOM % 10 ))$(( RANDOM % 10 ))"
  # The ranks' own processes: their command line begins with the program.
  victims=()
  for (( t = 0; t < 50 && ${#victims[@]} == 0; ++t )); do
    mapfile -t victims < <(processes)
    [[ ${#victims[@]} -gt 0 ]] || sleep 0.05
  done
  if [[ ${#victims[@]} -eq 0 ]]; then
    wait "$run" || { cat "$work/killed"; fail "run $i: ended badly before it was killed"; }
    [[ "$(sum_of "$work/killed")" == "$whole" ]] || fail "run $i: other parameters"
    continue
  fi
  begin=$(date +%s%N)
  kill -9 "${victims[RANDOM % ${#victims[@]}]}" 2>/dev/null || true
  status=0
  for (( t = 0; t < 150; ++t )); do [[ -n "$(processes)" ]] || break; sleep 0.1; done
  took=$(( ($(date +%s%N) - begin) / 1000000 ))
  [[ -z "$(processes)" ]] || fail "kill $i: the run goes on after 15 s"
  # Open MPI's launcher may deadlock if a process is killed while it connects (PMIx 4.2 waits for
  # its own mutex in PMIx_server_finalize); the processes have ended by then.
  timeout 5 tail --pid="$run" -f /dev/null || { stuck=$((stuck + 1)); kill -9 "$run"; }
  wait "$run" || status=$?
  (( took < 10000 )) || fail "kill $i: ended only after $took ms"
  (( took > longest )) && longest=$took
  if [[ $status -ne 0 ]]; then
    grep -qE "rank [01]|process" "$work/killed" || { cat "$work/killed"; fail "kill $i: no message"; }
  fi
  if [[ -f "$work/ck" ]]; then
    ranks 2 "$bin/train_gpt" --resume "$work/ck" "${options[@]}" >"$work/resumed" 2>&1 ||
      { cat "$work/resumed"; fail "kill $i: the checkpoint does not resume"; }
    [[ "$(sum_of "$work/resumed")" == "$whole" ]] || fail "kill $i: resumed to other parameters"
    from_checkpoint=$((from_checkpoint + 1))
  else
    from_start=$((from_start + 1))
  fi
done
(( from_start + from_checkpoint > 0 )) || fail "no run was killed"
(( stuck <= 1 + kills / 10 )) || fail "the launcher locked itself out $stuck times"
echo "$kills kills: every run ended by itself within $longest ms; $from_checkpoint resumed to" \
  "parameters $whole, $from_start had not saved yet; the launcher locked itself out $stuck times"
