#!/usr/bin/env bash
# Builds llama.cpp and minfer, then prints both side by side: see bench_vs_llamacpp.py.
#
# usage: scripts/bench-vs-llamacpp.sh [--rounds N] [--threads N] smollm2|gemma|qwen05|qwen15|all...
set -euo pipefail
. "$(dirname "$0")/common.sh"
[ $# -gt 0 ] || set -- all
need_rust
need_python
peer=$("$ROOT/scripts/peer.sh")
build_release
exec python3 "$ROOT/scripts/bench_vs_llamacpp.py" --peer "$peer" --bin "$BIN" --dir "$MODELS" --pack "$@"
