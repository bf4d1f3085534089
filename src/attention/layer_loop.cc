// The tiles of all slices advance together, in rounds. In each round, heads append and prepare their queries,
// threads attend to runs of pages, and heads merge the runs and seal what is due. If V may be skipped, a
// first pass over K alone finds the weights. If the recipe protects by score, scores are taken before
// sealing.
#include "attention/layer_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/observation.h"
#include "attention/prompt_attention.h"
#include "attention/query_tile.h"
#include "attention/step_memory.h"
#include "cache/host_sequence.h"
#include "cache/page_counts.h"
#include "cache/schedule.h"
#include "device/cpu/kernels/finished_rows.h"
#include "device/cpu/kernels/integer_products.h"
#include "device/cpu/kernels/page_attention.h"
#include "device/cpu/kernels/shared_tile.h"
#include "recipe/constant_needs.h"

namespace kvant {
namespace {

// Holds one (slice, KV head) and its current tile.
struct HeadWork : cpu::SharedTile {
  int slice = 0;
  int kv_head = 0;
  HeadState* state = nullptr;
  Tile tile;
  std::vector<float> new_rows[2];     // by side: transformed rows of the tile's new tokens
  RoundedPages rounded;               // Pages of a prompt that attends in low bits.
  PartialAttention total;             // The result of the first of two passes.
  std::vector<const float*> sums;     // The correction's sums of the head, for each query of the tile.
  ObserverRows of_page;               // The step's observers of the page that the step ends next.
  ObserverTile observers;             // The observers of the page that this tile ends, or no rows.
  std::vector<double> token_weights;  // by absolute token: sums of the observers' weights
};

using RunWork = cpu::TileRun<HeadWork>;

// Infinities and NaN have the largest exponent. The loop has no branch, so compilers vectorize it.
bool finite(const float* values, int n) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  std::uint32_t broken = 0;
  for (int i = 0; i < n; ++i)
    broken |= (std::bit_cast<std::uint32_t>(values[i]) & kExponent) == kExponent ? 1U : 0U;
  return broken == 0;
}

bool within(const float* values, int n, float limit) {
  return std::all_of(values, values + n, [&](float x) { return std::abs(x) <= limit; });
}

// Returns the error for numbers that no sound model computes.
Error not_finite(const std::string& what) {
  return error(
      "{} is not a finite number: the model's weights or its activations are broken; get the file again, or "
      "another quantization of the model",
      what);
}

AttentionRules rules_of(const Plan& plan, int layer) {
  return {plan.geometry.dim(layer), plan.layers[layer].sliding_window, plan.geometry.score_softcap,
          plan.recipe.softmax, plan.recipe.products};
}

class LayerLoop final : public AttentionBackend {
 public:
  explicit LayerLoop(const cpu::ByteKernels* kernels) : kernels_(kernels) {}

  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override;
  std::vector<SkipCount> skip_counts() const override;
  PageOrder page_order() const override {
    return kernels_ == nullptr ? PageOrder::canonical : PageOrder::lanes;
  }
  Result<PlacedPlan> place(std::shared_ptr<const Plan> plan) const override {
    return PlacedPlan(std::move(plan));
  }
  KernelChoice kernel(const Plan& plan, int layer, int kv_head, Side side) const override;
  RowObserver* observer() override { return nullptr; }

 private:
  bool try_to_start(const Step& step, int layer, int n_threads);
  void start(const Step& step, int layer, int n_threads);
  void start_round(std::size_t round);
  void list_runs();
  static void append(Step& step, int layer, const LayerRows& rows, HeadWork& work);
  static void load_queries(Step& step, int layer, const LayerRows& rows, HeadWork& work);
  static void round_prompt(const Step& step, int layer, HeadWork& work);
  void attend(Step& step, int layer, Team& team);
  static void finish(Step& step, int layer, const LayerRows& rows, HeadWork& work);
  static void start_observation(const Step& step, int layer, HeadWork& work);
  static void seal_after(HeadWork& work, std::vector<float>& scratch);

