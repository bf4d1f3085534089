#include "device/cuda/kernels/entry.cuh"
#include "device/cuda/pairs/progressive.cuh"

namespace kvant::cuda {
namespace {

template <int Bits, int D>
DecodeKernel entry(const char* name, const char* format) {
  return decode_entry<SasProgressivePair<Bits, D>, D>(name, format, format);
}

}  // namespace

std::span<const DecodeKernel> sas_kernels() {
  static const DecodeKernel kernels[] = {
      entry<4, 64>("cuda/sm90/prog4+prog4 with SAS", "prog4"),
      entry<4, 128>("cuda/sm90/prog4+prog4 with SAS", "prog4"),
      entry<2, 64>("cuda/sm90/prog2+prog2 with SAS", "prog2"),
      entry<2, 128>("cuda/sm90/prog2+prog2 with SAS", "prog2"),
  };
  return kernels;
}

}  // namespace kvant::cuda
