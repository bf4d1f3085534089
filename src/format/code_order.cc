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

  // Calls move(byte in rows, byte in order, distance in rows, n) for runs of n bytes that lie side by side in
  // order; together they are the tokens before n_tokens, rounded up to whole runs.
  template <class Move>
  void for_each_run(int n_tokens, const Move& move) const {
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(groups) * group_bytes;
    if (order == CodeOrder::token_octets) {
      for (std::ptrdiff_t octet = 0; octet * kOctet < n_tokens; ++octet) {
        for (int b = 0; b < group_bytes; ++b) {
          for (int g = 0; g < groups; ++g) {
            move(octet * kOctet * row + g * group_bytes + b,
                 ((octet * group_bytes + b) * groups + g) * kOctet, row, Run<kOctet>{});
          }
        }
      }
      return;
    }
    const int blocks = groups / kLaneGroups;
    for (std::ptrdiff_t t = 0; t < n_tokens; ++t) {
      for (int block = 0; block < blocks; ++block) {
        for (int b = 0; b < group_bytes; ++b) {
          const std::ptrdiff_t tile = (t / kLaneTokens * blocks + block) * group_bytes + b;
          move(t * row + block * kLaneGroups * group_bytes + b,
               (tile * kLaneTokens + t % kLaneTokens) * kLaneGroups, static_cast<std::ptrdiff_t>(group_bytes),
               Run<kLaneGroups>{});
        }
      }
    }
  }

  void from_rows(const std::byte* rows, std::byte* ordered) const {
    for_each_run(kPageTokens, [=](std::ptrdiff_t row, std::ptrdiff_t at, std::ptrdiff_t distance, auto run) {
      for (int i = 0; i < decltype(run)::length; ++i) ordered[at + i] = rows[row + i * distance];
    });
  }
  void to_rows(const std::byte* ordered, int n_tokens, std::byte* rows) const {
    for_each_run(n_tokens, [=](std::ptrdiff_t row, std::ptrdiff_t at, std::ptrdiff_t distance, auto run) {
      for (int i = 0; i < decltype(run)::length; ++i) rows[row + i * distance] = ordered[at + i];
    });
  }

 private:
  template <int N>
  struct Run {
    static constexpr int length = N;
  };
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
    codes_.from_rows(rows.data(), page);
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
  const CodeBytes& codes() const { return codes_; }
  CodeTable code_table(const PageContext& context) const override { return rows_.code_table(context); }
  void read_parameters(const std::byte* page, const PageContext& context, const CodeTable& table,
                       CodeParameters& parameters) const override {
    rows_.read_parameters(page, context, table, parameters);
  }

 private:
  // The page in its canonical order, the codes of tokens before n_tokens at least.
  std::vector<std::byte> in_rows(const std::byte* page, int n_tokens, int head_dim) const {
    std::vector<std::byte> rows(rows_.page_bytes(head_dim));
    std::copy(page + codes_.size(), page + rows.size(),
              rows.begin() + static_cast<std::ptrdiff_t>(codes_.size()));
    codes_.to_rows(page, n_tokens, rows.data());
    return rows;
  }

  const Format& rows_;
  CodeBytes codes_;
};

// Copies what is not codes, and codes by `reorder`.
template <class Reorder>
void copy_page(const Format& format, int head_dim, const std::byte* from, std::byte* to,
               const Reorder& reorder) {
  const auto* ordered = dynamic_cast<const OrderedFormat*>(&format);
  const std::size_t n_codes = ordered == nullptr ? 0 : ordered->codes().size();
  if (ordered != nullptr) reorder(ordered->codes());
  std::memcpy(to + n_codes, from + n_codes, format.page_bytes(head_dim) - n_codes);
}

}  // namespace

void to_canonical_order(const Format& format, int head_dim, const std::byte* page, std::byte* canonical) {
  copy_page(format, head_dim, page, canonical,
            [&](const CodeBytes& codes) { codes.to_rows(page, kPageTokens, canonical); });
}

void from_canonical_order(const Format& format, int head_dim, const std::byte* canonical, std::byte* page) {
  copy_page(format, head_dim, canonical, page,
            [&](const CodeBytes& codes) { codes.from_rows(canonical, page); });
}

std::unique_ptr<Format> with_code_order(const Format& format, Side side, int head_dim) {
  const auto scheme = format.code_scheme(head_dim);
  if (!scheme || scheme->meaning == CodeMeaning::wide_vector) return nullptr;
  const int groups = head_dim / scheme->group_channels;
  const int lane_channels = kLaneGroups * scheme->group_channels;
  if (head_dim % (lane_channels * std::max(1, scheme->token_groups)) != 0) return nullptr;
  const CodeOrder order = side == Side::key ? CodeOrder::token_lanes : CodeOrder::token_octets;
  return std::make_unique<OrderedFormat>(format, CodeBytes{groups, scheme->group_bytes, order});
}

}  // namespace kvant
