// The reference backend: append, attend and seal over Format::decode, for any mixture of formats.
//
// The tiles of all slices advance side by side. In each round: heads append and prepare their queries; runs
// of pages are attended in parallel; runs are merged and heads seal what is due.
#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/attention.h"
#include "attention/reference/tile_attention.h"
#include "attention/softmax.h"
#include "cache/schedule.h"

namespace kvant {
namespace {

// Pages of a run: enough to outweigh the merge, few enough to share out. It depends on the number of pages
// alone, so that results don't depend on the number of threads.
constexpr int kMinRunPages = 4;
constexpr int kMaxRuns = 16;

int run_pages(std::size_t n_pages) {
  return std::max(kMinRunPages, (static_cast<int>(n_pages) + kMaxRuns - 1) / kMaxRuns);
}

// One (slice, KV head) and its current tile.
struct HeadWork {
  int slice = 0;
  int kv_head = 0;
  Tile tile;
  QueryTile queries;
  std::vector<PageView> pages;
  std::vector<PartialAttention> runs;
};

struct RunWork {
  HeadWork* head = nullptr;
  int run = 0;
};

bool finite(const float* values, int n) {
  return std::all_of(values, values + n, [](float x) { return std::isfinite(x); });
}

bool within(const float* values, int n, float limit) {
  return std::all_of(values, values + n, [&](float x) { return std::abs(x) <= limit; });
}

class ReferenceBackend final : public AttentionBackend {
 public:
  ReferenceBackend() { openblas_set_num_threads(1); }  // the team is the parallelism

  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override;
  std::string kernel_name(const Plan&, int, int, Side) const override { return "reference"; }

 private:
  void start(const Step& step, int n_threads);
  void start_round(std::size_t round);
  void list_runs(int head_dim);
  static void seal_before(Step& step, int layer, HeadWork& work, std::vector<float>& scratch);
  static void append(Step& step, int layer, const LayerRows& rows, HeadWork& work);
  static void load_queries(const Step& step, int layer, const LayerRows& rows, HeadWork& work);
  static void attend(const Plan& plan, int layer, const RunWork& work, TileScratch& scratch);
  static void finish(Step& step, int layer, const LayerRows& rows, HeadWork& work,
                     std::vector<float>& scratch);

