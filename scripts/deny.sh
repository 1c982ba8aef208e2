#!/usr/bin/env bash
# Licences, bans and sources of every dependency (deny.toml). Installs cargo-deny below .cache/ when
# it is not on PATH. Advisories need a clone of the advisory database: they are checked only with
# --advisories, since a machine that reaches package registries alone cannot fetch it.
set -euo pipefail
. "$(dirname "$0")/common.sh"
cd "$ROOT"
need_rust
export PATH=$PATH:$CACHE/cargo/bin
if ! command -v cargo-deny >/dev/null; then
    say "installing cargo-deny"
    CARGO_TARGET_DIR=$CACHE/cargo/target cargo install -q --locked --root "$CACHE/cargo" cargo-deny@0.20.2
fi
checks=(licenses bans sources)
[ "${1:-}" = --advisories ] && checks+=(advisories)
cargo deny --log-level error check "${checks[@]}"
