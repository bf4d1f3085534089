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

std::vector<int> layers_with_rows(const std::vector<int>& rows_of_layer) {
  std::vector<int> layers;
  for (int layer = 0; layer < static_cast<int>(rows_of_layer.size()); ++layer) {
    if (rows_of_layer[layer] > 0) layers.push_back(layer);
  }
  return layers;
}

}  // namespace

HostPageStore::HostPageStore(const Plan& plan, std::vector<int> layers, PagePools& pools)
    : plan_(plan),
      layers_(std::move(layers)),
      sides_(sides_of(plan, layers_)),
      sealed_(sealed_pools(sides_, pools)) {
  for (int rows = kTailStep; rows <= kPageTokens; rows += kTailStep)
    add_short_pages(pools, [&](int /*layer*/) { return rows; });
}

HostPageStore::HostPageStore(const Plan& plan, PagePools& pools, const std::vector<int>& rows_of_layer)
    : plan_(plan),
      layers_(layers_with_rows(rows_of_layer)),
      sides_(sides_of(plan, layers_)),
      sealed_(std::vector<PagePool*>()) {
  add_short_pages(pools, [&](int layer) { return rows_of_layer[layer]; });
}

void HostPageStore::add_short_pages(PagePools& pools, const std::function<int(int)>& rows) {
  std::vector<PagePool*> of_parts;
  std::vector<PageContext> contexts;
  for (const SidePlan* side : sides_) {
    const int d = side->context.head_dim, n = rows(side->context.constants.layer);
    of_parts.push_back(pools.of(plan_.tail->short_page_bytes(d, n)));
    contexts.push_back({d, side->context.constants, {}, n});
  }
  short_pages_.emplace_back(std::move(of_parts), std::move(contexts));
}

PageEntry HostPageStore::take(int room) {
  EntryTable& entries = table(room);
  const PageEntry entry{entries.take(), room};
  if (room <= kSealedRoom) return entry;  // Heads hold their pages later.
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
  EntryTable &source = table(from.room), &target = table(to.room);
  for (int part = 0; part < source.n_parts(); ++part) {
    if (!source.has(from.id, part)) continue;
    if (!target.hold(to.id, part)) return false;
    if (from.room > kSealedRoom) {
      plan_.tail->copy_rows(source.data(from.id, part), short_pages(from.room).contexts[part], n,
                            short_pages(to.room).contexts[part], target.data(to.id, part));
    } else {
      std::memcpy(target.data(to.id, part), source.data(from.id, part), source.part_bytes(part));
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

bool HostPageStore::hold(PageEntry entry, int head) {
  EntryTable& entries = table(entry.room);
  return entries.hold(entry.id, part(head, Side::key)) && entries.hold(entry.id, part(head, Side::value));
}

void HostPageStore::drop(PageEntry entry, int head) noexcept {
  for (const Side side : kSides) table(entry.room).drop(entry.id, part(head, side));
}

void HostPageStore::append(PageEntry tail, int head, int first, MatrixView<const float> k,
                           MatrixView<const float> v) {
  KVANT_CHECK(first + k.rows <= tail.room, "rows beyond a tail entry");
  for (const Side side : kSides) {
    const MatrixView<const float>& rows = side == Side::key ? k : v;
    for (int r = 0; r < rows.rows; ++r) write_rows(tail, head, side, first + r, 1, rows.row(r));
  }
}

void HostPageStore::write_rows(PageEntry entry, int head, Side side, int first, int n, const float* values) {
  const int at = part(head, side);
  const ShortPages& pages = short_pages(entry.room);
  plan_.tail->encode_rows(values, first, n, pages.contexts[at], pages.entries.data(entry.id, at));
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

Status HostPageStore::save(PageEntry entry, std::span<const PagePart> parts, std::byte* image) const {
  for (const PagePart& of : parts) {
    const int head = head_index(of.layer, of.kv_head);
    if (!table(entry.room).has(entry.id, part(head, of.side))) continue;
    const PageSide page = side(entry, head, of.side);
    std::byte* const to = image + of.place;
    if (entry.room == kSealedRoom) {
      to_canonical_order(*page.format, page.context->head_dim, page.bytes, to);
    } else {
      plan_.tail->copy_rows(page.bytes, *page.context, of.n_rows, with_room(*page.context, of.n_rows), to);
    }
  }
  return {};
}

bool HostPageStore::load(const std::byte* image, std::span<const PagePart> parts, PageEntry entry) {
  for (const PagePart& of : parts) {
    const int head = head_index(of.layer, of.kv_head), at = part(head, of.side);
    if (!table(entry.room).hold(entry.id, at)) return false;
    const PageContext& context = *side(entry, head, of.side).context;
    const std::byte* const from = image + of.place;
    std::byte* const page = table(entry.room).data(entry.id, at);
    if (entry.room == kSealedRoom) {
      from_canonical_order(*sides_[at]->sealed, context.head_dim, from, page);
    } else {
      plan_.tail->copy_rows(from, with_room(context, of.n_rows), of.n_rows, context, page);
    }
  }
  return true;
}

std::int64_t HostPageStore::side_bytes(PageEntry entry, int layer, int kv_head, Side side) const {
  const EntryTable& entries = table(entry.room);
  const int at = part(head_index(layer, kv_head), side);
  return entries.has(entry.id, at) ? static_cast<std::int64_t>(entries.part_bytes(at)) : 0;
}

}  // namespace kvant
