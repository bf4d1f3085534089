#include "cache/synthetic_sequence.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/linear_correction.h"
#include "cache/page_counts.h"
#include "cache/protected_tokens.h"
#include "format/code_order.h"
#include "format/page_metric.h"

namespace kvant {
namespace {

using Bytes = std::vector<std::byte>;

// Returns the weights that one observer gives to the tokens of a sequence. The weights are the fractional
// parts of multiples of the golden ratio, so all pages have nearly equal shares above any threshold.
std::vector<double> golden_weights(int n_tokens) {
  constexpr double kGolden = 0.6180339887498949;
  std::vector<double> weights(n_tokens);
  for (int t = 0; t < n_tokens; ++t) weights[t] = kGolden * t - std::floor(kGolden * t);
  return weights;
}

// Chooses tokens as if, at each page end, one observer had given every token a weight of its own.
ProtectedTokens::Head choose(const LayerPlan& layer, int n_tokens, int n_sealed) {
  ProtectedTokens::Head head;
  int page = 0;
  for (int end = kPageTokens; end <= n_tokens; end += kPageTokens) {
    if (layer.needs_scores()) head.scores.end_page(end, end - 1, golden_weights(end));
    for (; page < sealed_pages(end, layer.window) && page < n_sealed; ++page) head.seal(layer, page);
  }
  for (; page < n_sealed; ++page) head.seal(layer, page);
  return head;
}

// Makes the parts of an image, in which each page of each head is made of the same random rows. Heads of one
// format have equal bytes, so the search for good codes runs once for a format.
class SyntheticImage {
 public:
  SyntheticImage(const Plan& plan, std::uint64_t seed);
  HeadImage head(int layer, int kv_head, int n_sealed, ProtectedTokens::Head chosen) const;
  // Return a sealed page, and an unsealed page of n_rows rows, of all heads of these layers.
  Bytes sealed_page(const std::vector<int>& layers);
  Bytes rows_page(const std::vector<int>& layers, int n_rows) const;

 private:
  template <class Add>
  void for_each_side(const std::vector<int>& layers, const Add& add) const;
  // Appends a short page of the tail's format with the rows of these tokens.
  void add_rows(const SidePlan& side, Side of, std::span<const int> tokens, Bytes& to) const;

  const Plan& plan_;
  std::array<std::vector<float>, 2> rows_;                     // by side: [kPageTokens, head_dim]
  std::map<std::tuple<std::string, Side, int>, Bytes> pages_;  // sealed pages by format, side and head size
};

SyntheticImage::SyntheticImage(const Plan& plan, std::uint64_t seed) : plan_(plan) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (auto& rows : rows_) {
    rows.resize(static_cast<std::size_t>(kPageTokens) * plan.geometry.head_dim);
    for (float& x : rows) x = normal(random);
  }
}

void SyntheticImage::add_rows(const SidePlan& side, Side of, std::span<const int> tokens, Bytes& to) const {
  const int d = side.context.head_dim, n = static_cast<int>(tokens.size());
  const PageContext context{d, side.context.constants, {}, n};
  const std::size_t at = to.size();
  to.resize(at + plan_.tail->short_page_bytes(d, n));
  for (int i = 0; i < n; ++i) {
    const float* row = rows_[static_cast<int>(of)].data() + std::ptrdiff_t{d} * (tokens[i] % kPageTokens);
    plan_.tail->encode_rows(row, i, 1, context, to.data() + at);
  }
}

HeadImage SyntheticImage::head(int layer, int kv_head, int n_sealed, ProtectedTokens::Head chosen) const {
  const std::span<const int> tokens = chosen.tokens;
  const HeadPlan& of_head = plan_.head(layer, kv_head);
  HeadImage image;
  const std::size_t n_rows = protected_page_rows(plan_, layer);
  for (std::size_t i = 0; i < tokens.size(); i += n_rows) {
    for (const Side side : kSides)
      add_rows(of_head.side(side), side, tokens.subspan(i, std::min(n_rows, tokens.size() - i)),
               image.rows[static_cast<int>(side)]);
  }
  image.chosen = std::move(chosen);
  if (of_head.corrected && n_sealed > 0) {
    constexpr float kSmall = 1e-3F;
    image.sums.assign(correction_bytes(plan_.geometry.dim(layer)) / sizeof(float), kSmall);
  }
  return image;
}

template <class Add>
void SyntheticImage::for_each_side(const std::vector<int>& layers, const Add& add) const {
  for (const int layer : layers) {
    for (int h = 0; h < plan_.geometry.kv_heads(layer); ++h) {
      for (const Side side : kSides) add(plan_.head(layer, h).side(side), side);
    }
  }
}

Bytes SyntheticImage::sealed_page(const std::vector<int>& layers) {
  Bytes all;
  for_each_side(layers, [&](const SidePlan& side, Side of) {
    const int d = side.context.head_dim;
    Bytes& page = pages_[{side.sealed->name(), of, d}];
    if (page.empty()) {
      page.resize(side.sealed->page_bytes(d));
      Bytes ordered(page.size());
      encode_page(*side.sealed, side.transform, side.context, /*first_position=*/0, {},
                  rows_[static_cast<int>(of)].data(), ordered.data());
      to_canonical_order(*side.sealed, d, ordered.data(), page.data());
    }
    all.insert(all.end(), page.begin(), page.end());
  });
  return all;
}

Bytes SyntheticImage::rows_page(const std::vector<int>& layers, int n_rows) const {
  std::vector<int> tokens(n_rows);
  std::iota(tokens.begin(), tokens.end(), 0);
  Bytes page;
  for_each_side(layers, [&](const SidePlan& side, Side of) { add_rows(side, of, tokens, page); });
  return page;
}

// Writes the pages of a group. Whole pages of one kind are copies of the first such page, unless heads
// drop pages.
bool write_pages(SyntheticImage& image, const PageGroup& group, const LayerPlan& rules, int index,
                 SequencePages& pages) {
  const PageLedger& ledger = pages.ledger(index);
  Bytes sealed;
  PageEntry first_sealed, first_whole;
  for (int page = ledger.first_page(); page < pages_for(ledger.length()); ++page) {
    const bool is_sealed = page < ledger.n_sealed();
    const int n_rows = std::min(kPageTokens, ledger.length() - page * kPageTokens);
    const PageEntry entry = is_sealed ? ledger.sealed(page) : ledger.tail(page);
    PageEntry& first = is_sealed ? first_sealed : first_whole;
    if (first.held() && rules.evict == 0 && n_rows == kPageTokens) {
      if (!group.entries->copy(first, kPageTokens, entry)) return false;
      continue;
    }
    if (is_sealed && sealed.empty()) sealed = image.sealed_page(group.layers);
    const Bytes rows = is_sealed ? Bytes() : image.rows_page(group.layers, n_rows);
    ByteReader from(is_sealed ? sealed : rows);
    if (!pages.load_page(from, index, page)) return false;
    KVANT_CHECK(from.ok() && from.at_end(), "a synthetic page of a different size");
    first = entry;
  }
  return true;
}

}  // namespace

