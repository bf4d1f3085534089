// Computes attention in decode with the processor's kernels, in three steps. First each head appends its rows
// and lists its pages. Then threads share out runs of pages. Finally each head merges its runs.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/softmax.h"
#include "cache/page_counts.h"
#include "device/caller_structs.h"
#include "device/cpu/calls.h"
#include "device/cpu/kernels/page_attention.h"
#include "device/cpu/kernels/shared_tile.h"
#include "device/cpu/rows.h"
#include "device/cpu/workers.h"

namespace kvant::device::cpu {
namespace {

using kvant::cpu::ByteKernels;
using kvant::cpu::PageAttention;
using kvant::cpu::UnreadPages;

constexpr char kReference[] = "reference";
// The tests cover kernels from this head size on.
constexpr int kLeastKernelHead = 64;

// QueryWork holds what one KV head needs for one query. Each query lists its pages alone, because its output
// must not depend on the queries that come with it.
struct QueryWork : kvant::cpu::SharedTile {
  std::int64_t row = 0;  // The index among the call's queries.
};

// HeadWork holds what one KV head of one sequence needs during a call.
struct HeadWork {
  int seq = 0, head = 0;
  std::optional<SideContext> sealed[2];
  int n_queries = 0;
  std::vector<std::unique_ptr<QueryWork>> queries;  // at least n_queries
};

using Run = kvant::cpu::TileRun<QueryWork>;

// A thread keeps these buffers from call to call, like the buffers of buffers_of_thread().
struct CallBuffers {
  std::vector<std::unique_ptr<HeadWork>> heads;
  std::vector<Run> runs;
};
CallBuffers& buffers_of_call() {
  thread_local CallBuffers buffers;
  return buffers;
}

int count_of(const std::int32_t* counts, int seq) {
  return counts == nullptr ? 0 : counts[seq];
}

class Decode {
 public:
  Decode(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
         const kvant_decode_layer& layer)
      : shape_(shape),
        lengths_(lengths),
        layer_(layer),
        plain_(stored_format("bf16", KVANT_KEY, shape.head_dim)) {}

  void load(HeadWork& work) const;
  void attend(const ByteKernels* kernels, const Run& run) const;
  void finish(HeadWork& work) const;

 private:
  // Counts what a query sees.
  struct Visible {
    int sealed, protected_tokens, tail, hidden;
  };

  void load_query(const HeadWork& head, const Visible& visible, QueryWork& work) const;
  void list_sealed(const HeadWork& head, int n_sealed, QueryWork& work) const;
  void list_plain(const HeadWork& head, const kvant_pages& from, int n_tokens, PageView page,
                  QueryWork& work) const;
  void finish_query(const HeadWork& head, QueryWork& work) const;

