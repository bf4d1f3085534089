// The formats of vector quantization store the Y-bit index of the nearest centroid for each sub-vector of X
// channels. X is 2, 4 or 8, and Y is 4 .. 16.
//   vq-d<X>b<Y>    VecInfer (section 3.2): one codebook [2^Y][X] for a (layer, KV head, side)
//   pq-d<X>b<Y>    MILLION: one codebook for each sub-space, [d / X][2^Y][X]
//   nvq-d<X>b<Y>   gain-shape: vq of the unit vector x / |x|, with an f16 gain per token
//   npq-d<X>b<Y>   NOVA-KV (arXiv 2608.04074): pq of the unit vector, with an f16 gain per token
// The codebook is the model constant "codebook/<name of the format>".
//
// Bytes of a page, d channels:
//   codes   [kPageTokens][d / X]  Y bits each, one little-endian bit stream (bit_packing.h) for the whole
//                                 page: a token's codes need not begin at a whole byte
//   gains   [kPageTokens]         f16, nvq: the least squares gain (gain.h) of the centroids found; npq: |x|
// Bits per value: Y / X, and 16 / d more for nvq and npq.
//
// value = centroid, times the gain for nvq and npq. Values far outside the codebook get the farthest centroid
// in their direction, or any centroid if the search overflows F32. Gains saturate at 65504. Left-out tokens
// are stored like the others.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/float16.h"
#include "format/affine_row.h"
#include "format/bit_packing.h"
#include "format/families.h"
#include "format/gain.h"
#include "format/name_reader.h"
#include "format/nearest_centroid.h"

namespace kvant {
namespace {

enum class Kind { vq, pq, nvq, npq };

struct VqShape {
  Kind kind;
  int dim;   // X, the channels of a sub-vector
  int bits;  // Y, the bits of a code

  bool has_gains() const { return kind == Kind::nvq || kind == Kind::npq; }
  bool own_codebooks() const { return kind == Kind::pq || kind == Kind::npq; }
  int centroids() const { return 1 << bits; }
  int codes_per_token(int d) const { return d / dim; }
};

constexpr std::size_t vq_page_bytes(int dim, int bits, bool gains, int d) {
  return packed_bytes(static_cast<std::size_t>(kPageTokens) * (d / dim), bits) +
         (gains ? 2 * kPageTokens : 0);
}
static_assert(vq_page_bytes(4, 8, false, 128) == 4096 && vq_page_bytes(4, 8, false, 64) == 2048);
static_assert(vq_page_bytes(4, 10, false, 64) == 2560 && vq_page_bytes(8, 12, false, 128) == 3072);
static_assert(vq_page_bytes(4, 8, true, 128) == 4352 && vq_page_bytes(8, 10, true, 80) == 1856);

constexpr int kMaxCodesPerToken = kMaxHeadDim / 2;
// kChunkTokens is the number of tokens that are decoded together, so their codes fill whole bytes of the
// stream.
constexpr int kChunkTokens = 8;

// Returns the number of tokens that are searched together, because they share the loads of the codebook.
constexpr int search_tokens_at_once(int d) {
  return d > kMaxHeadDim / 2 ? 16 : 32;
}
static_assert(search_tokens_at_once(kMaxHeadDim) * kMaxCodesPerToken <= kMaxSearchVectors &&
              search_tokens_at_once(kMaxHeadDim / 2) * kMaxCodesPerToken / 2 <= kMaxSearchVectors);

class VqFormat : public Format {
 public:
  VqFormat(const std::string& name, const VqShape& shape) : Format(name), shape_(shape) {}

  std::size_t page_bytes(int head_dim) const override {
    return vq_page_bytes(shape_.dim, shape_.bits, shape_.has_gains(), head_dim);
  }
  std::vector<std::string> needed_constants() const override { return {codebook_name()}; }
  std::size_t constant_size(int head_dim) const override {
    const std::size_t one = static_cast<std::size_t>(shape_.centroids()) * shape_.dim;
    return shape_.own_codebooks() ? one * shape_.codes_per_token(head_dim) : one;
  }

  // GPU kernels fit the gains of vectors by least squares, so pages of npq have no description.
  std::optional<FormatDescription> describe() const override {
    if (shape_.kind == Kind::npq) return std::nullopt;
    FormatDescription description;
    description.page.kind = CodeKind::vector;
    description.page.bits = shape_.bits;
    description.page.channels = shape_.dim;
    description.page.factor = shape_.kind == Kind::nvq ? TokenFactor::half : TokenFactor::none;
    description.page.own_codebooks = shape_.kind == Kind::pq;
    return description;
  }
  std::optional<CodeScheme> code_scheme(int head_dim) const override {
    if (shape_.own_codebooks()) return std::nullopt;
    if (shape_.bits == 8) {
      return CodeScheme{.meaning = CodeMeaning::vector,
                        .bits = 8,
                        .group_bytes = 1,
                        .group_channels = shape_.dim,
                        .token_groups = 1};
    }
    constexpr int kGroupCodes = 4;  // Four codes of 10 or 12 bits fill whole bytes.
    const bool known = (shape_.bits == 10 || shape_.bits == 12) && shape_.dim >= 4;
    if (!known || head_dim % (shape_.dim * kGroupCodes) != 0) return std::nullopt;
    return CodeScheme{.meaning = CodeMeaning::wide_vector,
                      .bits = shape_.bits,
                      .group_bytes = shape_.bits * kGroupCodes / 8,
                      .group_channels = shape_.dim * kGroupCodes,
                      .token_groups = 1};
  }

