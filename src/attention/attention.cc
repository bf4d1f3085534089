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
        "this program has attention kernels for another kind of processor only: build it on this machine, or "
        "with KVANT_KERNELS=all");
  }
  return error(
      "'{}' is not an attention backend of this machine: use cpu, cpu/avx512, cpu/avxvnni, cpu/avx2, "
      "cpu/portable (those that the processor has) or reference",
      name);
}

}  // namespace kvant
