// Sums products of codes with queries (scores) and with weights (mixes), for any kind of codes in
// code_kinds_body.h. byte_kernels_body.h includes this header inside its namespace.

// Prefetches bytes that will be read soon, evenly over n_steps calls of step(). A processor awaits few cache
// lines at a time. A burst of prefetches would wait for free places, and the products would wait with the
// burst. Both halves of the bytes are prefetched side by side, because processors follow the reads of each 4
// KiB on their own, and then fetch further lines of both.
class Ahead {
 public:
  KVANT_INLINE Ahead(const kvant::cpu::NextBytes& next, int n_steps)
      : line_(next.bytes),
        half_((next.size + 2 * kLine - 1) / (2 * kLine) * kLine),
        end_(next.bytes + half_),
        lines_a_step_(static_cast<int>(half_ / kLine + n_steps - 1) / n_steps) {}
  KVANT_INLINE void step() {
    for (int i = 0; i < lines_a_step_ && line_ < end_; ++i, line_ += kLine) {
      __builtin_prefetch(line_);
      __builtin_prefetch(line_ + half_);
    }
  }

 private:
  static constexpr std::ptrdiff_t kLine = 64;
  const std::uint8_t* line_;
  std::ptrdiff_t half_;
  const std::uint8_t* end_;
  int lines_a_step_;
};

// Products of signed bytes need codes below 128. Codes of a kind that has larger bytes are therefore lowered
// by kLowered first.
template <class Isa, class Kind, bool Signed>
constexpr int kLowered = (Kind::kMaxByte > 127 && Signed) ? 128 : 0;
template <class Isa, class Kind, bool Signed = Isa::kSignedCodes>
constexpr int kBiasOf = Kind::kBias - kLowered<Isa, Kind, Signed>;
// Tells whether a mix multiplies signed codes.
template <class Isa, bool Small>
constexpr bool kMixesSigned = Isa::kSignedCodes || (Small && Isa::kUnsignedWeights);
template <class Isa, class Kind, int R, bool Signed = Isa::kSignedCodes>
KVANT_INLINE typename Isa::Bytes bytes_at(const Kind& kind,
                                          const typename Isa::Bytes (&planes)[Kind::kPlanes],
                                          const typename Isa::Bytes& before) {
  if constexpr (kLowered<Isa, Kind, Signed> != 0) {
    return Isa::lower(kind.template at<R>(planes, before));
  } else {
    return kind.template at<R>(planes, before);
  }
}

// Returns the sum of the query's numbers in the task's blocks.
inline std::int32_t number_sum(const kvant::cpu::ScoreTask& task, int head) {
  std::int32_t sum = 0;
  for (int block = task.first_block; block < task.end_block; ++block)
    sum += task.queries[head]->block_sums[block];
  return sum;
}

// Computes scores with one token per lane. If the sums fit into registers, two registers of tokens share the
// loaded numbers of the queries.
template <class Isa, class Kind, int H, bool Small>
void score_heads(const kvant::cpu::ScoreTask& task) {
  using Bytes = typename Isa::Bytes;
  constexpr int P = Kind::kPlanes, X = Kind::kPositions, kLaneTokens = Isa::kBytes / 4;
  constexpr int L = H <= Isa::kMaxPairedHeads ? 2 : 1, kStep = L * kLaneTokens;
  const Kind kind(task.page);
  const int n_blocks = task.page.groups / 4;
  const auto lane_bytes = [&](int block, int plane, int token) {
    const std::ptrdiff_t tile = static_cast<std::ptrdiff_t>(token / 16 * n_blocks + block) * P + plane;
    return Isa::load(task.page.codes + (tile * 16 + token % 16) * 4);
  };
  std::int32_t biases[H];
  for (int h = 0; h < H; ++h)
    biases[h] = kBiasOf<Isa, Kind> == 0 ? 0 : kBiasOf<Isa, Kind> * number_sum(task, h);
  Ahead ahead(task.next, (task.end_token - task.first_token) / kStep * (task.end_block - task.first_block));
  for (int token = task.first_token; token < task.end_token; token += kStep) {
    typename Isa::Ints sums[L][H];
    unroll<L * H>([&](auto i) __attribute__((always_inline)) {
      sums[decltype(i)::value / H][decltype(i)::value % H] = Isa::sums_from(-biases[decltype(i)::value % H]);
    });
    for (int block = task.first_block; block < task.end_block; ++block) {
      ahead.step();
      Bytes planes[L][P], before[L];
      for (int l = 0; l < L; ++l) {
        const int first = token + l * kLaneTokens;
        for (int p = 0; p < P; ++p) planes[l][p] = lane_bytes(block, p, first);
        before[l] = planes[l][0];
        if constexpr (Kind::kNeedsBefore) {
          const int last = (block == 0 ? n_blocks : block) - 1;
          before[l] = Isa::from_lane_before(planes[l][P - 1], lane_bytes(last, P - 1, first));
        }
      }
      unroll<X>([&](auto r) __attribute__((always_inline)) {
        constexpr int R = decltype(r)::value;
        typename Isa::Codes codes[L];
        for (int l = 0; l < L; ++l) codes[l] = Isa::split(bytes_at<Isa, Kind, R>(kind, planes[l], before[l]));
        unroll<H>([&](auto h) __attribute__((always_inline)) {
          const std::uint32_t* quad = task.queries[decltype(h)::value]->quads[block * X + R];
          unroll<L>([&](auto l) __attribute__((always_inline)) {
            auto& sum = sums[decltype(l)::value][decltype(h)::value];
            if constexpr (Small) {
              Isa::multiply_small_query(sum, codes[decltype(l)::value], quad);
            } else {
              Isa::multiply_query(sum, codes[decltype(l)::value], quad);
            }
          });
        });
      });
    }
    unroll<L * H>([&](auto i) __attribute__((always_inline)) {
      constexpr int kRegister = decltype(i)::value / H, kHead = decltype(i)::value % H;
      Isa::store_lanes(sums[kRegister][kHead], task.sums[kHead] + token + kRegister * kLaneTokens);
    });
  }
}

