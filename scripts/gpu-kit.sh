#!/usr/bin/env bash
# Every GPU test and bench, from prebuilt programs, on a machine with a driver, no Rust and no network.
#
#   scripts/gpu-kit.sh DIR           builds the programs here and puts the kit into DIR
#   DIR/run.sh [HEADER.gguf[.xz]]    runs it there; with the front of a real GGUF also the benches
#
# The kit makes its model from that header with the project's own generator. Without a GPU the tests
# say how many they skipped and why, and the benches are left out.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: scripts/gpu-kit.sh DIR}
target=${CARGO_TARGET_DIR:-$PWD/target}
mkdir -p "$out"

# program CARGO-ARGUMENTS...: path of the one executable that they build.
program() {
    cargo "$@" --message-format json | python3 -c '
import json, sys
found = [m.get("executable") for m in map(json.loads, sys.stdin) if m.get("executable")]
print(found[-1])'
}
cp "$(program test -p kernels --test cuda --no-run)" "$out/cuda"
cp "$(program test -p kernels --test cuda_mmq --no-run)" "$out/cuda_mmq"
cp "$(program build --release -p tests --example synth_gguf)" "$out/synth_gguf"
cp "$(program build --release -p runtime --example bench_model)" "$out/bench_model"
cp "$(program build --release -p preprocess --bin minfer-pack)" "$out/minfer-pack"
cp "$(program build --release -p runtime --bin minfer-run)" "$out/minfer-run"
mkdir -p "$out/dist" && cp kernels/dist/*.fatbin "$out/dist/"
strip "$out"/{cuda,cuda_mmq,synth_gguf,bench_model,minfer-pack,minfer-run} 2>/dev/null || true

cat >"$out/run.sh" <<'RUN'
#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")"
export KERNELS_DIST=$PWD/dist
echo "== kernels"
./cuda
echo "== MMQ kernels"
./cuda_mmq --nocapture --test-threads 1
header=${1-}
if [[ -z $header ]]; then echo "benches left out: no GGUF header given" && exit 0; fi
if ! ./minfer-run --version >/dev/null || ./cuda nothing-of-this-name | grep -q skipped:; then
    echo "benches left out: no GPU" && exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
./synth_gguf "$header" "$work/m.gguf"
./minfer-pack -q --no-verify "$work/m.gguf" "$work/default.mpk"
./minfer-pack -q --no-verify --planes planar "$work/m.gguf" "$work/planar.mpk"
rm "$work/m.gguf"
for n in 512 3325; do
    for family in bf16 mmq; do
        echo "== default, $family, $n tokens" && ./bench_model "$work/default.mpk" cuda $family $n 64 5
    done
    echo "== default, mmq, exp off, $n tokens" && MINFER_MMQ_Q6K_EXP=0 ./bench_model "$work/default.mpk" cuda mmq $n 1 5
    echo "== planar, $n tokens" && ./bench_model "$work/planar.mpk" cuda bf16 $n 64 5
done
echo "== decode from the start" && ./bench_model "$work/default.mpk" cuda auto 5 256 3
./bench_model "$work/planar.mpk" cuda auto 5 256 3
RUN
chmod +x "$out/run.sh"
echo "the kit is in $out: run $out/run.sh"
