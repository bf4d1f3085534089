#include "serve/cache_grid.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvant {
namespace {

GridFormat format_of(const Plan& plan, const AttentionBackend& backend, int layer, int kv_head, Side side) {
  const SidePlan& stored = plan.head(layer, kv_head).side(side);
  KernelChoice kernel = backend.kernel(plan, layer, kv_head, side);
  return {.format = stored.sealed->name(),
          .transforms = fmt::format("{}", fmt::join(stored.transform_names, "+")),
          .kernel = std::move(kernel.name),
          .fallback = std::move(kernel.fallback),
          .bits = stored.sealed->bits(stored.context.head_dim),
          .page_bytes = stored.sealed->page_bytes(stored.context.head_dim)};
}

}  // namespace

CacheGrid cache_grid(const Plan& plan, const AttentionBackend& backend) {
  CacheGrid grid{.geometry = plan.geometry,
                 .asked = label(plan.asked),
                 .recipe = to_string(plan.recipe),
                 .tail = plan.tail->name(),
                 .tail_bits = plan.tail->bits(plan.geometry.head_dim),
                 .sink = plan.recipe.sink,
                 .window = plan.recipe.window,
                 .calibration = plan.calibration};
  std::vector<GridFormat> cells;  // [layer, KV head, side], flat
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    for (int h = 0; h < plan.geometry.kv_heads(layer); ++h) {
      for (const Side side : kSides) cells.push_back(format_of(plan, backend, layer, h, side));
    }
  }
  for (const GridFormat& cell : cells) {
    if (std::ranges::find(grid.formats, cell) == grid.formats.end()) grid.formats.push_back(cell);
  }
  std::ranges::stable_sort(grid.formats, std::ranges::greater(), &GridFormat::bits);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const auto found = std::ranges::find(grid.formats, cells[i]) - grid.formats.begin();
    (i % 2 == 0 ? grid.k : grid.v).push_back(static_cast<int>(found));
  }
  return grid;
}

}  // namespace kvant
