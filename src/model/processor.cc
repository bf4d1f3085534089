#include "model/processor.h"

#include <fmt/ranges.h>
#include <ggml-cpu.h>

#include <string>
#include <vector>

namespace kvant {

Status check_instruction_sets(std::span<const InstructionSet> sets) {
  std::vector<std::string> missing;
  for (const InstructionSet& set : sets)
    if (set.is_wanted && !set.is_there) missing.emplace_back(set.name);
  if (missing.empty()) return {};
  return error(
      "this processor has no {}, for which ggml was compiled: `make setup` in kvant's source tree compiles "
      "it for "
      "the processor at hand, and kvant's wheels need AVX2",
      fmt::join(missing, ", "));
}

Status check_processor() {
#if defined(__x86_64__)
  const InstructionSet sets[] = {
      {"AVX", ggml_cpu_has_avx() != 0, __builtin_cpu_supports("avx") != 0},
      {"AVX2", ggml_cpu_has_avx2() != 0, __builtin_cpu_supports("avx2") != 0},
      {"FMA", ggml_cpu_has_fma() != 0, __builtin_cpu_supports("fma") != 0},
      {"BMI2", ggml_cpu_has_bmi2() != 0, __builtin_cpu_supports("bmi2") != 0},
      {"AVX-512", ggml_cpu_has_avx512() != 0, __builtin_cpu_supports("avx512f") != 0},
      {"AVX-512 VBMI", ggml_cpu_has_avx512_vbmi() != 0, __builtin_cpu_supports("avx512vbmi") != 0},
      {"AVX-512 VNNI", ggml_cpu_has_avx512_vnni() != 0, __builtin_cpu_supports("avx512vnni") != 0},
      {"AVX-512 BF16", ggml_cpu_has_avx512_bf16() != 0, __builtin_cpu_supports("avx512bf16") != 0}};
  return check_instruction_sets(sets);
#else
  return {};
#endif
}

}  // namespace kvant
