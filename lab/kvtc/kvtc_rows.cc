#include "kvtc/kvtc_rows.h"

#include "base/check.h"
#include "base/float16.h"
#include "cache/page_layout.h"
#include "cache/sealed_runs.h"
#include "calibrate/rope_turns.h"

namespace kvant {
namespace {

SealedRun run_of(const Plan& plan, std::span<const std::byte> sequence) {
  const auto runs = sealed_runs(plan, sequence, sequence.size());
  KVANT_CHECK(runs.has_value() && runs->size() == 1, "a sequence of another plan");
  return runs->front();
}

}  // namespace

KvtcRows::KvtcRows(std::shared_ptr<const Plan> plan, std::vector<std::vector<ChannelTurn>> turns)
    : plan_(std::move(plan)), turns_(std::move(turns)) {
  const Geometry& g = plan_->geometry;
  for (int layer = 0; layer < g.n_layers; ++layer) width_ += g.kv_heads(layer) * g.dim(layer);
}

Result<KvtcRows> KvtcRows::make(std::shared_ptr<const Plan> plan,
                                std::vector<std::vector<ChannelTurn>> turns) {
  const Geometry& g = plan->geometry;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    if (g.slides(layer))
      return error("layer {} slides: a token's K and V would not be there together", layer);
    for (int h = 0; h < g.kv_heads(layer); ++h) {
      for (const Side side : kSides) {
        const SidePlan& of_side = plan->head(layer, h).side(side);
        if (of_side.sealed->name() != "bf16" || !of_side.transform.identity())
          return error("the recipe '{}' does not keep K and V in bf16", label(plan->recipe));
      }
    }
  }
  return KvtcRows(std::move(plan), std::move(turns));
}

int KvtcRows::sealed_pages(std::span<const std::byte> sequence) const {
  return run_of(*plan_, sequence).n_pages;
}

template <class Byte, class Rows, class Visit>
void KvtcRows::for_each_head(std::span<Byte> sequence, int page, Side side, Rows* rows,
                             const Visit& visit) const {
  const SealedRun run = run_of(*plan_, sequence);
  KVANT_CHECK(page >= 0 && page < run.n_pages, "a page that is not sealed");
  const PageLayout layout(*plan_, run.layers);
  Byte* entry = sequence.data() + run.first + run.entry_bytes * static_cast<std::size_t>(page);
  const Geometry& g = plan_->geometry;
  int first = 0;  // the head's first channel in a row
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const int d = g.dim(layer);
    for (int h = 0; h < g.kv_heads(layer); ++h, first += d) {
      Byte* values = entry + layout.offset(g.head_index(layer, h), side);
      for (int t = 0; t < kPageTokens; ++t)
        visit(layer, rows + std::ptrdiff_t{1} * t * width_ + first, page * kPageTokens + t,
              values + std::ptrdiff_t{2} * t * d);
    }
  }
}

void KvtcRows::read(std::span<const std::byte> sequence, int page, Side side, float* rows) const {
  for_each_head(sequence, page, side, rows, [&](int layer, float* row, int token, const std::byte* values) {
    const int d = plan_->geometry.dim(layer);
    std::vector<std::uint16_t> stored(d);
    std::memcpy(stored.data(), values, stored.size() * sizeof(std::uint16_t));
    float_row_from_bf16(stored.data(), row, stored.size());
    if (side == Side::key) turn_row(turns_[layer], -token, row);
  });
}

void KvtcRows::write(const float* rows, int page, Side side, std::span<std::byte> sequence) const {
  for_each_head(sequence, page, side, rows, [&](int layer, const float* row, int token, std::byte* values) {
    const int d = plan_->geometry.dim(layer);
    std::vector<float> turned(row, row + d);
    if (side == Side::key) turn_row(turns_[layer], token, turned.data());
    std::vector<std::uint16_t> stored(d);
    bf16_row_from_float(turned.data(), stored.data(), stored.size());
    std::memcpy(values, stored.data(), stored.size() * sizeof(std::uint16_t));
  });
}

}  // namespace kvant