// Returns how many positions can keep their sums in registers at the same time.
template <class Isa, class Kind, int H, bool Small>
constexpr int positions_at_once() {
  constexpr int kFit = Isa::kSumRegisters / (H * (Small ? 1 : Isa::kRegistersPerSum));
  constexpr int kPositions = Kind::kPositions;
  return kFit >= kPositions ? kPositions : kFit >= 4 ? (kPositions < 4 ? kPositions : 4) : kFit >= 2 ? 2 : 1;
}

// Tells whether all groups of a register share their weights (`one`), or each half of the register has its
// own (`two`).
enum class Filling { one, two };

// Lists what a mix reads, octet after octet. Lists side by side need fewer registers in the loop than the
// tables that they come from. All registers of groups that share the weights of `group` share the list.
template <class Isa, int H, Filling Fill>
class MixedOctets {
 public:
  MixedOctets(const kvant::cpu::MixTask& task, int planes, int group) {
    for (int o = 0; o < task.n_octets; ++o) {
      const int octet = task.octets[o];
      codes[o] = task.page.codes + static_cast<std::ptrdiff_t>(octet) * planes * task.page.groups * 8;
      for (int h = 0; h < H; ++h) {
        for (int half = 0; half < kHalves; ++half) {
          const auto& from = task.weights[h][(group + 4 * half) / task.weight_groups].octets[octet];
          for (int i = 0; i < 2; ++i) weights_[o][h][half][i] = from[i];
        }
      }
    }
  }
  KVANT_INLINE typename Isa::Weights weights(int o, int head) const {
    if constexpr (Fill == Filling::two) {
      return Isa::load_weights(weights_[o][head][0], weights_[o][head][1]);
    } else {
      return Isa::load_weights(weights_[o][head][0]);
    }
  }
  const std::uint8_t* codes[kvant::kPageTokens / 8];

 private:
  static constexpr int kHalves = Fill == Filling::two ? 2 : 1;
  std::uint64_t weights_[kvant::kPageTokens / 8][H][kHalves][2];
};

template <class Isa>
constexpr bool kAddsPairs = requires {
  &Isa::add_octet_pairs;
};

