# shellcheck shell=bash
# Implements `./brrr gpu-check`. ./brrr sources this file, which may use its functions.
#
# A phase is a list of parts: ctest entries, runs under the sanitizer, programs. The outcome of each
# part is a line in $record/parts.tsv: parts that have passed are not repeated, and RESULTS.md
# summarises all runs so far.

. tests/gpu/phases.sh

gpu_phases=(build module kernels steps sanitizer figures peers)
record=out/gpu
built=build/release
cuda_module=$built/bin/libbrrr_cuda.so

gpu_usage() {
  cat <<'USAGE'
usage: ./brrr gpu-check [options] [phase...]

  build      library, tests, programs and the module brrr_cuda, into build/release
  module     tests of the module itself: driver, memory, streams, captures
  kernels    tests of every kernel
  steps      steps as CUDA graphs, ordinary tests on the device, the examples
  sanitizer  memcheck and racecheck over the kernels' tests
  figures    what brrr costs and reaches
  peers      the same in PyTorch and JAX, where they are installed

Parts that have passed for these sources and this card are not repeated. Those that never ran come
first, then those that failed or were cut off. out/gpu holds all output, tests/gpu/RESULTS.md the
summary. The status is 0 if all requested phases have passed.

  --list             lists the phases and their state, and runs nothing
  --again            repeats phases that have passed
  --limit SECONDS    limit per phase, 460 if not given; a phase that is cut off keeps its results
  --within SECONDS   limit of the whole command
  --no-build         builds nothing, and fails if build/release is not of these sources
  --prepare [-- ...] builds the files to copy to a machine with a GPU, needs no GPU, tests nothing;
                     CMake options may follow, such as -DBRRR_ARCH=x86-64-v3
USAGE
}

# --- The record -----------------------------------------------------------------------------------

# A hash of all files that affect results; documentation does not.
gpu_sources() {
  { find CMakeLists.txt CMakePresets.json brrr brrr.h core ops autograd graph backends models \
    examples tests -type f ! -name '*.md' ! -path '*/__pycache__/*' -print0 2>/dev/null || true; } |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16
}

gpu_card() {
  if [[ "$(nvidia-smi -L 2>/dev/null)" == GPU* ]]; then
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | sed -n 1p
  fi
}

# The commit, for readers of RESULTS.md; empty without git.
gpu_commit() {
  git rev-parse --short HEAD 2>/dev/null || return 0
  git diff --quiet HEAD -- . ':!tests/gpu/RESULTS.md' || echo "with changes"
}

# Opens the record of these sources and this card; renames one of others to $record.before.
gpu_open_record() {
  local card="$1"
  if [[ ! -e $record && -n "${OUT:-}" && -f "${OUT:-}/gpu.tar.gz" ]]; then
    mkdir -p "$record" && tar -xzf "$OUT/gpu.tar.gz" -C "$record"
  fi
  if [[ -f $record/card.txt ]] &&
    [[ "$(cat "$record/sources.txt" "$record/card.txt")" != "$sources"$'\n'"$card" ]]; then
    say "other sources or another card than in $record, which is now $record.before"
    rm -rf "$record.before"
    mv "$record" "$record.before"
  fi
  mkdir -p "$record"
  touch "$record/parts.tsv"
  printf '%s\n' "$sources" >"$record/sources.txt"
  printf '%s\n' "$card" >"$record/card.txt"
  gpu_commit >"$record/commit.txt"
}

