#include "attention/attention.h"

namespace kvant {

Result<std::unique_ptr<AttentionBackend>> make_backend(const std::string& name) {
  constexpr std::string_view kCpu = "cpu/";
  std::unique_ptr<AttentionBackend> backend;
  if (name == "reference") return make_reference_backend();
  if (name == "cpu") backend = make_cpu_backend();
  if (name.starts_with(kCpu)) backend = make_cpu_backend(name.substr(kCpu.size()));
  if (backend != nullptr) return backend;
  if (name == "cpu") {
    return error(
        "this program was built in a hurry, with attention kernels for one kind of processor, and this is "
        "another "
        "one: build it here, or with KVANT_KERNELS=all");
  }
  return error(
      "'{}' is no attention backend that this machine can run: use cpu, cpu/avx512, cpu/avxvnni, cpu/avx2, "
      "cpu/portable (those that the processor has) or reference",
      name);
}

}  // namespace kvant
