#include "cache/sequence_view.h"

#include "cache/page_counts.h"

namespace kvant {
namespace {

using HeldPage = HeadState::HeldPage;

// A page in all layers and heads. Sealed where any has sealed it: what is encoded ahead is in the tail as
// well.
struct PageState {
  bool sealed = false, tail = false, shared = false;
  PageRun::Kind kind() const {
    return sealed ? PageRun::Kind::sealed : tail ? PageRun::Kind::tail : PageRun::Kind::freed;
  }
};

void add_page(const HeldPage& page, std::vector<PageState>& states) {
  if (page.kind == HeldPage::Kind::protected_rows) return;
  PageState& state = states[page.page];
  (page.kind == HeldPage::Kind::sealed ? state.sealed : state.tail) = true;
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

void view_on_device(const Cache& cache, SequenceId sequence, SequenceView& view,
                    std::vector<PageState>& states) {
  const Geometry& g = cache.plan().geometry;
  const DevicePageStore& store = cache.device_pages();
  const std::size_t n_heads = static_cast<std::size_t>(g.n_all_kv_heads());
  view.k_bytes.resize(n_heads);
  view.v_bytes.resize(n_heads);
  const auto add = [&](const EntryLayout& layout) {
    for (int layer = 0; layer < g.n_layers; ++layer) {
      const EntryLayout::Layer& of_layer = layout.layers[layer];
      for (int head = 0; head < g.kv_heads(layer); ++head) {
        const int i = g.head_index(layer, head);
        view.k_bytes[i] += static_cast<std::int64_t>(of_layer.bytes(head, Side::key));
        view.v_bytes[i] += static_cast<std::int64_t>(of_layer.bytes(head, Side::value));
      }
    }
  };
  for (int group = 0; group < store.n_groups(); ++group) {
    const DeviceEntryStore& pages = store.of_group(group);
    cache.ledger(sequence, group).for_each_entry([&](int page, PageEntry entry) {
      PageState& state = states[page];
      (entry.room == kSealedRoom ? state.sealed : state.tail) = true;
      state.shared = state.shared || pages.shared(entry);
      add(pages.layout(entry.room));
    });
  }
  const DeviceEntryStore& beside = store.beside();
  if (cache.sink(sequence).held()) add(beside.layout(kSinkRoom));
  for (std::size_t i = 0; i < cache.protection(sequence).pages.size(); ++i)
    add(beside.layout(kProtectedRoom));
}

}  // namespace

const char* page_kind_name(PageRun::Kind kind) {
  static constexpr const char* kNames[] = {"sealed", "tail", "freed"};
  return kNames[static_cast<int>(kind)];
}

SequenceView view_sequence(const Cache& cache, SequenceId sequence) {
  const Plan& plan = cache.plan();
  const Geometry& g = plan.geometry;
  SequenceView view{.n_tokens = cache.length(sequence), .bytes = cache.bytes(sequence)};
  std::vector<PageState> states(pages_for(view.n_tokens));
  if (cache.on_device()) {
    view_on_device(cache, sequence, view, states);
    view.pages = runs_of(states);
    return view;
  }
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int h = 0; h < g.kv_heads(layer); ++h) {
      const auto page_bytes = [&](Side side) {
        return static_cast<std::int64_t>(plan.head(layer, h).side(side).sealed->page_bytes(g.dim(layer)));
      };
      const std::int64_t k_page = page_bytes(Side::key), v_page = page_bytes(Side::value);
      std::int64_t k = 0, v = 0;
      cache.head(sequence, layer, h).for_each_page([&](const HeldPage& page) {
        const bool encoded = page.kind != HeldPage::Kind::protected_rows && page.room == kSealedRoom;
        k += encoded ? k_page : page.bytes / 2;  // unsealed and protected tokens: one format for both sides
        v += encoded ? v_page : page.bytes / 2;
        add_page(page, states);
      });
      view.k_bytes.push_back(k);
      view.v_bytes.push_back(v);
    }
  }
  view.pages = runs_of(states);
  return view;
}

}  // namespace kvant
