#!/usr/bin/env bash
# Tests `./brrr gpu-check` without a GPU, and the options of other commands: runs a copy of the
# scripts with stand-ins for nvidia-smi, compute-sanitizer, the build and the programs. ctest is the
# real one, and so is brrr_tests where its output matters.
#
# usage: check_test.sh SOURCE_FOLDER BRRR_TESTS
set -uo pipefail
source_folder="$1" real_tests="$2"
top="$(mktemp -d)"
trap 'rm -rf "$top"' EXIT
unset OUT BRRR_PREFIX BRRR_CUDA_MODULE
checks=0 failures=0 said='' status=0

# --- Stand-ins ------------------------------------------------------------------------------------

script() { cat >"$1" && chmod +x "$1"; }

# Makes a fresh folder with everything; the stand-in <name> sources $behave/<name>.
fresh() {
  tree="$top/$1" behave="$top/$1/behave"
  mkdir -p "$tree"/{core,fake,behave,tests/gpu,tests/bench}
  cp "$source_folder/brrr" "$tree/"
  cp "$source_folder"/tests/gpu/{check.sh,phases.sh,results.py,AIMS.md} "$tree/tests/gpu/"
  cp "$source_folder"/tests/bench/{peer_inputs,peers,outside}.py "$tree/tests/bench/"
  echo 'project(stand_in)' >"$tree/CMakeLists.txt"
  echo 'card="GPU of paper, 1.0, 8 MiB"' >"$behave/nvidia-smi"
  script "$tree/fake/nvidia-smi" <<END
. "$behave/nvidia-smi"
if [[ -z \$card ]]; then echo "No devices were found"; exit 6; fi
if [[ \$1 == -L ]]; then echo "GPU 0: paper"; else echo "\$card"; fi
END
  # Any other program: records that it ran, then sources $behave/<name> or reports a passed test.
  script "$tree/fake/any" <<END
#!/usr/bin/env bash
name="\$1"; shift
echo "\$name" >>"$tree/ran.txt"
if [[ -f "$behave/\$name" ]]; then . "$behave/\$name"; else echo "test cases: 1 | 1 passed"; fi
END
  script "$tree/fake/compute-sanitizer" <<END
#!/usr/bin/env bash
if [[ -f "$behave/compute-sanitizer" ]]; then . "$behave/compute-sanitizer"; fi
echo "ERROR SUMMARY: 0 errors"
END
  script "$tree/fake/cmake" <<END
#!/usr/bin/env bash
if [[ \$1 == --preset ]]; then
  echo "\$@" >"$tree/configured.txt"
  if [[ -f "$behave/configure" ]]; then . "$behave/configure"; fi
  exit 0
fi
[[ -f "$behave/cmake" ]] && . "$behave/cmake"
cd "$tree" && mkdir -p build/release/bin && cd build/release
for name in brrr_tests bench_gpu overhead roofline train_mlp train_gpt; do
  printf '#!/usr/bin/env bash\nexec "%s" "%s" "\$@"\n' "$tree/fake/any" \$name >bin/\$name
  chmod +x bin/\$name
done
echo elf >bin/libbrrr_cuda.so; echo elf >libbrrr_cuda_emulator.so
{
  for test in module:m1 module:m2 module:m3 kernels:k1 steps:s1; do
    echo "add_test(\${test#*:} \"$tree/fake/any\" \${test#*:})"
    echo "set_tests_properties(\${test#*:} PROPERTIES LABELS gpu-\${test%:*} RESOURCE_LOCK gpu"
    echo "  FAIL_REGULAR_EXPRESSION \"test cases: +0 ;skipped: \")"
  done
} >CTestTestfile.cmake
END
  cat >"$behave/bench_gpu" <<'END'
while [[ $# -gt 0 ]]; do
  case "$1" in --json) json=$2 ;; --inputs) echo some >"$2" ;; esac
  shift
done
echo '{"device": "paper", "versions": "1", "figures": {"matmul: float32": {"value": 7,
"unit": "TFLOP/s"}}, "losses": {"MLP step, batch 32": [1.0]}, "failures": {}}' >"$json"
END
  local peer
  for peer in torch jax; do
    cat >"$tree/tests/bench/peer_${peer}.py" <<END
from peer_inputs import arguments, attempt, begin, end, note
parser = arguments("")
parser.add_argument("--compile", action="store_true")
begin(parser.parse_args(), {"pytorch": "9.9", "jax": "8.8"})
attempt("matmul: float32", lambda: note("matmul: float32", 5, "TFLOP/s"))
exec(open("$behave/$peer").read())
end()
END
    : >"$behave/$peer"
  done
}

