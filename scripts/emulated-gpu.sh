#!/usr/bin/env bash
# The GPU's tests without a GPU: its kernels as C++, behind a driver of our own (kernels/emulated). Says
# nothing about speed, and nothing about what a compiler for GPUs makes of the sources.
#
# usage: scripts/emulated-gpu.sh [--sample] [FILTER]
#   (none)     every test: about an hour, most of it whole models
#   --sample   those that take seconds: what ./test.sh runs
#   FILTER     tests with this in their names
# EMULATED_MULTIPROCESSORS (16) and EMULATED_COMPUTE (9, its compute capability) change the GPU.
set -euo pipefail
. "$(dirname "$0")/common.sh"
cd "$ROOT"
sample=
[ "${1:-}" = --sample ] && { sample=1; shift; }
filter=${1:-}

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
say "kernels on the emulated GPU"
# Each kernel of the products of many tokens by its name; other shapes of it are those of a 7B model.
[ -n "$filter" ] || (cd kernels && KERNELS_FEW=1 "$mmq" every_kernel_on_small_and_odd_shapes)
if [ -z "$sample" ]; then
    "$cuda" "$filter"
    say "whole models on the emulated GPU"
    (cd tests && "$gpu" "$filter")
    exit
fi
# What takes seconds: all kernels but for the longest repetitions, and models through each of the families.
"$cuda" --skip=repeats_its_bits --skip=products_of_many_tokens --skip=long_prompt
say "whole models on the emulated GPU"
for test in normed_heads_agree exp_switched_off decode_attention_is_one; do (cd tests && "$gpu" "$test"); done