  // Of the layer that runs; written by the team's first thread between barriers.
  std::vector<std::vector<Tile>> tiles_;  // by slice
  std::size_t n_rounds_ = 0;
  std::vector<HeadWork> heads_;
  std::vector<HeadWork*> active_;
  std::vector<RunWork> runs_;
  std::vector<TileScratch> scratch_;              // by thread
  std::vector<std::vector<float>> seal_scratch_;  // by thread
};

void ReferenceBackend::start(const Step& step, int n_threads) {
  const Plan& plan = step.plan();
  scratch_.resize(n_threads);
  seal_scratch_.resize(n_threads);
  tiles_.clear();
  n_rounds_ = 0;
  for (int s = 0; s < static_cast<int>(step.slices().size()); ++s) {
    const StepSlice& slice = step.slices()[s];
    tiles_.push_back(schedule(step.first_token(s), slice.n_tokens, slice.is_prompt, plan.recipe.prefill));
    n_rounds_ = std::max(n_rounds_, tiles_.back().size());
  }
  const int n_kv = plan.geometry.n_kv_heads;
  heads_.resize(tiles_.size() * n_kv);
  for (int i = 0; i < static_cast<int>(heads_.size()); ++i) {
    heads_[i].slice = i / n_kv;
    heads_[i].kv_head = i % n_kv;
  }
}

void ReferenceBackend::start_round(std::size_t round) {
  active_.clear();
  for (HeadWork& work : heads_) {
    if (round >= tiles_[work.slice].size()) continue;
    work.tile = tiles_[work.slice][round];
    active_.push_back(&work);
  }
}

void ReferenceBackend::list_runs(int head_dim) {
  runs_.clear();
  for (HeadWork* work : active_) {
    const int length = run_pages(work->pages.size());
    work->runs.resize((work->pages.size() + length - 1) / length);
    for (int run = 0; run < static_cast<int>(work->runs.size()); ++run) {
      work->runs[run].reset(work->queries.rows(), head_dim);
      runs_.push_back({work, run});
    }
  }
}

// An answer's first token finds sealed all that its position allows (the prompt's blocks may have kept it).
void ReferenceBackend::seal_before(Step& step, int layer, HeadWork& work, std::vector<float>& scratch) {
  const int seal_point = seal_point_before(step.first_token(work.slice), step.slices()[work.slice].is_prompt);
  if (seal_point < 0) return;
  step.head(work.slice, layer, work.kv_head)
      .seal_until(pages_due(seal_point, step.plan().layers[layer].window), scratch);
}

// Transforms and stores the tile's new tokens.
void ReferenceBackend::append(Step& step, int layer, const LayerRows& rows, HeadWork& work) {
  const int n = work.tile.append_end - work.tile.append_first;
  if (n == 0) return;
  const Plan& plan = step.plan();
  const HeadPlan& head = plan.head(layer, work.kv_head);
  const int d = plan.geometry.head_dim;
  const int first_row = step.first_row(work.slice) + work.tile.append_first - step.first_token(work.slice);
  const MatrixView<const float> sources[2] = {rows.k, rows.v};
  std::vector<float> values[2];
  for (Side side : kSides) {
    std::vector<float>& out = values[static_cast<int>(side)];
    out.resize(static_cast<std::size_t>(n) * d);
    for (int r = 0; r < n; ++r) {
      const float* in = sources[static_cast<int>(side)].row(first_row + r) + work.kv_head * d;
      float* to = out.data() + static_cast<std::ptrdiff_t>(r) * d;
      std::copy(in, in + d, to);
      if (finite(in, d)) continue;
      step.fail(
          error("{} of layer {}, KV head {}, token {} is not a finite number: the model's weights or its "
                "activations are broken",
                side_name(side), layer, work.kv_head, work.tile.append_first + r));
      std::fill(to, to + d, 0.0F);
    }
    head.side(side).transform.forward({out.data(), n, d});
    for (int r = 0; r < n; ++r) {
      if (within(out.data() + static_cast<std::ptrdiff_t>(r) * d, d, plan.tail->max_magnitude())) continue;
      step.fail(
          error("{} of layer {}, KV head {}, token {} exceeds the range of {}: use a recipe with a bf16 tail",
                side_name(side), layer, work.kv_head, work.tile.append_first + r, plan.tail->name()));
    }
  }
  step.head(work.slice, layer, work.kv_head).append({values[0].data(), n, d}, {values[1].data(), n, d});
}

void ReferenceBackend::load_queries(const Step& step, int layer, const LayerRows& rows, HeadWork& work) {
  const Plan& plan = step.plan();
  const Geometry& g = plan.geometry;
  const int d = g.head_dim;
  QueryTile& tile = work.queries;
  tile.first_token = work.tile.query_first;
  tile.n_queries = work.tile.query_end - work.tile.query_first;
  tile.group = g.group();
  tile.q.resize(static_cast<std::size_t>(tile.rows()) * d);
  const int first_row = step.first_row(work.slice) + tile.first_token - step.first_token(work.slice);
  for (int r = 0; r < tile.rows(); ++r) {
    const int head = work.kv_head * tile.group + r / tile.n_queries;
    const float* in = rows.q.row(first_row + r % tile.n_queries) + head * d;
    std::transform(in, in + d, tile.q.data() + static_cast<std::ptrdiff_t>(r) * d,
                   [&](float x) { return x * g.score_scale; });
  }
  tile.offset.resize(plan.layers[layer].needs_offset ? tile.rows() : 0);
  plan.head(layer, work.kv_head)
      .k.transform.query({tile.q.data(), tile.rows(), d}, tile.offset.empty() ? nullptr : tile.offset.data());
  const int window = plan.layers[layer].sliding_window;
  const int first_visible = window > 0 ? std::max(0, tile.first_token + 1 - window) : 0;
  step.head(work.slice, layer, work.kv_head).list_pages(first_visible, work.pages);
}

void ReferenceBackend::attend(const Plan& plan, int layer, const RunWork& work, TileScratch& scratch) {
  const std::vector<PageView>& pages = work.head->pages;
  const std::size_t length = run_pages(pages.size());
  const std::size_t first = work.run * length;
  attend_pages(work.head->queries, std::span(pages).subspan(first, std::min(length, pages.size() - first)),
               plan.geometry.head_dim, plan.layers[layer].sliding_window, plan.geometry.score_softcap,
               scratch, work.head->runs[work.run]);
}

// Merges the runs, writes the outputs and seals what is due.
void ReferenceBackend::finish(Step& step, int layer, const LayerRows& rows, HeadWork& work,
                              std::vector<float>& scratch) {
  const Plan& plan = step.plan();
  const int d = plan.geometry.head_dim;
  const QueryTile& tile = work.queries;
  PartialAttention& total = work.runs.front();
  for (std::size_t run = 1; run < work.runs.size(); ++run) total.merge(work.runs[run], d);
  for (int r = 0; r < tile.rows(); ++r) {
    scale_row(total.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d, d, 1.0F / total.sum[r]);
  }
  plan.head(layer, work.kv_head).v.transform.inverse({total.accumulator.data(), tile.rows(), d});
  const int first_row = step.first_row(work.slice) + tile.first_token - step.first_token(work.slice);
  for (int r = 0; r < tile.rows(); ++r) {
    const float* from = total.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d;
    const int head = work.kv_head * tile.group + r / tile.n_queries;
    std::copy(from, from + d, rows.out.row(first_row + r % tile.n_queries) + head * d);
    if (finite(from, d)) continue;
    step.fail(error(
        "the attention of layer {}, query head {}, token {} is not a finite number: a query is broken, or "
        "K or V exceeds the range of {}",
        layer, head, tile.first_token + r % tile.n_queries, plan.tail->name()));
  }
  if (work.tile.seal_point < 0) return;
  step.head(work.slice, layer, work.kv_head)
      .seal_until(pages_due(work.tile.seal_point, plan.layers[layer].window), scratch);
}

void ReferenceBackend::run_layer(Step& step, int layer, const LayerRows& rows, Team& team) {
  if (step.failed()) {
    for (int r = team.index(); r < rows.out.rows; r += team.size()) {
      std::fill(rows.out.row(r), rows.out.row(r) + rows.out.cols, 0.0F);
    }
    return;
  }
  const Plan& plan = step.plan();
  const auto first_thread = [&](const auto& action) {
    if (team.index() == 0) action();
    team.barrier();
  };
  first_thread([&] { start(step, team.size()); });
  std::vector<float>& seal_scratch = seal_scratch_[team.index()];
  for (std::size_t round = 0; round < n_rounds_; ++round) {
    first_thread([&] { start_round(round); });
    const int n_heads = static_cast<int>(active_.size());
    team.for_each(n_heads, [&](int i) {
      if (round == 0) seal_before(step, layer, *active_[i], seal_scratch);
      append(step, layer, rows, *active_[i]);
      load_queries(step, layer, rows, *active_[i]);
    });
    first_thread([&] { list_runs(plan.geometry.head_dim); });
    team.for_each(static_cast<int>(runs_.size()),
                  [&](int i) { attend(plan, layer, runs_[i], scratch_[team.index()]); });
    team.for_each(n_heads, [&](int i) { finish(step, layer, rows, *active_[i], seal_scratch); });
  }
}

}  // namespace

std::unique_ptr<AttentionBackend> make_reference_backend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace kvant