# --- Checks ---------------------------------------------------------------------------------------

check() {  # <what> <command>...
  local what="$1"
  shift
  checks=$((checks + 1))
  "$@" && return
  failures=$((failures + 1))
  printf 'FAILED: %s (%s)\nstatus %s, said:\n%s\n' "$what" "$*" "$status" "$said"
}
check_brrr() {  # <status> <options>...: gpu-check, or $verb, ends with it
  local want="$1"
  shift
  status=0
  said="$(cd "$tree" && PATH="$tree/fake:$PATH" CUDA_HOME=/nowhere \
    ./brrr "${verb:-gpu-check}" "$@" 2>&1)" || status=$?
  check "status of ${verb:-gpu-check} $*" test "$status" -eq "$want"
}
says() { check "says $1" grep -qF -e "$1" <<<"$said"; }
ran() { check "ran $1" test "$(sort "$tree/ran.txt" 2>/dev/null | tr '\n' ' ')" = "$1"; }
in_results() {
  if have_python; then check "RESULTS.md has $1" grep -qE -e "$1" "$tree/tests/gpu/RESULTS.md"; fi
}
have_python() { command -v python3 >/dev/null; }
noted() {  # <phase> <part> <state>
  check "$1 $2 is $3" test "$(awk -F '\t' -v p="$1" -v q="$2" '$1 == p && $2 == q { s = $3 }
    END { print s }' "$tree/out/gpu/parts.tsv")" = "$3"
}
nothing_green() {
  check "nothing is green" test -z "$(grep -s $'\tpassed\t' "$tree/out/gpu/parts.tsv")"
}
forget_runs() { rm -f "$tree/ran.txt"; }

# --- Cases ----------------------------------------------------------------------------------------

no_card() {
  fresh no-card
  echo 'card=' >"$behave/nvidia-smi"
  check_brrr 1
  says "no GPU found"
  check "nothing was recorded" test ! -e "$tree/out"
  check_brrr 2 no-such-phase
  local option value
  for option in --limit --within; do
    for value in abc 5m 08 ''; do
      check_brrr 2 "$option" "$value"
      says "$option: expected seconds, got '$value'"
    done
    check_brrr 2 "$option"
    says "$option: expected seconds, got ''"
  done
  check_brrr 0 --list
  says "sanitizer"
}

no_module() {
  fresh no-module
  check_brrr 1 kernels
  says "run the phase build first"
  echo 'echo "no CUDA Toolkit"; exit 1' >"$behave/cmake"
  check_brrr 1
  nothing_green
  in_results 'build, all: failed: status 1: no CUDA Toolkit'
  # The build succeeds, but the module is missing.
  echo 'trap "rm -f '"$tree"'/build/release/bin/libbrrr_cuda.so" EXIT' >"$behave/cmake"
  check_brrr 1
  local green
  green="$(grep -c $'\tpassed\t' "$tree/out/gpu/parts.tsv")"
  check "only the compiler has ended well" test "$green" = 1
  noted build all failed
  in_results 'figures .*FAILED'
}

# What the real tests print if no device is found, under the sanitizer and in ctest.
skipped() {
  fresh skipped
  check_brrr 0 build
  cat >"$behave/k1" <<END
BRRR_CUDA_MODULE=/no/module.so exec "$real_tests" '--source-file=*/tests/test_cuda_library.cpp'
END
  cat >"$behave/compute-sanitizer" <<END
[[ \$2 == memcheck ]] || exit 0  # Without a summary it has looked at nothing.
BRRR_CUDA_MODULE=/no/module.so "$real_tests" '--source-file=*/tests/test_cuda_library.cpp'
END
  check_brrr 1 kernels sanitizer
  says "skipped: no device"
  noted kernels k1 failed
  noted sanitizer "memcheck rows" failed
  noted sanitizer "racecheck step" failed
  noted sanitizer '*' failed
  in_results 'sanitizer, memcheck attention: failed: skipped: no device'
}

all_well() {
  fresh well
  local phase all=(build module kernels steps sanitizer figures)
  if have_python; then all+=(peers); fi
  check_brrr 0 "${all[@]}"
  check "asks for the card" grep -q -- '-DBRRR_CUDA=ON -DBRRR_TEST_ON_GPU=ON' "$tree/configured.txt"
  for phase in "${all[@]}"; do noted "$phase" '*' passed; done
  in_results 'GPU of paper'
  in_results 'peers .* passed, 2 parts'
  in_results 'matmul: float32 \| 7 TFLOP/s \| 5 TFLOP/s'
  forget_runs
  check_brrr 0 "${all[@]}"  # Nothing but the question whether the build runs here.
  ran "brrr_tests "
}

