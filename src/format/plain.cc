// bf16 and f16, the plain formats, store 16-bit floating-point numbers without parameters. The sink, the
// window and protected tokens are in a plain format.
//
// Bytes of a page, d channels: little-endian values [kPageTokens][d], 2 bytes each.
//   bf16: bfloat16 (relative error <= 2^-8); f16: IEEE binary16 (<= 2^-11, and 2^-25 absolute below 2^-14).
// Bits per value: 16.
//
// Finite values beyond a type's range become its largest finite value: 65504 for f16, 3.3895e38 for bf16. The
// formats are row-wise (format.h), so left-out tokens are stored like all others.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/float16.h"
#include "format/families.h"

namespace kvant {
namespace {

constexpr std::size_t plain_page_bytes(int d) {
  return std::size_t{2} * kPageTokens * d;
}
static_assert(plain_page_bytes(128) == 32768 && plain_page_bytes(64) == 16384);

constexpr float kBf16Max = std::bit_cast<float>(0x7f7f0000U);

struct PlainType {
  const char* name;
  NumberType type;
  float max;
  void (*narrow)(const float*, std::uint16_t*, std::size_t);
  void (*widen)(const std::uint16_t*, float*, std::size_t);
};
constexpr PlainType kTypes[] = {
    {"bf16", NumberType::bf16, kBf16Max, bf16_row_from_float, float_row_from_bf16},
    {"f16", NumberType::f16, kF16Max, f16_row_from_float, float_row_from_f16}};

class PlainFormat : public RowWiseFormat {
 public:
  explicit PlainFormat(const PlainType& type) : RowWiseFormat(type.name), type_(type) {}

  std::size_t page_bytes(int head_dim) const override { return plain_page_bytes(head_dim); }
  RowParts row_parts(int head_dim) const override { return {2 * static_cast<std::size_t>(head_dim)}; }
  bool plain() const override { return true; }
  std::optional<FormatDescription> describe() const override {
    FormatDescription description;
    description.page.kind = type_.type == NumberType::bf16 ? CodeKind::bf16 : CodeKind::f16;
    return description;
  }
  NumberType number_type() const override { return type_.type; }
  float max_magnitude() const override { return type_.max; }

  void encode_rows(const float* values, int first, int n, const PageContext& context,
                   std::byte* page) const override {
    const std::size_t n_values = static_cast<std::size_t>(n) * context.head_dim;
    std::byte* out = page + 2 * static_cast<std::size_t>(first) * context.head_dim;
    std::array<float, kChunk> inside;
    std::array<std::uint16_t, kChunk> narrow;
    for (std::size_t i = 0; i < n_values; i += kChunk) {
      const std::size_t size = std::min(kChunk, n_values - i);
      for (std::size_t j = 0; j < size; ++j) inside[j] = std::clamp(values[i + j], -type_.max, type_.max);
      type_.narrow(inside.data(), narrow.data(), size);
      std::memcpy(out + 2 * i, narrow.data(), 2 * size);
    }
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    const std::size_t n_values = static_cast<std::size_t>(n_tokens) * context.head_dim;
    std::array<std::uint16_t, kChunk> narrow;
    for (std::size_t i = 0; i < n_values; i += kChunk) {
      const std::size_t size = std::min(kChunk, n_values - i);
      std::memcpy(narrow.data(), page + 2 * i, 2 * size);  // Pages need not be aligned.
      type_.widen(narrow.data(), values + i, size);
    }
  }

 private:
  static constexpr std::size_t kChunk = 1024;  // values per pass; both buffers fit in the L1 cache
  const PlainType& type_;
};

std::unique_ptr<Format> parse_plain(const std::string& name) {
  for (const PlainType& type : kTypes) {
    if (name == type.name) return std::make_unique<PlainFormat>(type);
  }
  return nullptr;
}

}  // namespace

const FormatFamily& plain_family() {
  static const FormatFamily family{
      "bf16|f16", "16-bit floating point, unquantized", {"bf16", "f16"}, parse_plain};
  return family;
}

}  // namespace kvant
