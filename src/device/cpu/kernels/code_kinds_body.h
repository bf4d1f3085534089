// Turns the codes of a page into bytes. Each class here is a kind of codes, over a wrapped instruction set
// `Isa`. byte_kernels_body.h includes this header inside its namespace.
//
// A kind has at<R>(planes, before), which returns the byte at position R of each group from the registers of
// the group's bytes. kPlanes and kPositions are the bytes and the positions of a group. A byte is its number
// plus kBias. kNeedsBefore is true if at() reads the last byte of the previous group. kIsExact is true if the
// bytes are exactly what the format decodes to, without rounding. kMaxByte is the largest byte. kIsCentered
// is true if numbers spread evenly around 0. Such codes take small numbers (kMostSmallNumber), because the
// rounding errors of small numbers do not add up.

// Returns the 8 bits of each group that begin at bit First of the group's bytes. `before` holds the last byte
// of the previous group.
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

// Returns the states of trellis codes (trellis.h) at position R.
template <class Isa, int B, int R>
KVANT_INLINE typename Isa::Bytes states(const typename Isa::Bytes (&planes)[B],
                                        const typename Isa::Bytes& before) {
  return bits_from<Isa, B*(R + 1) - kvant::kTrellisBits>(planes, before);
}

// Codes are unsigned numbers of B bits.
template <class Isa, int B>
struct Numbers {
  static constexpr int kPlanes = B, kPositions = 8;
  static constexpr bool kNeedsBefore = false, kIsExact = true, kIsCentered = false;
  static constexpr int kBias = 0, kMaxByte = (1 << B) - 1;
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
  static constexpr int kPlanes = B, kPositions = 8, kBias = kvant::kTableBias, kMaxByte = 255;
  static constexpr bool kNeedsBefore = false, kIsExact = false, kIsCentered = true;
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
  static constexpr int kPlanes = B, kPositions = 8, kBias = kvant::kTableBias, kMaxByte = 255;
  static constexpr bool kNeedsBefore = true, kIsExact = true, kIsCentered = true;
  explicit States(const kvant::cpu::CodePage&) {}
  template <int R>
  KVANT_INLINE typename Isa::Bytes at(const typename Isa::Bytes (&planes)[B],
                                      const typename Isa::Bytes& before) const {
    return Isa::template state_levels<B, R>(planes, before);
  }
};

template <class Isa, int X>
struct Vectors {
  static constexpr int kPlanes = 1, kPositions = X, kBias = kvant::kTableBias, kMaxByte = 255;
  static constexpr bool kNeedsBefore = false, kIsExact = false, kIsCentered = false;
  explicit Vectors(const kvant::cpu::CodePage& page) : table(page.table) {}
  template <int R>
  KVANT_INLINE typename Isa::Bytes at(const typename Isa::Bytes (&planes)[1],
                                      const typename Isa::Bytes&) const {
    return typename Isa::ByteTable(table + 256 * R).look_up(planes[0]);
  }
  const std::uint8_t* table;
};

// Codes are bytes that codebook_lookup.h has looked up already. Plane R of a group holds position R.
template <class Isa, int X>
struct LookedUp {
  static constexpr int kPlanes = X, kPositions = X, kBias = kvant::kTableBias, kMaxByte = 255;
  static constexpr bool kNeedsBefore = false, kIsExact = false, kIsCentered = false;
  explicit LookedUp(const kvant::cpu::CodePage&) {}
  template <int R>
  KVANT_INLINE typename Isa::Bytes at(const typename Isa::Bytes (&planes)[X],
                                      const typename Isa::Bytes&) const {
    return planes[R];
  }
};
