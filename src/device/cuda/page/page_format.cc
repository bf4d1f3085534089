#include "device/cuda/page/page_format.h"

#include <algorithm>
#include <cmath>

#include "device/cuda/page/known_format.h"

namespace kvant::cuda {
namespace {

CodeOrder order_of(const PageDescription& page) {
  switch (page.kind) {
    case CodeKind::level:
      return page.bits == 2 ? CodeOrder::quads : CodeOrder::pairs;
    case CodeKind::state:
      return CodeOrder::trellis;
    case CodeKind::vector:
      return CodeOrder::vectors;
    default:
      return page.bits == 8 ? CodeOrder::pairs : CodeOrder::planes;
  }
}

// Returns whether kernels can read the format. Streams of codes are interleaved in whole pieces, so the codes
// of a block must fill whole pieces. With grids by token, the channels of a lane must share a group of
// scales. If a lane has more than 32 channels, each 32 of them must share a group.
bool can_be_read(const PageFormat& format, int d) {
  if (format.plain()) return true;
  if (code_bytes(format.layout, block_dim(d)) % (16 * kLanes) != 0) return false;
  return format.grid != GridAxis::of_tokens || std::min(format.group, d) % std::min(d / 4, 32) == 0;
}

}  // namespace

void set_unit_levels(const char* format, int d, float* levels) {
  const FormatDescription& described = *find_known_format(format)->description;
  const double deviation = described.of_unit_vectors ? 1 / std::sqrt(static_cast<double>(d)) : 1;
  for (const double level : described.levels) *levels++ = static_cast<float>(level * deviation);
}

bool find_page_format(const char* name, int d, PageFormat& format) {
  const KnownFormat* known = find_known_format(name);
  if (known == nullptr || !known->description || known->description->page.clips)
    return false;  // no kernel clips the pages that it seals
  format = {known->description->page, {}};
  if (!format.plain()) format.layout = {order_of(format), format.bits, format.channels};
  return can_be_read(format, d);
}

}  // namespace kvant::cuda
