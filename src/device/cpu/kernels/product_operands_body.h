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

inline float sum_of_squares(const float* x, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

// A rounding error is spread evenly over a step, so its variance is a twelfth of the square of the step.
constexpr float kRoundingVariance = 1.0F / 12;

// Tells whether a query becomes small numbers.
template <class Isa>
bool is_small(const float* values, int n, float maximum, float share) {
  if (!Isa::kSmallQueries || share == 0) return false;
  const float step = maximum / kvant::cpu::kMostSmallNumber;
  return kRoundingVariance * step * step * static_cast<float>(n) <= share * sum_of_squares(values, n);
}

template <class Isa>
void prepare_query(const float* values, const float* scale, int group_channels, int blocks,
                   const kvant::cpu::QueryRounding& rounding, kvant::cpu::ByteQuery& query) {
  const int block_channels = 4 * group_channels, n = block_channels * blocks;
  float scaled[kvant::cpu::kMaxHeadDim];
  const float maximum = scale_values(values, scale, n, scaled);
  query.small = !rounding.whole && is_small<Isa>(scaled, n, maximum, rounding.small_share);
  const auto limit =
      static_cast<float>(query.small ? kvant::cpu::kMostSmallNumber : kvant::cpu::max_query_number(n));
  const float largest = rounding.whole ? limit : maximum;
  const float factor = largest < kTiny ? 0 : limit / largest;
  query.unit = largest < kTiny ? 0 : largest / limit;
  std::int32_t numbers[kvant::cpu::kMaxHeadDim];
  for (int i = 0; i < n; ++i) numbers[i] = rounded(scaled[i] * factor);
  for (int block = 0; block < blocks; ++block) {
    const std::int32_t* of_block = numbers + block * block_channels;
    Isa::pack_query(of_block, group_channels, query.quads + block * group_channels);
    if (!rounding.sums && !Isa::kSignedCodes) continue;
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

// Describes weights * scale.
struct ScaledWeights {
  float largest = 0;  // the largest magnitude
  bool negative = false;
  float squares = 0;  // sum of squares
  kvant::cpu::WeightSums sums{};
};
// Stores weights * scale. The result also has the sums of the weights and of weights * offset.
template <class F>
ScaledWeights scale_weights(const float* weights, const float* scale, const float* offset, int n,
                            float* scaled) {
  using Lanes = typename F::Lanes;
  Lanes largest = F::zero(), opposite = F::zero(), squares = F::zero(), sum = F::zero(), offsets = F::zero();
  for (int t = 0; t < n; t += F::kLanes) {
    const Lanes weight = F::load(weights + t);
    const Lanes x = scale == nullptr ? weight : F::multiply(weight, F::load(scale + t));
    F::store(scaled + t, x);
    largest = F::maximum(largest, x);
    opposite = F::maximum(opposite, F::multiply(x, F::fill(-1)));
    squares = F::multiply_add(x, x, squares);
    sum = F::add(sum, weight);
    if (offset != nullptr) offsets = F::multiply_add(weight, F::load(offset + t), offsets);
  }
  const float above = F::largest(largest), below = F::largest(opposite);
  return {above > below ? above : below,
          below > 0,
          F::sum(squares),
          {F::sum(sum), offset == nullptr ? 0 : F::sum(offsets)}};
}

// Rounds weights to small numbers. A lane passes each rounding error on to its next weight, so errors add up
// to nearly 0, and many small weights do not vanish together. A weight of 0 stays 0, because errors are at
// most half a step.
template <class F>
void round_passing_errors(const float* scaled, float factor, int n, std::int32_t* numbers) {
  using Lanes = typename F::Lanes;
  Lanes error = F::zero();
  for (int t = 0; t < n; t += F::kLanes) {
    const Lanes x = F::multiply_add(F::load(scaled + t), F::fill(factor), error);
    error = F::add(x, F::multiply(F::store_rounded(numbers + t, x), F::fill(-1)));
  }
}
// A number's error is then the difference of two rounding errors.
constexpr float kPassedVariance = 2 * kRoundingVariance;

template <class Isa>
void pack_numbers(const std::int32_t* numbers, int first, int n, float unit, kvant::cpu::ByteWeights& out) {
  std::int32_t sum = 0;
  for (int t = 0; t < n; ++t) sum += numbers[t];
  out.sum = sum;
  out.unit = unit;
  for (int octet = 0; octet < n / 8; octet += 2)
    Isa::pack_weights(numbers + octet * 8, out.octets + first / 8 + octet);
}

// Rounds to integers of at most `most` in magnitude.
template <class Isa>
void round_weights(const float* scaled, float largest, int most, int first, int n,
                   kvant::cpu::ByteWeights& out) {
  const auto maximum = static_cast<float>(most);
  const float factor = largest < kTiny ? 0 : maximum / largest;
  std::int32_t numbers[kvant::cpu::kPageTokens];
  for (int t = 0; t < n; ++t) numbers[t] = rounded(scaled[t] * factor);
  pack_numbers<Isa>(numbers, first, n, largest < kTiny ? 0 : largest / maximum, out);
}

// Tells whether a page's weights become small numbers, and counts the costs.
inline bool takes_small(kvant::cpu::WeightRounding& rounding, const ScaledWeights& weights, float step,
                        int n) {
  rounding.squares += weights.squares;
  const float error = kPassedVariance * step * step * static_cast<float>(n);
  if (rounding.error + error > rounding.share * rounding.squares) return false;
  rounding.error += error;
  return true;
}

template <class Isa>
kvant::cpu::WeightSums prepare_weights(const float* weights, const kvant::cpu::TokenParameters& tokens,
                                       int first, int end, kvant::cpu::WeightRounding* rounding,
                                       kvant::cpu::ByteWeights& out) {
  using F = typename Isa::Floats;
  const int n = whole_registers(end - first);
  const auto from_first = [&](const float* values) { return values == nullptr ? nullptr : values + first; };
  float scaled[kvant::cpu::kPageTokens];
  const ScaledWeights of_page =
      scale_weights<F>(weights + first, from_first(tokens.scale), from_first(tokens.offset), n, scaled);
  out.small = false;
  if constexpr (Isa::kSmallWeights) {
    // A passed error of half a step must not exceed a byte.
    constexpr float kMost = Isa::kUnsignedWeights ? 254 : 126;
    const float unit = of_page.largest / kMost;
    out.small = rounding != nullptr && !of_page.negative && of_page.largest >= kTiny &&
                takes_small(*rounding, of_page, unit, n);
    if (out.small) {
      std::int32_t numbers[kvant::cpu::kPageTokens];
      round_passing_errors<F>(scaled, kMost / of_page.largest, n, numbers);
      pack_numbers<Isa>(numbers, first, n, unit, out);
      return of_page.sums;
    }
  }
  round_weights<Isa>(scaled, of_page.largest, kvant::cpu::kMaxNumber, first, n, out);
  return of_page.sums;
}

template <class Isa>
kvant::cpu::WeightSums prepare_whole_weights(const float* weights, const kvant::cpu::TokenParameters& tokens,
                                             int first, int end, kvant::cpu::ByteWeights& out) {
  const int n = whole_registers(end - first);
  float scaled[kvant::cpu::kPageTokens];
  const float largest = scale_values(weights + first, nullptr, n, scaled);
  round_weights<Isa>(scaled, largest, kvant::cpu::kWholeMax, first, n, out);
  out.small = true;
  kvant::cpu::WeightSums sums{static_cast<float>(out.sum) * out.unit, 0};
  for (int t = 0; t < n && tokens.offset != nullptr; ++t)
    sums.offsets += weights[first + t] * tokens.offset[first + t];
  return sums;
}
