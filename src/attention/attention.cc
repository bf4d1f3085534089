#include "attention/attention.h"

#include "attention/layer_loop.h"

namespace kvant {
namespace {

// Returns null without kernels.
std::unique_ptr<AttentionBackend> backend_with(const cpu::ByteKernels* kernels) {
  return kernels == nullptr ? nullptr : make_layer_loop(kernels);
}

}  // namespace

std::unique_ptr<AttentionBackend> make_reference_backend() {
  return make_layer_loop(nullptr);
}

std::unique_ptr<AttentionBackend> make_cpu_backend() {
  return backend_with(cpu::best_kernels());
}

std::unique_ptr<AttentionBackend> make_cpu_backend(const std::string& kernels) {
  return backend_with(cpu::find_kernels(kernels.c_str()));
}

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
  std::string known = "cpu";
  for (const char* set : cpu::kInstructionSets)
    if (cpu::find_kernels(set) != nullptr) known += fmt::format(", {}{}", kCpu, set);
  return error("'{}' is not an attention backend of this machine: use {} or reference", name, known);
}

}  // namespace kvant
