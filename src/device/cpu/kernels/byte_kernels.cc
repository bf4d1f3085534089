#include "device/cpu/kernels/byte_kernels.h"

#include <cstring>
#include <iterator>

#include "base/processor_features.h"

namespace kvant::cpu {
namespace {

// Each function asks for all instructions for which its kernels are compiled (cmake/instruction_sets.cmake).
bool runs_avx2() {
  const ProcessorFeatures& has = processor_features();
  return has.avx2 && has.fma && has.f16c;
}
bool runs_avx512() {
  const ProcessorFeatures& has = processor_features();
  return runs_avx2() && has.avx512 && has.avx512_vnni && has.avx512_vbmi && has.avx512_vbmi2 && has.gfni;
}
bool runs_avxvnni() {
  const ProcessorFeatures& has = processor_features();
  return runs_avx2() && has.avxvnni && has.gfni;
}
bool runs_neon() {
  return processor_features().neon;
}
bool runs_dotprod() {
  return processor_features().dotprod;
}
bool runs_i8mm() {
  return processor_features().dotprod && processor_features().i8mm;
}
bool runs_portable() {
  return true;
}

}  // namespace

const ByteKernels* find_kernels(const char* name) {
  const ByteKernels* known[] = {
#define KVANT_INSTRUCTION_SET(set) runs_##set() ? set##_kernels() : nullptr,
#include "device/cpu/kernels/instruction_sets.def"
#undef KVANT_INSTRUCTION_SET
  };
  for (const ByteKernels* kernels : known) {
    if (kernels != nullptr && (name == nullptr || std::strcmp(kernels->name, name) == 0)) return kernels;
  }
  return nullptr;
}

const ByteKernels* best_kernels() {
  return find_kernels(nullptr);
}

}  // namespace kvant::cpu
