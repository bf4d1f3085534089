#include "cache/page_store.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "format/code_order.h"
#include "format/page_metric.h"

namespace kvant {
namespace {

std::vector<const SidePlan*> sides_of(const Plan& plan, const std::vector<int>& layers) {
  std::vector<const SidePlan*> sides;
  for (const int layer : layers) {
    for (int h = 0; h < plan.geometry.kv_heads(layer); ++h) {
      for (const Side side : kSides) sides.push_back(&plan.head(layer, h).side(side));
    }
  }
  return sides;
}

std::vector<PagePool*> sealed_pools(const std::vector<const SidePlan*>& sides, PagePools& pools) {
  std::vector<PagePool*> of_parts;
  of_parts.reserve(sides.size());
  for (const SidePlan* side : sides)
    of_parts.push_back(pools.of(side->sealed->page_bytes(side->context.head_dim)));
  return of_parts;
}

PageContext with_room(PageContext context, int n_tokens) {
  context.page_tokens = n_tokens;
  return context;
}

template <std::size_t... I>
std::array<EntryTable, sizeof...(I)> tail_tables(const Plan& plan, const std::vector<const SidePlan*>& sides,
                                                 PagePools& pools, std::index_sequence<I...> /*sizes*/) {
  const auto pools_of = [&](int room) {
    std::vector<PagePool*> of_parts;
    for (const SidePlan* side : sides)
      of_parts.push_back(pools.of(plan.tail->short_page_bytes(side->context.head_dim, room)));
    return of_parts;
  };
  return {EntryTable(pools_of((static_cast<int>(I) + 1) * kTailStep))...};
}

}  // namespace

HostPageStore::HostPageStore(const Plan& plan, std::vector<int> layers, PagePools& pools)
    : plan_(plan),
      layers_(std::move(layers)),
      sides_(sides_of(plan, layers_)),
      sealed_(sealed_pools(sides_, pools)),
      tails_(tail_tables(plan, sides_, pools, std::make_index_sequence<kTailSizes>())) {
  for (const SidePlan* side : sides_) {
    for (int i = 1; i <= kTailSizes; ++i)
      tail_contexts_.push_back({side->context.head_dim, side->context.constants, {}, i * kTailStep});
  }
}

PageEntry HostPageStore::take(int room) {
  EntryTable& entries = table(room);
  const PageEntry entry{entries.take(), room};
  if (room == kSealedRoom) return entry;
  try {
    for (int part = 0; part < entries.n_parts(); ++part) {
      if (entries.hold(entry.id, part)) continue;
      entries.release(entry.id);
      return {};
    }
  } catch (...) {
    entries.release(entry.id);
    throw;
  }
  return entry;
}

bool HostPageStore::copy(PageEntry from, int n, PageEntry to) {
  for (int part = 0; part < sealed_.n_parts(); ++part) {
    if (from.room != kSealedRoom) {
      plan_.tail->copy_rows(table(from.room).data(from.id, part), tail_context(part, from.room), n,
                            tail_context(part, to.room), table(to.room).data(to.id, part));
    } else if (sealed_.has(from.id, part)) {
      if (!sealed_.hold(to.id, part)) return false;
      std::memcpy(sealed_.data(to.id, part), sealed_.data(from.id, part), sealed_.part_bytes(part));
    }
  }
  return true;
}

int HostPageStore::head_index(int layer, int kv_head) const {
  int index = kv_head;
  for (const int before : layers_) {
    if (before < layer) index += plan_.geometry.kv_heads(before);
  }
  return index;
}

bool HostPageStore::hold(PageEntry sealed, int head) {
  return sealed_.hold(sealed.id, part(head, Side::key)) && sealed_.hold(sealed.id, part(head, Side::value));
}

void HostPageStore::drop(PageEntry sealed, int head) noexcept {
  for (const Side side : kSides) sealed_.drop(sealed.id, part(head, side));
}

void HostPageStore::append(PageEntry tail, int head, int first, MatrixView<const float> k,
                           MatrixView<const float> v) {
  KVANT_CHECK(first + k.rows <= tail.room, "rows beyond a tail entry");
  for (const Side side : kSides) {
    const MatrixView<const float>& rows = side == Side::key ? k : v;
    for (int r = 0; r < rows.rows; ++r) write_rows(tail, head, side, first + r, 1, rows.row(r));
  }
}

void HostPageStore::write_rows(PageEntry tail, int head, Side side, int first, int n, const float* values) {
  const int at = part(head, side);
  plan_.tail->encode_rows(values, first, n, tail_context(at, tail.room), table(tail.room).data(tail.id, at));
}

void HostPageStore::seal(PageEntry sealed, int head, Side side, int page, const TokenMask& left_out,
                         const float* values) {
  const int at = part(head, side);
  KVANT_CHECK(sealed_.has(sealed.id, at), "seal beyond what the step reserved");
  encode_page(*sides_[at]->sealed, sides_[at]->transform, sides_[at]->context, page * kPageTokens, left_out,
              values, sealed_.data(sealed.id, at));
}

void HostPageStore::read(PageEntry entry, int head, Side which, int n, float* values) const {
  const PageSide page = side(entry, head, which);
  page.format->decode(page.bytes, n, *page.context, values);
}

void HostPageStore::save(PageEntry entry, int head, Side which, int n, std::byte* canonical) const {
  const PageSide page = side(entry, head, which);
  if (entry.room == kSealedRoom)
    return to_canonical_order(*page.format, page.context->head_dim, page.bytes, canonical);
  plan_.tail->copy_rows(page.bytes, *page.context, n, with_room(*page.context, n), canonical);
}

void HostPageStore::load(const std::byte* canonical, int n, int head, Side which, PageEntry entry) {
  const int at = part(head, which);
  const PageContext& context = *side(entry, head, which).context;
  std::byte* const page = table(entry.room).data(entry.id, at);
  if (entry.room == kSealedRoom)
    return from_canonical_order(*sides_[at]->sealed, context.head_dim, canonical, page);
  plan_.tail->copy_rows(canonical, with_room(context, n), n, context, page);
}

std::int64_t HostPageStore::head_bytes(int room, int head) const {
  const EntryTable& entries = table(room);
  return static_cast<std::int64_t>(entries.part_bytes(part(head, Side::key)) +
                                   entries.part_bytes(part(head, Side::value)));
}

}  // namespace kvant
