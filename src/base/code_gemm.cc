#include "base/code_gemm.h"

#include <algorithm>

#include "base/processor_features.h"

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
  // code_gemm_avx512.cc is compiled for these instructions.
  const ProcessorFeatures& has = processor_features();
  if (has.avx2 && has.fma && has.avx512 && has.avx512_vnni) return code_gemm_avx512();
  return nullptr;
}

}  // namespace kvant
