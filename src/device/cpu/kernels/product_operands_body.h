// Turns queries and weights into integers, and sums of products into scores. byte_kernels_body.h includes
// this header inside its namespace.

// Packs queries and weights for products of 16-bit words: numbers for the even bytes of a register's codes,
// then numbers for the odd bytes.
struct WordPacking {
  // Packs a block of 4 groups. quads[r] holds number r of groups 0 and 2, and then of groups 1 and 3.
  static void pack_query(const std::int32_t* numbers, int channels, std::uint32_t (*quads)[2]) {
    for (int r = 0; r < channels; ++r) {
      for (int odd = 0; odd < 2; ++odd) {
        quads[r][odd] = (static_cast<std::uint32_t>(numbers[odd * channels + r]) & 0xffffU) |
                        static_cast<std::uint32_t>(numbers[(2 + odd) * channels + r]) << 16;
      }
    }
  }
  // Packs two octets.
  static void pack_weights(const std::int32_t* numbers, std::uint64_t (*octets)[2]) {
    for (int octet = 0; octet < 2; ++octet) {
      for (int odd = 0; odd < 2; ++odd) {
        std::uint64_t packed = 0;
        for (int i = 0; i < 4; ++i) {
          const auto number = static_cast<std::uint16_t>(numbers[8 * octet + 2 * i + odd]);
          packed |= static_cast<std::uint64_t>(number) << (16 * i);
        }
        octets[octet][odd] = packed;
      }
    }
  }
};

// Packs queries and weights for products of bytes: the high bytes, then the remaining low bytes, both signed.
struct BytePacking {
  static constexpr std::int32_t high_byte(std::int32_t number) { return (number + 128) >> 8; }
  // Packs a block of 4 groups. quads[r] holds number r of each group.
  static void pack_query(const std::int32_t* numbers, int channels, std::uint32_t (*quads)[2]) {
    for (int r = 0; r < channels; ++r) {
      quads[r][0] = quads[r][1] = 0;
      for (int k = 0; k < 4; ++k) {
        const std::int32_t number = numbers[k * channels + r];
        quads[r][0] |= static_cast<std::uint32_t>(high_byte(number) & 0xff) << (8 * k);
        quads[r][1] |= static_cast<std::uint32_t>(number & 0xff) << (8 * k);
      }
    }
  }
};

inline float magnitude(float x) {
  return x < 0 ? -x : x;
}

// Sets scaled[i] = values[i] * scale[i], with 1 for a null scale, and returns the largest magnitude.
inline float scale_values(const float* values, const float* scale, int n, float* scaled) {
  float largest = 0;
  for (int i = 0; i < n; ++i) {
    scaled[i] = scale == nullptr ? values[i] : values[i] * scale[i];
    largest = magnitude(scaled[i]) > largest ? magnitude(scaled[i]) : largest;
  }
  return largest;
}

inline int rounded(float x) {
  return static_cast<int>(x + (x < 0 ? -0.5F : 0.5F));
}

constexpr int kTokenStep = 32;
constexpr float kTiny = 1e-30F;

template <class Isa>
void prepare_query(const float* values, const float* scale, int group_channels, int blocks, bool whole,
                   bool sums, kvant::cpu::ByteQuery& query) {
  const int block_channels = 4 * group_channels, n = block_channels * blocks;
  float scaled[kvant::cpu::kMaxHeadDim];
  const float maximum = scale_values(values, scale, n, scaled);
  const auto limit = static_cast<float>(kvant::cpu::max_query_number(n));
  const float largest = whole ? limit : maximum;
  const float factor = largest < kTiny ? 0 : limit / largest;
  query.unit = largest < kTiny ? 0 : largest / limit;
  std::int32_t numbers[kvant::cpu::kMaxHeadDim];
  for (int i = 0; i < n; ++i) numbers[i] = rounded(scaled[i] * factor);
  for (int block = 0; block < blocks; ++block) {
    const std::int32_t* of_block = numbers + block * block_channels;
    Isa::pack_query(of_block, group_channels, query.quads + block * group_channels);
    if (!sums && !Isa::kSignedCodes) continue;
    std::int32_t sum = 0;
    for (int i = 0; i < block_channels; ++i) sum += of_block[i];
    query.block_sums[block] = sum;
  }
}

// Returns the number of tokens that fill whole registers.
constexpr int whole_registers(int tokens) {
  return tokens / kTokenStep * kTokenStep;
}

inline void add_scores(const std::int32_t* sums, const kvant::cpu::ScoreFactors& factors,
                       const kvant::cpu::TokenParameters& tokens, int first, int end, float* scores) {
  const auto [before, unit, q_sum, constant] = factors;
  const int n = whole_registers(end - first);
  sums += first;
  scores += first;
  for (int t = 0; t < n; ++t) {
    const float scale = tokens.scale == nullptr ? unit : unit * tokens.scale[first + t];
    scores[t] = (before ? scores[t] : 0.0F) + (static_cast<float>(sums[t]) * scale + constant);
  }
  if (tokens.offset == nullptr) return;
  for (int t = 0; t < n; ++t) scores[t] += q_sum * tokens.offset[first + t];
}

template <class Isa>
kvant::cpu::WeightSums prepare_weights(const float* weights, const kvant::cpu::TokenParameters& tokens,
                                       int first, int end, bool whole, kvant::cpu::ByteWeights& out) {
  const int n = whole_registers(end - first);
  weights += first;
  float scaled[kvant::cpu::kPageTokens];
  const float* scale = tokens.scale == nullptr || whole ? nullptr : tokens.scale + first;
  const float largest = scale_values(weights, scale, n, scaled);
  const float maximum =
      whole ? static_cast<float>(kvant::cpu::kWholeMax) : static_cast<float>(kvant::cpu::kMaxNumber);
  const float factor = largest < kTiny ? 0 : maximum / largest;
  out.unit = largest < kTiny ? 0 : largest / maximum;
  std::int32_t numbers[kvant::cpu::kPageTokens];
  std::int32_t sum = 0;
  for (int t = 0; t < n; ++t) {
    numbers[t] = rounded(scaled[t] * factor);
    sum += numbers[t];
  }
  out.sum = sum;
  for (int octet = 0; octet < n / 8; octet += 2)
    Isa::pack_weights(numbers + octet * 8, out.octets + first / 8 + octet);
  kvant::cpu::WeightSums sums{};
  if (tokens.offset != nullptr) {
    for (int t = 0; t < n; ++t) sums.offsets += weights[t] * tokens.offset[first + t];
  }
  if (whole) {
    sums.weights = static_cast<float>(sum) * out.unit;
  } else {
    for (int t = 0; t < n; ++t) sums.weights += weights[t];
  }
  return sums;
}