# A program that fails, prints that it measured nothing, or crashes does not affect the others.
failing_figure() {
  fresh failing
  check_brrr 0 build
  echo 'echo "no GPU here; nothing measured"' >"$behave/roofline"
  echo 'echo half; exit 3' >"$behave/overhead"
  echo 'attempt("second", lambda: 1 / 0); note("third", 3, "us"); raise SystemExit("gone")' \
    >"$behave/torch"
  check_brrr 1 figures peers
  noted figures bench passed
  noted figures roofline failed
  noted figures overhead failed
  in_results 'figures, overhead: failed: status 3: half'
  in_results 'matmul: float32 \| 7 TFLOP/s'
  if have_python; then
    noted peers torch failed
    noted peers jax passed
    in_results 'PyTorch 9.9'
    in_results 'PyTorch, second: failed: ZeroDivisionError'
    check "figures before and after" grep -q third "$tree/out/gpu/peers-torch.json"
    : >"$behave/torch"
    check_brrr 0 peers
    check "what was there is not measured again" \
      test -z "$(grep matmul "$tree/out/gpu/peers-torch.txt")"
    in_results 'matmul: float32 \| 7 TFLOP/s \| 5 TFLOP/s'
  fi
  rm "$behave/roofline" "$behave/overhead"
  forget_runs
  check_brrr 0 figures
  ran "brrr_tests overhead roofline "
}

# A phase that exceeds its limit keeps its results; the next run does the rest, first the parts that
# never began.
over_limit() {
  fresh limit
  check_brrr 0 build
  echo 'sleep 30' >"$behave/m2"
  check_brrr 1 module --limit 3
  says "ran over its limit of 3 s"
  noted module m1 passed
  noted module m2 cut
  in_results 'module .*did not end.*limit of 3 s'
  in_results 'kernels .*has not run'
  check "nothing goes on" test -z "$(pgrep -f "$tree/fake/any m2")"
  forget_runs
  rm "$behave/m2"
  check_brrr 0 module
  ran "brrr_tests m2 m3 "
  echo 'sleep 30' >"$behave/overhead"
  check_brrr 1 figures --within 4
  noted figures overhead cut
  rm "$behave/overhead"
  forget_runs
  check_brrr 0 figures
  ran "brrr_tests overhead roofline "
}

resume() {
  fresh resume
  check_brrr 0 build module
  forget_runs
  check_brrr 0 module
  ran ""
  local began=$SECONDS
  check_brrr 0 module --again
  check "nothing holds its output when it has ended" test $((SECONDS - began)) -lt 15
  ran "brrr_tests m1 m2 m3 "
  # Only parts that failed are repeated.
  echo 'exit 1' >"$behave/m2"
  check_brrr 1 module --again
  rm "$behave/m2"
  forget_runs
  check_brrr 0 module
  ran "brrr_tests m2 "
  # Results do not count for another card or other sources.
  echo 'card="GPU of stone, 1.0, 8 MiB"' >"$behave/nvidia-smi"
  forget_runs
  check_brrr 0 module
  ran "brrr_tests m1 m2 m3 "
  check "the first card's is kept" grep -q paper "$tree/out/gpu.before/card.txt"
  echo new >"$tree/core/new.cpp"
  check_brrr 1 module
  says "is of other sources; run the phase build first"
}

# When it is killed it ends the processes it started, and keeps the results so far.
stopped() {
  fresh stopped
  check_brrr 0 build
  echo 'sleep 30' >"$behave/m2"
  (cd "$tree" && PATH="$tree/fake:$PATH" exec ./brrr gpu-check module) >"$tree/said.txt" 2>&1 &
  local began=$SECONDS
  until grep -q m2 "$tree/ran.txt" || [[ $((SECONDS - began)) -gt 20 ]]; do sleep 0.1; done
  kill "$!"
  wait "$!"
  status=$? said="$(cat "$tree/said.txt")"
  check "it says that it was stopped" test "$status" -eq 130
  check "nothing goes on" test -z "$(pgrep -f "$tree/fake/any m2")"
  in_results 'module .*did not end.*: it was broken off; 1 of the 2 parts'
  rm "$behave/m2"
  forget_runs
  check_brrr 0 module
  ran "brrr_tests m2 m3 "
}

