// Defines the layout of a trellis's states in vectors of 32-bit lanes, for the search of shaped_search.h. One
// file for each instruction set includes this file in its own namespace, which provides:
//   kLanes, Ints             a vector and its number of lanes
//   load(from), store(to, x) loads and stores in aligned memory
//   Layout<B>                VectorLayout<B> and
//     kRows                    the number of rows that are searched side by side
//     node_at(phase, r, lane)  the node in a lane of register r
//     state_at(next_phase, r, v, lane)  the state of a lane in branch vector v to register r of the next
//     phase

constexpr int kStates = 256;
constexpr int kPairs = kMetricRank / 2;

template <int B>
struct Layout;

template <int B>
struct VectorLayout {
  static constexpr int kNodes = kStates >> B;
  static constexpr int kMemory = 8 - B;  // bits of a node
  static constexpr std::uint32_t kChoice = (1U << B) - 1;
  // If there are fewer nodes than lanes, a register repeats the nodes.
  static constexpr int kRegisters = kNodes > kLanes ? kNodes / kLanes : 1;
  static constexpr int kStride = kRegisters * kLanes;
  static constexpr int kVectors = kStates / kStride;  // vectors of branches to the nodes of one register
  // With 2 bits, the layout of nodes in registers and lanes changes from step to step. After three steps the
  // layout repeats.
  static constexpr int kPhases = B == 2 ? 3 : 1;

  // Returns where the trace holds a lane's choice. With 1 and 2 bits, the order is that in which pack
  // instructions join four registers.
  static int place_in_trace(int r, int lane) {
    if constexpr (B >= 3) return r * kLanes + lane;
    return r / 4 * 4 * kLanes + lane / 4 * 16 + r % 4 * 4 + lane % 4;
  }
};

template <int B>
struct Tables {
  using L = Layout<B>;
  static constexpr int kFours = B == 3 ? 2 : 0;
  static constexpr int kChoices = B < 3 ? 1 << B : 0;
  // `levels` holds factors_of_level() of each branch's level.
  alignas(64) std::int32_t levels[L::kPhases][L::kRegisters][L::kVectors][kLanes];
  alignas(64) std::uint32_t nodes[L::kPhases][L::kStride];
  // `choices` holds the bits of a cost that identify each node as a parent.
  alignas(64) std::uint32_t choices[L::kPhases][L::kStride];
  // With 3 bits, a lane of fours[..][i] holds the levels of its node's states 4 i to 4 i + 3.
  alignas(64) std::int8_t fours[L::kPhases][L::kRegisters][kFours + 1][kLanes][4];
  // With 1 and 2 bits, by_choice[..][k] holds the levels of the states whose lowest bits are k, in the
  // trace's order.
  alignas(64) std::int8_t by_choice[L::kPhases][kChoices + 1][L::kStride];
  std::uint8_t places[L::kPhases][L::kNodes];  // place of each node in the trace

  explicit Tables(const ShapedCode& code) {
    for (int phase = 0; phase < L::kPhases; ++phase) {
      for (int r = 0; r < L::kRegisters; ++r) {
        for (int lane = 0; lane < kLanes; ++lane) {
          const int node = L::node_at(phase, r, lane), place = r * kLanes + lane;
          nodes[phase][place] = static_cast<std::uint32_t>(node);
          choices[phase][place] = static_cast<std::uint32_t>(node) & L::kChoice;
          places[phase][node] = static_cast<std::uint8_t>(L::place_in_trace(r, lane));
          for (int k = 0; k < kChoices; ++k)
            by_choice[phase][k][L::place_in_trace(r, lane)] = code.levels[node << B | k];
          for (int v = 0; v < L::kVectors; ++v)
            levels[phase][r][v][lane] =
                factors_of_level(code.levels[L::state_at(phase, r, v, lane)], code.level_shift);
          for (int four = 0; four < kFours; ++four)
            for (int k = 0; k < 4; ++k)
              fours[phase][r][four][lane][k] = code.levels[node << B | (four * 4 + k) % (1 << B)];
        }
      }
    }
  }
};

// Holds one number in all lanes.
struct alignas(64) Lanes {
  std::int32_t of[kLanes];

  explicit Lanes(int x) {
    for (std::int32_t& lane : of) lane = x;
  }
};
[[gnu::always_inline]] inline Ints load(const Lanes& lanes) {
  return load(lanes.of);
}

// Holds the surviving paths, indexed by their place in the registers.
template <int B>
struct Survivors {
  alignas(64) std::uint32_t cost[Layout<B>::kStride];
  alignas(64) std::int32_t along[kPairs][Layout<B>::kStride];
};
