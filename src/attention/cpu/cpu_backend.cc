// Implements attention on the CPU with the kernels of byte_kernels.h. Decoded tokens attend by integer
// products of the pages' codes: the scores of a whole run of pages are computed before any V is read. For
// tiles of many queries, each page is expanded to bytes once for all queries, or decoded as in the reference
// backend. The matrix products dominate the cost of such tiles.
#include <fmt/format.h>

#include <vector>

#include "attention/page_attention.h"
#include "device/cpu/kernels/flashq.h"
#include "device/cpu/kernels/prompt_products.h"
#include "device/cpu/kernels/run_attention.h"
#include "device/cpu/kernels/tile_attention.h"
#include "device/cpu/kernels/tile_products.h"
#include "format/code_order.h"

namespace kvant {
namespace {

class CpuAttention final : public PageAttention {
 public:
  explicit CpuAttention(const cpu::ByteKernels& kernels) : kernels_(kernels) {}

  void prepare(int n_threads) override {
    while (std::ssize(threads_) < n_threads) threads_.emplace_back(kernels_);
  }

  SkipCount attend_pages(int thread, const QueryTile& tile, std::span<const PageView> pages,
                         const AttentionRules& rules, const SkipRule* skip,
                         PartialAttention& partial) override {
    Buffers& buffers = threads_[thread];
    if (rules.in_bytes) {
      attend_bytes(tile, pages, rules, buffers, partial);
      return {};
    }
    if (!one_token(tile, rules)) return attend_tile(tile, pages, rules, skip, buffers, partial);
    return buffers.run.attend(tile, pages, rules, skip, partial);
  }

  void weigh_pages(int thread, const QueryTile& tile, std::span<const PageView> pages,
                   const AttentionRules& rules, PartialAttention& partial) override {
    Buffers& buffers = threads_[thread];
    if (!one_token(tile, rules)) return kvant::weigh_pages(tile, pages, rules, buffers.tile, partial);
    buffers.run.weigh(tile, pages, rules, partial);
  }

  int decode_tile() const override { return 1; }
  PageOrder page_order() const override { return PageOrder::lanes; }

  KernelChoice kernel(const Plan& plan, int layer, int kv_head, Side side) const override {
    const Format& format = *plan.head(layer, kv_head).side(side).sealed;
    const int d = plan.geometry.dim(layer);
    if (format.number_type() != NumberType::none && plan.recipe.products == Products::real)
      return {fmt::format("cpu/{}/rows", kernels_.name), ""};
    if (!cpu::multiplies_codes(format, d)) {
      return {fmt::format("cpu/{}/decoded", kernels_.name),
              fmt::format(
                  "no kernel multiplies codes of {} with heads of {} channels: pages are dequantized first",
                  format.name(), d)};
    }
    static constexpr const char* kMeanings[] = {"numbers", "levels", "states", "vectors", "vectors"};
    const auto scheme = format.code_scheme(d);
    return {
        fmt::format("cpu/{}/{}{}", kernels_.name, kMeanings[static_cast<int>(scheme->meaning)], scheme->bits),
        ""};
  }

 private:
  struct Buffers {
    explicit Buffers(const cpu::ByteKernels& kernels) : run(kernels), tiles(kernels), prompts(kernels) {}
    cpu::RunAttention run;
    cpu::TileProducts tiles;
    cpu::PromptProducts prompts;
    TileScratch tile;  // buffers for tiles of many queries
  };

  // Algorithm 1 as printed rescales from page to page. Only the reference backend reproduces the resulting
  // error.
  static bool one_token(const QueryTile& tile, const AttentionRules& rules) {
    return tile.n_queries == 1 && rules.softmax != Softmax::sas_paper;
  }

  static void attend_bytes(const QueryTile& tile, std::span<const PageView> pages,
                           const AttentionRules& rules, Buffers& buffers, PartialAttention& partial) {
    if (!buffers.prompts.takes(rules))
      return kvant::attend_in_bytes(tile, pages, rules, buffers.tile, partial);
    buffers.prompts.begin(tile, rules);
    for (const PageView& page : pages) buffers.prompts.attend(page, partial);
  }

  // Serves tiles of many queries page by page. Pages whose codes can be multiplied are expanded; the other
  // pages are decoded.
  static SkipCount attend_tile(const QueryTile& tile, std::span<const PageView> pages,
                               const AttentionRules& rules, const SkipRule* skip, Buffers& buffers,
                               PartialAttention& partial) {
    const bool plain = rules.products == Products::real && rules.softmax == Softmax::exact && skip == nullptr;
    if (!plain) return kvant::attend_pages(tile, pages, rules, skip, buffers.tile, partial);
    buffers.tiles.begin(tile, rules);
    for (const PageView& page : pages) {
      if (buffers.tiles.takes(page)) {
        buffers.tiles.attend(page, partial);
      } else {
        kvant::attend_pages(tile, {&page, 1}, rules, nullptr, buffers.tile, partial);
      }
    }
    return {};
  }

  const cpu::ByteKernels& kernels_;
  std::vector<Buffers> threads_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_cpu_backend() {
  const cpu::ByteKernels* best = cpu::best_kernels();
  if (best == nullptr) return nullptr;
  return make_layer_loop(std::make_unique<CpuAttention>(*best));
}

std::unique_ptr<AttentionBackend> make_cpu_backend(const std::string& kernels) {
  const cpu::ByteKernels* found = cpu::find_kernels(kernels.c_str());
  if (found == nullptr) return nullptr;
  return make_layer_loop(std::make_unique<CpuAttention>(*found));
}

}  // namespace kvant
