#include "attention/device_row_tables.h"

#include <algorithm>
#include <vector>

#include "cache/device_sequence.h"
#include "cache/page_counts.h"
#include "cache/schedule.h"

namespace kvant {

namespace {

using RowIds = std::vector<std::int32_t>;

// Describes consecutive rows of a slice that see equal pages sealed.
struct RowGroup {
  int slice;
  int n_rows;
  int last_token;      // index in the sequence
  VisibleTokens last;  // What the last row sees.
};

// Returns whether the library's kernel for short sequences may serve the rows of a run, each on its own.
bool are_short(const Step& step, const RowRun& run, int layer) {
  constexpr int kShortTokens = 512;
  for (int s = run.first_slice; s < run.first_slice + run.n_slices; ++s) {
    const VisibleTokens last = visible_tokens(step, s, layer).back();
    if (last.sealed_pages > 0 || last.tail_tokens > kShortTokens) return false;
  }
  return true;
}

// Returns groups of up to `together` rows. The groups of one stretch of a slice have nearly equal sizes.
std::vector<RowGroup> list_groups(const Step& step, const RowRun& run, int layer, int together) {
  std::vector<RowGroup> groups;
  for (int s = run.first_slice; s < run.first_slice + run.n_slices; ++s) {
    const std::vector<VisibleTokens> visible = visible_tokens(step, s, layer);
    const auto n_rows = static_cast<int>(visible.size());
    for (int begin = 0; begin < n_rows;) {
      int end = begin;  // The end of the stretch.
      while (end < n_rows && visible[end].sealed_pages == visible[begin].sealed_pages) ++end;
      for (int left = (end - begin + together - 1) / together; begin < end; --left) {
        const int n = (end - begin + left - 1) / left;
        begin += n;
        groups.push_back({s, n, step.first_token(s) + begin - 1, visible[begin - 1]});
      }
    }
  }
  return groups;
}

// The table has one entry for each group.
IndexBuffer::Part list_sinks(const std::vector<RowGroup>& groups, const RowRun& run,
                             const SliceTables& slices, IndexBuffer& indices) {
  if (static_cast<int>(groups.size()) == run.n_slices) return slices.sinks.from(run.first_slice);
  RowIds sinks;
  for (const RowGroup& group : groups) sinks.push_back(indices.values(slices.sinks)[group.slice]);
  return indices.add(sinks);
}

// Lists tables of pages. Groups of a slice that begin with the same page share one table.
void list_tail(const std::vector<RowGroup>& groups, const RowRun& run, const SliceTables& slices,
               const std::vector<int>& first_page, IndexBuffer& indices, RowTables& tables) {
  const bool alike = run.n_slices == 1 && std::all_of(first_page.begin(), first_page.end(),
                                                      [&](int page) { return page == first_page.front(); });
  if (alike) {
    tables.tail = slices.tail.from(run.first_slice * slices.tail_width + first_page.front());
    return;
  }
  tables.tail_stride = pages_for(tables.max_tail);
  RowIds table(groups.size() * tables.tail_stride);
  for (std::size_t i = 0; i < groups.size(); ++i)
    std::copy_n(indices.values(slices.tail.from(groups[i].slice * slices.tail_width + first_page[i])),
                pages_for(groups[i].last.tail_tokens),
                table.begin() + static_cast<std::ptrdiff_t>(i) * tables.tail_stride);
  tables.tail = indices.add(table);
}

void list_sealed(const std::vector<RowGroup>& groups, const RowRun& run, const SliceTables& slices,
                 IndexBuffer& indices, RowTables& tables) {
  const std::int64_t width = slices.sealed_width;
  tables.sealed_stride = run.n_slices == 1 ? 0 : width;
  if (run.n_slices == 1 || static_cast<int>(groups.size()) == run.n_slices) {
    tables.sealed = slices.sealed.from(run.first_slice * width);
    return;
  }
  RowIds table(groups.size() * width);
  for (std::size_t i = 0; i < groups.size(); ++i)
    std::copy_n(indices.values(slices.sealed.from(groups[i].slice * width)), width,
                table.begin() + static_cast<std::ptrdiff_t>(i) * width);
  tables.sealed = indices.add(table);
}

void list_all(const Step& step, const std::vector<RowGroup>& groups, const RowRun& run,
              const SliceTables& slices, IndexBuffer& indices, RowTables& tables) {
  const Plan& plan = step.plan();
  const int sink = device_pages(step).has_sink() ? device_sink(plan) : 0;
  RowIds sealed, tail, n_protected;
  std::vector<int> first_page;
  for (const auto& [slice, n_rows, last_token, visible] : groups) {
    sealed.push_back(visible.sealed_pages);
    tail.push_back(visible.tail_tokens);
    n_protected.push_back(visible.sealed_pages > 0 ? sink : 0);
    first_page.push_back(visible.sealed_pages - step.ledger(slice, slices.layer).n_sealed());
    tables.max_sealed = std::max(tables.max_sealed, visible.sealed_pages);
    tables.max_tail = std::max(tables.max_tail, visible.tail_tokens);
  }
  tables.has_protected = tables.max_sealed > 0 && sink > 0;
  tables.sealed_pages = indices.add(sealed);
  tables.tail_tokens = indices.add(tail);
  tables.n_protected = indices.add(n_protected);
  list_tail(groups, run, slices, first_page, indices, tables);
  list_sealed(groups, run, slices, indices, tables);
}

// Adds a table whose rows have `width` ids.
IndexBuffer::Part add_table(std::vector<RowIds>& rows, std::size_t width, IndexBuffer& indices) {
  RowIds table;
  for (RowIds& row : rows) {
    row.resize(width);
    table.insert(table.end(), row.begin(), row.end());
  }
  return indices.add(table);
}

// A group's tables begin with the page of the first token that the group's first row sees.
void list_window(const Step& step, const std::vector<RowGroup>& groups, int layer, IndexBuffer& indices,
                 RowTables& tables) {
  DevicePageStore& store = device_pages(step);
  RowIds sealed, tail, hidden;
  std::vector<RowIds> sealed_ids, tail_ids;
  std::size_t sealed_width = 1, tail_width = 1;
  for (const RowGroup& group : groups) {
    const PageLedger& ledger = step.ledger(group.slice, layer);
    const int first_token = group.last_token - (group.n_rows - 1);
    const int first_page = first_visible_token(first_token, tables.sliding_window) / kPageTokens;
    const VisibleTokens seen = from_page(group.last, first_page);
    sealed.push_back(seen.sealed_pages);
    tail.push_back(seen.tail_tokens);
    hidden.push_back(first_visible_token(group.last_token, tables.sliding_window) - first_page * kPageTokens);
    RowIds& row_sealed = sealed_ids.emplace_back();
    for (int i = 0; i < seen.sealed_pages; ++i)
      row_sealed.push_back(store.sealed(layer).table_id(ledger.sealed(first_page + i).id));
    RowIds& row_tail = tail_ids.emplace_back();
    for (int i = 0; i < pages_for(seen.tail_tokens); ++i)
      row_tail.push_back(store.tails(layer).table_id(ledger.tail(first_page + seen.sealed_pages + i).id));
    sealed_width = std::max(sealed_width, row_sealed.size());
    tail_width = std::max(tail_width, row_tail.size());
    tables.max_sealed = std::max(tables.max_sealed, seen.sealed_pages);
    tables.max_tail = std::max(tables.max_tail, seen.tail_tokens);
  }
  tables.sealed_pages = indices.add(sealed);
  tables.tail_tokens = indices.add(tail);
  tables.hidden = indices.add(hidden);
  tables.sealed = add_table(sealed_ids, sealed_width, indices);
  tables.tail = add_table(tail_ids, tail_width, indices);
  tables.sealed_stride = static_cast<std::int64_t>(sealed_width);
  tables.tail_stride = static_cast<std::int64_t>(tail_width);
}

}  // namespace

RowTables list_row_tables(const Step& step, const RowRun& run, int together, const SliceTables& slices,
                          IndexBuffer& indices) {
  const int layer = slices.layer;
  const std::vector<RowGroup> groups =
      list_groups(step, run, layer, are_short(step, run, layer) ? 1 : together);
  RowTables tables;
  tables.group = device_pages(step).group_of(layer);
  tables.first_row = run.first_row;
  tables.n_seqs = static_cast<int>(groups.size());
  RowIds begins = {0};
  for (const RowGroup& group : groups) {
    tables.max_queries = std::max(tables.max_queries, group.n_rows);
    begins.push_back(begins.back() + group.n_rows);
  }
  if (tables.max_queries > 1) tables.query_begins = indices.add(begins);
  tables.sliding_window = step.plan().layers[layer].sliding_window;
  tables.sinks = list_sinks(groups, run, slices, indices);
  if (tables.sliding_window > 0) {
    list_window(step, groups, layer, indices, tables);
  } else {
    list_all(step, groups, run, slices, indices, tables);
  }
  return tables;
}

kvant_decode_shape RowTables::shape(const LayerShape& formats, const Plan& plan) const {
  kvant_decode_shape shape = formats.of(n_seqs, plan);
  shape.max_queries = max_queries;
  return shape;
}

kvant_decode_lengths RowTables::lengths(const IndexBuffer& indices, int from_row) const {
  const int skipped = from_row - first_row;
  kvant_decode_lengths lengths{};
  lengths.struct_size = sizeof lengths;
  lengths.sealed_pages = max_sealed > 0 ? indices.at(sealed_pages.from(skipped)) : nullptr;
  lengths.tail_tokens = indices.at(tail_tokens.from(skipped));
  lengths.protected_tokens = has_protected ? indices.at(n_protected.from(skipped)) : nullptr;
  lengths.first_tokens = sliding_window > 0 ? indices.at(hidden.from(skipped)) : nullptr;
  lengths.protected_seq_stride = 1;
  lengths.max_tail_tokens = max_tail;
  lengths.max_sealed_pages = max_sealed;
  lengths.query_begins = max_queries > 1 ? indices.at(query_begins) : nullptr;
  return lengths;
}

void RowTables::add_to(kvant_decode_layer& at_layer, const IndexBuffer& indices, int from_row) const {
  const int skipped = from_row - first_row;
  at_layer.tail.table = indices.at(tail.from(skipped * tail_stride));
  at_layer.tail.seq_stride = tail_stride;
  at_layer.sealed.table = indices.at(sealed.from(skipped * sealed_stride));
  at_layer.sealed.seq_stride = sealed_stride;
  at_layer.protected_pages.table = indices.at(sinks.from(skipped));
  at_layer.protected_pages.seq_stride = 1;
}

std::vector<VisibleTokens> visible_tokens(int first_token, const StepSlice& slice, int n_sealed, int window,
                                          int prefill) {
  std::vector<VisibleTokens> visible;
  visible.reserve(slice.n_tokens);
  for (const Tile& tile :
       schedule(first_token, slice.n_tokens, {slice.is_prompt, prefill, window, n_sealed})) {
    for (int t = tile.query_first; t < tile.query_end; ++t)
      visible.push_back({tile.n_sealed, t + 1 - tile.n_sealed * kPageTokens});
  }
  return visible;
}

std::vector<VisibleTokens> visible_tokens(const Step& step, int slice, int layer) {
  const Plan& plan = step.plan();
  return visible_tokens(step.first_token(slice), step.slices()[slice], step.ledger(slice, layer).n_sealed(),
                        device_window(plan), plan.recipe.prefill);
}

}  // namespace kvant