// Mixes N positions of n_groups groups of channels. A lane of 64 bits holds 8 tokens of one group.
template <class Isa, class Kind, int H, bool Small, int First, int N, Filling Fill>
KVANT_INLINE void mix_positions(const kvant::cpu::MixTask& task, const Kind& kind, int group, int n_groups,
                                const MixedOctets<Isa, H, Fill>& octets, Ahead& ahead) {
  using Bytes = typename Isa::Bytes;
  constexpr int P = Kind::kPlanes;
  constexpr bool kSigned = kMixesSigned<Isa, Small>;
  constexpr int kBias = kBiasOf<Isa, Kind, kSigned>;
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(task.page.groups) * 8;
  const typename Isa::Groups groups = Isa::first_groups(n_groups);
  // Constant indices keep the sums in registers; with other indices GCC keeps a copy in memory.
  typename Isa::MixInts sums[N][H];
  unroll<N * H>([&](auto i) __attribute__((always_inline)) {
    sums[decltype(i)::value / H][decltype(i)::value % H] = Isa::no_mix_sums();
  });
  const kvant::cpu::ByteWeights *lower[H], *upper[H];
  for (int h = 0; h < H; ++h) {
    lower[h] = task.weights[h] + group / task.weight_groups;
    upper[h] = Fill == Filling::two ? task.weights[h] + (group + 4) / task.weight_groups : nullptr;
  }
  const int group_before = group == 0 ? task.page.groups - 1 : group - 1;
  for (int o = 0; o < task.n_octets; ++o) {
    ahead.step();
    const std::uint8_t* plane = octets.codes[o];
    Bytes planes[P];
    for (int p = 0; p < P; ++p) planes[p] = Isa::load_groups(plane + p * row + group * 8, groups);
    Bytes before = planes[0];
    if constexpr (Kind::kNeedsBefore) {
      before = Isa::from_octet_before(planes[P - 1], plane + (P - 1) * row + group_before * 8);
    }
    typename Isa::Codes codes[N];
    unroll<N>([&](auto i) __attribute__((always_inline)) {
      codes[decltype(i)::value] =
          Isa::split(bytes_at<Isa, Kind, First + decltype(i)::value, kSigned>(kind, planes, before));
    });
    // All positions share the loaded weights.
    unroll<H>([&](auto h) __attribute__((always_inline)) {
      constexpr int kHead = decltype(h)::value;
      const auto weights = octets.weights(o, kHead);
      unroll<N>([&](auto i) __attribute__((always_inline)) {
        constexpr int kPosition = decltype(i)::value;
        if constexpr (Small) {
          Isa::multiply_small_weights(sums[kPosition][kHead], codes[kPosition], weights);
        } else {
          Isa::multiply_weights(sums[kPosition][kHead], codes[kPosition], weights);
        }
      });
    });
  }
  // Two positions at a time are added to `out`, because half of the lanes are free once those of an octet are
  // added up.
  constexpr bool kPairs = Fill == Filling::one && N % 2 == 0 && kAddsPairs<Isa>;
  unroll<N * H>([&](auto i) __attribute__((always_inline)) {
    constexpr int kPosition = decltype(i)::value / H, kHead = decltype(i)::value % H;
    const int at = (First + kPosition) * task.page.groups + group;
    const float* scale = task.channel_scale == nullptr ? nullptr : task.channel_scale + at;
    const auto& sum = sums[kPosition][kHead];
    float* out = task.out[kHead] + at;
    if constexpr (Fill == Filling::two) {
      Isa::add_halves(sum, lower[kHead]->unit, upper[kHead]->unit, scale, out);
    } else if constexpr (!kPairs) {
      Isa::add_octets(sum, kBias * lower[kHead]->sum, lower[kHead]->unit, scale, out, groups);
    } else if constexpr (kPosition % 2 == 0) {
      Isa::add_octet_pairs(sum, sums[kPosition + 1][kHead], kBias * lower[kHead]->sum, lower[kHead]->unit,
                           scale, out, task.page.groups, groups);
    }
  });
}

// Mixes all positions of a register of groups.
template <class Isa, class Kind, int H, bool Small, Filling Fill>
KVANT_INLINE void mix_groups(const kvant::cpu::MixTask& task, const Kind& kind, int group, int n_groups,
                             const MixedOctets<Isa, H, Fill>& octets, Ahead& ahead) {
  constexpr int kAtOnce = positions_at_once<Isa, Kind, H, Small>();
  unroll<Kind::kPositions / kAtOnce>([&](auto i) __attribute__((always_inline)) {
    mix_positions<Isa, Kind, H, Small, decltype(i)::value * kAtOnce, kAtOnce, Fill>(task, kind, group,
                                                                                    n_groups, octets, ahead);
  });
}

template <class Isa, class Kind, int H, bool Small>
void mix_heads(const kvant::cpu::MixTask& task) {
  constexpr int kGroups = Isa::kBytes / 8;  // groups in a register
  constexpr bool kHalves = kGroups > 4;
  constexpr bool kMixesHalves =
      kHalves && Kind::kBias == 0 && kBiasOf<Isa, Kind, kMixesSigned<Isa, Small>> == 0;
  constexpr int kPasses = Kind::kPositions / positions_at_once<Isa, Kind, H, Small>();
  const Kind kind(task.page);
  const int n_groups = task.page.groups;
  Ahead ahead(task.next, (n_groups + kGroups - 1) / kGroups * kPasses * task.n_octets);
  for (int group = 0; group < n_groups;) {
    // Groups before `end` share the weights of `group`.
    const int end = group - group % task.weight_groups + task.weight_groups;
    if constexpr (kMixesHalves) {
      if (n_groups - group >= kGroups && end - group < kGroups) {
        mix_groups<Isa, Kind, H, Small, Filling::two>(task, kind, group, kGroups,
                                                      {task, Kind::kPlanes, group}, ahead);
        group += kGroups;
        continue;
      }
    }
    const MixedOctets<Isa, H, Filling::one> octets(task, Kind::kPlanes, group);
    const int whole = kHalves ? (end - group) / kGroups * kGroups : end - group;
    for (const int to = group + (whole > 0 ? whole : kGroups / 2); group < to;) {
      const int n = whole > 0 ? kGroups : kGroups / 2;
      mix_groups<Isa, Kind, H, Small, Filling::one>(task, kind, group, n, octets, ahead);
      group += n;
    }
  }
}