# gpu_note <phase> <part, or * for the phase> <passed, failed or cut> [seconds] [message]
gpu_note() { printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${4:-}" "${5:-}" >>"$record/parts.tsv"; }

# The state recorded last, or nothing.
gpu_state() {
  awk -F '\t' -v phase="$1" -v part="$2" '$1 == phase && $2 == part { s = $3 } END { print s }' \
    "$record/parts.tsv"
}

gpu_forget() {
  awk -F '\t' -v phase="$1" '$1 != phase' "$record/parts.tsv" >"$record/parts.next"
  mv "$record/parts.next" "$record/parts.tsv"
  rm -f "$record/$1"-*
}

# Copies the record to $OUT, as one file beside the log, and RESULTS.md.
gpu_export() {
  if [[ -z "${OUT:-}" || "$OUT" -ef "$record" ]]; then return 0; fi
  tar -czf "$OUT/gpu.next" --exclude=./cache -C "$record" .
  mv "$OUT/gpu.next" "$OUT/gpu.tar.gz"
  cp tests/gpu/RESULTS.md "$OUT/" 2>/dev/null || true
}

# Writes RESULTS.md from the record.
gpu_results() {
  local status=0
  if ! command -v python3 >/dev/null; then
    say "no python3: RESULTS.md is not written; elsewhere: tests/gpu/results.py $record"
  elif ! python3 tests/gpu/results.py "$record"; then
    say "results.py failed; the record is in $record"
    status=1
  fi
  gpu_export
  return "$status"
}

# --- Running parts --------------------------------------------------------------------------------

# gpu_run <log> <command>...: runs the command within the phase's remaining time, shows its output
# and appends it to the log. If the time runs out, ends it with all its processes and returns 124.
gpu_run() {
  local log="$1" left=$((deadline - SECONDS)) status=0 from shown
  shift
  [[ $left -gt 0 ]] || return 124
  touch "$log"
  from=$(($(wc -c <"$log") + 1))
  # shellcheck disable=SC2154
  timeout --kill-after=10 "$left" "${clean[@]}" "$@" >>"$log" 2>&1 </dev/null &
  running=$!
  tail -c "+$from" -s 0.02 -f --pid="$running" "$log" 2>/dev/null | tee -a ${OUT:+"$OUT/log.txt"} &
  shown=$!
  wait "$running" || status=$?
  running=
  wait "$shown" || true
  # 137 at the deadline: by timeout's --kill-after, not by another process.
  if [[ $status -eq 137 && $SECONDS -ge $deadline ]]; then status=124; fi
  return "$status"
}

# gpu_part <phase> <part> <command>...: runs and records a part. It has failed, too, if it prints
# that it was skipped or that nothing was measured, or does not print $must, if that is set.
gpu_part() {
  local phase="$1" part="$2" log="$record/$1-${2// /-}.txt" began=$SECONDS status=0
  local state=passed words=''
  shift 2
  say "$phase: $part"
  gpu_note "$phase" "$part" cut
  rm -f "$log"
  gpu_run "$log" "$@" || status=$?
  if [[ $status -eq 124 ]]; then
    state="cut"
  elif [[ $status -ne 0 ]]; then
    state=failed words="status $status: $(grep -v '^ *$' "$log" | tail -1 || true)"
  elif words="$(grep -m1 -E 'skipped: |test cases: +0 |nothing measured' "$log")"; then
    state=failed
  elif [[ -n "${must:-}" ]] && ! grep -q -e "$must" "$log"; then
    state=failed words="it did not print \"$must\""
  fi
  gpu_note "$phase" "$part" "$state" $((SECONDS - began)) "$(tr '\t\n' '  ' <<<"$words")"
  gpu_export
  [[ $state == passed ]]
}

# gpu_left <phase> <new or old> <part>...: prints those of the parts that never ran (new), or that
# ran and have not passed (old).
gpu_left() {
  local phase="$1" which="$2" part
  shift 2
  for part in "$@"; do
    case "$which:$(gpu_state "$phase" "$part")" in
      new: | old:failed | old:cut) printf '%s\n' "$part" ;;
    esac
  done
}

# gpu_each <phase> <function> <part>...: calls the function with each part that has not passed, new
# ones first, so that a part that fails or hangs does not keep others from running.
gpu_each() {
  local phase="$1" run="$2" part status=0 parts=()
  shift 2
  mapfile -t parts < <(gpu_left "$phase" new "$@"; gpu_left "$phase" old "$@")
  for part in ${parts[@]+"${parts[@]}"}; do
    if [[ $SECONDS -ge $deadline ]]; then return 1; fi
    "$run" "$part" || status=1
  done
  return "$status"
}

# --- The command ----------------------------------------------------------------------------------

