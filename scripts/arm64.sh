# shellcheck shell=bash
# setup.sh includes this file. The functions fill .arm64 with what the preset `arm64` needs: Debian's libraries for
# arm64, and llama.cpp and ggml compiled for arm64. Only the cross compiler and QEMU are installed on the system.

# ARM64_PACKAGES are the packages whose contents .arm64/usr has.
readonly ARM64_PACKAGES="libfmt-dev libfmt9 libcli11-dev nlohmann-json3-dev libgtest-dev"
# Processors from Cortex-A76, Neoverse N1 and Apple M1 on have these instructions.
readonly ARM64_GGML=armv8.2-a+dotprod

# apt's lists and downloads for arm64 get a folder of their own, so the system's list of architectures stays unchanged.
fetch_arm64_packages() {
  local folder=$1 options
  rm -rf "$folder" .arm64/usr && mkdir -p "$folder"/{lists,cache/archives}/partial .arm64 || return
  folder=$(realpath "$folder")
  options=(-q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State=$folder"
    -o Dir::State::status=/dev/null -o "Dir::Cache=$folder/cache" -o "APT::Sandbox::User=$(id -un)")
  # shellcheck disable=SC2086  # the list is meant to split
  apt-get "${options[@]}" update && (cd "$folder" && apt-get "${options[@]}" download $ARM64_PACKAGES) || return
  local package
  for package in "$folder"/*.deb; do dpkg -x "$package" .arm64 || return; done
}

install_arm64_packages() {
  [ "$(cat .arm64/done-packages 2> /dev/null)" = "$ARM64_PACKAGES" ] && return 0
  has apt-get || fail "the libraries for arm64 are Debian's, and this system has no apt-get"
  step "fetch Debian's libraries for arm64" fetch_arm64_packages "$WORK/arm64-packages"
  echo "$ARM64_PACKAGES" > .arm64/done-packages
}

install_arm64_llama() {
  local version="$LLAMA for $ARM64_GGML" source=$WORK/llama-$LLAMA
  [ "$(cat .arm64/done-llama 2> /dev/null)" = "$version" ] && return 0
  step "fetch the source of llama.cpp and ggml" fetch_llama "$source"
  step "compile llama.cpp and ggml for arm64 (3 minutes on a fast machine, 10 on a slow one)" \
    compile_llama "$source" "$WORK/build-arm64" "$PWD/.arm64/usr" \
    "-DCMAKE_TOOLCHAIN_FILE=$PWD/cmake/arm64.cmake" -DGGML_NATIVE=OFF "-DGGML_CPU_ARM_ARCH=$ARM64_GGML"
  echo "$version" > .arm64/done-llama
}
