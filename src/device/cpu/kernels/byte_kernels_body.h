// Implements the kernels of byte_kernels.h once, over a class `Isa` that wraps an instruction set. The file
// of each instruction set defines its Isa and includes this header inside its own namespace.
//
// An Isa has three types. Bytes is a register of kBytes bytes, Codes a register in the form that the products
// need, and Ints the sums of these products. An Isa also has these members:
//
//   load                       loads kBytes bytes
//   Groups, first_groups(n)    select the first n groups of 8 bytes of a register; n is 4 or all
//   load_groups(from, groups)  loads the bytes of the selected groups and zeros for the others
//   shift_right<n>, shift_left<n>   shift within 32-bit lanes
//   fill(byte), both(a, b), select(mask, a, b)   byte in all places; a & b; (a & mask) | (b & ~mask)
//   from_lane_before(x, y)     shifts 32-bit lanes of x up by one byte and fills in the last byte of y
//   from_octet_before(x, first)  shifts x up by one 64-bit lane and fills in the 8 bytes at `first`
//   LevelTable                 a table of up to 32 bytes with look_up(bytes)
//   kLargeTables               true if there is a ByteTable, a fast table of 256 bytes
//   state_levels<B, R>(planes, before)  returns the levels (trellis_code.h) of the states at position R
//   split                      turns Bytes into Codes
//   kSignedCodes               true if products need codes of -128 to 127; lower(bytes) then
//                              subtracts 128 from codes up to 255
//   multiply_query(sums, codes, quad), multiply_weights(sums, codes, weights)
//   Weights, load_weights(octet)  loads the weights of 8 tokens
//   load_weights(lower, upper) loads weights for each half of the groups, if a register has more than 4
//   kSmallQueries, kSmallWeights   true if small numbers are faster (kMostSmallNumber); then there are
//                              multiply_small_query and multiply_small_weights
//   kUnsignedWeights           true if small weights are bytes without a sign; codes then have a sign
//   kMaxPairedHeads            the heads up to which the sums of two registers of tokens fit into registers
//   sums_from(number)          returns sums of one register that begin with `number`
//   MixInts, no_mix_sums()     the sums of a mix, which may be of a different type than Ints, and zeros
//   store_lanes(sums, out)     stores one number for each 4 bytes
//   Floats, HalfFloats         registers Lanes of kLanes F32; store_sums takes the lanes of four registers
//   add_octets(sums, bias, factor, scale, out, groups)
//                              adds factor * scale[i] * (both lanes of octet i - bias) to out[i] for the
//                              selected groups; scale may be null
//   add_halves(sums, lower, upper, scale, out)  works like add_octets, with one factor for each half of the
//                              octets and no bias
//   pack_query, pack_weights   pack 16-bit numbers as multiply_query and multiply_weights need them
//   Centroids                  a class that codebook_lookup_body.h describes
//   kTileRows, kTileRegisters  the rows and registers of lanes that a tile's products sum at once. With
//                              0 rows, tiles are multiplied in F32. Otherwise the Isa also has
//                              store(to, bytes), to_floats(sums), and pack_quads(numbers, quads), which packs
//                              16 numbers as multiply_query needs them. Floats then has maximum, largest,
//                              multiply, exponential and store_rounded.
//   kByteRows, kByteRegisters  the rows and registers of a prompt's products in bytes. With 0 rows there are
//                              no such products. Otherwise the Isa also has ByteSums, no_byte_sums(),
//                              byte_sums_to_floats(sums) and multiply_bytes(sums, of_row, lanes), which
//                              multiplies four unsigned bytes of a row with signed bytes. Floats then has
//                              power and store_bytes.
#include "device/cpu/kernels/byte_kernels.h"

#define KVANT_INLINE inline __attribute__((always_inline))

template <int N>
struct Constant {
  static constexpr int value = N;
};

template <int... Each>
struct Integers {};
template <int Count, int... After>
struct IntegersBelow : IntegersBelow<Count - 1, Count - 1, After...> {};
template <int... Each>
struct IntegersBelow<0, Each...> {
  using type = Integers<Each...>;
};

template <class Each>
struct Unrolled;
template <int... Each>
struct Unrolled<Integers<Each...>> {
  template <class Body>
  KVANT_INLINE void operator()(const Body& body) const {
    (body(Constant<Each>{}), ...);
  }
};

// Loops over positions must unroll, because their shifts are immediate operands. The bodies are expanded side
// by side. If each expansion contained the next expansion, the compiler would copy a body once for every body
// before it.
template <int Count>
constexpr Unrolled<typename IntegersBelow<Count>::type> unroll{};

#include "device/cpu/kernels/code_kinds_body.h"
#include "device/cpu/kernels/code_products_body.h"
#include "device/cpu/kernels/codebook_lookup_body.h"
#include "device/cpu/kernels/product_operands_body.h"

// with_heads() calls run(heads), and with_kind() calls run(kind), with the task's value as a constant.
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
      // Without large tables, codes of vectors are looked up before the kernel runs, so the branch is never
      // taken.
      [[fallthrough]];
    case kvant::CodeMeaning::wide_vector:
      if (page.group_channels == 1) return run(KindOf<LookedUp<Isa, 1>>{});
      return run(KindOf<LookedUp<Isa, 4>>{});
  }
}

template <class Isa>
void score(const kvant::cpu::ScoreTask& task) {
  with_kind<Isa>(task.page, [&](auto kind) {
    with_heads<Isa>(task.n_heads, [&](auto heads) {
      using Kind = typename decltype(kind)::type;
      if constexpr (Isa::kSmallQueries && Kind::kIsCentered) {
        if (task.small_queries) return score_heads<Isa, Kind, decltype(heads)::value, true>(task);
      }
      score_heads<Isa, Kind, decltype(heads)::value, false>(task);
    });
  });
}

template <class Isa>
void mix(const kvant::cpu::MixTask& task) {
  with_kind<Isa>(task.page, [&](auto kind) {
    using Kind = typename decltype(kind)::type;
    with_heads<Isa>(task.n_heads, [&](auto heads) {
      if constexpr (Isa::kSmallWeights && (Kind::kIsCentered || Kind::kBias == 0)) {
        if (task.small_weights) return mix_heads<Isa, Kind, decltype(heads)::value, true>(task);
      }
      mix_heads<Isa, Kind, decltype(heads)::value, false>(task);
    });
  });
}

// n must be a multiple of 8.
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

#include "device/cpu/kernels/prompt_bytes_body.h"
#include "device/cpu/kernels/row_products_body.h"
#include "device/cpu/kernels/tile_products_body.h"

template <class Isa>
constexpr kvant::cpu::ByteKernels kernels_of(const char* name) {
  return {.name = name,
          .large_tables = Isa::kLargeTables,
          .small_numbers = Isa::kSmallQueries,
          .lookup = codebook_lookup_of<typename Isa::Centroids>(),
          .prepare_query = prepare_query<Isa>,
          .score = score<Isa>,
          .add_scores = add_scores,
          .prepare_weights = prepare_weights<Isa>,
          .prepare_whole_weights = prepare_whole_weights<Isa>,
          .mix = mix<Isa>,
          .score_rows = score_rows<Isa>,
          .mix_rows = mix_rows<Isa>,
          .dot = dot<Isa>,
          .sum = sum_of<Isa>,
          .tiles = tile_kernels_of<Isa>(),
          .prompts = prompt_kernels_of<Isa>()};
}
