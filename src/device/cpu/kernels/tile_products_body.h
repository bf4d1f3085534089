// Multiplies tiles of many queries with the codes of a page (TileKernels). byte_kernels_body.h includes this
// header inside its namespace.

template <class Isa, class Kind>
void expand_scores(const kvant::cpu::CodePage& page, std::uint8_t* bytes) {
  using Bytes = typename Isa::Bytes;
  constexpr int P = Kind::kPlanes, X = Kind::kPositions, kLaneTokens = Isa::kBytes / 4;
  const Kind kind(page);
  const int n_blocks = page.groups / 4;
  const auto lane_bytes = [&](int block, int plane, int token) {
    const std::ptrdiff_t tile = static_cast<std::ptrdiff_t>(token / 16 * n_blocks + block) * P + plane;
    return Isa::load(page.codes + (tile * 16 + token % 16) * 4);
  };
  for (int token = 0; token < kvant::cpu::kPageTokens; token += kLaneTokens) {
    for (int block = 0; block < n_blocks; ++block) {
      Bytes planes[P];
      for (int p = 0; p < P; ++p) planes[p] = lane_bytes(block, p, token);
      Bytes before = planes[0];
      if constexpr (Kind::kNeedsBefore)
        before =
            Isa::from_lane_before(planes[P - 1], lane_bytes((block + n_blocks - 1) % n_blocks, P - 1, token));
      unroll<X>([&](auto r) __attribute__((always_inline)) {
        constexpr int R = decltype(r)::value;
        const std::ptrdiff_t quad = block * X + R;
        Isa::store(bytes + (quad * kvant::cpu::kPageTokens + token) * 4,
                   bytes_at<Isa, Kind, R>(kind, planes, before));
      });
    }
  }
}

template <class Isa, class Kind>
void expand_mix(const kvant::cpu::CodePage& page, std::uint8_t* bytes) {
  using Bytes = typename Isa::Bytes;
  constexpr int P = Kind::kPlanes, X = Kind::kPositions, kGroups = Isa::kBytes / 8;
  const Kind kind(page);
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(page.groups) * 8, d = page.groups * X;
  for (int octet = 0; octet < kvant::cpu::kPageTokens / 8; ++octet) {
    const std::uint8_t* plane = page.codes + octet * P * row;
    for (int group = 0; group < page.groups; group += kGroups) {
      const int n_groups = page.groups - group < kGroups ? page.groups - group : kGroups;
      const auto groups = Isa::first_groups(n_groups);
      Bytes planes[P];
      for (int p = 0; p < P; ++p) planes[p] = Isa::load_groups(plane + p * row + group * 8, groups);
      Bytes before = planes[0];
      if constexpr (Kind::kNeedsBefore) {
        const int group_before = group == 0 ? page.groups - 1 : group - 1;
        before = Isa::from_octet_before(planes[P - 1], plane + (P - 1) * row + group_before * 8);
      }
      std::uint32_t halves[X][kGroups][2];  // The 8 tokens of each group.
      unroll<X>([&](auto r) __attribute__((always_inline)) {
        constexpr int R = decltype(r)::value;
        Isa::store(halves[R], bytes_at<Isa, Kind, R>(kind, planes, before));
      });
      for (int half = 0; half < 2; ++half) {
        std::uint8_t* to = bytes + ((2 * octet + half) * d + group * X) * 4;
        for (int g = 0; g < n_groups; ++g) {
          std::uint32_t quads[X];
          for (int r = 0; r < X; ++r) quads[r] = halves[r][g][half];
          __builtin_memcpy(to + static_cast<std::ptrdiff_t>(g) * sizeof quads, quads, sizeof quads);
        }
      }
    }
  }
}

// Calls run(kind) for codes that are numbers or states.
template <class Isa, class Run>
void with_exact_kind(const kvant::cpu::CodePage& page, const Run& run) {
  with_kind<Isa>(page, [&](auto kind) {
    using Kind = typename decltype(kind)::type;
    if constexpr (Kind::kIsExact) run(kind);
  });
}

template <class Isa>
void expand_for_scores(const kvant::cpu::CodePage& page, std::uint8_t* bytes) {
  with_exact_kind<Isa>(page,
                       [&](auto kind) { expand_scores<Isa, typename decltype(kind)::type>(page, bytes); });
}

