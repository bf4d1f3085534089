#include "cache/page_layout.h"

namespace kvant {

PageLayout::PageLayout(const Plan& plan, const std::vector<int>& layers) : offsets_{0} {
  const Geometry& g = plan.geometry;
  for (const int layer : layers) {
    for (int h = 0; h < g.kv_heads(layer); ++h) {
      for (const Side side : kSides) {
        const Format& format = *plan.head(layer, h).side(side).sealed;
        offsets_.push_back(offsets_.back() + format.page_bytes(g.dim(layer)));
      }
    }
  }
}

}  // namespace kvant
