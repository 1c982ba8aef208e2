# Shared by the scripts at the top; sourced, not run. Sets ROOT, finds or installs the toolchain.
# Everything that is fetched goes below .cache/ and models/, so deleting those two undoes it.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=$ROOT/.cache
MODELS=${MINFER_MODELS:-$ROOT/models}
BIN=${CARGO_TARGET_DIR:-$ROOT/target}/release
NEED_RUST=1.95

say() { printf '\n== %s\n' "$*" >&2; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# newer_or_equal A B: is version A at least version B?
newer_or_equal() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

need_rust() {
    [ -f "$HOME/.cargo/env" ] && . "$HOME/.cargo/env"
    if ! command -v cargo >/dev/null; then
        say "no cargo found: installing Rust with rustup (https://rustup.rs)"
        command -v curl >/dev/null || die "curl is needed to install Rust; install curl or Rust $NEED_RUST"
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal \
            -c clippy -c rustfmt || die "rustup failed; install Rust $NEED_RUST or newer by hand"
        . "$HOME/.cargo/env"
    fi
    local have
    have=$(rustc --version | cut -d' ' -f2)
    newer_or_equal "$have" "$NEED_RUST" || die "Rust $NEED_RUST or newer is needed, found $have (rustup update)"
    # rustc links through cc; a bare container has none.
    if ! command -v cc >/dev/null; then
        command -v apt-get >/dev/null || die "no linker: install gcc or clang"
        say "no linker found: installing gcc"
        apt-get update -qq && apt-get install -y -qq gcc libc6-dev >/dev/null || die "could not install gcc"
    fi
}

need_python() {
    if ! python3 -m pip --version >/dev/null 2>&1; then
        command -v apt-get >/dev/null || die "python3 with pip is needed"
        say "no python3 with pip found: installing it"
        apt-get update -qq && apt-get install -y -qq python3 python3-pip >/dev/null || die "could not install python3"
    fi
}

# numpy and gguf (the oracle of the quant types and of the float32 reference), beside the project.
need_python_packages() {
    need_python
    export PYTHONPATH=$CACHE/python${PYTHONPATH:+:$PYTHONPATH}
    python3 -c 'import numpy, gguf' 2>/dev/null && return
    python3 -m pip install -q --disable-pip-version-check --target "$CACHE/python" \
        'numpy>=1.26' 'gguf==0.19.0' || die "could not install numpy and gguf"
}

# warn_disk GIB: a disk that fills up ends a run an hour in, with an error far from its cause.
warn_disk() {
    local free
    free=$(df -Pk "$ROOT" | awk 'END { print int($4 / 1048576) }')
    [ "$free" -ge "$1" ] || say "WARNING: $free GiB free below $ROOT, about $1 GiB are needed"
}

# With MINFER_LEAN=1, what a later step does not read is deleted as soon as it has been used.
spent() { [ -z "${MINFER_LEAN:-}" ] || rm -rf "$@"; }

fetch_model() { python3 "$ROOT/scripts/models.py" --dir "$MODELS" "$@"; }

build_release() {
    say "building the release binaries"
    # What --version says; a build without it says that it does not know.
    MINFER_COMMIT=$(git -C "$ROOT" describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
    MINFER_BUILD_NUMBER=$(git -C "$ROOT" rev-list --count HEAD 2>/dev/null || echo 0)
    export MINFER_COMMIT MINFER_BUILD_NUMBER
    cargo build --release --locked --manifest-path "$ROOT/Cargo.toml" -p preprocess -p runtime
}