# $OUT: the log, the summary, and the record from which another machine continues.
brought_out() {
  fresh out
  OUT="$top/brought" check_brrr 0 build module
  check "the log is there" grep -q 'm1 .*Passed' "$top/brought/log.txt"
  if have_python; then check "the summary" grep -q paper "$top/brought/RESULTS.md"; fi
  check "few files" test "$(find "$top/brought" -type f | wc -l)" -le 3
  rm -rf "$tree/out"
  forget_runs
  OUT="$top/brought" check_brrr 0 module
  ran ""
  noted module m1 passed
}

# A build from another machine is used if it is of these sources; then nothing is built.
carried() {
  fresh carried
  check_brrr 1 build --no-build
  says "no build for a GPU is in build/release"
  echo 'card=' >"$behave/nvidia-smi"
  check_brrr 0 --prepare -- -DBRRR_ARCH=x86-64-v3
  check "options are handed on" grep -q x86-64-v3 "$tree/configured.txt"
  says "bin/libbrrr_cuda.so"
  echo 'card="GPU of paper, 1.0, 8 MiB"' >"$behave/nvidia-smi"
  rm "$tree/configured.txt"
  touch -d '2 days ago' "$tree"/build/release/bin/*  # Times mean nothing.
  check_brrr 0 build module
  check "nothing is configured" test ! -e "$tree/configured.txt"
  echo other >>"$tree/build/release/bin/overhead"
  check_brrr 1 build --no-build
  says "is of other sources"
  check_brrr 0 build  # What does not fit is built.
  sed -i '2s|.*|/built/elsewhere|' "$tree/build/release/gpu-built.txt"
  check_brrr 1 build --no-build
  says "make that a link to here: ln -s '$tree' '/built/elsewhere'"
}

# Nothing is installed if CMake finds everything, also under BRRR_PREFIX. A missing package is
# installed or, where that is impossible, named.
prefix() {
  fresh prefix
  local found="$tree/p/usr/lib/libbenchmark.so" tool
  mkdir -p "${found%/*}"
  touch "$found"
  cat >"$behave/configure" <<'END'
if [[ ! -e "${CMAKE_PREFIX_PATH#*:}/lib/libbenchmark.so" ]]; then
  mkdir -p build/release && echo "libbenchmark-dev" >build/release/missing-packages.txt
  exit 1
fi
END
  for tool in g++ ninja git; do echo 'exit 1' | script "$tree/fake/$tool"; done
  echo 'echo "apt-get was asked"; exit 1' | script "$tree/fake/apt-get"
  CXX="g++ -pipe" BRRR_PREFIX="$tree/p" check_brrr 0 build
  rm "$found"
  echo new >"$tree/core/new.cpp"
  BRRR_PREFIX="$tree/p" check_brrr 1 build
  says "apt-get was asked"
  says "please install: libbenchmark-dev"
  echo "case \"\$*\" in *install*libbenchmark-dev) touch '$found' ;; esac" |
    script "$tree/fake/apt-get"
  BRRR_PREFIX="$tree/p" check_brrr 0 build
  says "installing libbenchmark-dev"
}

# Options of `lab` without a build, of `format` where nothing is installed.
other_commands() {
  fresh other
  mkdir "$tree/few"
  local tool
  for tool in bash cat dirname readlink rm; do ln -s "$(command -v $tool)" "$tree/few/"; done
  PATH="$tree/few" verb=format check_brrr 0 --help
  PATH="$tree/few" verb=format check_brrr 2 --check more
  says "brrr format: unknown option --check more"
  verb=lab check_brrr 0 --help
  says "usage: ./brrr"
  verb=lab check_brrr 2 --wrong=1
  says "brrr lab: unknown option --wrong=1"
  check "nothing is configured" test ! -e "$tree/configured.txt"
  verb=lab check_brrr 2 -w
  have_python || return 0
  verb=bench check_brrr 2 --outside --wrong=1
  says "brrr bench --outside: unknown option --wrong=1"
  check "nothing is configured" test ! -e "$tree/configured.txt"
  verb=bench check_brrr 2 --outside --scale 1e308
  says "for --scale at most 1e+06"
}

paths() {
  fresh paths
  mkdir -p "$tree/there" "$tree/build/release/bin"
  printf '#!/usr/bin/env bash\ntouch "$2"\n' | script "$tree/build/release/bin/lab"
  status=0
  said="$(cd "$tree/there" && PATH="$tree/fake:$PATH" ../brrr lab --out page 2>&1)" || status=$?
  check "a path is taken from where the user stands" test -e "$tree/there/page"
}

for case in no_card no_module skipped all_well failing_figure over_limit resume stopped \
  brought_out carried prefix other_commands paths; do
  "$case"
done
have_python || echo "no python3: RESULTS.md and the peers were not looked at"
echo "$checks checks, $failures failed"
[[ $failures -eq 0 ]]
