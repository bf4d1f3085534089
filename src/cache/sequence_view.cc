#include "cache/sequence_view.h"

#include "cache/page_counts.h"

namespace kvant {
namespace {

// Describes a page in all layers and heads. The page counts as sealed if any head has sealed it. A page that
// is encoded ahead is also in the tail.
struct PageState {
  bool sealed = false, tail = false, shared = false;
  PageRun::Kind kind() const {
    return sealed ? PageRun::Kind::sealed : tail ? PageRun::Kind::tail : PageRun::Kind::freed;
  }
};

void add_page(const HeldPage& page, std::vector<PageState>& states) {
  if (page.name.kind == HeldPage::Kind::auxiliary) return;
  PageState& state = states[page.page];
  (page.name.kind == HeldPage::Kind::sealed ? state.sealed : state.tail) = true;
  state.shared = state.shared || page.shared;
}

std::vector<PageRun> runs_of(const std::vector<PageState>& states) {
  std::vector<PageRun> runs;
  for (const PageState& state : states) {
    if (runs.empty() || runs.back().kind != state.kind() || runs.back().shared != state.shared)
      runs.push_back({state.kind(), state.shared, 0});
    ++runs.back().n_pages;
  }
  return runs;
}

}  // namespace

const char* page_kind_name(PageRun::Kind kind) {
  static constexpr const char* kNames[] = {"sealed", "tail", "freed"};
  return kNames[static_cast<int>(kind)];
}

SequenceView view_sequence(const Cache& cache, SequenceId sequence) {
  const auto n_heads = static_cast<std::size_t>(cache.plan().geometry.n_all_kv_heads());
  const SequencePages& pages = cache.pages(sequence);
  SequenceView view{.n_tokens = cache.length(sequence), .bytes = cache.bytes(sequence)};
  view.k_bytes.resize(n_heads);
  view.v_bytes.resize(n_heads);
  pages.add_side_bytes(view.k_bytes, view.v_bytes);
  std::vector<PageState> states(pages_for(view.n_tokens));
  pages.for_each_page([&](const HeldPage& page) { add_page(page, states); });
  view.pages = runs_of(states);
  return view;
}

}  // namespace kvant