  // Returns the codebook as bytes with one scale. The shape is [X][256] for 8-bit codes and [2^Y][X] for wide
  // codes.
  CodeTable code_table(const PageContext& context) const override {
    const float* codebook = codebook_of(context);
    const int n = shape_.centroids();
    float largest = 0;
    for (int i = 0; i < n * shape_.dim; ++i) largest = std::max(largest, std::abs(codebook[i]));
    const float reciprocal = largest > 0 ? 127 / largest : 0;
    CodeTable table;
    table.scale = largest / 127;
    table.biased.resize(static_cast<std::size_t>(n) * shape_.dim);
    for (int code = 0; code < n; ++code) {
      for (int i = 0; i < shape_.dim; ++i) {
        table.biased[shape_.bits == 8 ? i * n + code : code * shape_.dim + i] =
            biased_byte(codebook[code * shape_.dim + i] * reciprocal);
      }
    }
    return table;
  }

  void read_parameters(const std::byte* page, const PageContext& context, const CodeTable& table,
                       CodeParameters& parameters) const override {
    parameters.token_scale.assign(kPageTokens, table.scale);
    if (shape_.kind != Kind::nvq) return;
    std::array<float, kPageTokens> factors;
    float_row_from_f16(gain_of(page, 0, context.head_dim), factors.data(), kPageTokens);
    for (int token = 0; token < kPageTokens; ++token) parameters.token_scale[token] *= factors[token];
  }

  std::optional<CodebookShape> codebook_shape() const override {
    return CodebookShape{shape_.dim, shape_.centroids(), shape_.own_codebooks(), shape_.has_gains()};
  }

  void encode(const float* values, const TokenMask&, const PageContext& context,
              std::byte* page) const override {
    const int d = context.head_dim;
    const float* codebook = codebook_of(context);
    std::array<std::uint16_t, kPageTokens * kMaxCodesPerToken> codes;  // [kPageTokens][d / X]
    if (shape_.own_codebooks()) {
      search_sub_spaces(values, d, codebook, codes.data());
    } else {
      for (int first = 0; first < kPageTokens; first += search_tokens_at_once(d)) {
        search_tokens(values + static_cast<std::ptrdiff_t>(first) * d, d, codebook,
                      codes.data() + static_cast<std::ptrdiff_t>(first) * shape_.codes_per_token(d));
      }
    }
    pack_codes(codes.data(), static_cast<std::size_t>(kPageTokens) * shape_.codes_per_token(d), shape_.bits,
               page);
    if (shape_.has_gains()) store_gains(values, d, codebook, codes.data(), page);
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    const int d = context.head_dim;
    const float* codebook = codebook_of(context);
    std::array<std::uint16_t, kChunkTokens * kMaxCodesPerToken> codes;
    const std::size_t n_codes = static_cast<std::size_t>(kChunkTokens) * shape_.codes_per_token(d);
    for (int first = 0; first < n_tokens; first += kChunkTokens) {
      unpack_codes(codes_of(page, first, d), n_codes, shape_.bits, codes.data());
      for (int token = first; token < std::min(first + kChunkTokens, n_tokens); ++token) {
        float* row = values + static_cast<std::ptrdiff_t>(token) * d;
        copy_centroids(codes.data() + (token - first) * shape_.codes_per_token(d), d, codebook, row);
        if (!shape_.has_gains()) continue;
        std::uint16_t gain;
        std::memcpy(&gain, gain_of(page, token, d), sizeof gain);
        const float factor = float_from_f16(gain);
        for (int i = 0; i < d; ++i) row[i] *= factor;
      }
    }
  }

 private:
  std::string codebook_name() const { return "codebook/" + name(); }

  const float* codebook_of(const PageContext& context) const {
    const std::span<const float> codebook = context.constants.find(codebook_name());
    KVANT_CHECK(codebook.size() == constant_size(context.head_dim),
                "a page's codebook is missing or of a different size");
    return codebook.data();
  }

  template <class Byte>
  Byte* codes_of(Byte* page, int first, int d) const {
    return page + packed_bytes(static_cast<std::size_t>(first) * shape_.codes_per_token(d), shape_.bits);
  }
  template <class Byte>
  Byte* gain_of(Byte* page, int token, int d) const {
    return codes_of(page, kPageTokens, d) + 2 * static_cast<std::ptrdiff_t>(token);
  }

  static void normalize(const float* x, int d, float* unit) {
    const double length = norm(x, d);
    const double reciprocal = length > 0 ? 1 / length : 0;
    for (int i = 0; i < d; ++i) unit[i] = static_cast<float>(x[i] * reciprocal);
  }

