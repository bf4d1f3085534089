#include "model/weight_codes.h"

#include <ggml.h>

#include <cstring>

namespace kvant {
namespace {

constexpr int kQuads = kCodeBlockSize / 4;

// Block holds 32 values with their codes as bytes: value = scale * code + offset.
struct Block {
  std::uint32_t quads[kQuads];
  float scale, offset;
};

float float_at(const std::byte* f16) {
  ggml_fp16_t x;
  std::memcpy(&x, f16, sizeof x);
  return ggml_fp16_to_fp32(x);
}

// Splits 16 packed bytes. The low nibbles hold the first half of the values, and the high nibbles the second
// half.
void split_nibbles(const std::byte* packed, std::uint32_t* quads) {
  for (int i = 0; i < kQuads / 2; ++i) {
    std::uint32_t both;
    std::memcpy(&both, packed + 4 * static_cast<std::ptrdiff_t>(i), sizeof both);
    quads[i] = both & 0x0f0f0f0f;
    quads[kQuads / 2 + i] = both >> 4 & 0x0f0f0f0f;
  }
}

// Q40, Q41 and Q80 describe the blocks of a type by their size and by a function that reads a block.
struct Q40 {
  static constexpr std::ptrdiff_t kBytes = 18;
  static void read(const std::byte* from, Block& block) {
    block.scale = float_at(from);
    block.offset = -8 * block.scale;
    split_nibbles(from + 2, block.quads);
  }
};
struct Q41 {
  static constexpr std::ptrdiff_t kBytes = 20;
  static void read(const std::byte* from, Block& block) {
    block.scale = float_at(from);
    block.offset = float_at(from + 2);
    split_nibbles(from + 4, block.quads);
  }
};
struct Q80 {
  static constexpr std::ptrdiff_t kBytes = 34;
  static void read(const std::byte* from, Block& block) {
    block.scale = float_at(from);
    block.offset = -128 * block.scale;
    std::memcpy(block.quads, from + 2, sizeof block.quads);
    for (std::uint32_t& quad : block.quads) quad ^= 0x80808080U;  // this adds 128 to signed bytes
  }
};

template <class Type>
void fill(const std::byte* rows, std::ptrdiff_t row_bytes, int n, int n_blocks, CodePanel& panel) {
  for (int r = 0; r < n; ++r) {
    const std::byte* from = rows + r * row_bytes;
    for (int b = 0; b < n_blocks; ++b, from += Type::kBytes) {
      Block block;
      Type::read(from, block);
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(b) * kCodePanel + r;
      panel.scale[at] = block.scale;
      panel.offset[at] = block.offset;
      std::uint8_t* to = panel.bytes.data() + (static_cast<std::ptrdiff_t>(b) * kQuads * kCodePanel + r) * 4;
      for (int i = 0; i < kQuads; ++i) std::memcpy(to + i * 4 * kCodePanel, &block.quads[i], 4);
    }
  }
}

}  // namespace

bool has_code_blocks(const ggml_tensor* weight) {
  return weight->type == GGML_TYPE_Q4_0 || weight->type == GGML_TYPE_Q4_1 || weight->type == GGML_TYPE_Q8_0;
}

void fill_panel(const ggml_tensor* weight, int first, int n, CodePanel& panel) {
  const auto row_bytes = static_cast<std::ptrdiff_t>(weight->nb[1]);
  const std::byte* rows = static_cast<const std::byte*>(weight->data) + first * row_bytes;
  const int n_blocks = static_cast<int>(weight->ne[0]) / kCodeBlockSize;
  if (weight->type == GGML_TYPE_Q4_0) return fill<Q40>(rows, row_bytes, n, n_blocks, panel);
  if (weight->type == GGML_TYPE_Q4_1) return fill<Q41>(rows, row_bytes, n, n_blocks, panel);
  fill<Q80>(rows, row_bytes, n, n_blocks, panel);
}

}  // namespace kvant
