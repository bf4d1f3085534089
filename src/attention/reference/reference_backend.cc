// Implements attention in clear code over Format::decode. Fast backends are compared with the reference,
// which serves every feature of recipes.
#include <vector>

#include "attention/page_attention.h"
#include "device/cpu/kernels/flashq.h"
#include "device/cpu/kernels/tile_attention.h"

namespace kvant {
namespace {

class ReferenceAttention final : public PageAttention {
 public:
  void prepare(int n_threads) override { scratch_.resize(n_threads); }

  SkipCount attend_pages(int thread, const QueryTile& tile, std::span<const PageView> pages,
                         const AttentionRules& rules, const SkipRule* skip,
                         PartialAttention& partial) override {
    if (rules.in_bytes) {
      attend_in_bytes(tile, pages, rules, scratch_[thread], partial);
      return {};
    }
    return kvant::attend_pages(tile, pages, rules, skip, scratch_[thread], partial);
  }

  void weigh_pages(int thread, const QueryTile& tile, std::span<const PageView> pages,
                   const AttentionRules& rules, PartialAttention& partial) override {
    kvant::weigh_pages(tile, pages, rules, scratch_[thread], partial);
  }

  KernelChoice kernel(const Plan&, int, int, Side) const override { return {"reference", ""}; }

 private:
  std::vector<TileScratch> scratch_;  // one per thread
};

}  // namespace

std::unique_ptr<AttentionBackend> make_reference_backend() {
  return make_layer_loop(std::make_unique<ReferenceAttention>());
}

}  // namespace kvant
