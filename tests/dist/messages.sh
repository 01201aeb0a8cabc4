#!/bin/bash
# messages.sh <mpirun> <programs>: a failure on one rank, before, after or during exchanges, ends
# the run soon, with one message that says where and why.
set -euo pipefail
mpirun="$1" bin="$2"
here="$(cd "$(dirname "$0")" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export BRRR_NUM_THREADS=1 BRRR_DIST_LIMIT=30
fail() { echo "FAILED: $*"; exit 1; }

# ends <seconds> <expected message> <command...>: on two ranks or $ranks; must fail.
ends() {
  local most="$1" words="$2" begin=$SECONDS status=0
  shift 2
  timeout 60 bash "$here/launch.sh" "$mpirun" "${ranks:-2}" "$@" >"$work/ranks" 2>&1 || status=$?
  [[ $status -ne 0 ]] || { cat "$work/ranks"; fail "ended well: $*"; }
  grep -aEq -- "$words" "$work/ranks" || { cat "$work/ranks"; fail "no rank prints: $words"; }
  (( SECONDS - begin <= most )) || fail "ended only after $((SECONDS - begin)) s: $words"
  grep -aEo -m 1 -- "$words.*" "$work/ranks"
}
# on_rank_1 <what> [else]: shell code that runs this before the program, or instead of it.
on_rank_1() {
  echo "if [[ \${OMPI_COMM_WORLD_RANK:-\${PMI_RANK:-}} == 1 ]]; then $1; else ${2:-:}; fi;" \
    'exec "$0" "$@"'
}

tests="$bin/brrr_dist_tests"
mlp=("$bin/train_mlp" --images 200 --batch 1 --steps 40 --eval-every 0 --log-every 1)

starts_and_ends() {
  for early in "exit 0" "sleep 30"; do
    BRRR_DIST_LIMIT=2 ends 10 "brrr: rank 0 of 2: waited 2 s for the other processes to start" \
      bash -c "$(on_rank_1 "$early" "sleep 0.5")" "$tests"  # Later: Open MPI ends the others itself.
  done
  BRRR_DIST_LIMIT=abc ends 10 "BRRR_DIST_LIMIT is 'abc'" \
    bash -c "$(on_rank_1 'sleep 30')" "$tests"
  ends 10 "brrr: rank 1: bad thing on purpose" "$tests" --test-case="zz fault: an exception*"
  BRRR_DIST_LIMIT=2 ends 15 "brrr: rank [01]: the lost one: waited 2 s for rank" "$tests" --test-case="zz fault: a job*"
  ends 15 "brrr: rank 1: too late" "$tests" --test-case="zz fault: abort*"
}

peers_that_leave() {
  for _ in {1..6}; do
    ranks=4 ends 10 "rank 3 has ended" "$tests" --test-case="zz fault: the last*"
    ranks=3 ends 10 "rank 1 has ended its program" "$tests" --leave
  done
}

collectives_that_differ() {
  for which in "1, which is in all_reduce of float32.3." "0, which is in bucket 0"; do
    BRRR_DIST_CHECK=1 BRRR_DIST_LIMIT=2 ends 15 "waited 2 s for rank $which .BRRR_DIST_LIMIT sets" \
      "$tests" --test-case="zz fault: a collective*"
  done
  BRRR_DIST_LIMIT=2 ends 15 "verify_every, which with its mode must be the same on all ranks" \
    "$tests" --test-case="zz fault: a step*"
}

# Errors that the programs detect. The first process reports those that all have; others are kept.
programs() {
  ends 10 "rank 0 has nothing wrong, rank 1 has .*--nonsense" \
    bash -c "$(on_rank_1 'set -- "$@" --nonsense')" "${mlp[@]}"
  ends 10 "train_mlp: .*--nonsense" "${mlp[@]}" --nonsense
  [[ $(grep -ac -- "--nonsense" "$work/ranks") == 1 ]] || { cat "$work/ranks"; fail "said twice"; }

  seq 2000 >"$work/one.txt"
  seq 2000 | tac >"$work/two.txt"
  ends 10 "options of the processes differ: rank 0 has data of hash" \
    bash -c "$(on_rank_1 'set -- "${@/one.txt/two.txt}"')" \
    "$bin/train_gpt" --data "$work/one.txt" --steps 5 --layers 1 --width 32 --eval-batches 1
}

# Two weights of a pixel and its neighbour are so large that some images overflow: one of rank 1.
loss() {
  run() { bash "$here/launch.sh" "$mpirun" 2 "$@" >"$work/ranks" 2>&1 || { cat "$work/ranks"; exit 1; }; }
  run "${mlp[@]}" --stop-at 2 --save "$work/ck"
  ! grep -q $'\r' "$work/ranks" || fail "lines for a terminal in a file"
  header=$(od -An -t u8 -N 8 "$work/ck")
  at=$(head -c $((8 + header)) "$work/ck" | grep -ao '"model.fc1.weight":{[^}]*' | sed 's/.*offsets":.\([0-9]*\).*/\1/')
  printf '\x99\x76\x61\x7f\x99\x76\x61\x7f' |
    dd of="$work/ck" bs=1 seek=$((8 + header + at + 4 * 406)) conv=notrunc status=none
  ends 10 "brrr: rank 0: the loss is .*, on rank 1 by step" "${mlp[@]:0:3}" --resume "$work/ck" \
    --mode eager --log-every 1
}

# --threads takes effect; with 0, an empty BRRR_NUM_THREADS gives the default, as an unset one.
threads() {
  count='"$0" "$@" >/dev/null & sleep 2; grep Threads "/proc/$!/status"; kill -9 $!; exit 0'
  count_of() {
    bash "$here/launch.sh" "$mpirun" 2 env "${2:--uBRRR_NUM_THREADS}" bash -c "$count" \
      "$bin/train_mlp" --steps 10000000 --log-every 10000000 --eval-every 0 --images 500 \
      --threads "$1" >"$work/ranks" 2>&1 || true
    sed -n 's/Threads:[^0-9]*//p' "$work/ranks" | sort -n | tail -1
  }
  one=$(count_of 1) five=$(count_of 5)
  (( five == one + 4 )) || fail "--threads 1: $one threads, --threads 5: $five"
  echo "--threads 5: four threads more than --threads 1"
  none=$(count_of 0) empty=$(count_of 0 BRRR_NUM_THREADS=)
  [[ -n "$none" && "$none" == "$empty" ]] || fail "BRRR_NUM_THREADS=: $empty threads, without it $none"
}

# Launchers share no folder, and leave none behind.
folders() {
  local first second
  first=$(bash "$here/launch.sh" "$mpirun" 1 bash -c 'echo "$TMPDIR"')
  second=$(bash "$here/launch.sh" "$mpirun" 1 bash -c 'echo "$TMPDIR"')
  [[ "$first" == /* && "$second" == /* && "$first" != "$second" ]] || fail "one folder: $first $second"
  for (( t = 0; t < 100; ++t )); do [[ -e "$first" || -e "$second" ]] || break; sleep 0.1; done
  [[ ! -e "$first" && ! -e "$second" ]] || fail "left: $first or $second"
}

# They mostly wait, so they run in parallel.
parts=(folders starts_and_ends peers_that_leave collectives_that_differ programs loss threads) running=()
for part in "${parts[@]}"; do
  mkdir "$work/$part"
  ( trap - EXIT; work="$work/$part"; "$part" ) >"$work/$part.log" 2>&1 &
  running+=($!)
done
failed=0
for i in "${!parts[@]}"; do
  wait "${running[i]}" || failed=1
  cat "$work/${parts[i]}.log"
done
exit "$failed"
