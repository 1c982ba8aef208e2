#!/usr/bin/env bash
# Builds kernels/cuda/** to the fatbins in kernels/dist/, with the pinned compiler from PyPI.
#
#   scripts/kernels.sh [MODULE...]           rebuild all modules, or these
#   scripts/kernels.sh --check [MODULE...]   rebuild elsewhere and compare: bytes of the fatbins, hashes of
#                                            the sources, registers, spills and instruction counts
#   scripts/kernels.sh --dev DIR [MODULE...] quick: code for sm_90a alone, into DIR
#
# Nothing but this script needs a compiler: cargo embeds kernels/dist/*.fatbin, and a test compares the
# sources with kernels/dist/*.manifest. For each module there are three files:
#   NAME.fatbin    code for five architectures and two PTX versions
#   NAME.manifest  sha256 of the fatbin and of every source that it was made from
#   NAME.sass      registers, stack, shared memory and counted instructions of each kernel on sm_90a
# A host compiler (g++) must be there: nvcc preprocesses with it. KERNELS_CUDA names a directory with the
# compiler, where one is installed already.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

# NAME=SOURCE, below kernels/cuda/.
modules=(
    any=dequant/any.cu
    argmax=sample/argmax.cu
    attention_cluster=attention/cluster.cu
    attention_decode=attention/decode.cu
    attention_prefill=attention/prefill.cu
    attention_wgmma=attention/wgmma.cu
    dequant=dequant/dequant.cu
    elementwise=elementwise/elementwise.cu
    gemm_bf16=gemm/gemm_bf16.cu
    gemm_sm90=gemm/sm90.cu
    gemv=gemv/gemv.cu
    gemv_planar=gemv/planar.cu
    gemv_ring=gemv/ring.cu
    mmq_generic=mmq/generic.cu
    mmq_q4_k=mmq/q4_k.cu
    mmq_q6_k=mmq/q6_k.cu
    moe_gemm=moe/gemm.cu
    moe_gemv=moe/gemv.cu
    moe_gemv_any=moe/gemv_any.cu
    moe_gemv_planar=moe/gemv_planar.cu
    moe_mmq=moe/mmq.cu
    moe_route=moe/route.cu
    norm=norm/norm.cu
    probe=probe/probe.cu
    quantize=quantize/quantize.cu
    rope=rope/rope.cu
)
packages=(
    nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
    nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37
)
flags=(-std=c++17 -O3 -Xfatbin -compress-all)
targets=()
for sm in 80 86 89 90a 120; do
    targets+=("-gencode=arch=compute_$sm,code=sm_$sm")
done
targets+=(-gencode=arch=compute_80,code=compute_80 -gencode=arch=compute_120,code=compute_120)

mode=build
out=kernels/dist
case ${1-} in
--check) mode=check && shift ;;
--dev) mode=dev && out=$2 && shift 2 && targets=(-gencode=arch=compute_90a,code=sm_90a) ;;
-*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac

cuda=${KERNELS_CUDA:-$root/.cache/cuda-13.0.88}
if [[ ! -x $cuda/nvidia/cu13/bin/nvcc ]]; then
    echo "installing ${packages[0]} into $cuda" >&2
    python3 -m pip install --quiet --disable-pip-version-check --target "$cuda" "${packages[@]}"
fi
export PATH=$cuda/nvidia/cu13/bin:$PATH
if [[ $mode == check ]]; then
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
fi
mkdir -p "$out"
out=$(realpath "$out")

# The quoted includes of a source, and theirs, as paths below kernels/cuda/.
sources() {
    local seen=" " queue=("$1") file line
    while ((${#queue[@]})); do
        file=${queue[0]} queue=("${queue[@]:1}")
        [[ $seen == *" $file "* ]] && continue
        seen+="$file "
        while read -r line; do
            queue+=("$(realpath -m --relative-to=. "$(dirname "$file")/$line")")
        done < <(sed -n 's/^#include "\(.*\)"$/\1/p' "$file")
    done
    tr ' ' '\n' <<<"$seen" | sed '/^$/d' | LC_ALL=C sort
}

status=0
cd kernels/cuda
for module in "${modules[@]}"; do
    name=${module%%=*} source=${module#*=}
    if (($#)) && [[ " $* " != *" $name "* ]]; then continue; fi
    if [[ ! -e $source ]]; then
        # A module that was never built is not there yet; one that was has lost its source.
        [[ -e $root/kernels/dist/$name.fatbin ]] || continue
        echo "$name: kernels/cuda/$source is missing" >&2
        status=1
        continue
    fi
    nvcc -fatbin "${flags[@]}" "${targets[@]}" -o "$out/$name.fatbin" "$source"
    {
        echo "fatbin $(sha256sum <"$out/$name.fatbin" | cut -d' ' -f1)"
        for file in $(sources "$source"); do
            echo "source $(sha256sum <"$file" | cut -d' ' -f1) $file"
        done
    } >"$out/$name.manifest"
    python3 "$root/scripts/kernels_sass.py" "$out/$name.fatbin" >"$out/$name.sass"
    case $mode in
    check)
        for file in "$name.manifest" "$name.sass" "$name.fatbin"; do
            if ! diff -q "$root/kernels/dist/$file" "$out/$file" >/dev/null; then
                echo "$name: $file differs from kernels/dist/$file" >&2
                [[ $file == *.fatbin ]] || diff "$root/kernels/dist/$file" "$out/$file" >&2 || true
                status=1
            fi
        done
        ;;
    *)
        echo "$name: $(stat -c %s "$out/$name.fatbin") bytes"
        cat "$out/$name.sass"
        ;;
    esac
done
if [[ $mode == check && $status == 0 ]]; then echo "kernels/dist is what the sources give"; fi
exit $status
