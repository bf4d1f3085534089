// The kernels of byte_kernels.h over an instruction set `Isa`; included by one file for each set, in its own
// namespace.
//
// An Isa has: Bytes, a register of kBytes bytes; Codes, a register split as its products want it; Ints, the
// sums that belong to it; and
//   load, load_half            kBytes or the first kBytes / 2 bytes, the rest zero
//   shift_right<n>, shift_left<n>   within 32-bit lanes
//   fill(byte), both(a, b), select(mask, a, b): (a & mask) | (b & ~mask)
//   from_lane_before(x, y)     in 32-bit lanes: x one byte up, the last byte of y below
//   from_octet_before(x, first)  64-bit lanes one up, the 8 bytes at `first` below
//   LevelTable                 a table of up to 32 bytes; look_up(bytes)
//   kLargeTables               that there is a ByteTable, one of 256 bytes that is fast
//   state_levels<B, R>(planes, before)  levels (trellis_code.h) of the states at position R
//   split                      Codes of bytes
//   multiply_query(sums, codes, quad), multiply_weights(sums, codes, weights)
//   Weights, load_weights(octet)  those of 8 tokens
//   load_weights(lower, upper) those of each half of a register's groups, if it holds more than 4
//   kSmallWeights: that weights of one byte are faster; multiply_small_weights, if so
//   kMostPairedHeads           with which the sums of two registers of tokens fit
//   sums_from(number)          sums of one register that begin with `number`
//   store_lanes(sums, out)     one number for each 4 bytes
//   Floats, HalfFloats         registers of F32: Lanes, kLanes of them; store_sums: of four registers' lanes
//   add_octets<half>(sums, bias, factor, scale, out)  out[i] += factor * scale[i] * (both lanes of octet i -
//                              bias), half: of the first half of the octets; scale may be null
//   add_halves(sums, lower, upper, scale, out)  the same with a factor for each half of the octets, no bias
//   pack_query, pack_weights   numbers of 16 bits as multiply_query and multiply_weights want them
//   Centroids                  vector_expansion_body.h
#include "attention/cpu/byte_kernels.h"

// Loops over positions must unroll: their shifts are immediate operands.
#define KVANT_INLINE inline __attribute__((always_inline))

template <int N>
struct Constant {
  static constexpr int value = N;
};

template <int First, int End, class Body>
KVANT_INLINE void unroll(const Body& body) {
  if constexpr (First < End) {
    body(Constant<First>{});
    unroll<First + 1, End>(body);
  }
}

#include "attention/cpu/vector_expansion_body.h"

// The 8 bits of each group that begin at bit First of its bytes; `before`: the last byte of the group before.
template <class Isa, int First, int Planes>
KVANT_INLINE typename Isa::Bytes bits_from(const typename Isa::Bytes (&planes)[Planes],
                                           const typename Isa::Bytes& before) {
  constexpr int kByte = (First + 8) / 8 - 1;
  constexpr int kShift = First - kByte * 8;
  const auto& low = kByte < 0 ? before : planes[kByte < 0 ? 0 : kByte];
  if constexpr (kShift == 0) {
    return low;
  } else if constexpr (kByte + 1 == Planes) {
    return Isa::both(Isa::template shift_right<kShift>(low), Isa::fill(0xff >> kShift));
  } else {
    return Isa::select(Isa::fill(0xff >> kShift), Isa::template shift_right<kShift>(low),
                       Isa::template shift_left<8 - kShift>(planes[kByte + 1]));
  }
}

// The states of trellis codes (trellis.h) at position R.
template <class Isa, int B, int R>
KVANT_INLINE typename Isa::Bytes states(const typename Isa::Bytes (&planes)[B],
                                        const typename Isa::Bytes& before) {
  return bits_from<Isa, B*(R + 1) - kvant::kTrellisBits>(planes, before);
}

// Plain numbers of B bits. kBias: what a byte is more than the number it stands for.
template <class Isa, int B>
struct Numbers {
  static constexpr int kPlanes = B, kPositions = 8;
  static constexpr bool kNeedsBefore = false;
  static constexpr int kBias = 0;
  explicit Numbers(const kvant::cpu::CodePage&) {}
  template <int R>
  KVANT_INLINE typename Isa::Bytes at(const typename Isa::Bytes (&planes)[B],
                                      const typename Isa::Bytes& before) const {
    if constexpr (B == 8) {
      return planes[R];
    } else {
      constexpr int kShift = B * R % 8;
      if constexpr (kShift + B <= 8) {
        const auto& plane = planes[B * R / 8];
        return Isa::both(Isa::template shift_right<kShift>(plane), Isa::fill((1 << B) - 1));
      } else {
        return Isa::both(bits_from<Isa, B * R>(planes, before), Isa::fill((1 << B) - 1));
      }
    }
  }
};

