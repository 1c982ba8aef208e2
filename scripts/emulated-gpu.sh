#!/usr/bin/env bash
# The GPU's tests without a GPU: its kernels as C++, behind a driver of our own (kernels/emulated). Says
# nothing about speed, and nothing about what a compiler for GPUs makes of the sources.
#
# usage: scripts/emulated-gpu.sh [--sample | FILTER]
#   (none)     every test; a whole model takes up to minutes each
#   --sample   the kernels but for the longest repetitions, and three whole models: what ./test.sh runs
#   FILTER     tests with this in their names
# EMULATED_MULTIPROCESSORS (16) and EMULATED_COMPUTE (9, its compute capability) change the GPU.
set -euo pipefail
. "$(dirname "$0")/common.sh"
cd "$ROOT"
sample='' filter=''
case ${1:-} in
    --sample) sample=1 ;;
    -*) die "unknown argument $1 (--sample or a filter)" ;;
    *) filter=${1:-} ;;
esac
[ $# -le 1 ] || die "one argument at most, found $#"

need_rust
need_python
if ! command -v g++ >/dev/null; then
    command -v apt-get >/dev/null || die "g++ is needed"
    say "no g++ found: installing it"
    apt-get update -qq && apt-get install -y -qq g++ >/dev/null || die "could not install g++"
fi

# The driver, made anew when a source has changed.
out=$CACHE/emulated
sources=(kernels/emulated/* scripts/kernels.sh scripts/emulated-gpu.sh)
while IFS= read -r path; do sources+=("$path"); done < <(find kernels/cuda kernels/dist -name '*.cu*' -o -name '*.sass' | sort)
made_of=$(sha256sum "${sources[@]}")
if [ "$(cat "$out/made-of" 2>/dev/null)" != "$made_of" ]; then
    say "building the emulated GPU"
    rm -rf "$out"
    mkdir -p "$out/driver"
    python3 kernels/emulated/prepare.py "$out"
    flags=(-std=c++17 -O2 -fPIC -fvisibility=hidden -ffp-contract=off -I"$out" -Ikernels/emulated)
    # Warnings of the kernels are the business of the compiler that they are written for.
    find "$out" -maxdepth 1 -name '*.cpp' -print0 |
        xargs -0 -P "$(nproc)" -I{} g++ "${flags[@]}" -w -Wno-psabi -c {} -o {}.o
    for part in machine copies driver; do
        g++ "${flags[@]}" -Wall -Wextra -c "kernels/emulated/$part.cpp" -o "$out/$part.o"
    done
    g++ -shared -o "$out/driver/libcuda.so.1" "$out"/*.o
    ln -s libcuda.so.1 "$out/driver/libcuda.so"
    printf '%s\n' "$made_of" >"$out/made-of"
fi

# program PACKAGE TEST: cargo builds it, and its path.
program() {
    cargo test --locked -p "$1" --test "$2" --no-run --message-format=json-render-diagnostics |
        python3 -c 'import json, sys
print(*{m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")})'
}
cuda=$(program kernels cuda)
mmq=$(program kernels cuda_mmq)
gpu=$(program tests gpu)
export LD_LIBRARY_PATH=$out/driver MINFER_NEED_GPU=1 MINFER_NO_CUBLASLT=1
# run FOLDER COMMAND...: tests whose names may have changed. That none has run is told by `some_ran`.
log=$out/log
run() { (cd "$1" && shift && "$@" 2>&1 | tee "$log"); }
some_ran() { grep -qE ': [1-9][0-9]* run,|[1-9][0-9]* passed' "$log"; }

say "kernels on the emulated GPU"
if [ -n "$filter" ]; then
    run . "$cuda" "$filter"
    some_ran && found=1 || found=
    say "whole models on the emulated GPU"
    run tests "$gpu" "$filter"
    [ -n "$found" ] || some_ran || die "no test has $filter in its name"
    exit
fi
# Each kernel of the products of many tokens by its name; other shapes of it are those of a 7B model.
KERNELS_FEW=1 run kernels "$mmq" every_kernel_on_small_and_odd_shapes
some_ran || die "no test of the MMQ kernels"
if [ -z "$sample" ]; then
    run . "$cuda"
    say "whole models on the emulated GPU"
    run tests "$gpu"
    exit
fi
run . "$cuda" --skip=repeats_its_bits --skip=products_of_many_tokens --skip=long_prompt
say "whole models on the emulated GPU"
for test in normed_heads_agree exp_switched_off decode_attention_is_one; do
    run tests "$gpu" "$test"
    some_ran || die "no test has $test in its name"
done
