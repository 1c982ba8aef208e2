#!/usr/bin/env bash
# Builds llama.cpp and minfer, then prints both side by side, on the CPU and, where an NVIDIA driver is, on
# the GPU: see bench_vs_llamacpp.py.
#
# usage: scripts/bench-vs-llamacpp.sh [--device cpu|cuda] [--rounds N] [--threads N] [--planes LIST]
#                                     smollm2|gemma|qwen05|qwen15|all|FILE.gguf...
#
# PEER_CPU and PEER_CUDA name folders with a llama-bench that is already built. For the GPU llama.cpp needs a CUDA
# toolkit (nvcc on the PATH); without one that half is left out, with a line that says so.
set -euo pipefail
. "$(dirname "$0")/common.sh"
[ $# -gt 0 ] || set -- all
# Before anything is built: what is asked for.
for arg in "$@"; do
    case $arg in
        -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit 0 ;;
        *.gguf) [ -e "$arg" ] || die "$arg: no such file" ;;
    esac
done
need_rust
need_python
devices=cpu
if [ -e /dev/nvidiactl ] || command -v nvidia-smi >/dev/null; then devices="cpu cuda"; fi
rest=()
while [ $# -gt 0 ]; do
    case $1 in
        --device) devices=${2:?--device needs cpu or cuda}; shift ;;
        *) rest+=("$1") ;;
    esac
    shift
done
build_release
for device in $devices; do
    case $device in
        cpu) peer=${PEER_CPU:-$("$ROOT/scripts/peer.sh")} ;;
        cuda)
            if [ -z "${PEER_CUDA:-}" ] && ! command -v nvcc >/dev/null; then
                say "no nvcc, so no llama.cpp for the GPU: set PEER_CUDA, or see minfer alone with minfer-bench --device cuda"
                continue
            fi
            peer=${PEER_CUDA:-$("$ROOT/scripts/peer.sh" --cuda)} ;;
        *) die "--device $device: cpu or cuda" ;;
    esac
    python3 "$ROOT/scripts/bench_vs_llamacpp.py" --peer "$peer" --bin "$BIN" --dir "$MODELS" --device "$device" "${rest[@]}"
done