template <class Isa, int B>
struct Levels {
  static constexpr int kPlanes = B, kPositions = 8, kBias = kvant::kTableBias;
  static constexpr bool kNeedsBefore = false;
  explicit Levels(const kvant::cpu::CodePage& page) : numbers(page), levels(page.table) {}
  template <int R>
  KVANT_INLINE typename Isa::Bytes at(const typename Isa::Bytes (&planes)[B],
                                      const typename Isa::Bytes& before) const {
    return levels.look_up(numbers.template at<R>(planes, before));
  }
  Numbers<Isa, B> numbers;
  typename Isa::template LevelTable<(B > 4)> levels;
};

template <class Isa, int B>
struct States {
  static constexpr int kPlanes = B, kPositions = 8, kBias = kvant::kTableBias;
  static constexpr bool kNeedsBefore = true;
  explicit States(const kvant::cpu::CodePage&) {}
  template <int R>
  KVANT_INLINE typename Isa::Bytes at(const typename Isa::Bytes (&planes)[B],
                                      const typename Isa::Bytes& before) const {
    return Isa::template state_levels<B, R>(planes, before);
  }
};

template <class Isa, int X>
struct Vectors {
  static constexpr int kPlanes = 1, kPositions = X, kBias = kvant::kTableBias;
  static constexpr bool kNeedsBefore = false;
  explicit Vectors(const kvant::cpu::CodePage& page) : table(page.table) {}
  template <int R>
  KVANT_INLINE typename Isa::Bytes at(const typename Isa::Bytes (&planes)[1],
                                      const typename Isa::Bytes&) const {
    return typename Isa::ByteTable(table + 256 * R).look_up(planes[0]);
  }
  const std::uint8_t* table;
};

// Bytes that have been looked up already (vector_expansion.h), as positions of X planes.
template <class Isa, int X>
struct Expanded {
  static constexpr int kPlanes = X, kPositions = X, kBias = kvant::kTableBias;
  static constexpr bool kNeedsBefore = false;
  explicit Expanded(const kvant::cpu::CodePage&) {}
  template <int R>
  KVANT_INLINE typename Isa::Bytes at(const typename Isa::Bytes (&planes)[X],
                                      const typename Isa::Bytes&) const {
    return planes[R];
  }
};

