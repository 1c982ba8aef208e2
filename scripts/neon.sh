#!/usr/bin/env bash
# The NEON tiers (neon, dotprod, i8mm) on any machine: kernels built for 64-bit ARM, their tests under
# qemu-user. Each tier runs on the least processor that has it: Cortex-A72 (NEON alone), Cortex-A76
# (SDOT), and qemu's `max` (SMMLA). Installs what is missing: Debian's cross compiler and qemu-user,
# rustup's target. Says nothing about speed.
#
# usage: scripts/neon.sh [--sample] [--model MODEL.mpk]
#   (none)     every test of the kernels that touches a tier (minutes)
#   --sample   fewer of them: what ./test.sh runs
#   --model    instead, some tokens of this model on each tier, compared with those of this machine's
# What cannot run is named as SKIPPED (an error with REQUIRE_NEON=1).
set -euo pipefail
. "$(dirname "$0")/common.sh"
cd "$ROOT"
sample='' model=''
while [ $# -gt 0 ]; do
    case $1 in
        --sample) sample=1 ;;
        --model) model=${2:?--model takes a file}; shift ;;
        *) die "unknown argument $1 (--sample or --model)" ;;
    esac
    shift
done
TARGET=aarch64-unknown-linux-gnu
TIERS=(neon:cortex-a72 dotprod:cortex-a76 i8mm:max)
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
unset REQUIRE_ISA

skip() {
    [ -z "${REQUIRE_NEON:-}" ] || die "$1"
    echo "SKIPPED: tiers neon, dotprod and i8mm, $1" >&2
    exit 0
}

need_rust
missing=()
command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu)
[ -e /usr/aarch64-linux-gnu/lib/libc.so.6 ] || missing+=(libc6-dev-arm64-cross)
command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
if [ ${#missing[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || skip "no ${missing[*]} and no apt-get to install them"
    [ "$(id -u)" = 0 ] || skip "no ${missing[*]}; install them, or run this as root"
    say "installing ${missing[*]}"
    { apt-get update -qq && apt-get install -y -qq "${missing[@]}" >/dev/null; } || skip "could not install ${missing[*]}"
fi
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$TARGET" ]; then
    command -v rustup >/dev/null || skip "no Rust target $TARGET and no rustup to add it"
    rustup target add "$TARGET" || skip "could not add the Rust target $TARGET"
fi

# emulate PROCESSOR COMMAND...
emulate() { qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu "$@"; }

# executables ARGS...: cargo builds, and the paths of the tests or binaries that came of it.
executables() {
    cargo "$@" --target "$TARGET" --locked --message-format=json-render-diagnostics |
        python3 -c 'import json, sys
for line in sys.stdin:
    path = json.loads(line).get("executable")
    if path: print(path)'
}

if [ -n "$model" ]; then
    say "minfer-run for this machine and for $TARGET"
    here=$(cargo build --locked -p runtime --bin minfer-run --message-format=json-render-diagnostics |
        python3 -c 'import json, sys
print(*{p for p in (json.loads(line).get("executable") for line in sys.stdin) if p})')
    there=$(executables build -p runtime --bin minfer-run)
    answer=(--device cpu --raw -p 'The capital of France is' -n 8 --temp 0 --json)
    tokens() { python3 -c 'import json, sys; print(json.load(sys.stdin)["token_ids"])'; }
    expected=$("$here" "${answer[@]}" -t 2 "$model" | tokens)
    printf 'this machine: %s\n' "$expected"
    for tier in "${TIERS[@]}"; do
        found=$(MINFER_CPU=${tier%%:*} emulate "${tier##*:}" "$there" "${answer[@]}" -t 2 "$model" | tokens)
        [ "$found" = "$expected" ] || die "${tier%%:*}: tokens $found"
        printf '%s: the same\n' "${tier%%:*}"
    done
    exit 0
fi

say "kernels for $TARGET"
mapfile -t tests < <(executables test -p kernels --lib --test matmul --no-run)
[ ${#tests[@]} -eq 2 ] || die "expected two test programs, found: ${tests[*]}"
for tier in "${TIERS[@]}"; do
    name=${tier%%:*} cpu=${tier##*:}
    say "tier $name on $cpu"
    for test in "${tests[@]}"; do
        filter=()
        case $(basename "$test") in
            # Norms, activations, attention and the like are the same in all three.
            kernels-*) filter=(cpu::); [ "$name" = neon ] || continue ;;
            *) [ -z "$sample" ] || filter=(extreme non_finite prefill switched one_expert) ;;
        esac
        ONLY_ISA=$name emulate "$cpu" "$test" "${filter[@]}"
    done
done
say "tiers tested under $(qemu-aarch64 --version | head -n 1): ${TIERS[*]%%:*}"
