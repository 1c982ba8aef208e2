#!/usr/bin/env bash
# Every GPU test and bench, from prebuilt programs, on a machine with a driver, no Rust and no network.
#
#   scripts/gpu-kit.sh DIR [release|dev]   builds the programs here and puts the kit into DIR
#   DIR/run.sh [tests|bench|all]           runs it there (all)
#
# The kit makes its model of 7B geometry with the project's own generator, from a header that is in the
# repository. Without a GPU the tests say how many they skipped and why, and the benches are left out.
# run.sh exits with 1 if a test failed. WORK names a folder with 20 GB for the model (a temporary one).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: scripts/gpu-kit.sh DIR [release|dev]}
profile=${2:-release}
mkdir -p "$out"

# program NAME CARGO-ARGUMENTS...: the one executable that they build, into the kit.
program() {
    local name=$1
    shift
    cargo "$@" --message-format json | python3 -c '
import json, sys
found = [m.get("executable") for m in map(json.loads, sys.stdin) if m.get("executable")]
print(found[-1])' | xargs -I{} cp {} "$out/$name"
    strip "$out/$name" 2>/dev/null || true
}
program cuda test -p kernels --test cuda --no-run
program cuda_mmq test -p kernels --test cuda_mmq --no-run
program gpu test -p tests --test gpu --no-run
program synth_gguf build --profile "$profile" -p tests --example synth_gguf
program bench_experts build --profile "$profile" -p kernels --example bench_experts
program bench_mmq build --profile "$profile" -p kernels --example bench_mmq
program minfer-pack build --profile "$profile" -p preprocess --bin minfer-pack
program minfer-run build --profile "$profile" -p runtime --bin minfer-run
program minfer-bench build --profile "$profile" -p runtime --bin minfer-bench
mkdir -p "$out/dist" && cp kernels/dist/*.fatbin "$out/dist/"
cp tests/golden/geometry/qwen2-7b-q4_k_m.header.gguf.xz "$out/header.gguf.xz"

cat >"$out/run.sh" <<'RUN'
#!/usr/bin/env bash
set -uo pipefail
cd "$(dirname "$0")"
what=${1:-all}
export KERNELS_DIST=$PWD/dist MINFER_RUN=$PWD/minfer-run
failed=0
step() { echo "== $*"; }
check() { "$@" || { echo "FAILED: $*" && failed=1; }; }
if [[ $what != bench ]]; then
    step "kernels of the forward pass" && check ./cuda
    step "MMQ kernels" && check ./cuda_mmq --nocapture --test-threads 1
    step "whole models" && check ./gpu
fi
if [[ $what == tests ]]; then exit $failed; fi
if ./gpu nothing-of-this-name | grep -q skipped:; then
    echo "benches left out: no GPU" && exit $failed
fi
work=${WORK:-$(mktemp -d)}
[[ ${WORK-} ]] || trap 'rm -rf "$work"' EXIT
step "a model of 7B geometry, in $work"
check ./synth_gguf header.gguf.xz "$work/m.gguf"
check ./minfer-pack -q --no-verify "$work/m.gguf" "$work/default.mpk"
check ./minfer-pack -q --no-verify --planes planar "$work/m.gguf" "$work/planar.mpk"
rm -f "$work/m.gguf"
bench() { check ./minfer-bench --device cuda "$@"; }
step "prompts, and generation behind them: both families, two containers"
bench "$work/default.mpk" "$work/planar.mpk" --prefill bf16,mmq -p 512,3325 -n 64 -d 0,3325
step "default, mmq, exp off" && MINFER_MMQ_Q6K_EXP=0 bench "$work/default.mpk" --prefill mmq -p 512,3325 -n 0
step "generation from the start: random tokens with their logits, and the model's own choice on the device"
bench "$work/default.mpk" "$work/planar.mpk" -p 0 -n 256 -r 3
bench "$work/default.mpk" "$work/planar.mpk" -p 0 -n 256 -r 3 --greedy
step "what it would take: nothing is loaded, and what does not fit is refused"
check ./minfer-run "$work/default.mpk" --device cuda --dry-run
./minfer-run "$work/default.mpk" --device cuda --dry-run -c 2000000000
[[ $? == 5 ]] || { echo "FAILED: expected exit 5" && failed=1; }
step "load: pinned buffers, the map"
echo '[1]' >"$work/ids.json"
for load in pinned map:256 pinned map:256; do
    MINFER_GPU_LOAD=$load ./minfer-run "$work/default.mpk" --device cuda --prefill mmq \
        --ids "$work/ids.json" -n 1 --json -v >"$work/load.json" 2>"$work/load.txt" || failed=1
    echo "$load: $(grep -o '"bind_ms":[0-9.]*' "$work/load.json") $(grep 'context and kernels' "$work/load.txt")"
done
step "load: in new processes"
bench "$work/default.mpk" "$work/planar.mpk" --load -r 3
step "experts" && check ./bench_experts && check ./bench_experts mixtral
step "int8 products" && check ./bench_mmq 3325 "${ROUNDS:-7}"
exit $failed
RUN
chmod +x "$out/run.sh"
echo "the kit is in $out: run $out/run.sh"
