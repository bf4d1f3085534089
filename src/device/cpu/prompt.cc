// Attends to prompts with the processor's kernels. A task is some consecutive queries of a sequence that see
// an equal number of sealed pages. For each KV head, a task reads the pages and rows once.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/softmax.h"
#include "cache/page_counts.h"
#include "device/cpu/calls.h"
#include "device/cpu/kernels/page_attention.h"
#include "device/cpu/rows.h"
#include "device/cpu/workers.h"

namespace kvant::device::cpu {
namespace {

using kvant::cpu::ByteKernels;
using kvant::cpu::PageAttention;

constexpr int kQueriesOfTask = 64;

struct PromptTask {
  int seq, first, end;  // rows of q
  int n_seen;           // The sealed pages that the queries see.
};

struct PromptBuffers {
  explicit PromptBuffers(const ByteKernels* kernels) : attention(kernels) {}
  PageAttention attention;
  QueryTile tile;
  PartialAttention partial;
  std::vector<const float*> sums;  // The correction's sums, by query of the task.
  FinishedRows finished;
  std::vector<std::byte> rows[2];  // a page of each side
};

// Describes a sequence of a prompt.
struct PromptSequence {
  int first_row, n_rows, n_sealed, first_row_token, n_tokens;
};

PromptSequence sequence_of(const kvant_prompt& prompt, int seq) {
  const kvant_prompt_pages* pages = prompt.pages;
  PromptSequence s{};
  s.first_row = prompt.token_begins[seq];
  s.n_rows = prompt.token_begins[seq + 1] - s.first_row;
  if (pages != nullptr && pages->sealed_begins != nullptr)
    s.n_sealed = pages->sealed_begins[seq + 1] - pages->sealed_begins[seq];
  s.first_row_token = s.n_sealed * kPageTokens;
  if (pages != nullptr && pages->first_row_tokens != nullptr)
    s.first_row_token = pages->first_row_tokens[seq];
  s.n_tokens = s.n_rows > 0 ? s.first_row_token + s.n_rows : s.n_sealed * kPageTokens;
  return s;
}

class Prompt {
 public:
  Prompt(const kvant_prompt_shape& shape, const kvant_prompt& prompt, const ByteKernels* kernels)
      : shape_(shape),
        prompt_(prompt),
        kernels_(kernels),
        group_(shape.n_heads / shape.n_kv_heads),
        bf16_(stored_format("bf16", KVANT_KEY, shape.head_dim)),
        rows_(stored_format(shape.half != 0 ? "f16" : "bf16", KVANT_KEY, shape.head_dim)) {}

  std::vector<PromptTask> tasks() const;
  void attend(const PromptTask& task, int head) const;

 private:
  // Work is one task for one KV head.
  struct Work {
    const PromptTask& task;
    int head;
    PromptSequence sequence;
    AttentionRules rules;
    PromptBuffers& buffers;
  };

  void load_queries(Work& work) const;
  bool reaches(const Work& work, const PageView& page) const;
  void add_sealed(Work& work) const;
  void add_protected(Work& work) const;
  void add_rows(Work& work) const;
  void finish(Work& work) const;

