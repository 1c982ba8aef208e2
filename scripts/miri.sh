#!/usr/bin/env bash
# Miri over what has unsafe code that it can run, and over the readers: the thread pool, the views of
# weights, the format crate. Needs rustup and a nightly toolchain with Miri (installed if missing).
#
# usage: scripts/miri.sh      (half an hour or more; no part of ./test.sh)
set -euo pipefail
. "$(dirname "$0")/common.sh"
cd "$ROOT"
command -v rustup >/dev/null || die "rustup is needed"
cargo +nightly miri --version >/dev/null 2>&1 ||
    rustup toolchain install nightly --profile minimal -c miri,rust-src >/dev/null
export CARGO_TARGET_DIR=${MIRI_TARGET_DIR:-$ROOT/target/miri} MIRIFLAGS=-Zmiri-disable-isolation
# These take millions of steps each and have no unsafe code below them but zerocopy's.
skip=(--skip a_hundred_thousand --skip every_flipped_bit --skip no_value_of_any_byte --skip format_md --skip every_truncation
    --skip units_in_any_split --skip every_byte_of_every_descriptor)
say "format-spec"
cargo +nightly miri test -p format-spec --lib -- "${skip[@]}"
say "the thread pool"
cargo +nightly miri test -p runtime --lib -- backend::cpu::pool
say "views of weights"
cargo +nightly miri test -p kernels --lib -- view