  // Finds the codes [n][d / X] of n = search_tokens_at_once(d) tokens.
  void search_tokens(const float* tokens, int d, const float* codebook, std::uint16_t* codes) const {
    std::array<float, static_cast<std::size_t>(search_tokens_at_once(kMaxHeadDim)) * kMaxHeadDim> units;
    const int n_tokens = search_tokens_at_once(d);
    if (shape_.kind == Kind::nvq) {
      for (int token = 0; token < n_tokens; ++token)
        normalize(tokens + token * d, d, units.data() + token * d);
      tokens = units.data();
    }
    nearest_centroids(tokens, shape_.dim, n_tokens * shape_.codes_per_token(d), shape_.dim, codebook,
                      shape_.centroids(), codes);
  }

  // Finds the codes [kPageTokens][d / X] of a page whose sub-spaces have their own codebooks.
  void search_sub_spaces(const float* values, int d, const float* codebook, std::uint16_t* codes) const {
    const int n = shape_.codes_per_token(d);
    const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(shape_.centroids()) * shape_.dim;
    std::array<std::uint16_t, kPageTokens> nearest;
    std::vector<float> units;
    if (shape_.kind == Kind::npq) {
      units.resize(static_cast<std::size_t>(kPageTokens) * d);
      for (int token = 0; token < kPageTokens; ++token)
        normalize(values + static_cast<std::ptrdiff_t>(token) * d, d,
                  units.data() + static_cast<std::ptrdiff_t>(token) * d);
      values = units.data();
    }
    for (int sub = 0; sub < n; ++sub) {
      nearest_centroids(values + sub * shape_.dim, d, kPageTokens, shape_.dim, codebook + sub * size,
                        shape_.centroids(), nearest.data());
      for (int token = 0; token < kPageTokens; ++token) codes[token * n + sub] = nearest[token];
    }
  }

  void copy_centroids(const std::uint16_t* codes, int d, const float* codebook, float* values) const {
    switch (shape_.dim) {
      case 2:
        return copy_centroids<2>(codes, d, codebook, values);
      case 4:
        return copy_centroids<4>(codes, d, codebook, values);
      default:
        return copy_centroids<8>(codes, d, codebook, values);
    }
  }
  template <int Dim>
  void copy_centroids(const std::uint16_t* codes, int d, const float* codebook, float* values) const {
    const std::ptrdiff_t next =
        shape_.own_codebooks() ? static_cast<std::ptrdiff_t>(shape_.centroids()) * Dim : 0;
    for (int sub = 0; sub < d / Dim; ++sub) {
      std::memcpy(values + sub * Dim, codebook + sub * next + static_cast<std::ptrdiff_t>(codes[sub]) * Dim,
                  sizeof(float) * Dim);
    }
  }

  void store_gains(const float* values, int d, const float* codebook, const std::uint16_t* codes,
                   std::byte* page) const {
    std::array<float, kMaxHeadDim> shape;
    for (int token = 0; token < kPageTokens; ++token) {
      const float* x = values + static_cast<std::ptrdiff_t>(token) * d;
      std::uint16_t gain;
      if (shape_.kind == Kind::npq) {
        gain = f16_from_float_saturated(static_cast<float>(std::fmin(norm(x, d), kF16Max)));
      } else {
        copy_centroids(codes + token * shape_.codes_per_token(d), d, codebook, shape.data());
        gain = fit_gain(x, shape.data(), d, GainRule::least_squares);
      }
      std::memcpy(gain_of(page, token, d), &gain, sizeof gain);
    }
  }

  VqShape shape_;
};

std::unique_ptr<Format> parse_vq(const std::string& name) {
  NameReader reader(name);
  Kind kind = Kind::vq;
  if (reader.take("nvq-d")) {
    kind = Kind::nvq;
  } else if (reader.take("npq-d")) {
    kind = Kind::npq;
  } else if (reader.take("pq-d")) {
    kind = Kind::pq;
  } else if (!reader.take("vq-d")) {
    return nullptr;
  }
  const int dim = reader.take_number();
  if (!reader.take("b")) return nullptr;
  const int bits = reader.take_number();
  const bool known_dim = dim == 2 || dim == 4 || dim == 8;
  if (!reader.at_end() || !known_dim || bits < 4 || bits > kMaxCodeBits) return nullptr;
  return std::make_unique<VqFormat>(name, VqShape{kind, dim, bits});
}

std::vector<std::string> vq_members() {
  std::vector<std::string> members;
  for (const char* kind : {"vq", "pq", "nvq"}) {
    for (const char* shape : {"d2b4", "d2b8", "d4b6", "d4b8", "d4b10", "d4b12", "d8b8", "d8b10", "d8b12"}) {
      members.push_back(fmt::format("{}-{}", kind, shape));
    }
  }
  members.emplace_back("npq-d4b8");
  return members;
}

}  // namespace

const FormatFamily& vq_family() {
  static const FormatFamily family{"[n]vq-d<X>b<Y>|[n]pq-d<X>b<Y>",
                                   "sub-vectors of X channels as Y-bit codes of a codebook; vq: VecInfer, "
                                   "pq: MILLION; n: of the unit vector, with a gain",
                                   vq_members(), parse_vq};
  return family;
}

}  // namespace kvant