// How queries and weights lie where products are of 16-bit words: the even bytes of a register's codes, then
// the odd ones.
struct WordPacking {
  // A block of 4 groups: quads[r] holds number r of groups 0 and 2, and of groups 1 and 3.
  static void pack_query(const std::int32_t* numbers, int channels, std::uint32_t (*quads)[2]) {
    for (int r = 0; r < channels; ++r) {
      for (int odd = 0; odd < 2; ++odd) {
        quads[r][odd] = (static_cast<std::uint32_t>(numbers[odd * channels + r]) & 0xffffU) |
                        static_cast<std::uint32_t>(numbers[(2 + odd) * channels + r]) << 16;
      }
    }
  }
  // Two octets.
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

// How they lie where products are of bytes: high bytes, and the low ones that are left, both signed.
struct BytePacking {
  static constexpr std::int32_t high_byte(std::int32_t number) { return (number + 128) >> 8; }
  // A block of 4 groups: quads[r] holds number r of each group.
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

// Asks the memory for what comes after the page, line by line: part [i, i + n) of `parts`.
KVANT_INLINE void ask_for(const kvant::cpu::NextBytes& next, int i, int n, int parts) {
  constexpr std::ptrdiff_t kLine = 64;
  if (next.size == 0) return;
  const std::ptrdiff_t lines = (next.size + kLine - 1) / kLine + 1;  // it may begin within a line
  const std::ptrdiff_t end = lines * (i + n) / parts;
  for (std::ptrdiff_t line = lines * i / parts; line < end; ++line)
    __builtin_prefetch(next.bytes + line * kLine);
}

// The sum of a query's numbers.
inline std::int32_t number_sum(const kvant::cpu::ScoreTask& task, int head) {
  std::int32_t sum = 0;
  for (int block = task.first_block; block < task.end_block; ++block)
    sum += task.queries[head]->block_sums[block];
  return sum;
}

// Score: lanes are tokens, two registers of them at a time where they fit, which share what is loaded of the
// queries.
template <class Isa, class Kind, int H>
void score_heads(const kvant::cpu::ScoreTask& task) {
  using Bytes = typename Isa::Bytes;
  constexpr int P = Kind::kPlanes, X = Kind::kPositions, kLaneTokens = Isa::kBytes / 4;
  constexpr int L = H <= Isa::kMostPairedHeads ? 2 : 1, kStep = L * kLaneTokens;
  const Kind kind(task.page);
  const int n_blocks = task.page.groups / 4;
  const auto lane_bytes = [&](int block, int plane, int token) {
    const std::ptrdiff_t tile = static_cast<std::ptrdiff_t>(token / 16 * n_blocks + block) * P + plane;
    return Isa::load(task.page.codes + (tile * 16 + token % 16) * 4);
  };
  std::int32_t biases[H];
  for (int h = 0; h < H; ++h) biases[h] = Kind::kBias == 0 ? 0 : Kind::kBias * number_sum(task, h);
  for (int token = task.first_token; token < task.end_token; token += kStep) {
    ask_for(task.next, token - task.first_token, kStep, task.end_token - task.first_token);
    typename Isa::Ints sums[L][H];
    unroll<0, L * H>([&](auto i) __attribute__((always_inline)) {
      sums[decltype(i)::value / H][decltype(i)::value % H] = Isa::sums_from(-biases[decltype(i)::value % H]);
    });
    for (int block = task.first_block; block < task.end_block; ++block) {
      Bytes planes[L][P], before[L];
      for (int l = 0; l < L; ++l) {
        const int first = token + l * kLaneTokens;
        for (int p = 0; p < P; ++p) planes[l][p] = lane_bytes(block, p, first);
        before[l] = planes[l][0];
        if constexpr (Kind::kNeedsBefore) {
          const int last = (block + n_blocks - 1) % n_blocks;
          before[l] = Isa::from_lane_before(planes[l][P - 1], lane_bytes(last, P - 1, first));
        }
      }
      unroll<0, X>([&](auto r) __attribute__((always_inline)) {
        constexpr int R = decltype(r)::value;
        typename Isa::Codes codes[L];
        for (int l = 0; l < L; ++l) codes[l] = Isa::split(kind.template at<R>(planes[l], before[l]));
        unroll<0, H>([&](auto h) __attribute__((always_inline)) {
          const std::uint32_t* quad = task.queries[decltype(h)::value]->quads[block * X + R];
          unroll<0, L>([&](auto l) __attribute__((always_inline)) {
            Isa::multiply_query(sums[decltype(l)::value][decltype(h)::value], codes[decltype(l)::value],
                                quad);
          });
        });
      });
    }
    unroll<0, L * H>([&](auto i) __attribute__((always_inline)) {
      constexpr int kRegister = decltype(i)::value / H, kHead = decltype(i)::value % H;
      Isa::store_lanes(sums[kRegister][kHead], task.sums[kHead] + token + kRegister * kLaneTokens);
    });
  }
}

// Positions whose sums are kept in registers at the same time.
template <class Isa, class Kind, int H, bool Small>
constexpr int positions_at_once() {
  constexpr int kFit = Isa::kSumRegisters / (H * (Small ? 1 : Isa::kRegistersPerSum));
  constexpr int kPositions = Kind::kPositions;
  return kFit >= kPositions ? kPositions : kFit >= 4 ? (kPositions < 4 ? kPositions : 4) : kFit >= 2 ? 2 : 1;
}

// What a register of groups holds: groups that share weights, groups of two weights each in its half, or only
// half as many groups.
enum class Filling { one, two, half };

template <class Isa, Filling Fill>
KVANT_INLINE typename Isa::Weights load_weights(const kvant::cpu::ByteWeights* lower,
                                                const kvant::cpu::ByteWeights* upper, int octet) {
  if constexpr (Fill == Filling::two) {
    return Isa::load_weights(lower->octets[octet], upper->octets[octet]);
  } else {
    return Isa::load_weights(lower->octets[octet]);
  }
}

// Mix: lanes are groups of channels, 8 tokens each.
template <class Isa, class Kind, int H, bool Small, int First, int N, Filling Fill>
KVANT_INLINE void mix_positions(const kvant::cpu::MixTask& task, const Kind& kind, int group) {
  using Bytes = typename Isa::Bytes;
  constexpr int P = Kind::kPlanes;
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(task.page.groups) * 8;
  const auto load = [](const std::uint8_t* from) __attribute__((always_inline)) {
    if constexpr (Fill == Filling::half) return Isa::load_half(from);
    return Isa::load(from);
  };
  // Indexed by constants alone, sums stay in registers: GCC keeps a copy in memory otherwise.
  typename Isa::Ints sums[N][H];
  unroll<0, N * H>([&](auto i) __attribute__((always_inline)) {
    sums[decltype(i)::value / H][decltype(i)::value % H] = Isa::sums_from(0);
  });
  const kvant::cpu::ByteWeights *lower[H], *upper[H];
  for (int h = 0; h < H; ++h) {
    lower[h] = task.weights[h] + group / task.weight_groups;
    upper[h] = Fill == Filling::two ? task.weights[h] + (group + 4) / task.weight_groups : nullptr;
  }
  const int group_before = group == 0 ? task.page.groups - 1 : group - 1;
  for (int o = 0; o < task.n_octets; ++o) {
    const int octet = task.octets[o];
    if (First == 0 && group == 0) ask_for(task.next, o, 1, task.n_octets);
    const std::uint8_t* plane = task.page.codes + octet * P * row;
    Bytes planes[P];
    for (int p = 0; p < P; ++p) planes[p] = load(plane + p * row + group * 8);
    Bytes before = planes[0];
    if constexpr (Kind::kNeedsBefore) {
      before = Isa::from_octet_before(planes[P - 1], plane + (P - 1) * row + group_before * 8);
    }
    typename Isa::Codes codes[N];
    unroll<0, N>([&](auto i) __attribute__((always_inline)) {
      codes[decltype(i)::value] = Isa::split(kind.template at<First + decltype(i)::value>(planes, before));
    });
    // All positions share what is loaded of the weights.
    unroll<0, H>([&](auto h) __attribute__((always_inline)) {
      constexpr int kHead = decltype(h)::value;
      const auto weights = load_weights<Isa, Fill>(lower[kHead], upper[kHead], octet);
      unroll<0, N>([&](auto i) __attribute__((always_inline)) {
        constexpr int kPosition = decltype(i)::value;
        if constexpr (Small) {
          Isa::multiply_small_weights(sums[kPosition][kHead], codes[kPosition], weights);
        } else {
          Isa::multiply_weights(sums[kPosition][kHead], codes[kPosition], weights);
        }
      });
    });
  }
  unroll<0, N * H>([&](auto i) __attribute__((always_inline)) {
    constexpr int kPosition = decltype(i)::value / H, kHead = decltype(i)::value % H;
    const int at = (First + kPosition) * task.page.groups + group;
    const float* scale = task.channel_scale == nullptr ? nullptr : task.channel_scale + at;
    const auto& sum = sums[kPosition][kHead];
    float* out = task.out[kHead] + at;
    if constexpr (Fill == Filling::two) {
      Isa::add_halves(sum, lower[kHead]->unit, upper[kHead]->unit, scale, out);
    } else {
      Isa::template add_octets<Fill == Filling::half>(sum, Kind::kBias * lower[kHead]->sum,
                                                      lower[kHead]->unit, scale, out);
    }
  });
}

// All positions of a register of groups.
template <class Isa, class Kind, int H, bool Small, Filling Fill>
KVANT_INLINE void mix_groups(const kvant::cpu::MixTask& task, const Kind& kind, int group) {
  constexpr int kAtOnce = positions_at_once<Isa, Kind, H, Small>();
  unroll<0, Kind::kPositions / kAtOnce>([&](auto i) __attribute__((always_inline)) {
    mix_positions<Isa, Kind, H, Small, decltype(i)::value * kAtOnce, kAtOnce, Fill>(task, kind, group);
  });
}

template <class Isa, class Kind, int H, bool Small>
void mix_heads(const kvant::cpu::MixTask& task) {
  constexpr int kGroups = Isa::kBytes / 8;  // of a register
  constexpr bool kHalves = kGroups > 4;
  const Kind kind(task.page);
  for (int group = 0; group < task.page.groups;) {
    const bool fills = task.page.groups - group >= kGroups;
    const bool shares = task.weight_groups - group % task.weight_groups >= kGroups;
    if (!kHalves || (fills && shares)) {
      mix_groups<Isa, Kind, H, Small, Filling::one>(task, kind, group);
      group += kGroups;
    } else if constexpr (kHalves) {
      if (Kind::kBias == 0 && fills) {
        if constexpr (Kind::kBias == 0) mix_groups<Isa, Kind, H, Small, Filling::two>(task, kind, group);
        group += kGroups;
      } else {
        mix_groups<Isa, Kind, H, Small, Filling::half>(task, kind, group);
        group += kGroups / 2;
      }
    }
  }
}

// Calls run(heads), or run(kind), for what the task says.
template <class Isa, class Run>
void with_heads(int n_heads, const Run& run) {
  switch (n_heads) {
    case 1:
      return run(Constant<1>{});
    case 3:
      return run(Constant<3>{});
    default:
      return run(Constant<4>{});
  }
}

template <class Kind>
struct KindOf {
  using type = Kind;
};

template <class Isa, class Run>
void with_vectors(const kvant::cpu::CodePage& page, const Run& run) {
  switch (page.group_channels) {
    case 2:
      return run(KindOf<Vectors<Isa, 2>>{});
    case 4:
      return run(KindOf<Vectors<Isa, 4>>{});
    default:
      return run(KindOf<Vectors<Isa, 8>>{});
  }
}

template <class Isa, class Run>
void with_kind(const kvant::cpu::CodePage& page, const Run& run) {
  switch (page.meaning) {
    case kvant::CodeMeaning::number:
      switch (page.bits) {
        case 1:
          return run(KindOf<Numbers<Isa, 1>>{});
        case 2:
          return run(KindOf<Numbers<Isa, 2>>{});
        case 3:
          return run(KindOf<Numbers<Isa, 3>>{});
        case 4:
          return run(KindOf<Numbers<Isa, 4>>{});
        case 5:
          return run(KindOf<Numbers<Isa, 5>>{});
        case 6:
          return run(KindOf<Numbers<Isa, 6>>{});
        default:
          return run(KindOf<Numbers<Isa, 8>>{});
      }
    case kvant::CodeMeaning::level:
      switch (page.bits) {
        case 2:
          return run(KindOf<Levels<Isa, 2>>{});
        case 3:
          return run(KindOf<Levels<Isa, 3>>{});
        case 4:
          return run(KindOf<Levels<Isa, 4>>{});
        default:
          return run(KindOf<Levels<Isa, 5>>{});
      }
    case kvant::CodeMeaning::state:
      switch (page.bits) {
        case 1:
          return run(KindOf<States<Isa, 1>>{});
        case 2:
          return run(KindOf<States<Isa, 2>>{});
        case 3:
          return run(KindOf<States<Isa, 3>>{});
        case 4:
          return run(KindOf<States<Isa, 4>>{});
        case 5:
          return run(KindOf<States<Isa, 5>>{});
        default:
          return run(KindOf<States<Isa, 6>>{});
      }
    case kvant::CodeMeaning::vector:
      if constexpr (Isa::kLargeTables) return with_vectors<Isa>(page, run);
      [[fallthrough]];  // never, as they are expanded before
    case kvant::CodeMeaning::wide_vector:
      if (page.group_channels == 1) return run(KindOf<Expanded<Isa, 1>>{});
      return run(KindOf<Expanded<Isa, 4>>{});
  }
}

template <class Isa>
void score(const kvant::cpu::ScoreTask& task) {
  with_kind<Isa>(task.page, [&](auto kind) {
    with_heads<Isa>(task.n_heads, [&](auto heads) {
      score_heads<Isa, typename decltype(kind)::type, decltype(heads)::value>(task);
    });
  });
}

template <class Isa>
void mix(const kvant::cpu::MixTask& task) {
  with_kind<Isa>(task.page, [&](auto kind) {
    using Kind = typename decltype(kind)::type;
    with_heads<Isa>(task.n_heads, [&](auto heads) {
      if constexpr (Isa::kSmallWeights && Kind::kBias == 0) {
        if (task.small_weights) return mix_heads<Isa, Kind, decltype(heads)::value, true>(task);
      }
      mix_heads<Isa, Kind, decltype(heads)::value, false>(task);
    });
  });
}

inline float magnitude(float x) {
  return x < 0 ? -x : x;
}

// scaled[i] = values[i] * scale[i] (null: 1); the largest magnitude of them.
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
constexpr float kMostNumber = 32512;  // of a query or a weight: both of its bytes are then within -128 .. 127

template <class Isa>
void prepare_query(const float* values, const float* scale, int group_channels, int blocks, bool whole,
                   bool sums, kvant::cpu::ByteQuery& query) {
  const int block_channels = 4 * group_channels, n = block_channels * blocks;
  float scaled[kvant::cpu::kMostChannels];
  const float most = scale_values(values, scale, n, scaled);
  const float largest = whole ? kMostNumber : most;
  const float factor = largest < kTiny ? 0 : kMostNumber / largest;
  query.unit = largest < kTiny ? 0 : largest / kMostNumber;
  std::int32_t numbers[kvant::cpu::kMostChannels];
  for (int i = 0; i < n; ++i) numbers[i] = rounded(scaled[i] * factor);
  for (int block = 0; block < blocks; ++block) {
    const std::int32_t* of_block = numbers + block * block_channels;
    Isa::pack_query(of_block, group_channels, query.quads + block * group_channels);
    if (!sums) continue;
    std::int32_t sum = 0;
    for (int i = 0; i < block_channels; ++i) sum += of_block[i];
    query.block_sums[block] = sum;
  }
}

// Loops over tokens have whole registers to do.
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
  if (tokens.zero == nullptr) return;
  for (int t = 0; t < n; ++t) scores[t] += q_sum * tokens.zero[first + t];
}

template <class Isa>
kvant::cpu::WeightSums prepare_weights(const float* weights, const kvant::cpu::TokenParameters& tokens,
                                       int first, int end, bool whole, kvant::cpu::ByteWeights& out) {
  const int n = whole_registers(end - first);
  weights += first;
  float scaled[kvant::cpu::kTokens];
  const float* scale = tokens.scale == nullptr || whole ? nullptr : tokens.scale + first;
  const float largest = scale_values(weights, scale, n, scaled);
  const float most = whole ? static_cast<float>(kvant::cpu::kWholeMax) : kMostNumber;
  const float factor = largest < kTiny ? 0 : most / largest;
  out.unit = largest < kTiny ? 0 : largest / most;
  std::int32_t numbers[kvant::cpu::kTokens];
  std::int32_t sum = 0;
  for (int t = 0; t < n; ++t) {
    numbers[t] = rounded(scaled[t] * factor);
    sum += numbers[t];
  }
  out.sum = sum;
  for (int octet = 0; octet < n / 8; octet += 2)
    Isa::pack_weights(numbers + octet * 8, out.octets + first / 8 + octet);
  kvant::cpu::WeightSums sums{};
  if (tokens.zero != nullptr) {
    for (int t = 0; t < n; ++t) sums.zeros += weights[t] * tokens.zero[first + t];
  }
  if (whole) {
    sums.weights = static_cast<float>(sum) * out.unit;
  } else {
    for (int t = 0; t < n; ++t) sums.weights += weights[t];
  }
  return sums;
}

// n: a multiple of 8.
template <class Isa>
float dot(const float* a, const float* b, int n) {
  using F = typename Isa::HalfFloats;
  typename F::Lanes sums[2] = {F::zero(), F::zero()};
  for (int i = 0; i < n; i += F::kLanes) {
    auto& sum = sums[i / F::kLanes % 2];
    sum = F::multiply_add(F::load(a + i), F::load(b + i), sum);
  }
  return F::sum(F::add(sums[0], sums[1]));
}

template <class Isa>
float sum_of(const float* x, int n) {
  using F = typename Isa::HalfFloats;
  typename F::Lanes sum = F::zero();
  for (int i = 0; i < n; i += F::kLanes) sum = F::add(sum, F::load(x + i));
  return F::sum(sum);
}

#include "attention/cpu/row_products_body.h"

template <class Isa>
constexpr kvant::cpu::ByteKernels kernels_of(const char* name) {
  return {.name = name,
          .large_tables = Isa::kLargeTables,
          .expand = expansion_of<typename Isa::Centroids>(),
          .prepare_query = prepare_query<Isa>,
          .score = score<Isa>,
          .add_scores = add_scores,
          .prepare_weights = prepare_weights<Isa>,
          .mix = mix<Isa>,
          .score_rows = score_rows<Isa>,
          .mix_rows = mix_rows<Isa>,
          .dot = dot<Isa>,
          .sum = sum_of<Isa>};
}
