#include "recipe/constant_size.h"

#include "format/page_metric.h"
#include "recipe/constant_needs.h"

namespace kvant {
namespace {

std::int64_t floats(std::size_t n) {
  return static_cast<std::int64_t>(n * sizeof(float));
}

// Returns the bytes of a format's constants for one side in the form that kernels read.
std::int64_t format_bytes(const SidePlan& side, const ConstantNeed& need) {
  // The constant belongs to another format of the ladder or of the head mix.
  if (side.sealed->name() != need.format->name()) return 0;
  const int head_dim = side.context.head_dim;
  if (!side.sealed->code_scheme(head_dim)) return floats(need.size);
  const CodeTable table = side.sealed->code_table(side.context);
  return static_cast<std::int64_t>(table.biased.size() + sizeof table.scale);
}

bool has_metric(const SidePlan& side) {
  return !side.context.constants.find(kPageMetric).empty();
}

std::int64_t need_bytes(const HeadPlan& head, Side side, const ConstantNeed& need) {
  switch (need.kind) {
    case NeedKind::transform:
    case NeedKind::tail:
      return floats(need.size);
    case NeedKind::adapter:
      return head.corrected ? floats(need.size) : 0;
    case NeedKind::format:
      return format_bytes(head.side(side), need);
    case NeedKind::metric:
    case NeedKind::sampled_metric:
      return head.side(side).sealed->shapes_errors() && has_metric(head.side(side)) ? floats(need.size) : 0;
    case NeedKind::priority:
    case NeedKind::sensitivity:
      return 0;
  }
  return 0;
}

}  // namespace

std::int64_t constant_bytes(const Plan& plan) {
  const Geometry& g = plan.geometry;
  std::int64_t bytes = 0;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int kv_head = 0; kv_head < g.kv_heads(layer); ++kv_head) {
      for (const Side side : kSides) {
        for (const ConstantNeed& need : constant_needs(plan.recipe, g, layer, kv_head, side))
          bytes += need_bytes(plan.head(layer, kv_head), side, need);
      }
    }
  }
  return bytes;
}

}  // namespace kvant
