// Steps of prompts on a device: the library's prompt kernel (kvant_prompt_attention) reads sealed pages and
// tails as tiles, once for a block of rows, where the decode kernel reads them for every row. Tiles and
// products are in half precision or, with prompt=flashq, in INT8.
#include <algorithm>

#include "attention/device_attention.h"

namespace kvant {
namespace {

// A slice of fewer tokens leaves most of a block of the kernel's rows empty, and making tiles of its pages
// costs more than it saves.
constexpr int kMinPromptTokens = 32;

// The kernel wants 256 bytes.
constexpr std::size_t kAlignment = 256;
std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Of all query heads' rows, as the kernel reads queries and writes outputs with prompt=flashq.
std::size_t bf16_bytes(const Geometry& g, int n_rows) {
  return aligned(std::size_t{2} * n_rows * g.n_heads * g.head_dim);
}

bool in_integers(const Plan& plan) {
  return plan.recipe.prompt == PromptAttention::flashq;
}

// Whether the kernel in half precision knows all that the plan asks of scores, weights and values.
bool knows_in_half(const Plan& plan) {
  const Recipe& recipe = plan.recipe;
  return recipe.prompt == PromptAttention::exact && recipe.softmax == Softmax::exact && recipe.skip == 0 &&
         !is_corrected(plan) && !protects_by_score(plan);
}

}  // namespace

bool DeviceAttention::takes_prompt_kernel(const Step& step) const {
  const bool all_prompts = std::all_of(
      step.slices().begin(), step.slices().end(),
      [](const StepSlice& slice) { return slice.is_prompt && slice.n_tokens >= kMinPromptTokens; });
  return all_prompts && (in_integers(step.plan()) || (has_half_prompts_ && knows_in_half(step.plan())));
}

void DeviceAttention::list_prompt(const Step& step) {
  const Plan& plan = step.plan();
  const int window = device_window(plan);
  std::vector<std::int32_t> queries{0}, tokens{0}, pages{0}, first_row_tokens, query_pages;
  for (int s = 0; s < n_slices_; ++s) {
    const PageLedger& ledger = step.ledger(s);
    const int first_row = ledger.n_sealed() * kPageTokens;
    for (const RowSight& sight :
         row_sights(step.first_token(s), step.slices()[s], ledger.n_sealed(), window, plan.recipe.prefill))
      query_pages.push_back(sight.sealed_pages);
    queries.push_back(queries.back() + step.slices()[s].n_tokens);
    tokens.push_back(tokens.back() + ledger.end() - first_row);
    pages.push_back(pages.back() + ledger.end_sealed());
    first_row_tokens.push_back(first_row);
  }
  n_prompt_tokens_ = tokens.back();
  n_prompt_pages_ = pages.back();
  query_begins_ = add(queries);
  token_begins_ = add(tokens);
  sealed_begins_ = add(pages);
  first_row_tokens_ = add(first_row_tokens);
  sealed_ = add(query_pages);
}

kvant_prompt_shape DeviceAttention::prompt_shape(const Plan& plan, int layer) const {
  const Geometry& g = plan.geometry;
  kvant_prompt_shape shape{};
  shape.struct_size = sizeof shape;
  shape.n_seqs = n_slices_;
  shape.n_heads = g.n_heads;
  shape.n_kv_heads = g.n_kv_heads;
  shape.head_dim = g.head_dim;
  shape.n_queries = n_rows_;
  shape.n_tokens = n_prompt_tokens_;
  shape.softmax_scale = g.softmax_scale;
  shape.causal = 1;
  shape.window = g.slides(layer) ? g.sliding_window[layer] : 0;
  shape.sas = plan.recipe.softmax == Softmax::sas ? 1 : 0;
  shape.n_sealed_pages = n_prompt_pages_;
  shape.half_products = in_integers(plan) ? 0 : 1;
  shape.score_softcap = g.score_softcap;
  return shape;
}

// With prompt=flashq the workspace begins with outputs and queries in BF16.
Status DeviceAttention::begin_prompt(const Step& step) {
  list_prompt(step);
  const kvant_prompt_shape shape = prompt_shape(step.plan(), /*layer=*/0);  // all take as much
  std::size_t bytes = 0;
  KVANT_RETURN_IF_ERROR(library_status(*device_, "preparing a prompt's attention",
                                       device_->library().prompt_workspace(&shape, &bytes)));
  KVANT_RETURN_IF_ERROR(make_room(memory_, memory_bytes_, numbers_.size() * sizeof numbers_[0]));
  if (in_integers(step.plan())) bytes += 2 * bf16_bytes(step.plan().geometry, n_rows_);
  KVANT_RETURN_IF_ERROR(make_room(workspace_, workspace_bytes_, bytes));
  device_->upload(memory_, numbers_.data(), numbers_.size() * sizeof numbers_[0]);
  return {};
}

bool DeviceAttention::transform(Step& step, kvant_transformation t) {
  const Geometry& g = step.plan().geometry;
  t.struct_size = sizeof t;
  t.n_rows = n_rows_;
  t.n_heads = g.n_heads;
  t.head_dim = g.head_dim;
  t.row_stride = t.source_row_stride = std::int64_t{g.n_heads} * g.head_dim;
  t.head_stride = t.source_head_stride = g.head_dim;
  t.heads_of_factors = g.group(/*layer=*/0);
  return check(step, "rotating", device_->library().transform(&t, device_->stream()));
}

bool DeviceAttention::round_queries(Step& step, const float* q) {
  kvant_transformation t{};
  t.rows = static_cast<char*>(workspace_) + bf16_bytes(step.plan().geometry, n_rows_);
  t.type = KVANT_BF16;
  t.source = q;
  t.source_is_f32 = 1;
  return transform(step, t);
}

bool DeviceAttention::widen_outputs(Step& step, const DeviceRows& rows) {
  kvant_transformation t{};
  t.rows = rows.out;
  t.type = KVANT_F32;
  t.source = workspace_;
  t.source_is_bf16 = 1;
  t.hadamard = rows.value_transform.hadamard ? 1 : 0;
  t.factors_after = rows.value_transform.inverses;
  return transform(step, t);
}

bool DeviceAttention::turn_outputs_back(Step& step, const DeviceRows& rows) {
  if (!rows.value_transform.hadamard && rows.value_transform.inverses == nullptr) return true;
  kvant_transformation t{};
  t.rows = rows.out;
  t.type = KVANT_F32;
  t.hadamard = rows.value_transform.hadamard ? 1 : 0;
  t.factors_after = rows.value_transform.inverses;
  return transform(step, t);
}

bool DeviceAttention::attend_prompt(Step& step, int layer, const DeviceRows& rows,
                                    kvant_decode_layer& at_layer) {
  const Plan& plan = step.plan();
  const Geometry& g = plan.geometry;
  const bool integers = in_integers(plan);
  if (integers && !round_queries(step, rows.q)) return false;
  const LayerShape formats = layer_shape(plan, layer);
  const kvant_decode_shape of_slices = formats.of(n_slices_, plan);
  kvant_prompt_pages pages{};
  pages.struct_size = sizeof pages;
  pages.shape = &of_slices;
  pages.layer = &at_layer;
  if (n_prompt_pages_ > 0) {
    pages.sealed_begins = at(sealed_begins_);
    pages.query_sealed_pages = at(sealed_);
  }
  pages.first_row_tokens = at(first_row_tokens_);
  kvant_prompt prompt{};
  prompt.struct_size = sizeof prompt;
  prompt.query_begins = at(query_begins_);
  prompt.token_begins = at(token_begins_);
  const std::size_t outputs = bf16_bytes(g, n_rows_), before = integers ? 2 * outputs : 0;
  if (integers) {
    prompt.q = static_cast<const char*>(workspace_) + outputs;
    prompt.out = workspace_;
  } else {
    prompt.q = rows.q;
    prompt.out = rows.out;
    prompt.q_type = prompt.out_type = KVANT_F32;
    prompt.sink_logits = at_layer.sink_logits;
  }
  prompt.q_token_stride = prompt.out_token_stride = std::int64_t{g.n_heads} * g.head_dim;
  prompt.q_head_stride = prompt.out_head_stride = g.head_dim;
  prompt.pages = &pages;
  const kvant_prompt_shape shape = prompt_shape(plan, layer);
  const kvant_status attended = device_->library().prompt_attention(
      &shape, &prompt, static_cast<char*>(workspace_) + before, workspace_bytes_ - before, device_->stream());
  if (!check(step, "attending to a prompt", attended)) return false;
  return integers ? widen_outputs(step, rows) : turn_outputs_back(step, rows);
}

}  // namespace kvant