  const cpu::ByteKernels* kernels_;            // null for the reference
  std::vector<cpu::PageAttention> attention_;  // by thread
  // The members below describe the layer that runs. The team's first thread writes them between barriers.
  std::vector<std::vector<Tile>> tiles_;  // by slice
  std::size_t n_rounds_ = 0;
  bool started_ = false;
  std::size_t n_heads_ = 0;      // heads in use
  std::vector<HeadWork> heads_;  // Layers with more heads leave spare entries with buffers.
  std::vector<HeadWork*> active_;
  std::vector<RunWork> runs_;
  std::vector<TileScratch> scratch_;              // by thread, for observations
  std::vector<std::vector<float>> seal_scratch_;  // by thread
  std::vector<std::vector<SkipCount>> skipped_;   // by thread and layer, since the backend was made
};

KernelChoice LayerLoop::kernel(const Plan& plan, int layer, int kv_head, Side side) const {
  if (kernels_ == nullptr) return {"reference", ""};
  const Format& format = *plan.head(layer, kv_head).side(side).sealed;
  const int d = plan.geometry.dim(layer);
  if (format.number_type() != NumberType::none && plan.recipe.products == Products::real)
    return {fmt::format("cpu/{}/rows", kernels_->name), ""};
  if (!cpu::multiplies_codes(format, d)) {
    return {
        fmt::format("cpu/{}/decoded", kernels_->name),
        fmt::format("no kernel multiplies codes of {} with heads of {} channels: pages are dequantized first",
                    format.name(), d)};
  }
  static constexpr const char* kMeanings[] = {"numbers", "levels", "states", "vectors", "vectors"};
  const auto scheme = format.code_scheme(d);
  return {
      fmt::format("cpu/{}/{}{}", kernels_->name, kMeanings[static_cast<int>(scheme->meaning)], scheme->bits),
      ""};
}

// Returns false if memory is short.
bool LayerLoop::try_to_start(const Step& step, int layer, int n_threads) {
  try {
    start(step, layer, n_threads);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void LayerLoop::start(const Step& step, int layer, int n_threads) {
  const Plan& plan = step.plan();
  while (std::ssize(attention_) < n_threads) attention_.emplace_back(kernels_);
  scratch_.resize(n_threads);
  seal_scratch_.resize(n_threads);
  skipped_.resize(std::max<std::size_t>(skipped_.size(), n_threads));
  for (auto& by_layer : skipped_) by_layer.resize(plan.recipe.skip > 0 ? plan.geometry.n_layers : 0);
  tiles_.resize(step.slices().size());
  n_rounds_ = 0;
  for (int s = 0; s < static_cast<int>(tiles_.size()); ++s) {
    const StepSlice& slice = step.slices()[s];
    const TileRules rules{.is_prompt = slice.is_prompt,
                          .prefill = plan.recipe.prefill,
                          .window = plan.layers[layer].window,
                          .n_sealed = step.ledger(s, layer).n_sealed(),
                          .decode_tile = kernels_ == nullptr ? kPageTokens : 1};
    schedule(step.first_token(s), slice.n_tokens, rules, tiles_[s]);
    n_rounds_ = std::max(n_rounds_, tiles_[s].size());
  }
  const int n_kv = plan.geometry.kv_heads(layer);
  n_heads_ = tiles_.size() * n_kv;
  if (heads_.size() < n_heads_) heads_.resize(n_heads_);
  for (int i = 0; i < static_cast<int>(n_heads_); ++i) {
    heads_[i].slice = i / n_kv;
    heads_[i].kv_head = i % n_kv;
    heads_[i].state = &head_of(step, heads_[i].slice, layer, heads_[i].kv_head);
    if (plan.layers[layer].needs_scores())
      heads_[i].of_page.resize(plan.geometry.group(layer), plan.geometry.dim(layer));
  }
}

void LayerLoop::start_round(std::size_t round) {
  active_.clear();
  for (HeadWork& work : std::span(heads_).first(n_heads_)) {
    if (round >= tiles_[work.slice].size()) continue;
    work.tile = tiles_[work.slice][round];
    work.observers.queries.n_queries = 0;
    active_.push_back(&work);
  }
}

void LayerLoop::list_runs() {
  runs_.clear();
  for (HeadWork* work : active_) {
    work->divide();
    cpu::add_runs(*work, runs_);
  }
}

// Transforms and stores the tile's new tokens.
void LayerLoop::append(Step& step, int layer, const LayerRows& rows, HeadWork& work) {
  const int n = work.tile.append_end - work.tile.append_first;
  if (n == 0) return;
  const Plan& plan = step.plan();
  const HeadPlan& head = plan.head(layer, work.kv_head);
  const int d = plan.geometry.dim(layer);
  const int first_row = step.first_row(work.slice) + work.tile.append_first - step.first_token(work.slice);
  const MatrixView<const float> sources[2] = {rows.k, rows.v};
  std::vector<float>* values = work.new_rows;
  for (Side side : kSides) {
    std::vector<float>& out = values[static_cast<int>(side)];
    out.resize(static_cast<std::size_t>(n) * d);
    for (int r = 0; r < n; ++r) {
      const float* in = sources[static_cast<int>(side)].row(first_row + r) + work.kv_head * d;
      float* to = out.data() + static_cast<std::ptrdiff_t>(r) * d;
      std::copy(in, in + d, to);
      if (finite(in, d)) continue;
      step.fail(not_finite(fmt::format("{} of layer {}, KV head {}, token {}", side_name(side), layer,
                                       work.kv_head, work.tile.append_first + r)));
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
  work.state->append({values[0].data(), n, d}, {values[1].data(), n, d});
}

// Integer products would turn a query with NaN into finite scores, so the check comes first.
void check_queries(Step& step, int layer, HeadWork& work) {
  QueryTile& tile = work.queries;
  const int d = step.plan().geometry.dim(layer);
  for (int r = 0; r < tile.rows(); ++r) {
    float* q = tile.q.data() + static_cast<std::ptrdiff_t>(r) * d;
    if (finite(q, d)) continue;
    step.fail(not_finite(fmt::format("the query of layer {}, query head {}, token {}", layer,
                                     work.kv_head * tile.group + r / tile.n_queries, tile.token(r))));
    std::fill(q, q + d, 0.0F);
  }
}

void LayerLoop::load_queries(Step& step, int layer, const LayerRows& rows, HeadWork& work) {
  const Plan& plan = step.plan();
  QueryTile& tile = work.queries;
  tile.first_token = work.tile.query_first;
  tile.n_queries = work.tile.query_end - work.tile.query_first;
  const int first_row = step.first_row(work.slice) + tile.first_token - step.first_token(work.slice);
  work.rules = rules_of(plan, layer);
  work.rules.in_bytes = plan.recipe.prompt == PromptAttention::flashq && step.slices()[work.slice].is_prompt;
  fill_query_tile(plan, layer, work.kv_head, rows.q, first_row, tile);
  check_queries(step, layer, work);
  tile.q_scale.clear();
  if (plan.recipe.products == Products::integer) quantize_queries(tile, plan.geometry.dim(layer));
  const int window = plan.layers[layer].sliding_window;
  const int first_visible = first_visible_token(tile.first_token, window);
  work.state->list_pages(first_visible, work.tile.n_sealed, work.tile.append_end, work.pages);
}

// If the recipe asks for it, the tokens of a prompt attend to each other in low bits.
void LayerLoop::round_prompt(const Step& step, int layer, HeadWork& work) {
  const Plan& plan = step.plan();
  const Recipe& recipe = plan.recipe;
  if (recipe.prompt == PromptAttention::exact || recipe.prompt == PromptAttention::flashq ||
      !step.slices()[work.slice].is_prompt)
    return;
  const HeadState& state = *work.state;
  const int query = work.tile.query_first;
  // For a whole prompt, the block is all that is unsealed, so steps of any size round alike.
  const int block_first = recipe.prefill == kPrefillAll ? 0 : query / recipe.prefill * recipe.prefill;
  const LayerPlan& rules = plan.layers[layer];
  work.rounded.replace({.attention = recipe.prompt,
                        .head_dim = plan.geometry.dim(layer),
                        .first_token = std::max(block_first, work.tile.n_sealed * kPageTokens),
                        .end_token = work.tile.append_end,
                        .query_page = query / kPageTokens * kPageTokens,
                        .window = rules.window,
                        .sink = rules.sink,
                        .protect = rules.protect,
                        .scores = rules.protect > 0 ? state.scores() : nullptr},
                       work.pages);
  if (recipe.prompt == PromptAttention::sage) round_sage_queries(work.queries, plan.geometry.dim(layer));
}

// Returns the sink logits of the head's query heads, or null.
const float* sink_logits(const Geometry& geometry, int layer, const HeadWork& work) {
  if (geometry.sink_logits.empty()) return nullptr;
  return &geometry.sink_logits[layer * geometry.n_heads + work.kv_head * work.queries.group];
}

void LayerLoop::attend(Step& step, int layer, Team& team) {
  const Plan& plan = step.plan();
  const auto for_each = [&](int n, const auto& body) {
    team.for_each(n, [&](int i) { run_within_memory(step, [&] { body(i); }); });
  };
  const int n_runs = static_cast<int>(runs_.size());
  const int thread = team.index();
  const double tau = plan.recipe.skip;
  if (tau > 0) {
    for_each(n_runs, [&](int i) {
      const HeadWork& work = *runs_[i].tile;
      if (work.rules.in_bytes) return;
      attention_[thread].weigh(work.queries, runs_[i].pages(), work.rules, runs_[i].result());
    });
    for_each(static_cast<int>(active_.size()), [&](int i) {
      HeadWork& work = *active_[i];
      if (work.rules.in_bytes) return;
      const int d = work.rules.head_dim;
      work.total = work.merge();
      add_sinks(work.queries, sink_logits(plan.geometry, layer, work), d, work.total);
      for (PartialAttention& run : work.runs) {
        run.reset(work.queries.rows(), d);
        run.max = work.total.max;
      }
      skipped_[thread][layer].queries += work.queries.n_queries;
    });
  }
  for_each(n_runs, [&](int i) {
    HeadWork& work = *runs_[i].tile;
    const SkipRule skip{tau, &work.total};
    const bool skips = tau > 0 && !work.rules.in_bytes;
    const SkipCount count = attention_[thread].attend(work.queries, runs_[i].pages(), work.rules,
                                                      skips ? &skip : nullptr, runs_[i].result());
    if (skips) skipped_[thread][layer].add(count);
  });
}

RowEnds row_ends(const Plan& plan, int layer, HeadWork& work) {
  const float* sums = work.state->correction();
  work.sums.assign(sums == nullptr ? 0 : work.queries.n_queries, sums);
  return {.sink_logits = sink_logits(plan.geometry, layer, work),
          .sums = work.sums,
          .query_maps = plan.head(layer, work.kv_head).k.context.constants.find(kQueryAdapter).data(),
          .scale = plan.recipe.correction == Correction::absolute ? CorrectionScale::absolute
                                                                  : CorrectionScale::relative,
          .softmax_scale = plan.geometry.softmax_scale};
}

// Merges the runs and writes the outputs.
void LayerLoop::finish(Step& step, int layer, const LayerRows& rows, HeadWork& work) {
  const Plan& plan = step.plan();
  const int d = plan.geometry.dim(layer);
  const QueryTile& tile = work.queries;
  PartialAttention& total = work.finish(row_ends(plan, layer, work));
  if (rows.has_kv() && plan.layers[layer].needs_scores()) {
    const int open_page = step.ledger(work.slice, layer).end() / kPageTokens;
    keep_observers(tile, work.finished.lse, d, [&](int token) -> ObserverRows& {
      return token / kPageTokens == open_page ? *work.state->next_observers() : work.of_page;
    });
  }
  plan.head(layer, work.kv_head).v.transform.inverse({total.accumulator.data(), tile.rows(), d});
  const int first_row = step.first_row(work.slice) + tile.first_token - step.first_token(work.slice);
  for (int r = 0; r < tile.rows(); ++r) {
    const float* from = total.accumulator.data() + static_cast<std::ptrdiff_t>(r) * d;
    const int head = work.kv_head * tile.group + r / tile.n_queries;
    std::copy(from, from + d, rows.out.row(first_row + r % tile.n_queries) + head * d);
    // A query sees its own token, so an LSE of -infinity also comes from scores that are not finite.
    if (finite(from, d) && finite(&work.finished.lse[r], 1)) continue;
    step.fail(not_finite(
        fmt::format("the attention of layer {}, query head {}, token {}", layer, head, tile.token(r))));
  }
}

// At the end of a page, its last queries become the observers of all tokens so far. Queries of earlier steps
// are among them.
void LayerLoop::start_observation(const Step& step, int layer, HeadWork& work) {
  const int end = work.tile.query_end, first = step.first_token(work.slice);
  if (end % kPageTokens != 0) return;
  list_observers(
      first_observer_of(end, first, step.pages(work.slice).observers().first), end, work.queries.group,
      step.plan().geometry.dim(layer),
      [&](int token) -> const ObserverRows& {
        return token < first ? *work.state->observers() : work.of_page;
      },
      work.observers);
  work.token_weights.assign(end, 0.0);
}

void LayerLoop::seal_after(HeadWork& work, std::vector<float>& scratch) {
  HeadState& state = *work.state;
  if (work.observers.queries.rows() > 0)
    state.end_page(work.tile.query_end, work.observers.queries.first_token, work.token_weights);
  state.seal_until(work.tile.end_sealed, scratch);
  state.seal_ahead(scratch);
}

std::vector<SkipCount> LayerLoop::skip_counts() const {
  std::vector<SkipCount> total;
  for (const auto& by_layer : skipped_) {
    total.resize(std::max(total.size(), by_layer.size()));
    for (std::size_t layer = 0; layer < by_layer.size(); ++layer) total[layer].add(by_layer[layer]);
  }
  return total;
}

void LayerLoop::run_layer(Step& step, int layer, const LayerRows& rows, Team& team) {
  if (step.failed()) {
    team.barrier();
    for (int r = team.index(); r < rows.out.rows; r += team.size()) {
      std::fill(rows.out.row(r), rows.out.row(r) + rows.out.cols, 0.0F);
    }
    team.barrier();
    return;
  }
  const Plan& plan = step.plan();
  const auto for_each = [&](int n, const auto& body, const auto& last) {
    team.for_each(
        n, [&](int i) { run_within_memory(step, [&] { body(i); }); }, [&] { run_within_memory(step, last); });
  };
  team.once([&] {
    started_ = try_to_start(step, layer, team.size());
    if (started_) run_within_memory(step, [&] { start_round(0); });
  });
  if (!started_) {
    team.once([&] { step.fail_out_of_memory(); });
    return;
  }
  std::vector<float>& seal_scratch = seal_scratch_[team.index()];
  const bool chooses = plan.layers[layer].needs_scores();
  for (std::size_t round = 0; round < n_rounds_; ++round) {
    const int n_heads = static_cast<int>(active_.size());
    const auto prepare = [&](int i) {
      HeadWork& work = *active_[i];
      if (rows.has_kv()) {
        work.state->seal_until(work.tile.n_sealed, seal_scratch);
        append(step, layer, rows, work);
      }
      load_queries(step, layer, rows, *active_[i]);
      round_prompt(step, layer, *active_[i]);
    };
    for_each(n_heads, prepare, [&] { list_runs(); });
    attend(step, layer, team);
    const auto next_round = [&] {
      if (round + 1 < n_rounds_) start_round(round + 1);
    };
    const auto end = [&](int i) {
      finish(step, layer, rows, *active_[i]);
      if (!rows.has_kv()) return;
      chooses ? start_observation(step, layer, *active_[i]) : seal_after(*active_[i], seal_scratch);
    };
    if (!chooses) {
      for_each(n_heads, end, next_round);
      continue;
    }
    const auto weigh = [&](int i) {
      HeadWork& work = *runs_[i].tile;
      if (work.observers.queries.rows() == 0) return;
      AttentionRules rules = rules_of(plan, layer);
      rules.products = Products::real;
      weigh_tokens(work.observers, runs_[i].pages(), rules, scratch_[team.index()], work.token_weights);
    };
    for_each(n_heads, end, [] {});
    for_each(static_cast<int>(runs_.size()), weigh, [] {});
    for_each(
        n_heads, [&](int i) { seal_after(*active_[i], seal_scratch); }, next_round);
  }
}

}  // namespace

std::unique_ptr<AttentionBackend> make_layer_loop(const cpu::ByteKernels* kernels) {
  return std::make_unique<LayerLoop>(kernels);
}

}  // namespace kvant
