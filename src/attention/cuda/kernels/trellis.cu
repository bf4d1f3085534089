#include "attention/cuda/kernels/entry.cuh"
#include "attention/cuda/pairs/trellis.cuh"

namespace kvant::cuda {
namespace {

template <int KeyBits, int ValueBits, int D>
DecodeKernel trellis_entry(const char* name, const char* key, const char* value) {
  DecodeKernel entry = decode_entry<TrellisPair<D>, D>(name, key, value);
  entry.key_bytes = TrellisPage<KeyBits, D>::kPageBytes;
  entry.value_bytes = TrellisPage<ValueBits, D>::kPageBytes;
  entry.parts = TrellisPair<D>::kParts;
  entry.key_codes = TrellisPage<KeyBits, D>::kCodes;
  entry.value_codes = TrellisPage<ValueBits, D>::kCodes;
  return entry;
}

}  // namespace

#define KVANT_TRELLIS(k, v)                                                           \
  trellis_entry<k, v, 64>(KVANT_KERNEL_NAME("tcq" #k, "tcq" #v), "tcq" #k, "tcq" #v), \
      trellis_entry<k, v, 128>(KVANT_KERNEL_NAME("tcq" #k, "tcq" #v), "tcq" #k, "tcq" #v)
#define KVANT_TRELLIS_KEYS(v) \
  KVANT_TRELLIS(1, v), KVANT_TRELLIS(2, v), KVANT_TRELLIS(3, v), KVANT_TRELLIS(4, v), KVANT_TRELLIS(5, v)

std::span<const DecodeKernel> trellis_kernels() {
  static const DecodeKernel kernels[] = {KVANT_TRELLIS_KEYS(1), KVANT_TRELLIS_KEYS(2), KVANT_TRELLIS_KEYS(3),
                                         KVANT_TRELLIS_KEYS(4), KVANT_TRELLIS_KEYS(5)};
  return kernels;
}

}  // namespace kvant::cuda
