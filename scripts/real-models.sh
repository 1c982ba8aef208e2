#!/usr/bin/env bash
# The real models, end to end: fetch, pack, verify (hashes, source, planes), then logits and greedy
# answers against the float32 reference and llama.cpp.
#
# usage: scripts/real-models.sh [--full] smollm2|gemma|qwen05|qwen15|all...
#   Without --full a model is run on the machine's best tier, its prompt in one chunk and through the
#   decode kernels, and SmolLM2 on every tier. With it, every model is run on every tier, both ways.
#   Skipped tiers are said: a machine without AVX-512 cannot test it.
set -euo pipefail
. "$(dirname "$0")/common.sh"
cd "$ROOT"
full=
[ "${1:-}" = --full ] && { full=1; shift; }
[ $# -gt 0 ] || die "which models? smollm2 gemma qwen05 qwen15, or all"
names=("$@")
[ "$1" = all ] && names=(smollm2 gemma qwen05 qwen15)
need_python_packages
[ -x "$BIN/minfer-run" ] || die "no $BIN/minfer-run: cargo build --release first"

refs=$CACHE/refs
mkdir -p "$refs"
simd=auto
grep -qw avx2 /proc/cpuinfo && simd+=,avx2 || say "SKIPPED: tier avx2, this processor does not have it"
grep -qw avx_vnni /proc/cpuinfo && simd+=,avxvnni || say "SKIPPED: tier avxvnni, this processor does not have it"
grep -qw avx512_vnni /proc/cpuinfo && simd+=,avx512 || say "SKIPPED: tier avx512, this processor does not have it"
simd=${simd#auto,}

# way_back GGUF MPK: the same sha256 from the container as it is and from other planes.
way_back() {
    local expected found again=$CACHE/again.gguf other=$CACHE/other.mpk planes
    expected=$(sha256sum <"$1")
    for planes in '' none cuda-fast; do
        if [ -n "$planes" ]; then "$BIN/minfer-pack" --force -q --planes "$planes" "$2" "$other"; else other=$2; fi
        "$BIN/minfer-unpack" --force -q "$other" "$again"
        found=$(sha256sum <"$again")
        rm -f "$again"
        [ "$other" = "$2" ] || rm -f "$other"
        other=$CACHE/other.mpk
        [ "$found" = "$expected" ] || die "$(basename "$2") ${planes:-default}: sha256 $found came back, not $expected"
        printf '%s: %s: comes back, sha256 %s\n' "$(basename "$2")" "${planes:-default}" "${found%% *}"
    done
}

for name in "${names[@]}"; do
    gguf=$(fetch_model "$name")
    model=$(basename "$gguf" .gguf)
    mpk=$MODELS/$model.mpk
    say "$model: pack and verify"
    "$BIN/minfer-pack" --force -q "$gguf" "$mpk"
    "$BIN/minfer-verify" "$mpk"
    "$BIN/minfer-verify" --source "$gguf" "$mpk"
    "$BIN/minfer-verify" --deep "$mpk"
    way_back "$gguf" "$mpk"
    if [ ! -s "$refs/$model.npy" ]; then
        say "$model: float32 reference"
        python3 scripts/reference.py "$gguf" "tests/golden/real/$model.ref.json" "$refs/$model.partial.npy"
        mv "$refs/$model.partial.npy" "$refs/$model.npy"
    fi
    say "$model: accuracy"
    accuracy() { # TIERS BATCHES
        python3 scripts/accuracy.py --run "$BIN/minfer-run" --golden tests/golden/real --refs "$refs" \
            --tmp "$CACHE" --tiers "$1" --batches "$2" --free "$model=$mpk"
    }
    if [ -n "$full" ]; then
        accuracy scalar,"$simd" 512,1
    elif [ "$name" = smollm2 ]; then
        # The scalar oracle takes minutes a token at a time: one chunk will do here.
        accuracy scalar 512
        accuracy "$simd" 512,1
    else
        accuracy auto 512,1
    fi
    spent "$mpk" "$refs/$model.npy"
done
