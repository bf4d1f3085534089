#include "format/code_order.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace kvant {
namespace {

// The codes of a page as bytes.
struct CodeBytes {
  int groups, group_bytes;
  CodeOrder order;

  std::size_t size() const { return static_cast<std::size_t>(kPageTokens) * groups * group_bytes; }

  std::size_t ordered(int t, int g, int b) const {
    if (order == CodeOrder::token_lanes) {
      const std::size_t block =
          static_cast<std::size_t>(t / kLaneTokens * groups / kLaneGroups) + g / kLaneGroups;
      return ((block * group_bytes + b) * kLaneTokens + t % kLaneTokens) * kLaneGroups + g % kLaneGroups;
    }
    const std::size_t octet = static_cast<std::size_t>(t / kOctet * group_bytes + b) * groups + g;
    return octet * kOctet + t % kOctet;
  }

  // Calls move(byte in rows, byte in order) for every byte of tokens [0, n_tokens).
  template <class Move>
  void for_each(int n_tokens, const Move& move) const {
    std::size_t row = 0;
    for (int t = 0; t < n_tokens; ++t) {
      for (int g = 0; g < groups; ++g) {
        for (int b = 0; b < group_bytes; ++b) move(row++, ordered(t, g, b));
      }
    }
  }
};

class OrderedFormat final : public Format {
 public:
  OrderedFormat(const Format& rows, const CodeBytes& codes)
      : Format(rows.name()), rows_(rows), codes_(codes) {}

  std::size_t page_bytes(int head_dim) const override { return rows_.page_bytes(head_dim); }
  std::vector<std::string> needed_constants() const override { return rows_.needed_constants(); }
  std::size_t constant_size(int head_dim) const override { return rows_.constant_size(head_dim); }
  std::optional<CodebookShape> codebook_shape() const override { return rows_.codebook_shape(); }
  float max_magnitude() const override { return rows_.max_magnitude(); }

  void encode(const float* values, const TokenMask& left_out, const PageContext& context,
              std::byte* page) const override {
    rows_.encode(values, left_out, context, page);
    const std::vector<std::byte> rows(page, page + codes_.size());
    codes_.for_each(kPageTokens, [&](std::size_t row, std::size_t ordered) { page[ordered] = rows[row]; });
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    rows_.decode(in_rows(page, n_tokens, context.head_dim).data(), n_tokens, context, values);
  }

  bool integral() const override { return rows_.integral(); }
  void decode_integers(const std::byte* page, int n_tokens, const PageContext& context, float* integers,
                       float* scales) const override {
    rows_.decode_integers(in_rows(page, n_tokens, context.head_dim).data(), n_tokens, context, integers,
                          scales);
  }

  std::optional<CodeScheme> code_scheme(int head_dim) const override { return rows_.code_scheme(head_dim); }
  CodeOrder code_order() const override { return codes_.order; }
  CodeTable code_table(const PageContext& context) const override { return rows_.code_table(context); }
  void read_parameters(const std::byte* page, const PageContext& context, const CodeTable& table,
                       CodeParameters& parameters) const override {
    rows_.read_parameters(page, context, table, parameters);
  }

 private:
  // The page in its canonical order; codes of tokens from n_tokens on are zero.
  std::vector<std::byte> in_rows(const std::byte* page, int n_tokens, int head_dim) const {
    std::vector<std::byte> rows(rows_.page_bytes(head_dim));
    std::copy(page + codes_.size(), page + rows.size(),
              rows.begin() + static_cast<std::ptrdiff_t>(codes_.size()));
    codes_.for_each(n_tokens, [&](std::size_t row, std::size_t ordered) { rows[row] = page[ordered]; });
    return rows;
  }

  const Format& rows_;
  CodeBytes codes_;
};

}  // namespace

std::unique_ptr<Format> with_code_order(const Format& format, Side side, int head_dim) {
  const auto scheme = format.code_scheme(head_dim);
  if (!scheme) return nullptr;
  const int groups = head_dim / scheme->group_channels;
  const int lane_channels = kLaneGroups * scheme->group_channels;
  if (head_dim % (lane_channels * std::max(1, scheme->token_groups)) != 0) return nullptr;
  const CodeOrder order = side == Side::key ? CodeOrder::token_lanes : CodeOrder::token_octets;
  return std::make_unique<OrderedFormat>(format, CodeBytes{groups, scheme->group_bytes, order});
}

}  // namespace kvant
