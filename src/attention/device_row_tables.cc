#include "attention/device_row_tables.h"

#include <algorithm>
#include <vector>

#include "attention/visible_tokens.h"
#include "cache/device_page_store.h"
#include "cache/page_counts.h"

namespace kvant {
namespace {

using RowIds = std::vector<std::int32_t>;

// One table entry a row.
IndexBuffer::Part list_row_sinks(const Step& step, const RowRun& run, const SliceTables& slices,
                                 IndexBuffer& indices) {
  if (run.one_each()) return slices.sinks.from(run.first_slice);
  RowIds sinks;
  for (int s = run.first_slice; s < run.first_slice + run.n_slices; ++s)
    sinks.insert(sinks.end(), step.slices()[s].n_tokens, indices.values(slices.sinks)[s]);
  return indices.add(sinks);
}

// Tables of pages, the same for all rows of a slice that begin with the same page.
void list_tail(const RowRun& run, const SliceTables& slices, const std::vector<int>& slice_of_row,
               const RowIds& tail_tokens, const std::vector<int>& first_page, IndexBuffer& indices,
               RowTables& tables) {
  const bool alike = run.n_slices == 1 && std::all_of(first_page.begin(), first_page.end(),
                                                      [&](int page) { return page == first_page.front(); });
  if (alike) {
    tables.tail = slices.tail.from(run.first_slice * slices.tail_width + first_page.front());
    return;
  }
  tables.tail_stride = pages_for(tables.max_tail);
  RowIds table(tables.n_rows * tables.tail_stride);
  for (int row = 0; row < tables.n_rows; ++row)
    std::copy_n(indices.values(slices.tail.from(slice_of_row[row] * slices.tail_width + first_page[row])),
                pages_for(tail_tokens[row]), table.begin() + row * tables.tail_stride);
  tables.tail = indices.add(table);
}

void list_sealed(const RowRun& run, const SliceTables& slices, const std::vector<int>& slice_of_row,
                 IndexBuffer& indices, RowTables& tables) {
  const std::int64_t width = slices.sealed_width;
  tables.sealed_stride = run.n_slices == 1 ? 0 : width;
  if (run.n_slices == 1 || run.one_each()) {
    tables.sealed = slices.sealed.from(run.first_slice * width);
    return;
  }
  RowIds table(tables.n_rows * width);
  for (int row = 0; row < tables.n_rows; ++row)
    std::copy_n(indices.values(slices.sealed.from(slice_of_row[row] * width)), width,
                table.begin() + row * width);
  tables.sealed = indices.add(table);
}

void list_all(const Step& step, const RowRun& run, const SliceTables& slices, IndexBuffer& indices,
              RowTables& tables) {
  const Plan& plan = step.plan();
  const int sink = step.device_pages().has_sink() ? device_sink(plan) : 0;
  RowIds sealed, tail, n_protected;
  std::vector<int> slice_of_row, first_page;
  for (int s = run.first_slice; s < run.first_slice + run.n_slices; ++s) {
    for (const VisibleTokens& visible : visible_tokens(step, s)) {
      slice_of_row.push_back(s);
      sealed.push_back(visible.sealed_pages);
      tail.push_back(visible.tail_tokens);
      n_protected.push_back(visible.sealed_pages > 0 ? sink : 0);
      first_page.push_back(visible.sealed_pages - step.ledger(s).n_sealed());
      tables.has_sealed = tables.has_sealed || visible.sealed_pages > 0;
      tables.max_tail = std::max(tables.max_tail, visible.tail_tokens);
    }
  }
  tables.has_protected = tables.has_sealed && sink > 0;
  tables.sealed_pages = indices.add(sealed);
  tables.tail_tokens = indices.add(tail);
  tables.n_protected = indices.add(n_protected);
  list_tail(run, slices, slice_of_row, tail, first_page, indices, tables);
  list_sealed(run, slices, slice_of_row, indices, tables);
}

// Rows of so many ids.
IndexBuffer::Part add_table(std::vector<RowIds>& rows, std::size_t width, IndexBuffer& indices) {
  RowIds table;
  for (RowIds& row : rows) {
    row.resize(width);
    table.insert(table.end(), row.begin(), row.end());
  }
  return indices.add(table);
}

// Tables begin with the page of a row's first visible token.
void list_window(const Step& step, const RowRun& run, IndexBuffer& indices, RowTables& tables) {
  DevicePageStore& store = step.device_pages();
  RowIds sealed, tail, hidden;
  std::vector<RowIds> sealed_ids, tail_ids;
  std::size_t sealed_width = 1, tail_width = 1;
  for (int s = run.first_slice; s < run.first_slice + run.n_slices; ++s) {
    const PageLedger& ledger = step.ledger(s);
    int token = step.first_token(s);
    for (const VisibleTokens& visible : visible_tokens(step, s)) {
      const WindowedTokens seen = within_window(visible, token++, tables.sliding_window);
      sealed.push_back(seen.sealed_pages);
      tail.push_back(seen.tail_tokens);
      hidden.push_back(seen.hidden_tokens);
      RowIds& row_sealed = sealed_ids.emplace_back();
      for (int i = 0; i < seen.sealed_pages; ++i)
        row_sealed.push_back(store.sealed().table_id(ledger.sealed(seen.first_page + i).id));
      RowIds& row_tail = tail_ids.emplace_back();
      for (int i = 0; i < pages_for(seen.tail_tokens); ++i)
        row_tail.push_back(store.tails().table_id(ledger.tail(seen.first_page + seen.sealed_pages + i).id));
      sealed_width = std::max(sealed_width, row_sealed.size());
      tail_width = std::max(tail_width, row_tail.size());
      tables.has_sealed = tables.has_sealed || seen.sealed_pages > 0;
      tables.max_tail = std::max(tables.max_tail, seen.tail_tokens);
    }
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

RowTables list_row_tables(const Step& step, const RowRun& run, int sliding_window, const SliceTables& slices,
                          IndexBuffer& indices) {
  RowTables tables;
  tables.first_row = run.first_row;
  tables.n_rows = run.n_rows;
  tables.sliding_window = sliding_window;
  tables.sinks = list_row_sinks(step, run, slices, indices);
  if (sliding_window > 0) {
    list_window(step, run, indices, tables);
  } else {
    list_all(step, run, slices, indices, tables);
  }
  return tables;
}

kvant_decode_lengths RowTables::lengths(const IndexBuffer& indices, int from_row) const {
  const int skipped = from_row - first_row;
  kvant_decode_lengths lengths{};
  lengths.struct_size = sizeof lengths;
  lengths.sealed_pages = has_sealed ? indices.at(sealed_pages.from(skipped)) : nullptr;
  lengths.tail_tokens = indices.at(tail_tokens.from(skipped));
  lengths.protected_tokens = has_protected ? indices.at(n_protected.from(skipped)) : nullptr;
  lengths.first_tokens = sliding_window > 0 ? indices.at(hidden.from(skipped)) : nullptr;
  lengths.protected_seq_stride = 1;
  lengths.max_tail_tokens = max_tail;
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

}  // namespace kvant
