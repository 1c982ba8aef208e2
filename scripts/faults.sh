#!/usr/bin/env bash
# Failing system calls, killed processes, full disks, changing files: what they leave behind.
#
# usage: scripts/faults.sh [--sample] [--release]
#   (none)     every system call of packer and unpacker, each made to fail or to kill in turn (minutes)
#   --sample   every 23rd of them: what ./test.sh runs
#   --release  the release binaries instead of those of the dev profile
# Without strace it says so and does nothing (an error where CI is set); what needs root or a C compiler
# (tmpfs, another user, short writes) says when it was skipped.
set -euo pipefail
. "$(dirname "$0")/common.sh"
cd "$ROOT"
need_rust
need_python
sample=() profile=debug flags=()
for arg in "$@"; do
    case $arg in
        --sample) sample=(--every 23) ;;
        --release) profile=release flags=(--release) ;;
        *) die "unknown argument $arg (--sample or --release)" ;;
    esac
done
if ! command -v strace >/dev/null; then
    [ -n "${CI:-}" ] && die "strace is needed"
    echo "SKIPPED: faults, no strace (apt-get install strace)" >&2
    exit 0
fi
cargo build --quiet --locked "${flags[@]}" -p preprocess -p runtime --bins
python3 scripts/faults.py --bin "${CARGO_TARGET_DIR:-$ROOT/target}/$profile" \
    --gguf tests/golden/models/llama.gguf --ids tests/golden/models/ids.json "${sample[@]}"
