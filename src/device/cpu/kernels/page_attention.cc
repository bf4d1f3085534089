#include "device/cpu/kernels/page_attention.h"

#include "device/cpu/kernels/flashq.h"

namespace kvant::cpu {

PageAttention::PageAttention(const ByteKernels* kernels) {
  if (kernels != nullptr) kernels_.emplace(*kernels);
}

// Algorithm 1 as printed rescales from page to page. Only the reference reproduces the resulting error.
bool PageAttention::takes_run(const QueryTile& tile, const AttentionRules& rules) const {
  return kernels_.has_value() && tile.n_queries == 1 && rules.softmax != Softmax::sas_paper;
}

void PageAttention::attend_bytes(const QueryTile& tile, std::span<const PageView> pages,
                                 const AttentionRules& rules, PartialAttention& partial) {
  if (!kernels_ || !kernels_->prompts.takes(rules))
    return attend_in_bytes(tile, pages, rules, scratch_, partial);
  kernels_->prompts.begin(tile, rules);
  for (const PageView& page : pages) kernels_->prompts.attend(page, partial);
}

SkipCount PageAttention::attend(const QueryTile& tile, std::span<const PageView> pages,
                                const AttentionRules& rules, const SkipRule* skip,
                                PartialAttention& partial) {
  if (rules.in_bytes) {
    attend_bytes(tile, pages, rules, partial);
    return {};
  }
  if (takes_run(tile, rules)) return kernels_->run.attend(tile, pages, rules, skip, partial);
  if (skip != nullptr) return attend_pages(tile, pages, rules, skip, scratch_, partial);
  begin(tile, rules);
  for (const PageView& page : pages) add(page, partial);
  return {};
}

void PageAttention::weigh(const QueryTile& tile, std::span<const PageView> pages, const AttentionRules& rules,
                          PartialAttention& partial) {
  if (takes_run(tile, rules)) return kernels_->run.weigh(tile, pages, rules, partial);
  weigh_pages(tile, pages, rules, scratch_, partial);
}

void PageAttention::begin(const QueryTile& tile, const AttentionRules& rules) {
  tile_ = &tile;
  rules_ = &rules;
  expands_ = kernels_ && rules.products == Products::real && rules.softmax == Softmax::exact;
  if (expands_) kernels_->tiles.begin(tile, rules);
}

void PageAttention::add(const PageView& page, PartialAttention& partial) {
  if (expands_ && kernels_->tiles.takes(page)) {
    kernels_->tiles.attend(page, partial);
  } else {
    attend_pages(*tile_, {&page, 1}, *rules_, nullptr, scratch_, partial);
  }
}

}  // namespace kvant::cpu
