#include "base/code_gemm.h"

#include <algorithm>

namespace kvant {
namespace {

template <class T>
void grow(std::vector<T>& all, std::size_t n) {
  all.resize(std::max(all.size(), n));
}

}  // namespace

void make_room(CodePanel& panel, int k) {
  const std::size_t blocks = k / kCodeBlockSize;
  grow(panel.bytes, static_cast<std::size_t>(k) * kCodePanel);
  grow(panel.scale, blocks * kCodePanel);
  grow(panel.offset, blocks * kCodePanel);
}

void make_room(NumberRows& rows, int n, int k) {
  const std::size_t values = static_cast<std::size_t>(n) * k;
  grow(rows.quads, values / 2);
  grow(rows.unit, values / kCodeBlockSize);
  grow(rows.sum, values / kCodeBlockSize);
}

const CodeGemm* code_gemm() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // The list names every instruction set for which code_gemm_avx512.cc is compiled.
  static const bool has_vnni = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                               __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                               __builtin_cpu_supports("avx512vnni");
  if (has_vnni) return code_gemm_avx512();
#endif
  return nullptr;
}

}  // namespace kvant
