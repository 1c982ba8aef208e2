#!/usr/bin/env bash
# Every test of minfer. Fetches what it needs (Python packages, models) into .cache/ and models/.
#
# usage: ./test.sh [--quick | --all]
#   --quick   unit and integration tests alone, no real model
#   (none)    and the real models SmolLM2, Gemma 3 270M and Qwen2.5-Coder 0.5B
#   --all     and Qwen2.5-Coder 1.5B
# Takes 8 GiB of disk (--all more); with MINFER_LEAN=1 less, and what was built or fetched is made anew next time.
set -euo pipefail
. "$(dirname "$0")/scripts/common.sh"
cd "$ROOT"
models=(smollm2 gemma qwen05)
case ${1:-} in
    --quick) models=() ;;
    --all) models+=(qwen15) ;;
    '') ;;
    *) die "unknown argument $1 (--quick or --all)" ;;
esac

need_rust
need_python_packages
if [ -n "${MINFER_LEAN:-}" ]; then warn_disk 5; else warn_disk 8; fi

# A tier that this processor has must be among those tested: a skip cannot pass for a success.
for isa in avx512_vnni:avx512 avx_vnni:avxvnni avx2:avx2; do
    if grep -qw "${isa%%:*}" /proc/cpuinfo; then export REQUIRE_ISA=${isa##*:}; break; fi
done
say "cargo test (REQUIRE_ISA=${REQUIRE_ISA:-none})"
cargo test --workspace --locked
if [ "${1:-}" != --quick ]; then
    say "faults: a sample (scripts/faults.sh runs all)"
    scripts/faults.sh --sample
    say "NEON tiers: a sample, under qemu (scripts/neon.sh runs all)"
    scripts/neon.sh --sample
    say "GPU tests on an emulated GPU: a sample (scripts/emulated-gpu.sh runs all)"
    scripts/emulated-gpu.sh --sample
fi
target=${CARGO_TARGET_DIR:-target}
spent "$target/debug" "$target/aarch64-unknown-linux-gnu"

if [ ${#models[@]} -gt 0 ]; then
    build_release
    say "real models: ${models[*]}"
    scripts/real-models.sh "${models[@]}"
fi
say "all tests passed"