gpu_phase() {
  local phase="$1" began=$SECONDS state=passed words=''
  if [[ "$(gpu_state "$phase" '*')" == passed && $phase != build ]]; then
    say "$phase has passed before (--again runs it once more)"
    return 0
  fi
  deadline=$((SECONDS + limit))
  if [[ $deadline -gt $end ]]; then deadline=$end; fi
  if [[ $deadline -le $SECONDS ]]; then
    say "$phase: no time is left for it"
    return 1
  fi
  if [[ $phase != build ]] && ! gpu_built; then
    say "$phase: $why; run the phase build first"
    gpu_note "$phase" '*' failed 0 "$why"
    return 1
  fi
  say "phase $phase, at most $((deadline - SECONDS)) s"
  gpu_note "$phase" '*' cut 0 "was broken off"
  if ! "phase_$phase"; then
    state=failed
    if [[ $SECONDS -ge $deadline ]]; then
      state="cut" words="ran over its limit of $((deadline - began)) s"
    fi
  fi
  gpu_note "$phase" '*' "$state" $((SECONDS - began)) "$words"
  gpu_results
  say "$phase: $state${words:+: it $words; what was done stays, the next run goes on}"
  [[ $state == passed ]]
}

gpu_prepare() {
  gpu_build "$@"
  "${gpu_compile[@]}"
  gpu_stamp
  gpu_built || die "gpu-check: $why"
  say "to be carried, to a folder of the name $PWD, beside the sources:"
  (cd "$built" && du -ch gpu-built.txt "${gpu_files[@]}" | sed "s|\t|\t$built/|")
}

gpu_stop() {
  trap - INT TERM
  if [[ -n "${running:-}" ]]; then kill "$running" 2>/dev/null || true; fi
  if [[ -n "${ticker:-}" ]]; then kill "$ticker" 2>/dev/null || true; fi
  if [[ -f "$record/${phase:-}-tests.txt" ]]; then gpu_note_tests "$phase"; fi
  gpu_results || true
  exit 130
}

gpu_check() {
  local again=0 list=0 no_build=0 limit=460 end=1000000 phases=() phase card status=0 sources why=''
  local deadline=0 running= ticker=
  sources="$(gpu_sources)"
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --help | -h) gpu_usage; return 0 ;;
      --again) again=1 ;;
      --list) list=1 ;;
      --no-build) no_build=1 ;;
      --limit | --within)
        [[ "${2:-}" =~ ^[1-9][0-9]{0,8}$ ]] ||
          { printf "gpu-check: %s: expected seconds, got '%s'\n" "$1" "${2:-}" >&2; exit 2; }
        if [[ $1 == --limit ]]; then limit=$2; else end=$((SECONDS + $2)); fi
        shift ;;
      --prepare) shift; [[ "${1:-}" != -- ]] || shift; gpu_prepare "$@"; return ;;
      *)
        [[ " ${gpu_phases[*]} " == *" $1 "* ]] ||
          { printf 'gpu-check: unknown option or phase %s\n' "$1" >&2; gpu_usage >&2; exit 2; }
        phases+=("$1") ;;
    esac
    shift
  done
  [[ ${#phases[@]} -gt 0 ]] || phases=("${gpu_phases[@]}")
  if [[ $list -eq 1 ]]; then
    for phase in "${gpu_phases[@]}"; do
      printf '%-10s %s\n' "$phase" "$(gpu_state "$phase" '*' 2>/dev/null)"
    done
    return 0
  fi
  card="$(gpu_card)"
  [[ -n "$card" ]] ||
    die "gpu-check: no GPU found (nvidia-smi lists none); run it on a machine with an NVIDIA driver"
  gpu_open_record "$card"
  if [[ -n "${OUT:-}" ]]; then mkdir -p "$OUT"; fi
  # The values that ctest sets: one kernel cache for all, and the module built here.
  export BRRR_CACHE_DIR="$PWD/$built/test-kernels" BRRR_CUDA_MODULE="$PWD/$cuda_module"
  export PYTHONDONTWRITEBYTECODE=1
  unset BRRR_TEST_DEVICE
  PATH+=":${CUDA_HOME:-/usr/local/cuda}/bin"
  if [[ $again -eq 1 ]]; then
    for phase in "${phases[@]}"; do gpu_forget "$phase"; done
  fi
  trap gpu_stop INT TERM
  for phase in "${phases[@]}"; do gpu_phase "$phase" || status=1; done
  gpu_results || status=1
  return "$status"
}