template <class Isa>
void expand_for_mix(const kvant::cpu::CodePage& page, std::uint8_t* bytes) {
  with_exact_kind<Isa>(page, [&](auto kind) { expand_mix<Isa, typename decltype(kind)::type>(page, bytes); });
}

// Multiplies one quad of a tile at a time, as decode does. An Isa whose products take more quads at once
// specializes this class.
template <class Isa>
struct TileQuads {
  static constexpr int kQuads = 1;
  using Sums = typename Isa::Ints;
  using Codes = typename Isa::Codes;
  static KVANT_INLINE Sums sums_from(std::int32_t number) { return Isa::sums_from(number); }
  // Loads a register of lanes. Quads are `quad_bytes` apart.
  static KVANT_INLINE Codes load(const std::uint8_t* bytes, std::ptrdiff_t /*quad_bytes*/) {
    return Isa::split(Isa::load(bytes));
  }
  static KVANT_INLINE void multiply(Sums& sums, const Codes& codes, const std::uint32_t (*of_row)[2]) {
    Isa::multiply_query(sums, codes, *of_row);
  }
  static KVANT_INLINE auto to_floats(const Sums& sums) { return Isa::to_floats(sums); }
};

// Multiplies R rows with L registers of lanes from `lane` on.
template <class Isa, int R, int L>
KVANT_INLINE void multiply_strip(const kvant::cpu::TileTask& task, int row, int lane) {
  using F = typename Isa::Floats;
  using Quads = TileQuads<Isa>;
  constexpr int kLanes = Isa::kBytes / 4;
  static_assert(kLanes == F::kLanes);
  typename Quads::Sums sums[R][L];
  unroll<R * L>([&](auto i) __attribute__((always_inline)) {
    sums[decltype(i)::value / L][decltype(i)::value % L] =
        Quads::sums_from(-task.factors[row + decltype(i)::value / L].bias);
  });
  const kvant::cpu::ByteQuery* numbers = task.numbers + row;
  const std::ptrdiff_t quad_bytes = static_cast<std::ptrdiff_t>(task.lanes) * 4;
  const std::uint8_t* bytes = task.bytes + task.first_quad * quad_bytes + lane * 4;
  for (int quad = task.first_quad; quad < task.end_quad;
       quad += Quads::kQuads, bytes += Quads::kQuads * quad_bytes) {
    typename Quads::Codes codes[L];
    unroll<L>([&](auto l) __attribute__((always_inline)) {
      codes[decltype(l)::value] = Quads::load(bytes + decltype(l)::value * Isa::kBytes, quad_bytes);
    });
    unroll<R>([&](auto r) __attribute__((always_inline)) {
      const std::uint32_t(*of_row)[2] = numbers[decltype(r)::value].quads + quad;
      unroll<L>([&](auto l) __attribute__((always_inline)) {
        Quads::multiply(sums[decltype(r)::value][decltype(l)::value], codes[decltype(l)::value], of_row);
      });
    });
  }
  unroll<R * L>([&](auto i) __attribute__((always_inline)) {
    constexpr int kRow = decltype(i)::value / L, kRegister = decltype(i)::value % L;
    const kvant::cpu::RowFactors& factors = task.factors[row + kRow];
    const int first = lane + kRegister * kLanes;
    float* out = task.out + (row + kRow) * task.stride + first;
    auto rest = F::fill(factors.constant);
    if (task.before) rest = F::add(rest, F::load(out));
    if (task.lane_offset != nullptr)
      rest = F::multiply_add(F::fill(factors.offset), F::load(task.lane_offset + first), rest);
    auto unit = F::fill(factors.unit);
    if (task.scale != nullptr) unit = F::multiply(unit, F::load(task.scale + first));
    F::store(out, F::multiply_add(Quads::to_floats(sums[kRow][kRegister]), unit, rest));
  });
}

template <class Isa, int R>
KVANT_INLINE void multiply_rows(const kvant::cpu::TileTask& task, int row) {
  constexpr int kLanes = Isa::kBytes / 4, kMany = Isa::kTileRegisters;
  int lane = task.first_lane;
  for (; lane + kMany * kLanes <= task.end_lane; lane += kMany * kLanes)
    multiply_strip<Isa, R, kMany>(task, row, lane);
  for (; lane < task.end_lane; lane += kLanes) multiply_strip<Isa, R, 1>(task, row, lane);
}