// Returns false if memory is exhausted.
bool Cache::fill(Sequence& to, int n_tokens, std::uint64_t seed) {
  const Plan& plan = *plan_;
  SyntheticImage image(plan, seed);
  SequencePages& pages = *to.pages;
  std::vector<int> n_sealed;
  for (int i = 0; i < pages.n_groups(); ++i) {
    const GroupRules& rules = store_->groups()[i].rules;
    const PageCounts counts = page_counts(n_tokens, rules.window, rules.sliding_window);
    n_sealed.push_back(rules.seals ? counts.sealed : 0);
    if (!pages.take_pages(i, n_tokens, counts.sealed, counts.freed)) return false;
  }
  std::map<bool, ProtectedTokens::Head> chosen;  // Layers differ only in whether they have a sliding window.
  ByteReader from({});
  const auto next = [&](int layer, int kv_head) {
    const LayerPlan& rules = plan.layers[layer];
    const int sealed = n_sealed[store_->group_of(layer)];
    const auto [found, is_new] = chosen.try_emplace(rules.sliding_window > 0);
    if (is_new) found->second = choose(rules, n_tokens, sealed);
    return image.head(layer, kv_head, sealed, found->second);
  };
  if (!pages.load_heads(from, n_sealed.front(), next)) return false;
  KVANT_CHECK(from.ok(), "a synthetic head that no cache can hold");
  for (int i = 0; i < pages.n_groups(); ++i) {
    const PageGroup& group = store_->groups()[i];
    if (!write_pages(image, group, plan.layers[group.layers.front()], i, pages)) return false;
  }
  if (!plan.geometry.is_recurrent()) return true;
  const std::shared_ptr<float> state = store_->take_state();
  if (state == nullptr) return false;
  const Bytes zeros(static_cast<std::size_t>(plan.geometry.recurrent_bytes()));
  store_->load_state(zeros.data(), state.get());
  to.state = state;
  return true;
}

Status fill_synthetic(Cache& cache, SequenceId sequence, int n_tokens, std::uint64_t seed) {
  KVANT_RETURN_IF_ERROR(cache.check_idle(sequence, "fill"));
  if (cache.length(sequence) > 0)
    return error("cannot fill sequence {}: it holds {} tokens already", sequence, cache.length(sequence));
  try {
    Cache::Sequence filled{cache.store_->make_sequence()};
    if (!cache.fill(filled, n_tokens, seed)) return cache.out_of_memory("filling a sequence");
    KVANT_RETURN_IF_ERROR(cache.store_->finish());
    cache.sequences_.at(sequence) = std::move(filled);
    return {};
  } catch (const std::bad_alloc&) {
    return cache.out_of_memory("filling a sequence");
  }
}

}  // namespace kvant
