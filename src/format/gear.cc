// gear<r>-<inner> is GEAR-L (Kang et al. 2024), which is GEAR without its sparse outliers. A page consists of
// a page of another format, the inner format, and a rank-r approximation of the inner format's error on this
// page. r is in 1 .. 16, and inner belongs to the families tok and ch.
//
// Bytes of a page, d channels:
//   inner     the inner format's page
//   tokens    [kPageTokens][r]  f16: A
//   channels  [r][d]            f16: B
// Bits per value: those of inner + 16 r (1 / d + 1 / kPageTokens).
//
// value = inner value + A B, where A B approximates E = x - inner value (low_rank.h). Column k of A is as
// long as row k of B. Left-out tokens have zero rows in E, and therefore in A. A and B saturate at 65504;
// where the error exceeds their range, the approximation may be worse than none.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/float16.h"
#include "format/families.h"
#include "format/low_rank.h"
#include "format/name_reader.h"

namespace kvant {
namespace {

constexpr std::size_t factor_bytes(int rank, int d) {
  return 2 * static_cast<std::size_t>(rank) * (kPageTokens + d);
}
static_assert(factor_bytes(4, 128) == 2048 && factor_bytes(4, 64) == 1536);
static_assert(factor_bytes(2, 128) == 1024 && factor_bytes(2, 80) == 832);

// Stores values [n] * factor as f16 numbers, saturated at 65504.
void store_row(const float* values, int n, double factor, std::byte* out) {
  for (int i = 0; i < n; ++i) {
    const std::uint16_t stored = f16_from_float_saturated(static_cast<float>(values[i] * factor));
    std::memcpy(out + 2 * static_cast<std::ptrdiff_t>(i), &stored, 2);
  }
}

class GearFormat : public Format {
 public:
  GearFormat(const std::string& name, int rank, std::unique_ptr<Format> inner)
      : Format(name), rank_(rank), inner_(std::move(inner)) {}

  std::size_t page_bytes(int head_dim) const override {
    return inner_->page_bytes(head_dim) + factor_bytes(rank_, head_dim);
  }

  void encode(const float* values, const TokenMask& left_out, const PageContext& context,
              std::byte* page) const override {
    const int d = context.head_dim;
    inner_->encode(values, left_out, context, page);
    std::vector<float> error(static_cast<std::size_t>(kPageTokens) * d);
    inner_->decode(page, kPageTokens, context, error.data());
    const double largest = to_unit_errors(values, left_out, d, error.data());

    LowRankFactors factors;
    fit_low_rank(error.data(), d, rank_, factors);
    std::byte* tokens = page + inner_->page_bytes(d);
    store_row(factors.tokens, kPageTokens * rank_, std::sqrt(largest), tokens);
    store_row(factors.channels, rank_ * d, std::sqrt(largest), tokens + channels_after_tokens());
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    const int d = context.head_dim;
    inner_->decode(page, n_tokens, context, values);
    LowRankFactors factors;
    const std::byte* tokens = page + inner_->page_bytes(d);
    float_row_from_f16(tokens, factors.tokens, n_tokens * rank_);
    float_row_from_f16(tokens + channels_after_tokens(), factors.channels, rank_ * d);
    add_low_rank(factors, n_tokens, d, rank_, values);
  }

 private:
  std::ptrdiff_t channels_after_tokens() const {
    return 2 * static_cast<std::ptrdiff_t>(kPageTokens) * rank_;
  }

  // Turns decoded values [kPageTokens, d] into errors relative to the largest error, which it returns. Errors
  // of left-out tokens are zero.
  static double to_unit_errors(const float* values, const TokenMask& left_out, int d, float* decoded) {
    double largest = 0;
    for (int token = 0; token < kPageTokens; ++token) {
      if (left_out.test(token)) continue;
      for (int i = token * d; i < (token + 1) * d; ++i)
        largest = std::max(largest, std::fabs(double{values[i]} - decoded[i]));
    }
    for (int token = 0; token < kPageTokens; ++token) {
      const double factor = largest > 0 && !left_out.test(token) ? 1 / largest : 0;
      for (int i = token * d; i < (token + 1) * d; ++i)
        decoded[i] = static_cast<float>((double{values[i]} - decoded[i]) * factor);
    }
    return largest;
  }

  int rank_;
  std::unique_ptr<Format> inner_;
};

std::unique_ptr<Format> parse_gear(const std::string& name) {
  NameReader reader(name);
  if (!reader.take("gear")) return nullptr;
  const int rank = reader.take_number();
  if (rank < 1 || rank > kMaxRank || !reader.take("-")) return nullptr;
  const std::string inner_name = name.substr(name.find('-') + 1);
  auto inner = tok_family().parse(inner_name);
  if (inner == nullptr) inner = ch_family().parse(inner_name);
  if (inner == nullptr) return nullptr;
  return std::make_unique<GearFormat>(name, rank, std::move(inner));
}

}  // namespace

const FormatFamily& gear_family() {
  static const FormatFamily family{
      "gear<r>-<tok or ch format>",
      "GEAR-L: a tok or ch page plus a rank-r approximation of its error in f16",
      {"gear2-ch2g128", "gear2-tok2g128", "gear4-ch2g128", "gear4-tok2g128", "gear4-ch4g128",
       "gear4-tok4g128", "gear4-ch2g32", "gear1-ch1g64", "gear16-tok1g64"},
      parse_gear};
  return family;
}

}  // namespace kvant