template <class Isa>
void multiply_tile(const kvant::cpu::TileTask& of_caller) {
  // Results might overwrite the caller's task as far as the compiler knows, so it would read the task again
  // after each result.
  const kvant::cpu::TileTask task = of_caller;
  int row = 0;
  for (; row + Isa::kTileRows <= task.n_rows; row += Isa::kTileRows)
    multiply_rows<Isa, Isa::kTileRows>(task, row);
  for (; row < task.n_rows; ++row) multiply_rows<Isa, 1>(task, row);
}

// exp(x) is 2^n * exp(f) with n = round(x / ln 2) and f = x - n ln 2. The constant ln 2 is split into two
// parts for accuracy. An x below kLowestExponent, including -infinity, counts as kLowestExponent.
constexpr float kLog2e = 1.44269504F, kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
constexpr float kLowestExponent = -87;

// Evaluates the polynomial of exp_series.h with fused steps.
template <class F>
KVANT_INLINE typename F::Lanes exp_polynomial(typename F::Lanes f) {
  auto p = F::multiply_add(F::fill(1.0F / 720), f, F::fill(1.0F / 120));
  p = F::multiply_add(p, f, F::fill(1.0F / 24));
  p = F::multiply_add(p, f, F::fill(1.0F / 6));
  p = F::multiply_add(p, f, F::fill(0.5F));
  p = F::multiply_add(p, f, F::fill(1.0F));
  return F::multiply_add(p, f, F::fill(1.0F));
}

template <class Isa>
float largest_score(const float* scores) {
  using F = typename Isa::Floats;
  auto largest = F::load(scores);
  for (int t = F::kLanes; t < kvant::cpu::kPageTokens; t += F::kLanes)
    largest = F::maximum(largest, F::load(scores + t));
  return F::largest(largest);
}

template <class Isa>
float exponentials(float* scores, float max) {
  using F = typename Isa::Floats;
  const auto below = F::fill(-max);
  auto sum = F::zero();
  for (int t = 0; t < kvant::cpu::kPageTokens; t += F::kLanes) {
    const auto weight = F::exponential(F::add(F::load(scores + t), below));
    sum = F::add(sum, weight);
    F::store(scores + t, weight);
  }
  return F::sum(sum);
}

template <class Isa>
kvant::cpu::WeightSums prepare_tile_weights(const float* weights, const kvant::cpu::TokenParameters& tokens,
                                            int first, int end, float bound, kvant::cpu::ByteQuery& out) {
  using F = typename Isa::Floats;
  const float factor = bound < kTiny ? 0 : static_cast<float>(kvant::cpu::kMaxNumber) / bound;
  out.unit = bound < kTiny ? 0 : bound / static_cast<float>(kvant::cpu::kMaxNumber);
  const auto by = F::fill(factor);
  std::int32_t numbers[kvant::cpu::kPageTokens];
  auto sum = F::zero(), offsets = F::zero(), of_numbers = F::zero();
  for (int t = first; t < end; t += F::kLanes) {
    const auto weight = F::load(weights + t);
    sum = F::add(sum, weight);
    if (tokens.offset != nullptr) offsets = F::multiply_add(weight, F::load(tokens.offset + t), offsets);
    auto scaled = F::multiply(weight, by);
    if (tokens.scale != nullptr) scaled = F::multiply(scaled, F::load(tokens.scale + t));
    of_numbers = F::add(of_numbers, F::store_rounded(numbers + t, scaled));
  }
  for (int t = first; t < end; t += 16) Isa::pack_quads(numbers + t, out.quads + t / 4);
  // The sum is below 2^24 and therefore exact.
  out.block_sums[0] = static_cast<std::int32_t>(F::sum(of_numbers));
  return {F::sum(sum), F::sum(offsets)};
}

template <class Isa>
constexpr kvant::cpu::TileKernels tile_kernels_of() {
  if constexpr (Isa::kTileRows == 0) {
    return {};
  } else {
    return {.signed_codes = Isa::kSignedCodes,
            .expand_for_scores = expand_for_scores<Isa>,
            .expand_for_mix = expand_for_mix<Isa>,
            .multiply = multiply_tile<Isa>,
            .largest = largest_score<Isa>,
            .exponentials = exponentials<Isa>,
            .prepare_weights = prepare_tile_weights<Isa>};
  }
}
