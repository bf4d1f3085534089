// Attends with the prompts of a step on a device. The library's prompt kernel (kvant_prompt_attention) reads
// sealed pages and tails as tiles once for a block of rows. The decode kernel would read pages and tails
// again for every sequence, which has at most 8 rows. Tiles and products are in half precision or, with
// prompt=flashq, in INT8.
#include <algorithm>

#include "attention/device_attention.h"
#include "attention/device_row_tables.h"
#include "cache/protected_tokens.h"

namespace kvant {
namespace {

// A slice of fewer tokens leaves most rows of a kernel's block empty. Making tiles of its pages would cost
// more than the tiles save.
constexpr int kMinPromptTokens = 32;

// The kernel requires an alignment of 256 bytes.
constexpr std::size_t kAlignment = 256;
std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Returns the bytes of the rows of all query heads in BF16, the form of queries and outputs with
// prompt=flashq.
std::size_t bf16_bytes(const Geometry& g, int layer, int n_rows) {
  return aligned(std::size_t{2} * n_rows * g.n_q(layer));
}

bool in_integers(const Plan& plan) {
  return plan.recipe.prompt == PromptAttention::flashq;
}

// Returns the maximum number of tokens that scores protect in n_sealed pages, for any layer of the group of
// `layer`.
int most_protected(const Plan& plan, int layer, int n_sealed) {
  return protects_by_score(plan, layer) ? max_protected_tokens(plan.layers[layer], n_sealed) : 0;
}

kvant_prompt_shape prompt_shape(const Plan& plan, int layer, const RowRun& run, int n_tokens, int n_pages) {
  const Geometry& g = plan.geometry;
  kvant_prompt_shape shape{};
  shape.struct_size = sizeof shape;
  shape.n_seqs = run.n_slices;
  shape.n_heads = g.n_heads;
  shape.n_kv_heads = g.kv_heads(layer);
  shape.head_dim = g.dim(layer);
  shape.n_queries = run.n_rows;
  shape.n_tokens = n_tokens;
  shape.softmax_scale = g.softmax_scale;
  shape.causal = 1;
  shape.window = g.slides(layer) ? g.sliding_window[layer] : 0;
  shape.sas = plan.recipe.softmax == Softmax::sas ? 1 : 0;
  shape.n_sealed_pages = n_pages;
  shape.half_products = in_integers(plan) ? 0 : 1;
  shape.score_softcap = g.score_softcap;
  shape.corrected = is_corrected(plan) ? 1 : 0;
  return shape;
}

}  // namespace

// The kernel skips no values, even if the recipe allows skips.
bool DeviceAttention::takes_prompt_kernel(const StepSlice& slice) const {
  return slice.is_prompt && slice.n_tokens >= kMinPromptTokens;
}

void DeviceAttention::list_prompt(const Step& step, const RowRun& run) {
  for (const GroupTables& group : groups_) list_prompt_in(step, run, group.slices.layer);
}

// For the kernel, a sequence begins with the first page that no sliding window has freed.
void DeviceAttention::list_prompt_in(const Step& step, const RowRun& run, int layer) {
  std::vector<std::int32_t> queries{0}, tokens{0}, pages{0}, first_row_tokens, query_pages;
  int n_kept = 0;
  for (int s = run.first_slice; s < run.first_slice + run.n_slices; ++s) {
    const PageLedger& ledger = step.ledger(s, layer);
    const int first_page = ledger.first_page();
    for (const VisibleTokens& visible : visible_tokens(step, s, layer))
      query_pages.push_back(visible.sealed_pages - first_page);
    queries.push_back(queries.back() + step.slices()[s].n_tokens);
    tokens.push_back(tokens.back() + ledger.end() - ledger.n_sealed() * kPageTokens);
    pages.push_back(pages.back() + ledger.end_sealed() - first_page);
    first_row_tokens.push_back((ledger.n_sealed() - first_page) * kPageTokens);
    if (in_integers(step.plan())) n_kept += most_protected(step.plan(), layer, ledger.end_sealed());
  }
  prompts_.push_back({.group = device_pages(step).group_of(layer),
                      .run = run,
                      .n_tokens = tokens.back(),
                      .n_pages = pages.back(),
                      .n_kept = n_kept,
                      .query_begins = indices_.add(queries),
                      .token_begins = indices_.add(tokens),
                      .sealed_begins = indices_.add(pages),
                      .first_row_tokens = indices_.add(first_row_tokens),
                      .query_pages = indices_.add(query_pages)});
}

// Returns the bytes for the prompts that need most, because all prompts use one workspace in turn. With
// prompt=flashq, the workspace begins with outputs and queries in BF16.
Result<std::size_t> DeviceAttention::prompt_workspace(const Plan& plan) const {
  std::size_t most = 0;
  for (const PromptTables& prompt : prompts_) {
    const int layer = groups_[prompt.group].slices.layer;  // All layers of the group take equal bytes.
    kvant_prompt_shape shape = prompt_shape(plan, layer, prompt.run, prompt.n_tokens, prompt.n_pages);
    shape.n_kept_tokens = prompt.n_kept;
    std::size_t bytes = 0;
    KVANT_RETURN_IF_ERROR(library_status(*device_, "preparing a prompt's attention",
                                         device_->library().prompt_workspace(&shape, &bytes)));
    if (in_integers(plan)) bytes += 2 * bf16_bytes(plan.geometry, layer, prompt.run.n_rows);
    most = std::max(most, bytes);
  }
  return most;
}

bool DeviceAttention::transform(Step& step, int layer, kvant_transformation t, const RowRun& run) {
  const Geometry& g = step.plan().geometry;
  t.struct_size = sizeof t;
  t.n_rows = run.n_rows;
  t.n_heads = g.n_heads;
  t.head_dim = g.dim(layer);
  t.row_stride = t.source_row_stride = g.n_q(layer);
  t.head_stride = t.source_head_stride = g.dim(layer);
  t.heads_of_factors = g.group(layer);
  return check(step, "rotating", device_->library().transform(&t, device_->stream()));
}

bool DeviceAttention::round_queries(Step& step, int layer, const float* q, const RowRun& run) {
  const Geometry& g = step.plan().geometry;
  kvant_transformation t{};
  t.rows = prompt_memory() + bf16_bytes(g, layer, run.n_rows);
  t.type = KVANT_BF16;
  t.source = q + run.first_row * std::int64_t{g.n_q(layer)};
  t.source_is_f32 = 1;
  return transform(step, layer, t, run);
}

bool DeviceAttention::widen_outputs(Step& step, int layer, const DeviceRows& rows, const RowRun& run) {
  kvant_transformation t{};
  t.rows = rows.out + run.first_row * std::int64_t{step.plan().geometry.n_q(layer)};
  t.type = KVANT_F32;
  t.source = prompt_memory();
  t.source_is_bf16 = 1;
  t.hadamard = rows.value_transform.hadamard ? 1 : 0;
  t.factors_after = rows.value_transform.inverses;
  return transform(step, layer, t, run);
}

bool DeviceAttention::turn_outputs_back(Step& step, int layer, const DeviceRows& rows, const RowRun& run) {
  if (!rows.value_transform.hadamard && rows.value_transform.inverses == nullptr) return true;
  kvant_transformation t{};
  t.rows = rows.out + run.first_row * std::int64_t{step.plan().geometry.n_q(layer)};
  t.type = KVANT_F32;
  t.hadamard = rows.value_transform.hadamard ? 1 : 0;
  t.factors_after = rows.value_transform.inverses;
  return transform(step, layer, t, run);
}

bool DeviceAttention::attend_prompts(Step& step, int layer, const DeviceRows& rows,
                                     const kvant_decode_layer& at_layer) {
  const int group = device_pages(step).group_of(layer);
  return std::ranges::all_of(prompts_, [&](const PromptTables& prompt) {
    return prompt.group != group || attend_prompt(step, layer, rows, at_layer, prompt);
  });
}

bool DeviceAttention::attend_prompt(Step& step, int layer, const DeviceRows& rows,
                                    kvant_decode_layer at_layer, const PromptTables& tables) {
  const Plan& plan = step.plan();
  const Geometry& g = plan.geometry;
  const RowRun& run = tables.run;
  const std::int64_t row_size = g.n_q(layer);
  const bool integers = in_integers(plan);
  if (integers && !round_queries(step, layer, rows.q, run)) return false;
  at_layer.tail.table += run.first_slice * at_layer.tail.seq_stride;
  at_layer.sealed.table += run.first_slice * at_layer.sealed.seq_stride;
  at_layer.protected_pages.table += run.first_slice * at_layer.protected_pages.seq_stride;
  if (at_layer.masks != nullptr) at_layer.masks += 4 * run.first_slice * at_layer.mask_seq_stride;
  const LayerShape formats = layer_shape(plan, layer);
  const kvant_decode_shape of_slices = formats.of(run.n_slices, plan);
  kvant_prompt_pages pages{};
  pages.struct_size = sizeof pages;
  pages.shape = &of_slices;
  pages.layer = &at_layer;
  if (tables.n_pages > 0) {
    pages.sealed_begins = indices_.at(tables.sealed_begins);
    pages.query_sealed_pages = indices_.at(tables.query_pages);
  }
  pages.first_row_tokens = indices_.at(tables.first_row_tokens);
  kvant_prompt prompt{};
  prompt.struct_size = sizeof prompt;
  prompt.query_begins = indices_.at(tables.query_begins);
  prompt.token_begins = indices_.at(tables.token_begins);
  const std::size_t outputs = bf16_bytes(g, layer, run.n_rows), before = integers ? 2 * outputs : 0;
  if (integers) {
    prompt.q = prompt_memory() + outputs;
    prompt.out = prompt_memory();
  } else {
    prompt.q = rows.q + run.first_row * row_size;
    prompt.out = rows.out + run.first_row * row_size;
    prompt.q_type = prompt.out_type = KVANT_F32;
    prompt.sink_logits = at_layer.sink_logits;
  }
  kvant_correction correction{};
  if (is_corrected(plan, layer)) {
    correction = sums_.of_rows(step, layer, indices_, run.first_row);
    prompt.correction = &correction;
  }
  prompt.q_token_stride = prompt.out_token_stride = row_size;
  prompt.q_head_stride = prompt.out_head_stride = g.dim(layer);
  prompt.pages = &pages;
  if (protects_by_score(plan, layer)) {  // Observers need the LSE.
    prompt.lse = protector_.lse_of(run.first_row);
    prompt.lse_token_stride = protector_.lse_stride();
    prompt.lse_head_stride = 1;
  }
  kvant_prompt_shape shape = prompt_shape(plan, layer, run, tables.n_tokens, tables.n_pages);
  shape.n_kept_tokens = tables.n_kept;
  const kvant_status attended =
      device_->library().prompt_attention(&shape, &prompt, prompt_memory() + before,
                                          workspace_.bytes() - rows_workspace_ - before, device_->stream());
  if (!check(step, "attending to a prompt", attended)) return false;
  return integers ? widen_outputs(step, layer, rows, run) : turn_outputs_back(step, layer, rows, run);
}

}  // namespace kvant