  const kvant_prompt_shape& shape_;
  const kvant_prompt& prompt_;
  const ByteKernels* kernels_;
  int group_;
  const StoredFormat &bf16_, &rows_;
};

std::vector<PromptTask> Prompt::tasks() const {
  std::vector<PromptTask> tasks;
  for (int seq = 0; seq < shape_.n_seqs; ++seq) {
    const int n_sealed = sequence_of(prompt_, seq).n_sealed;
    const auto seen_by = [&](int row) {
      return prompt_.pages == nullptr || prompt_.pages->query_sealed_pages == nullptr
                 ? n_sealed
                 : std::min(prompt_.pages->query_sealed_pages[row], n_sealed);
    };
    for (int row = prompt_.query_begins[seq]; row < prompt_.query_begins[seq + 1]; ++row) {
      const int n_seen = seen_by(row);
      if (tasks.empty() || tasks.back().seq != seq || tasks.back().n_seen != n_seen ||
          tasks.back().end - tasks.back().first == kQueriesOfTask)
        tasks.push_back({seq, row, row, n_seen});
      ++tasks.back().end;
    }
  }
  return tasks;
}

void Prompt::load_queries(Work& work) const {
  const int d = shape_.head_dim;
  QueryTile& tile = work.buffers.tile;
  tile.group = group_;
  tile.n_queries = work.task.end - work.task.first;
  // With a causal mask, the last query is the last token. Without a mask, queries see all tokens, so the
  // first query already counts as the last token.
  tile.first_token = shape_.causal != 0 ? work.sequence.n_tokens -
                                              (prompt_.query_begins[work.task.seq + 1] - work.task.first)
                                        : work.sequence.n_tokens - 1;
  tile.q.resize(static_cast<std::size_t>(tile.rows()) * d);
  for (int r = 0; r < tile.rows(); ++r) {
    float* const q = tile.q.data() + static_cast<std::ptrdiff_t>(r) * d;
    read_numbers(prompt_.q, prompt_.q_type,
                 std::int64_t{work.task.first + r % tile.n_queries} * prompt_.q_token_stride +
                     (work.head * group_ + r / tile.n_queries) * prompt_.q_head_stride,
                 d, q);
    if (prompt_.q_hadamard != 0) rotate_row(q, d);
    kvant::scale_row(q, d, shape_.softmax_scale);
  }
  work.buffers.partial.reset(tile.rows(), d);
}

// Returns whether any query sees a token of a page whose tokens are consecutive.
bool Prompt::reaches(const Work& work, const PageView& page) const {
  const QueryTile& tile = work.buffers.tile;
  const int first_visible = shape_.window > 0 ? tile.first_token + 1 - shape_.window : 0;
  return page.first_token < tile.first_token + tile.n_queries &&
         page.first_token + page.n_tokens > first_visible;
}

void Prompt::add_sealed(Work& work) const {
  const kvant_prompt_pages& pages = *prompt_.pages;
  const SideContext sides[2] = {{*pages.shape, *pages.layer, work.head, KVANT_KEY},
                                {*pages.shape, *pages.layer, work.head, KVANT_VALUE}};
  for (int p = 0; p < work.task.n_seen; ++p) {
    if (!reaches(work, {.first_token = p * kPageTokens, .n_tokens = kPageTokens})) continue;
    work.buffers.attention.add(
        sealed_page(*pages.layer, work.task.seq, work.head, p, sides[KVANT_KEY], sides[KVANT_VALUE]),
        work.buffers.partial);
  }
}

// Adds protected tokens as pages of their own, in which each token has its own position.
void Prompt::add_protected(Work& work) const {
  const kvant_decode_layer& layer = *prompt_.pages->layer;
  const std::size_t row_bytes = std::size_t{2} * shape_.head_dim;
  int at = 0;
  for (int p = 0; p < work.task.n_seen; ++p) {
    const TokenMask mask = masked_tokens(layer, work.task.seq, work.head, p);
    PageView page{.first_token = p * kPageTokens, .n_tokens = kPageTokens};
    if (mask.empty() || !reaches(work, page)) {
      at += mask.count();
      continue;
    }
    for (int side = 0; side < 2; ++side) {
      std::vector<std::byte>& rows = work.buffers.rows[side];
      rows.assign(kPageTokens * row_bytes, std::byte{0});
      int from = at;
      for (int t = 0; t < kPageTokens; ++t) {
        if (!mask.test(t)) continue;
        std::memcpy(&rows[t * row_bytes],
                    page_address(layer.protected_pages, work.task.seq, layer.layer, work.head, side,
                                 from / kPageTokens) +
                        from % kPageTokens * row_bytes,
                    row_bytes);
        ++from;
      }
      PageSide& read = side == KVANT_KEY ? page.k : page.v;
      read = {bf16_.format, rows.data(), &bf16_.context};
    }
    at += mask.count();
    for (std::size_t i = 0; i < mask.words.size(); ++i) page.masked.words[i] = ~mask.words[i];
    work.buffers.attention.add(page, work.buffers.partial);
  }
}

// Adds the rows after the sealed pages that the queries see.
void Prompt::add_rows(Work& work) const {
  const PromptSequence& s = work.sequence;
  const std::size_t row_bytes = std::size_t{2} * shape_.head_dim;
  const int first_row = std::max(0, work.task.n_seen * kPageTokens - s.first_row_token);
  for (int block = first_row / kPageTokens; block < pages_for(s.n_rows); ++block) {
    const int first = block * kPageTokens;
    PageView page{.first_token = s.first_row_token + first,
                  .n_tokens = std::min(kPageTokens, s.n_rows - first)};
    if (!reaches(work, page)) continue;
    for (int t = 0; t < std::min(first_row - first, kPageTokens); ++t) page.masked.set(t);
    for (int side = 0; side < 2; ++side) {
      PageSide& to = side == KVANT_KEY ? page.k : page.v;
      const auto* from = static_cast<const std::byte*>(side == KVANT_KEY ? prompt_.k : prompt_.v);
      if (from == nullptr) {
        const kvant_decode_layer& layer = *prompt_.pages->layer;
        to = {bf16_.format, page_address(layer.tail, work.task.seq, layer.layer, work.head, side, block),
              &bf16_.context};
        continue;
      }
      std::vector<std::byte>& rows = work.buffers.rows[side];
      rows.resize(kPageTokens * row_bytes);
      const std::int64_t token_stride = side == KVANT_KEY ? prompt_.k_token_stride : prompt_.v_token_stride;
      const std::int64_t head_stride = side == KVANT_KEY ? prompt_.k_head_stride : prompt_.v_head_stride;
      for (int t = 0; t < page.n_tokens; ++t)
        std::memcpy(&rows[t * row_bytes],
                    from + 2 * ((s.first_row + first + t) * token_stride + work.head * head_stride),
                    row_bytes);
      to = {rows_.format, rows.data(), &rows_.context};
    }
    work.buffers.attention.add(page, work.buffers.partial);
  }
}

void Prompt::finish(Work& work) const {
  const int d = shape_.head_dim;
  const QueryTile& tile = work.buffers.tile;
  PartialAttention& total = work.buffers.partial;
  std::vector<const float*>& sums = work.buffers.sums;
  sums.clear();
  for (int row = work.task.first; prompt_.correction != nullptr && row < work.task.end; ++row)
    sums.push_back(correction_state(*prompt_.correction, row, work.head));
  finish_rows(
      tile, d,
      row_ends(prompt_.correction, sums, prompt_.sink_logits, work.head, group_, d, shape_.softmax_scale),
      total, work.buffers.finished);
  for (int r = 0; r < tile.rows(); ++r) {
    const std::int64_t row = work.task.first + r % tile.n_queries;
    const int query_head = work.head * group_ + r / tile.n_queries;
    float* const out = total.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d;
    if (prompt_.out_hadamard != 0) rotate_row(out, d);
    write_numbers(out, d, prompt_.out_type,
                  row * prompt_.out_token_stride + query_head * prompt_.out_head_stride, prompt_.out);
    if (prompt_.lse != nullptr)
      prompt_.lse[row * prompt_.lse_token_stride + query_head * prompt_.lse_head_stride] =
          work.buffers.finished.lse[r];
  }
}

void Prompt::attend(const PromptTask& task, int head) const {
  Work work{task,
            head,
            sequence_of(prompt_, task.seq),
            {.head_dim = shape_.head_dim,
             .sliding_window = shape_.window,
             .softcap = shape_.score_softcap,
             .softmax = shape_.sas != 0 ? Softmax::sas : Softmax::exact},
            buffers_of_thread<PromptBuffers>(kernels_)};
  load_queries(work);
  work.buffers.attention.begin(work.buffers.tile, work.rules);
  if (task.n_seen > 0) {
    add_sealed(work);
    add_protected(work);
  }
  add_rows(work);
  finish(work);
}

}  // namespace

void prompt_attention(const kvant_prompt_shape& shape, const kvant_prompt& prompt) {
  const Prompt attention(shape, prompt, kernels_of(shape.kernels, shape.head_dim));
  const std::vector<PromptTask> tasks = attention.tasks();
  const std::int64_t n_tokens = shape.n_tokens + std::int64_t{kPageTokens} * (shape.n_sealed_pages + 1);
  const std::int64_t work = n_tokens * shape.n_queries * shape.n_heads * shape.head_dim;
  for_each_task(static_cast<int>(tasks.size()) * shape.n_kv_heads, work,
                [&](int i) { attention.attend(tasks[i / shape.n_kv_heads], i % shape.n_kv_heads); });
}

}  // namespace kvant::device::cpu
