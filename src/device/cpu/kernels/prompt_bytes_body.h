// Implements attention in bytes (PromptKernels). byte_kernels_body.h includes this header inside its
// namespace.

// Multiplies R rows with L registers of lanes from `lane` on.
template <class Isa, int R, int L>
KVANT_INLINE void multiply_byte_strip(const kvant::cpu::ByteTask& task, int row, int lane) {
  using F = typename Isa::Floats;
  constexpr int kLanes = F::kLanes;
  typename Isa::ByteSums sums[R][L];
  unroll<L>([&](auto l) __attribute__((always_inline)) {
    constexpr int kRegister = decltype(l)::value;
    const auto first =
        task.first == nullptr ? Isa::no_byte_sums() : Isa::load(task.first + lane + kRegister * kLanes);
    unroll<R>([&](auto r) __attribute__((always_inline)) { sums[decltype(r)::value][kRegister] = first; });
  });
  const std::ptrdiff_t row_bytes = static_cast<std::ptrdiff_t>(task.quads) * 4;
  const std::uint8_t* of_rows = task.rows + row * row_bytes;
  const std::int8_t* bytes = task.bytes + static_cast<std::ptrdiff_t>(lane) * 4;
  for (int quad = 0; quad < task.quads; ++quad, bytes += static_cast<std::ptrdiff_t>(task.lanes) * 4) {
    typename Isa::Bytes lanes[L];
    unroll<L>([&](auto l) __attribute__((always_inline)) {
      lanes[decltype(l)::value] = Isa::load(bytes + decltype(l)::value * Isa::kBytes);
    });
    unroll<R>([&](auto r) __attribute__((always_inline)) {
      std::int32_t of_row;
      __builtin_memcpy(&of_row, of_rows + decltype(r)::value * row_bytes + quad * 4, sizeof of_row);
      unroll<L>([&](auto l) __attribute__((always_inline)) {
        Isa::multiply_bytes(sums[decltype(r)::value][decltype(l)::value], of_row, lanes[decltype(l)::value]);
      });
    });
  }
  unroll<R * L>([&](auto i) __attribute__((always_inline)) {
    constexpr int kRow = decltype(i)::value / L, kRegister = decltype(i)::value % L;
    const int first = lane + kRegister * kLanes;
    float* out = task.out + static_cast<std::ptrdiff_t>(row + kRow) * task.lanes + first;
    auto factor = F::fill(task.factor[row + kRow]);
    if (task.scale != nullptr) factor = F::multiply(factor, F::load(task.scale + first));
    auto rest = task.before ? F::load(out) : F::zero();
    if (task.lane_offset != nullptr)
      rest = F::multiply_add(F::fill(task.offset[row + kRow]), F::load(task.lane_offset + first), rest);
    F::store(out, F::multiply_add(Isa::byte_sums_to_floats(sums[kRow][kRegister]), factor, rest));
  });
}

template <class Isa, int R>
KVANT_INLINE void multiply_byte_rows(const kvant::cpu::ByteTask& task, int row) {
  constexpr int kLanes = Isa::Floats::kLanes, kMany = Isa::kByteRegisters;
  int lane = 0;
  for (; lane + kMany * kLanes <= task.lanes; lane += kMany * kLanes)
    multiply_byte_strip<Isa, R, kMany>(task, row, lane);
  for (; lane < task.lanes; lane += kLanes) multiply_byte_strip<Isa, R, 1>(task, row, lane);
}

template <class Isa>
void multiply_bytes(const kvant::cpu::ByteTask& task) {
  int row = 0;
  for (; row + Isa::kByteRows <= task.n_rows; row += Isa::kByteRows)
    multiply_byte_rows<Isa, Isa::kByteRows>(task, row);
  for (; row < task.n_rows; ++row) multiply_byte_rows<Isa, 1>(task, row);
}

// Returns 2^f for f in [-1/2, 1/2]. The relative error is below 7.5e-5, the smallest possible for a cubic.
// Half a step of a byte is 26 times as large.
template <class F>
KVANT_INLINE typename F::Lanes power_polynomial(typename F::Lanes f) {
  auto p = F::multiply_add(F::fill(0.05517166F), f, F::fill(0.24261112F));
  p = F::multiply_add(p, f, F::fill(0.69326099F));
  return F::multiply_add(p, f, F::fill(0.99992807F));
}

// A query does not see tokens with a logarithm below kNothing.
constexpr float kNothing = -1e30F;

template <class Isa>
kvant::cpu::ByteWeighing weigh_bytes(const float* scores, const float* log_scale, const float* inverse_scale,
                                     std::uint8_t* bytes) {
  using F = typename Isa::Floats;
  constexpr int kRegisters = kvant::cpu::kPageTokens / F::kLanes;
  const auto log2e = F::fill(1.44269504F);
  typename F::Lanes exponents[kRegisters];
  for (int i = 0; i < kRegisters; ++i) {
    exponents[i] =
        F::multiply_add(F::load(scores + i * F::kLanes), log2e, F::load(log_scale + i * F::kLanes));
  }
  auto largest = exponents[0];
  for (int i = 1; i < kRegisters; ++i) largest = F::maximum(largest, exponents[i]);
  const float top = F::largest(largest);
  if (top < kNothing) {
    __builtin_memset(bytes, 0, kvant::cpu::kPageTokens);
    return {top, 0};
  }
  const auto below = F::fill(-top), most = F::fill(kvant::cpu::kLargestByte);
  auto sum = F::zero();
  for (int i = 0; i < kRegisters; ++i) {
    const auto product = F::power(F::add(exponents[i], below));
    sum = F::multiply_add(product, F::load(inverse_scale + i * F::kLanes), sum);
    F::store_bytes(bytes + i * F::kLanes, F::multiply(product, most));
  }
  return {top, F::sum(sum)};
}

template <class Isa>
constexpr kvant::cpu::PromptKernels prompt_kernels_of() {
  if constexpr (Isa::kByteRows == 0) {
    return {};
  } else {
    return {.multiply = multiply_bytes<Isa>, .weigh = weigh_bytes<Isa>};
  }
}
