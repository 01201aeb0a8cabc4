# shellcheck shell=bash disable=SC2154
# The phases of `./brrr gpu-check`; check.sh sources this file. Each returns 0 if all parts passed.

gpu_files=(bin/brrr_tests bin/bench_gpu bin/overhead bin/roofline bin/train_mlp bin/train_gpt
  bin/libbrrr_cuda.so libbrrr_cuda_emulator.so CTestTestfile.cmake)

# Whether build/release was built from these sources, in a path that is this folder; else sets $why.
gpu_built() {
  local stamp=$built/gpu-built.txt home
  why="no build for a GPU is in $built"
  [[ -f $stamp ]] || return 1
  why="$built is of other sources"
  [[ "$(sed -n 1p "$stamp")" == "$sources" ]] || return 1
  (cd "$built" && sed 1,2d gpu-built.txt | sha256sum --check --status) 2>/dev/null || return 1
  home="$(sed -n 2p "$stamp")"
  why="$built was made in $home and holds that name; make that a link to here: ln -s '$PWD' '$home'"
  [[ "$home" -ef . ]] || return 1
  local said
  said="$("$built/bin/brrr_tests" --count 2>&1)" || why="brrr_tests does not run: ${said##*$'\n'}"
  [[ "$why" != brrr_tests* ]]
}

# gpu_build [CMake options], then gpu_compile, then gpu_stamp.
gpu_build() {
  rm -f "$built/gpu-built.txt" "$built/bin/libbrrr_nccl.so"
  configure release "tests examples bench" -DBRRR_CUDA=ON -DBRRR_TEST_ON_GPU=ON "$@"
}
gpu_compile=(cmake --build --preset release --target brrr_tests bench_gpu -j "$(nproc)")
gpu_stamp() {
  # The module for messages between GPUs, which is built only where NCCL is found.
  if [[ -f $built/bin/libbrrr_nccl.so ]]; then gpu_files+=(bin/libbrrr_nccl.so); fi
  {
    printf '%s\n%s\n' "$sources" "$PWD"
    (cd "$built" && sha256sum "${gpu_files[@]}")
  } >"$built/gpu-built.next" && mv "$built/gpu-built.next" "$built/gpu-built.txt"
}

phase_build() {
  local log="$record/build-configure.txt"
  if gpu_built; then
    gpu_note build all passed 0 "it was there"
    return 0
  fi
  if [[ $no_build -eq 1 ]]; then
    say "build: $why"
    gpu_note build all failed 0 "$why (--no-build)"
    return 1
  fi
  if ! (gpu_build) 2>&1 | tee "$log"; then
    gpu_note build all failed 0 "$(tail -1 "$log")"
    return 1
  fi
  gpu_part build all "${gpu_compile[@]}" || return 1
  if gpu_stamp && gpu_built; then return 0; fi
  gpu_note build all failed 0 "some of these were not built: ${gpu_files[*]}"
  return 1
}

# Records ctest's outcome for each entry, over all runs so far; one that did not end was cut off.
gpu_note_tests() {
  awk -v phase="$1" -v OFS='\t' '
    /^ *Start +[0-9]+: / { state[$3] = "cut"; seconds[$3] = "" }
    /^ *[0-9]+\/[0-9]+ +Test +#[0-9]+: .* sec *$/ {
      state[$4] = / Passed +[0-9.]+ sec *$/ ? "passed" : "failed"
      seconds[$4] = $(NF - 1)
    }
    END { for (name in state) print phase, name, state[name], seconds[name], "" }' \
    "$record/$1-tests.txt" >>"$record/parts.tsv"
}

# Runs the ctest entries of a phase, most of which have the card to themselves.
gpu_tests() {
  local phase="$1" log="$record/$1-tests.txt" names=() new=() old=() chosen
  local ctest=(ctest --test-dir "$built" -L "^gpu-$1\$")
  mapfile -t names < <("${ctest[@]}" -N 2>/dev/null | sed -n 's/^ *Test *#[0-9]*: //p')
  if [[ ${#names[@]} -eq 0 ]]; then
    gpu_note "$phase" tests failed 0 "ctest knows none"
    return 1
  fi
  touch "$log"
  gpu_note_tests "$phase"  # Results of a run that was killed.
  mapfile -t new < <(gpu_left "$phase" new "${names[@]}")
  mapfile -t old < <(gpu_left "$phase" old "${names[@]}")
  for chosen in "${new[*]}" "${old[*]}"; do
    if [[ -z "$chosen" || $SECONDS -ge $deadline ]]; then continue; fi
    say "$phase: $chosen"
    # Saves results as it runs: the machine may vanish. A leftover sleep must not keep stdout open.
    (while sleep 20; do gpu_note_tests "$phase"; gpu_export; done) >/dev/null 2>&1 &
    ticker=$!
    gpu_run "$log" "${ctest[@]}" -R "^(${chosen// /|})\$" -j "$(nproc)" --output-on-failure || true
    kill "$ticker" 2>/dev/null || true
    ticker=
    gpu_note_tests "$phase"
    gpu_export
  done
  [[ -z "$(gpu_left "$phase" new "${names[@]}"; gpu_left "$phase" old "${names[@]}")" ]]
}

phase_module() { gpu_tests module; }
phase_kernels() { gpu_tests kernels; }
phase_steps() { gpu_tests steps; }

# Runs a tool over a file of tests: hand-written kernels and a sample of the rest. BRRR_POISON gives
# each tensor its own allocation: memcheck does not see accesses beyond a tensor within the pool.
gpu_sanitize() {
  local tool="${1% *}" file="${1#* }"
  must='SUMMARY: 0 ' gpu_part sanitizer "$1" env BRRR_POISON=1 compute-sanitizer --tool "$tool" \
    --error-exitcode 9 "$built/bin/brrr_tests" "--source-file=*/tests/test_cuda_$file.cpp"
}

phase_sanitizer() {
  local parts=() tool file
  for tool in memcheck racecheck; do
    for file in index maps rows step attention; do parts+=("$tool $file"); done
  done
  gpu_each sanitizer gpu_sanitize "${parts[@]}"
}

gpu_figure() {
  local bin=$built/bin cache="$PWD/$record/cache"
  case "$1" in
    first-use)  # In two processes: compiled, then from the disk cache.
      rm -rf "$cache"
      # shellcheck disable=SC2016
      gpu_part figures "$1" env BRRR_CACHE_DIR="$cache" bash -ec \
        'for run in cold warm; do "$0" --first-use --json "$1/figures-first-$run.json"; done' \
        "$bin/bench_gpu" "$record" ;;
    bench)
      gpu_part figures "$1" "$bin/bench_gpu" --json "$record/figures-brrr.json" \
        --inputs "$record/figures-inputs.safetensors" ;;
    overhead)
      gpu_part figures "$1" "$bin/overhead" --device cuda --model all \
        --json "$record/figures-overhead.json" ;;
    roofline)
      gpu_part figures "$1" "$bin/roofline" --device cuda \
        --json "$record/figures-roofline.json" ;;
  esac
}

phase_figures() { gpu_each figures gpu_figure first-use bench overhead roofline; }

gpu_peer() {
  local options=(--inputs "$record/figures-inputs.safetensors")
  options+=(--json "$record/peers-$1.json" --resume)
  if [[ $1 == torch ]]; then options+=(--compile); fi
  gpu_part peers "$1" python3 -u "tests/bench/peer_$1.py" "${options[@]}"
}

phase_peers() { gpu_each peers gpu_peer jax torch; }
