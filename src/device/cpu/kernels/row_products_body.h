// Multiplies pages that are rows of numbers (`Rows`) in F32, with the registers `Floats` and `HalfFloats` of
// an instruction set. byte_kernels_body.h includes this header inside its namespace.

// Loads numbers [at, at + kLanes) of the rows. F wraps registers of kLanes F32 numbers.
template <class F, kvant::NumberType Type>
KVANT_INLINE typename F::Lanes load_numbers(const void* values, std::ptrdiff_t at) {
  if constexpr (Type == kvant::NumberType::bf16) {
    return F::from_bf16(static_cast<const std::uint16_t*>(values) + at);
  } else if constexpr (Type == kvant::NumberType::f16) {
    return F::from_f16(static_cast<const std::uint16_t*>(values) + at);
  } else if constexpr (Type == kvant::NumberType::e4m3) {
    return F::from_e4m3(static_cast<const std::uint8_t*>(values) + at);
  } else {
    return F::load(static_cast<const float*>(values) + at);
  }
}

template <class F, kvant::NumberType Type, int H>
void score_numbers(const kvant::cpu::Rows& rows, const float* q, float* scores, std::ptrdiff_t stride) {
  const std::ptrdiff_t d = rows.d;
  Ahead ahead(rows.next, rows.n_tokens);
  for (int t = 0; t < rows.n_tokens; ++t) {
    ahead.step();
    typename F::Lanes sums[H];
    for (int h = 0; h < H; ++h) sums[h] = F::zero();
    for (int i = 0; i < d; i += F::kLanes) {
      const auto x = load_numbers<F, Type>(rows.values, t * d + i);
      for (int h = 0; h < H; ++h) sums[h] = F::multiply_add(x, F::load(q + h * d + i), sums[h]);
    }
    if constexpr (H == 1) {
      scores[t] = F::sum(sums[0]);
    } else {
      float of_heads[4];
      F::store_sums(sums[0], sums[1], sums[2], sums[H - 1], of_heads);
      for (int h = 0; h < H; ++h) scores[h * stride + t] = of_heads[h];
    }
  }
}

// Mixes N registers of channels from `first` on.
template <class F, kvant::NumberType Type, int H, int N>
KVANT_INLINE void mix_strip(const kvant::cpu::Rows& rows, const float* weights, std::ptrdiff_t stride,
                            int first, Ahead& ahead, float* out) {
  const std::ptrdiff_t d = rows.d;
  typename F::Lanes sums[H][N];
  for (int h = 0; h < H; ++h) {
    for (int i = 0; i < N; ++i) sums[h][i] = F::zero();
  }
  for (int t = 0; t < rows.n_tokens; ++t) {
    ahead.step();
    typename F::Lanes x[N];
    for (int i = 0; i < N; ++i) x[i] = load_numbers<F, Type>(rows.values, t * d + first + i * F::kLanes);
    for (int h = 0; h < H; ++h) {
      const auto weight = F::fill(weights[h * stride + t]);
      for (int i = 0; i < N; ++i) sums[h][i] = F::multiply_add(x[i], weight, sums[h][i]);
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int i = 0; i < N; ++i) {
      float* to = out + h * d + first + i * F::kLanes;
      F::store(to, F::add(F::load(to), sums[h][i]));
    }
  }
}

template <class F, kvant::NumberType Type, int H>
void mix_numbers(const kvant::cpu::Rows& rows, const float* weights, std::ptrdiff_t stride, float* out) {
  constexpr int kStrip = 4 * F::kLanes;
  const int end = rows.d / kStrip * kStrip;
  Ahead ahead(rows.next, (rows.d / kStrip + (rows.d - end) / F::kLanes) * rows.n_tokens);
  int first = 0;
  for (; first < end; first += kStrip) mix_strip<F, Type, H, 4>(rows, weights, stride, first, ahead, out);
  for (; first < rows.d; first += F::kLanes)
    mix_strip<F, Type, H, 1>(rows, weights, stride, first, ahead, out);
}

template <kvant::NumberType Type>
struct TypeOf {
  static constexpr kvant::NumberType value = Type;
};

// Calls run(registers, type, heads) with the task's values as constants.
template <class Isa, class Run>
void with_rows(const kvant::cpu::Rows& rows, int n_heads, const Run& run) {
  using Type = kvant::NumberType;
  const auto of_lanes = [&](auto lanes) {
    with_heads<Isa>(n_heads, [&](auto heads) {
      if (rows.type == Type::bf16) return run(lanes, TypeOf<Type::bf16>{}, heads);
      if (rows.type == Type::f16) return run(lanes, TypeOf<Type::f16>{}, heads);
      if (rows.type == Type::e4m3) return run(lanes, TypeOf<Type::e4m3>{}, heads);
      return run(lanes, TypeOf<Type::f32>{}, heads);
    });
  };
  if (rows.d % Isa::Floats::kLanes == 0) return of_lanes(KindOf<typename Isa::Floats>{});
  of_lanes(KindOf<typename Isa::HalfFloats>{});
}

template <class Isa>
void score_rows(const kvant::cpu::Rows& rows, const float* q, int n_heads, float* scores,
                std::ptrdiff_t stride) {
  for (int h = 0, n = 0; h < n_heads; h += n) {
    n = kvant::cpu::head_group(n_heads - h);
    with_rows<Isa>(rows, n, [&](auto lanes, auto type, auto heads) {
      score_numbers<typename decltype(lanes)::type, decltype(type)::value, decltype(heads)::value>(
          rows, q + static_cast<std::ptrdiff_t>(h) * rows.d, scores + h * stride, stride);
    });
  }
}

template <class Isa>
void mix_rows(const kvant::cpu::Rows& rows, const float* weights, std::ptrdiff_t stride, int n_heads,
              float* out) {
  for (int h = 0, n = 0; h < n_heads; h += n) {
    n = kvant::cpu::head_group(n_heads - h);
    with_rows<Isa>(rows, n, [&](auto lanes, auto type, auto heads) {
      mix_numbers<typename decltype(lanes)::type, decltype(type)::value, decltype(heads)::value>(
          rows, weights + h * stride, stride, out + static_cast<std::ptrdiff_t>(h) * rows.d);
    });
  }
}
