// Attends to decoded tokens with the processor's kernels, in three steps. First each head appends its rows
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
#include "device/cpu/kernels/run_attention.h"
#include "device/cpu/rows.h"
#include "device/cpu/workers.h"

namespace kvant::device::cpu {
namespace {

using kvant::cpu::ByteKernels;
using kvant::cpu::RunAttention;
using kvant::cpu::UnreadPages;

constexpr char kReference[] = "reference";
// The tests cover kernels from this head size on.
constexpr int kLeastKernelHead = 64;

// HeadWork holds what one KV head of one sequence needs during a call.
struct HeadWork {
  int seq = 0, head = 0, first_row = 0;
  std::optional<SideContext> sealed[2];
  AttentionRules rules;
  QueryTile tile;
  std::vector<PageView> pages;
  int pages_per_run = 0;
  std::vector<PartialAttention> runs;
};

struct Run {
  HeadWork* head;
  int number;
};

// A thread keeps these buffers from call to call, because new memory costs as much time as a short sequence.
struct CallBuffers {
  std::vector<std::unique_ptr<HeadWork>> heads;
  std::vector<Run> runs;
};
CallBuffers& buffers_of_call() {
  thread_local CallBuffers buffers;
  return buffers;
}
RunAttention& buffers_of_thread(const ByteKernels& kernels) {
  thread_local const ByteKernels* made_for = nullptr;
  thread_local std::optional<RunAttention> buffers;
  if (made_for != &kernels) {
    buffers.emplace(kernels);
    made_for = &kernels;
  }
  return *buffers;
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
  void attend(const ByteKernels& kernels, const Run& run) const;
  void finish(HeadWork& work) const;

 private:
  void list_sealed(HeadWork& work, int n_sealed) const;
  void list_plain(HeadWork& work, const kvant_pages& from, int n_tokens, PageView page) const;
  void add_sinks(const HeadWork& work, PartialAttention& total) const;
  void correct(const HeadWork& work, PartialAttention& total) const;

  const kvant_decode_shape& shape_;
  const kvant_decode_lengths& lengths_;
  const kvant_decode_layer& layer_;
  const StoredFormat& plain_;
};

void Decode::list_sealed(HeadWork& work, int n_sealed) const {
  for (int side = 0; side < 2 && n_sealed > 0; ++side)
    work.sealed[side].emplace(shape_, layer_, work.head, side);
  for (int page = 0; page < n_sealed; ++page) {
    PageView view{.first_token = page * kPageTokens, .n_tokens = kPageTokens};
    view.masked = masked_tokens(layer_, work.seq, work.head, page);
    for (int side = 0; side < 2; ++side) {
      const SideContext& context = *work.sealed[side];
      (side == KVANT_KEY ? view.k : view.v) = {
          &context.format(), sealed_address(layer_, work.seq, work.head, side, page), &context.context()};
    }
    work.pages.push_back(view);
  }
}

// `page` has what the pages have in common, and the first token.
void Decode::list_plain(HeadWork& work, const kvant_pages& from, int n_tokens, PageView page) const {
  for (int i = 0; i < pages_for(n_tokens); ++i) {
    page.n_tokens = std::min(kPageTokens, n_tokens - i * kPageTokens);
    for (int side = 0; side < 2; ++side) {
      (side == KVANT_KEY ? page.k : page.v) = {
          plain_.format, page_address(from, work.seq, layer_.layer, work.head, side, i), &plain_.context};
    }
    work.pages.push_back(page);
    page.first_token += kPageTokens;
  }
}

// Leaves the tile without queries if the sequence has no queries or no tokens.
void Decode::load(HeadWork& work) const {
  append_new_rows(shape_, lengths_, layer_, work.seq, work.head);
  const auto [first_row, end_row] = query_rows(shape_, lengths_, work.seq);
  const int n_sealed = count_of(lengths_.sealed_pages, work.seq),
            n_tail = count_of(lengths_.tail_tokens, work.seq);
  int n_protected = 0;
  if (lengths_.protected_tokens != nullptr)
    n_protected = lengths_.protected_tokens[work.seq * lengths_.protected_seq_stride +
                                            work.head * lengths_.protected_head_stride];
  work.first_row = first_row;
  work.pages.clear();
  QueryTile& tile = work.tile;
  tile.group = shape_.group;
  tile.n_queries = n_sealed + n_protected + n_tail == 0 ? 0 : end_row - first_row;
  if (tile.n_queries == 0) return;
  // Every query sees all sealed pages, even if the tail has fewer tokens than the sequence has queries.
  const int first_of_tail = n_sealed * kPageTokens + (n_tail < tile.n_queries ? kMostQueries : 0);
  const int n_tokens = first_of_tail + n_tail;
  const int hidden = count_of(lengths_.first_tokens, work.seq);
  tile.first_token = n_tokens - tile.n_queries;
  work.rules = {.head_dim = shape_.head_dim,
                .sliding_window = hidden == 0 ? 0 : std::max(n_tokens - hidden, 1),
                .softcap = shape_.score_softcap,
                .softmax = shape_.sas != 0 ? Softmax::sas : Softmax::exact};
  tile.q.resize(static_cast<std::size_t>(tile.rows()) * shape_.head_dim);
  for (int r = 0; r < tile.rows(); ++r) {
    float* const q = tile.q.data() + static_cast<std::ptrdiff_t>(r) * shape_.head_dim;
    read_query(shape_, layer_, first_row + r % tile.n_queries, work.head * tile.group + r / tile.n_queries,
               q);
    kvant::scale_row(q, shape_.head_dim, shape_.softmax_scale);
  }
  list_sealed(work, n_sealed);
  list_plain(work, layer_.protected_pages, n_protected, {.is_protected = true});
  list_plain(work, layer_.tail, n_tail, {.first_token = first_of_tail});
  work.pages_per_run = kvant::cpu::run_pages(work.pages.size(), work.rules.softmax);
  work.runs.resize((work.pages.size() + work.pages_per_run - 1) / work.pages_per_run);
  for (PartialAttention& run : work.runs) run.reset(tile.rows(), shape_.head_dim);
}

void Decode::attend(const ByteKernels& kernels, const Run& run) const {
  HeadWork& work = *run.head;
  const std::size_t first = std::size_t{1} * run.number * work.pages_per_run;
  const auto pages = std::span(work.pages)
                         .subspan(first)
                         .first(std::min<std::size_t>(work.pages_per_run, work.pages.size() - first));
  RunAttention& buffers = buffers_of_thread(kernels);
  PartialAttention& partial = work.runs[run.number];
  if (shape_.skip_threshold <= 0) {
    buffers.attend(work.tile, pages, work.rules, nullptr, partial);
    return;
  }
  UnreadPages unread{.threshold = shape_.skip_threshold};
  buffers.attend_but(unread, work.tile, pages, work.rules, partial);
  if (layer_.skip_counts == nullptr) return;
  const auto add = [](std::uint64_t& to, std::int64_t n) {
    std::atomic_ref<std::uint64_t>(to).fetch_add(n, std::memory_order_relaxed);
  };
  add(layer_.skip_counts[0], unread.seen);
  add(layer_.skip_counts[1], unread.unread);
}

// A sink logit acts as the score of a token without a value.
void Decode::add_sinks(const HeadWork& work, PartialAttention& total) const {
  if (layer_.sink_logits == nullptr) return;
  for (int r = 0; r < work.tile.rows(); ++r) {
    const float sink = layer_.sink_logits[work.head * work.tile.group + r / work.tile.n_queries];
    if (total.max[r] == kUnseen || sink == kUnseen) continue;
    if (sink > total.max[r]) total.raise_max(r, sink, std::exp(total.max[r] - sink), shape_.head_dim);
    total.sum[r] += std::exp(sink - total.max[r]);
  }
}

void Decode::correct(const HeadWork& work, PartialAttention& total) const {
  if (layer_.correction == nullptr) return;
  const kvant_correction& c = *layer_.correction;
  const int d = shape_.head_dim, n_features = 2 * kHalfFeatures;
  const float* sums = correction_state(c, work.seq, work.head);
  std::vector<float> q(d);
  for (int r = 0; r < work.tile.rows(); ++r) {
    if (total.max[r] == kUnseen) continue;
    const int query_head = work.head * work.tile.group + r / work.tile.n_queries;
    read_query(shape_, layer_, work.first_row + r % work.tile.n_queries, query_head, q.data());
    const std::vector<double> phi =
        features(c.query_maps + std::ptrdiff_t{1} * query_head * d * n_features, q.data(), d);
    float factor = 1;
    if (c.absolute != 0) {
      if (total.max[r] < 0) total.raise_max(r, 0, std::exp(total.max[r]), d);
      factor = std::exp(-total.max[r]);
    }
    float* const accumulator = total.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d;
    for (int f = 0; f < n_features; ++f) {
      const float weight = factor * static_cast<float>(phi[f]);
      add_scaled_row(accumulator, sums + static_cast<std::ptrdiff_t>(f) * d, d, weight);
      total.sum[r] += weight * sums[n_features * d + f];
    }
  }
}

void Decode::finish(HeadWork& work) const {
  const int d = shape_.head_dim;
  const QueryTile& tile = work.tile;
  if (tile.n_queries == 0) return;
  PartialAttention& total = work.runs.front();
  for (std::size_t run = 1; run < work.runs.size(); ++run) total.merge(work.runs[run], d);
  correct(work, total);
  add_sinks(work, total);
  for (int r = 0; r < tile.rows(); ++r) {
    float* const out = total.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d;
    const bool sees_any = total.max[r] != kUnseen;
    if (sees_any) kvant::scale_row(out, d, 1 / total.sum[r]);
    write_output(shape_, layer_, work.first_row + r % tile.n_queries,
                 work.head * tile.group + r / tile.n_queries, out,
                 sees_any ? total.max[r] + std::log(total.sum[r]) : kUnseen);
  }
}

}  // namespace

bool knows_kernels(const kvant_decode_shape& shape) {
  return shape.kernels == nullptr || std::strcmp(shape.kernels, kReference) == 0 ||
         kvant::cpu::find_kernels(shape.kernels) != nullptr;
}

const ByteKernels* kernels_of(const kvant_decode_shape& shape) {
  if (shape.head_dim < kLeastKernelHead) return nullptr;
  if (shape.kernels == nullptr) return kvant::cpu::best_kernels();
  return std::strcmp(shape.kernels, kReference) == 0 ? nullptr : kvant::cpu::find_kernels(shape.kernels);
}

const char* kernel_name(const kvant_decode_shape& shape) {
  const ByteKernels* const kernels = kernels_of(shape);
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
  const ByteKernels* const kernels = kernels_of(shape);
  if (kernels == nullptr) return reference_decode_attention(shape, lengths, layer);
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
      const int n = heads[i]->tile.n_queries == 0 ? 0 : static_cast<int>(heads[i]->runs.size());
      for (int run = 0; run < n; ++run) runs.push_back({heads[i].get(), run});
    }
  };
  TeamWork work;
  run_on_workers(attention_work(shape, lengths), [&](Team& team) {
    work.for_each(
        team, n_heads, [&](int i) { decode.load(*heads[i]); }, list_runs);
    work.for_each(team, static_cast<int>(runs.size()), [&](int i) { decode.attend(*kernels, runs[i]); });
    work.for_each(team, n_heads, [&](int i) { decode.finish(*heads[i]); });
  });
  work.check();
}

}  // namespace kvant::device::cpu
