#include "model/processor.h"

#include <fmt/ranges.h>
#include <ggml-cpu.h>

#include <string>
#include <vector>

#include "base/processor_features.h"

namespace kvant {

Status check_instruction_sets(std::span<const InstructionSet> sets) {
  std::vector<std::string> missing;
  for (const InstructionSet& set : sets)
    if (set.is_wanted && !set.is_there) missing.emplace_back(set.name);
  if (missing.empty()) return {};
  return error(
      "this processor has no {}, for which ggml was compiled: `make setup` in kvant's source tree compiles "
      "it for the processor at hand, and kvant's wheels need AVX2",
      fmt::join(missing, ", "));
}

Status check_processor() {
  const ProcessorFeatures& has = processor_features();
  const InstructionSet sets[] = {{"AVX", ggml_cpu_has_avx() != 0, has.avx},
                                 {"AVX2", ggml_cpu_has_avx2() != 0, has.avx2},
                                 {"FMA", ggml_cpu_has_fma() != 0, has.fma},
                                 {"BMI2", ggml_cpu_has_bmi2() != 0, has.bmi2},
                                 {"AVX-512", ggml_cpu_has_avx512() != 0, has.avx512},
                                 {"AVX-512 VBMI", ggml_cpu_has_avx512_vbmi() != 0, has.avx512_vbmi},
                                 {"AVX-512 VNNI", ggml_cpu_has_avx512_vnni() != 0, has.avx512_vnni},
                                 {"AVX-512 BF16", ggml_cpu_has_avx512_bf16() != 0, has.avx512_bf16},
                                 {"dot products (dotprod)", ggml_cpu_has_dotprod() != 0, has.dotprod},
                                 {"matrix products (i8mm)", ggml_cpu_has_matmul_int8() != 0, has.i8mm}};
  return check_instruction_sets(sets);
}

}  // namespace kvant
