#!/bin/bash
# training.sh <mpirun> <programs>: training on N processes against one process that makes N passes,
# runs that resume with another number of processes, and runs that lose one.
set -euo pipefail
mpirun="$1" bin="$2"
here="$(cd "$(dirname "$0")" && pwd)" root="$(cd "$(dirname "$0")/../.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export BRRR_DIST_LIMIT=60
fail() { echo "FAILED: $*"; exit 1; }
ranks() { bash "$here/launch.sh" "$mpirun" "$@"; }
sum_of() { sed -n 's/.*parameters \([0-9a-f]\{16\}\).*/\1/p' "$1"; }

# BRRR_LONG_TESTS: two hundred steps, in both modes everywhere.
steps="${BRRR_LONG_TESTS:+200}" steps="${steps:-40}"
mlp=("$bin/train_mlp" --images 2000 --steps "$steps" --batch 8 --dropout 0.1 --log-every 200 --eval-every 0)
gpt=("$bin/train_gpt" --data "$root/models/gpt.cpp" --steps "$steps" --batch 2 --layers 1 --width 32
  --dropout 0.1 --clip 1 --log-every 200 --eval-every 0 --eval-batches 2)

# In turn: state whole on each process, sharded optimiser, sharded gradients.
shards=(none optimizer gradients) turn=0

# same <name> <ranks> <command...>: compares the run of N processes with that of N passes.
same() {
  local name="$1" n="$2" modes="eager graph" mode
  shift 2
  case "${BRRR_LONG_TESTS:-}$n$name" in
    2train_mlp | 3train_gpt | 4train_mlp) return ;;
    4train_gpt) modes=eager ;;
    3train_mlp) modes=graph ;;
  esac
  for mode in $modes; do
    "$@" --accumulate "$n" --mode "$mode" >"$work/one"
    local some=("${shards[turn++ % 3]}")
    [[ -z "${BRRR_LONG_TESTS:-}" ]] || some=("${shards[@]}")
    for shard in "${some[@]}"; do
      ranks "$n" "$@" --mode "$mode" --shard "$shard" >"$work/ranks" 2>&1 ||
        { cat "$work/ranks"; fail "$name $n $mode $shard"; }
      [[ -n "$(sum_of "$work/one")" && "$(sum_of "$work/one")" == "$(sum_of "$work/ranks")" ]] ||
        { cat "$work/ranks" "$work/one"; fail "$name on $n processes, $mode, $shard: other parameters"; }
      echo "$name, $n processes, $mode, shards $shard: parameters $(sum_of "$work/one") as after $n" \
        "passes of one; $(grep "MB by" "$work/ranks")"
    done
  done
}
for n in 2 3 4; do
  same train_mlp "$n" "${mlp[@]}"
  same train_gpt "$n" "${gpt[@]}"
done

# Four processes for the first half, two with two passes each to the end: both with sharded state.
ranks 4 "${gpt[@]}" --shard gradients --stop-at $((steps / 2)) --checkpoint "$work/half.ck" \
  --loss-csv "$work/ranks.csv" >/dev/null
ranks 2 "$bin/train_gpt" --resume "$work/half.ck" --shard optimizer --eval-batches 2 --eval-every 0 \
  --loss-csv "$work/ranks.csv" >"$work/ranks"
"${gpt[@]}" --accumulate 4 --loss-csv "$work/one.csv" >"$work/one"
[[ "$(sum_of "$work/one")" == "$(sum_of "$work/ranks")" ]] || fail "resumed on two processes"
diff "$work/one.csv" "$work/ranks.csv" >&2 || fail "resumed on two processes: other losses"
echo "train_gpt, 4 processes and then 2: parameters $(sum_of "$work/one") as after 4 passes of one"

# An error that all ranks detect is printed once, and ends all.
begin=$SECONDS
if ranks 2 "$bin/train_mlp" --images 2000 --lr 1e30 --log-every 1 >"$work/ranks" 2>&1; then
  fail "a run with an infinite loss ended well"
