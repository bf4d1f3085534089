// The kernels of byte_kernels.h over an instruction set `Isa`; included by one file for each set, in its own
// namespace.
//
// An Isa has: Bytes, a register of kBytes bytes; Codes, a register split as its products want it; Ints, the
// sums that belong to it; and
//   load                       kBytes bytes
//   Groups, first_groups(n)    which of a register's groups of 8 bytes are there: the first n, 4 or all
//   load_groups(from, groups)  their bytes, the rest zero
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
//   kMaxPairedHeads           with which the sums of two registers of tokens fit
//   sums_from(number)          sums of one register that begin with `number`
//   store_lanes(sums, out)     one number for each 4 bytes
//   Floats, HalfFloats         registers of F32: Lanes, kLanes of them; store_sums: of four registers' lanes
//   add_octets(sums, bias, factor, scale, out, groups)
//                              out[i] += factor * scale[i] * (both lanes of octet i - bias), for those
//                              octets; scale may be null
//   add_halves(sums, lower, upper, scale, out)  the same with a factor for each half of the octets, no bias
//   pack_query, pack_weights   numbers of 16 bits as multiply_query and multiply_weights want them
//   Centroids                  codebook_lookup_body.h
//   kTileRows, kTileRegisters  rows and registers of lanes that a tile's products keep sums of at once; 0
//                              rows: tiles are multiplied in F32. Else there are, too: store(to, bytes),
//                              to_floats(sums); pack_quads(numbers, quads), which makes quads of 16 numbers
//                              as multiply_query wants them; and of Floats maximum, largest, multiply,
//                              exponential and store_rounded
//   kByteRows, kByteRegisters  the same of a prompt's products in bytes; 0 rows: there are none. Else there
//                              are, too: ByteSums, no_byte_sums(), multiply_bytes(sums, of_row, lanes): four
//                              unsigned bytes of a row times signed ones, byte_sums_to_floats(sums); and of
//                              Floats power and store_bytes
#include "attention/cpu/byte_kernels.h"

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

// Loops over positions must unroll: their shifts are immediate operands. Side by side and not one within the
// other, which would have the compiler copy each body as often as there are bodies before it.
template <int Count>
constexpr Unrolled<typename IntegersBelow<Count>::type> unroll{};

#include "attention/cpu/code_kinds_body.h"
#include "attention/cpu/code_products_body.h"
#include "attention/cpu/codebook_lookup_body.h"
#include "attention/cpu/product_operands_body.h"

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
      [[fallthrough]];  // never, as they are looked up before
    case kvant::CodeMeaning::wide_vector:
      if (page.group_channels == 1) return run(KindOf<LookedUp<Isa, 1>>{});
      return run(KindOf<LookedUp<Isa, 4>>{});
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

#include "attention/cpu/prompt_bytes_body.h"
#include "attention/cpu/row_products_body.h"
#include "attention/cpu/tile_products_body.h"

template <class Isa>
constexpr kvant::cpu::ByteKernels kernels_of(const char* name) {
  return {.name = name,
          .large_tables = Isa::kLargeTables,
          .lookup = codebook_lookup_of<typename Isa::Centroids>(),
          .prepare_query = prepare_query<Isa>,
          .score = score<Isa>,
          .add_scores = add_scores,
          .prepare_weights = prepare_weights<Isa>,
          .mix = mix<Isa>,
          .score_rows = score_rows<Isa>,
          .mix_rows = mix_rows<Isa>,
          .dot = dot<Isa>,
          .sum = sum_of<Isa>,
          .tiles = tile_kernels_of<Isa>(),
          .prompts = prompt_kernels_of<Isa>()};
}
