#include "format/code_order.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kvant {
namespace {

static_assert(std::endian::native == std::endian::little, "a lane's codes are four bytes of a word");

#if defined(__SSE2__)
constexpr bool kHasTranspose = true;

// Transposes 8 rows of 8 bytes. Consecutive rows lie `distance` bytes apart. The 8 bytes of column i go to
// columns + at[i].
void transpose_octet(const std::byte* rows, std::ptrdiff_t distance, std::byte* columns,
                     const std::ptrdiff_t* at) {
  __m128i pairs[4];  // Each holds the rows a and b as bytes a0 b0 a1 b1 ...
  for (int i = 0; i < 4; ++i) {
    const std::byte* first = rows + 2 * i * distance;
    pairs[i] = _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(first)),
                                 _mm_loadl_epi64(reinterpret_cast<const __m128i*>(first + distance)));
  }
  const __m128i fours[4] = {
      // The first two registers hold columns 0 to 3, and the other two hold columns 4 to 7: a0 b0 c0 d0 a1
      // ...
      _mm_unpacklo_epi16(pairs[0], pairs[1]), _mm_unpacklo_epi16(pairs[2], pairs[3]),
      _mm_unpackhi_epi16(pairs[0], pairs[1]), _mm_unpackhi_epi16(pairs[2], pairs[3])};
  const __m128i eights[4] = {_mm_unpacklo_epi32(fours[0], fours[1]), _mm_unpackhi_epi32(fours[0], fours[1]),
                             _mm_unpacklo_epi32(fours[2], fours[3]), _mm_unpackhi_epi32(fours[2], fours[3])};
  for (int i = 0; i < 4; ++i) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(columns + at[2 * i]), eights[i]);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(columns + at[2 * i + 1]),
                     _mm_unpackhi_epi64(eights[i], eights[i]));
  }
}
#else
constexpr bool kHasTranspose = false;

void transpose_octet(const std::byte* /*rows*/, std::ptrdiff_t /*distance*/, std::byte* /*columns*/,
                     const std::ptrdiff_t* /*at*/) {}
#endif

// Describes where the bytes of a page's codes lie. Each token has `groups` groups of `group_bytes` bytes.
struct CodeBytes {
  int groups, group_bytes;
  CodeOrder order;

  std::size_t size() const { return static_cast<std::size_t>(kPageTokens) * groups * group_bytes; }

  // Calls move(from, to, distance, run) for each run of bytes that are adjacent in `order`. Byte i of a run
  // lies at from + i * distance in canonical order and at to + i in `order`. run.length is the number of
  // bytes. The runs cover the first n_tokens tokens, rounded up to whole runs.
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
    const int row = groups * group_bytes;
    if (kHasTranspose && order == CodeOrder::token_octets && row % kOctet == 0)
      return octets_from_rows(rows, ordered);
    if (order == CodeOrder::token_lanes) {
      switch (group_bytes) {
        case 1:
          return lanes_from_rows<1>(rows, ordered);
        case 2:
          return lanes_from_rows<2>(rows, ordered);
        case 3:
          return lanes_from_rows<3>(rows, ordered);
        case 4:
          return lanes_from_rows<4>(rows, ordered);
        default:
          break;
      }
    }
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
  // octets_from_rows() and lanes_from_rows() do the work of from_rows() in a fraction of for_each_run()'s
  // time, because loading a session from a file waits for them.
  void octets_from_rows(const std::byte* rows, std::byte* ordered) const {
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(groups) * group_bytes;
    std::vector<std::ptrdiff_t> columns(row);  // columns[i]: place of a row's byte i within its octet
    for (std::ptrdiff_t i = 0; i < row; ++i)
      columns[i] = (i % group_bytes * groups + i / group_bytes) * kOctet;
    for (int octet = 0; octet < kPageTokens / kOctet; ++octet) {
      for (std::ptrdiff_t i = 0; i < row; i += kOctet) transpose_octet(rows + i, row, ordered, &columns[i]);
      rows += kOctet * row;
      ordered += kOctet * row;
    }
  }
  template <int B>
  void lanes_from_rows(const std::byte* rows, std::byte* ordered) const {
    const int blocks = groups / kLaneGroups;
    for (int t = 0; t < kPageTokens; ++t) {
      std::byte* lane = ordered + (static_cast<std::ptrdiff_t>(t / kLaneTokens) * blocks * B * kLaneTokens +
                                   t % kLaneTokens) *
                                      kLaneGroups;
      for (int block = 0; block < blocks; ++block) {
        for (int b = 0; b < B; ++b, lane += kLaneTokens * kLaneGroups) {
          std::uint32_t codes = 0;
          for (int g = 0; g < kLaneGroups; ++g)
            codes |= std::to_integer<std::uint32_t>(rows[g * B + b]) << 8 * g;
          std::memcpy(lane, &codes, sizeof(codes));
        }
        rows += kLaneGroups * B;
      }
    }
  }

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
  bool shapes_errors() const override { return rows_.shapes_errors(); }
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
  // Returns the page in canonical order. Only the first n_tokens tokens are sure to have valid codes.
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

// Copies a page's parameters and lets `reorder` copy the codes. Pages in canonical order are copied whole.
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