fi
[[ $(grep -c "^brrr: rank [01]: the loss is" "$work/ranks") == 1 ]] ||
  { cat "$work/ranks"; fail "not one message"; }
(( SECONDS - begin < 20 )) || fail "ended only after $((SECONDS - begin)) s"
echo "a diverging run: $(grep "^brrr: rank" "$work/ranks")"

# Non-finite gradients are named by their owner.
if ranks 2 "${gpt[@]}" --lr 1e30 --shard gradients >"$work/ranks" 2>&1; then
  fail "a run with gradients that are not finite ended well"
fi
grep -q "the norm of the gradients nan: first [a-z0-9_.]*.grad, float32" "$work/ranks" ||
  { cat "$work/ranks"; fail "nobody says which gradient is bad"; }
echo "bad gradients: $(grep "^brrr: rank" "$work/ranks")"

# Different options for later steps, or for some ranks only, are reported before the first step.
odd='if [[ ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-}} == 1 ]]; then exec "$@"; else exec "${@:1:$#-2}"; fi'
for option in "--stop-at 3" "--save-every 2" "--save $work/odd.ck" "--eval-every 3" "--log-every 3" \
  "--mode eager"; do
  read -ra words <<<"$option"
  common=() && [[ "$option" != --save-every* ]] || common=(--save "$work/odd.ck")
  if ranks 2 bash -c "$odd" "" "$bin/train_mlp" --images 500 --steps 9 "${common[@]}" \
    "${words[@]}" >"$work/ranks" 2>&1; then
    fail "$option on one rank: the run ended well"
  fi
  grep -q "the options of the processes differ: rank 0 has " "$work/ranks" &&
    ! grep -q "step 1/" "$work/ranks" || { cat "$work/ranks"; fail "$option on one rank"; }
  echo "$option on one rank: $(grep -o "rank 0 has .*" "$work/ranks" | head -1)"
done

# A rank that waits for a stuck one names it; the run ends.
begin=$SECONDS
stuck='if [[ ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-}} == 1 ]]; then "$0" "$@" & sleep 1.5; kill -STOP $!; sleep 8; kill -9 $!; else exec "$0" "$@"; fi'
if BRRR_DIST_LIMIT=2 ranks 2 bash -c "$stuck" "$bin/train_mlp" --images 500 --steps 10000000 \
  --eval-every 0 --log-every 100000 >"$work/ranks" 2>&1; then
  fail "a run with a stuck process ended well"
fi
grep -q "brrr: rank 0: .*waited 2 s for rank 1" "$work/ranks" ||
  { tail -5 "$work/ranks"; fail "nobody says who is stuck"; }
(( SECONDS - begin < 20 )) || fail "ended only after $((SECONDS - begin)) s"
echo "a stuck process: $(grep -o "brrr: rank 0: .*" "$work/ranks")"

# Differing calls are both named, and parameters that only some ranks use, with and without checks.
# A failure ends the run.
for what in "BRRR_DIST_CHECK: calls*" "parameters that only some ranks use are named" \
  "parameters that only some ranks use are named in a replay" \
  "a rank whose loss reached no parameter is detected" \
  "a rank whose loss reached no parameter is detected in a replay" \
  "a rank whose loss reached no parameter is detected among several passes"; do
  for check in 0 1; do
    [[ "$check$what" != 0BRRR* ]] || continue
    BRRR_DIST_CHECK=$check ranks 2 "$bin/brrr_dist_tests" --test-case="zz: $what" \
      >"$work/ranks" 2>&1 || true
    # The rank that finishes first ends the run, perhaps before the other has printed the same.
    if ! grep -q "1 passed" "$work/ranks" ||
      grep -q "is NOT correct\|CRASHED: SIG[^T]" "$work/ranks"; then
      cat "$work/ranks"
      fail "$what"
    fi
    echo "$what"
  done
done
