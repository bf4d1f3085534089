// Says which instructions this processor has. Every choice among kernels asks here.
#pragma once

namespace kvant {

// Each member is true if the processor has the instructions and the operating system lets programs use them.
struct ProcessorFeatures {
  // x86-64
  bool avx = false, avx2 = false, fma = false, f16c = false, bmi2 = false, gfni = false, avxvnni = false;
  // avx512 stands for F, BW, DQ and VL, which all kernels with AVX-512 need.
  bool avx512 = false, avx512_vnni = false, avx512_vbmi = false, avx512_vbmi2 = false, avx512_bf16 = false;
  // arm64
  bool neon = false, dotprod = false, i8mm = false;
};

const ProcessorFeatures& processor_features();

}  // namespace kvant