  const kvant_decode_shape& shape_;
  const kvant_decode_lengths& lengths_;
  const kvant_decode_layer& layer_;
  const StoredFormat& plain_;
};

void Decode::list_sealed(const HeadWork& head, int n_sealed, QueryWork& work) const {
  for (int page = 0; page < n_sealed; ++page)
    work.pages.push_back(
        sealed_page(layer_, head.seq, head.head, page, *head.sealed[KVANT_KEY], *head.sealed[KVANT_VALUE]));
}

// `page` holds the first token and all that the pages have in common.
void Decode::list_plain(const HeadWork& head, const kvant_pages& from, int n_tokens, PageView page,
                        QueryWork& work) const {
  for (int i = 0; i < pages_for(n_tokens); ++i) {
    page.n_tokens = std::min(kPageTokens, n_tokens - i * kPageTokens);
    for (int side = 0; side < 2; ++side) {
      PageSide& read = side == KVANT_KEY ? page.k : page.v;
      read = {plain_.format, page_address(from, head.seq, layer_.layer, head.head, side, i), &plain_.context};
    }
    work.pages.push_back(page);
    page.first_token += kPageTokens;
  }
}

void Decode::load_query(const HeadWork& head, const Visible& visible, QueryWork& work) const {
  const int first_of_tail = visible.sealed * kPageTokens, n_tokens = first_of_tail + visible.tail;
  QueryTile& tile = work.queries;
  tile.group = shape_.group;
  tile.n_queries = 1;
  tile.first_token = n_tokens - 1;
  work.rules = {.head_dim = shape_.head_dim,
                .sliding_window = visible.hidden == 0 ? 0 : std::max(n_tokens - visible.hidden, 1),
                .softcap = shape_.score_softcap,
                .softmax = shape_.sas != 0 ? Softmax::sas : Softmax::exact};
  tile.q.resize(static_cast<std::size_t>(tile.rows()) * shape_.head_dim);
  for (int r = 0; r < tile.rows(); ++r) {
    float* const q = tile.q.data() + static_cast<std::ptrdiff_t>(r) * shape_.head_dim;
    read_query(shape_, layer_, work.row, head.head * tile.group + r, q);
    kvant::scale_row(q, shape_.head_dim, shape_.softmax_scale);
  }
  work.pages.clear();
  list_sealed(head, visible.sealed, work);
  list_plain(head, layer_.protected_pages, visible.protected_tokens, {.is_protected = true}, work);
  list_plain(head, layer_.tail, visible.tail, {.first_token = first_of_tail}, work);
  work.divide();
}

// Appends the head's new rows, and prepares its queries. The head has no queries if the sequence has none, or
// no tokens.
void Decode::load(HeadWork& head) const {
  append_new_rows(shape_, lengths_, layer_, head.seq, head.head);
  const auto [first_row, end_row] = query_rows(shape_, lengths_, head.seq);
  Visible visible{count_of(lengths_.sealed_pages, head.seq), 0, count_of(lengths_.tail_tokens, head.seq), 0};
  if (lengths_.protected_tokens != nullptr)
    visible.protected_tokens = lengths_.protected_tokens[head.seq * lengths_.protected_seq_stride +
                                                         head.head * lengths_.protected_head_stride];
  const int n_tail = visible.tail, hidden = count_of(lengths_.first_tokens, head.seq);
  head.n_queries = visible.sealed + visible.protected_tokens + n_tail == 0 ? 0 : end_row - first_row;
  for (int side = 0; side < 2 && head.n_queries > 0 && visible.sealed > 0; ++side)
    head.sealed[side].emplace(shape_, layer_, head.head, side);
  while (std::ssize(head.queries) < head.n_queries) head.queries.push_back(std::make_unique<QueryWork>());
  for (int i = 0; i < head.n_queries; ++i) {
    const int n_later = head.n_queries - 1 - i;
    visible.tail = std::max(n_tail - n_later, 0);
    visible.hidden = std::max(hidden - n_later, 0);
    head.queries[i]->row = first_row + i;
    load_query(head, visible, *head.queries[i]);
  }
}

void Decode::attend(const ByteKernels* kernels, const Run& run) const {
  const QueryWork& work = *run.tile;
  PageAttention& attention = buffers_of_thread<PageAttention>(kernels);
  if (shape_.skip_threshold <= 0 || kernels == nullptr) {
    attention.attend(work.queries, run.pages(), work.rules, nullptr, run.result());
    return;
  }
  UnreadPages unread{.threshold = shape_.skip_threshold};
  attention.attend_but(unread, work.queries, run.pages(), work.rules, run.result());
  if (layer_.skip_counts == nullptr) return;
  const auto add = [](std::uint64_t& to, std::int64_t n) {
    std::atomic_ref<std::uint64_t>(to).fetch_add(n, std::memory_order_relaxed);
  };
  add(layer_.skip_counts[0], unread.seen);
  add(layer_.skip_counts[1], unread.unread);
}

void Decode::finish_query(const HeadWork& head, QueryWork& work) const {
  const int d = shape_.head_dim;
  const float* const sums =
      layer_.correction == nullptr ? nullptr : correction_state(*layer_.correction, head.seq, head.head);
  PartialAttention& total = work.finish(row_ends(layer_.correction, {&sums, 1}, layer_.sink_logits, head.head,
                                                 shape_.group, d, shape_.softmax_scale));
  for (int r = 0; r < work.queries.rows(); ++r)
    write_output(shape_, layer_, work.row, head.head * shape_.group + r,
                 total.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d, work.finished.lse[r]);
}

void Decode::finish(HeadWork& head) const {
  for (int i = 0; i < head.n_queries; ++i) finish_query(head, *head.queries[i]);
}

}  // namespace

bool knows_kernels(const char* name) {
  return name == nullptr || std::strcmp(name, kReference) == 0 || kvant::cpu::find_kernels(name) != nullptr;
}

const ByteKernels* kernels_of(const char* name, int head_dim) {
  if (head_dim < kLeastKernelHead) return nullptr;
  if (name == nullptr) return kvant::cpu::best_kernels();
  return std::strcmp(name, kReference) == 0 ? nullptr : kvant::cpu::find_kernels(name);
}

const char* kernel_name(const kvant_decode_shape& shape) {
  const ByteKernels* const kernels = kernels_of(shape.kernels, shape.head_dim);
  if (kernels == nullptr) return "cpu/reference";
  std::string pair;
  bool decodes = false;
  for (int side = 0; side < 2; ++side) {
    const Format& format = *stored_format(format_name(shape, 0, side), side, shape.head_dim).format;
    decodes = decodes || (format.number_type() == NumberType::none &&
                          !kvant::cpu::multiplies_codes(format, shape.head_dim));
    pair += (side == KVANT_KEY ? "" : "+") + format.name();
  }
  const std::string name =
      fmt::format("cpu/{}/{}{}{}{}", kernels->name, decodes ? "decoded:" : "", pair,
                  shape.sas != 0 ? " with SAS" : "", shape.skip_threshold > 0 ? " skipping values" : "");
  static std::mutex adding;
  static auto& names = *new std::set<std::string>;
  const std::unique_lock lock(adding);
  return names.insert(name).first->c_str();
}

void decode_attention(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                      const kvant_decode_layer& layer) {
  const ByteKernels* const kernels = kernels_of(shape.kernels, shape.head_dim);
  const Decode decode(shape, lengths, layer);
  const int n_heads = shape.n_seqs * shape.n_kv_heads;
  std::vector<std::unique_ptr<HeadWork>>& heads = buffers_of_call().heads;
  std::vector<Run>& runs = buffers_of_call().runs;
  while (std::ssize(heads) < n_heads) heads.push_back(std::make_unique<HeadWork>());
  for (int i = 0; i < n_heads; ++i) {
    heads[i]->seq = i / shape.n_kv_heads;
    heads[i]->head = i % shape.n_kv_heads;
  }
  const auto list_runs = [&] {
    runs.clear();
    for (int i = 0; i < n_heads; ++i) {
      for (int query = 0; query < heads[i]->n_queries; ++query)
        kvant::cpu::add_runs(*heads[i]->queries[query], runs);
    }
  };
  TeamWork work;
  run_on_workers(attention_work(shape, lengths), [&](Team& team) {
    work.for_each(
        team, n_heads, [&](int i) { decode.load(*heads[i]); }, list_runs);
    work.for_each(team, static_cast<int>(runs.size()), [&](int i) { decode.attend(kernels, runs[i]); });
    work.for_each(team, n_heads, [&](int i) { decode.finish(*heads[i]); });
  });
  work.check();
}

}  // namespace kvant::device::cpu
