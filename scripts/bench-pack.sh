#!/usr/bin/env bash
# Packing and verifying beside what the system's own tools need for the same bytes.
#
#   scripts/bench-pack.sh MODEL.gguf [REPEATS]
#
# Prints, as medians in seconds: cp + sync + sha256sum of the packed file against minfer-pack, and
# two openssl sha256 processes side by side against minfer-verify. Runs are interleaved, so that a
# busy machine is busy for all of them. Needs about three times the packed size in $TMPDIR.
set -euo pipefail

model=${1:?usage: scripts/bench-pack.sh MODEL.gguf [REPEATS]}
repeats=${2:-5}
cd "$(dirname "$0")/.."
cargo build --quiet --release -p preprocess
bin=$(cargo metadata --format-version 1 --no-deps | python3 -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')/release
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mpk=$dir/model.mpk

# Appends the wall time of a command to a file.
timed() {
    local out=$dir/$1.times
    shift
    local start end
    start=$(date +%s.%N)
    "$@" >/dev/null
    end=$(date +%s.%N)
    echo "$start $end" | awk '{ printf "%.3f\n", $2 - $1 }' >>"$out"
}

copy() {
    rm -f "$dir/copy"
    cp "$mpk" "$dir/copy" && sync "$dir/copy" && sha256sum "$dir/copy"
    rm -f "$dir/copy"
}

pack() {
    rm -f "$mpk"
    "$bin/minfer-pack" --quiet "$model" "$mpk"
}

two_openssl() {
    openssl sha256 "$mpk" &
    openssl sha256 "$mpk"
    wait
}

pack
for _ in $(seq "$repeats"); do
    timed copy copy
    timed pack pack
    timed openssl two_openssl
    timed verify "$bin/minfer-verify" --progress none "$mpk"
done

median() { sort -n "$dir/$1.times" | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
bytes=$(stat -c %s "$mpk")
printf '%s: %d bytes packed, %d repeats\n' "$(basename "$model")" "$bytes" "$repeats"
awk -v c="$(median copy)" -v p="$(median pack)" \
    'BEGIN { printf "cp + sync + sha256sum %.2f s, minfer-pack %.2f s: ratio %.2f (aim: at most 2)\n", c, p, p / c }'
# Two processes hash the file twice in that time.
awk -v o="$(median openssl)" -v v="$(median verify)" -v b="$bytes" \
    'BEGIN { printf "2 x openssl sha256 %.2f GB/s, minfer-verify %.2f GB/s: ratio %.2f (aim: at least 0.8)\n", 2e-9 * b / o, 1e-9 * b / v, o / v / 2 }'
