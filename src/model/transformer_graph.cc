#include "model/transformer_graph.h"

#include <algorithm>
#include <new>

namespace kvant {
namespace {

// A cache line has this many bytes. Rows of different threads should not share a line.
constexpr std::size_t kAlignment = 64;

// projected_columns() and attended_columns() count columns of the widest layer: the projected columns, and
// the columns that attention or a delta net returns.
int projected_columns(const Hparams& h) {
  int n = h.delta_net.width();
  for (int layer = 0; layer < h.n_layers; ++layer) n = std::max(n, AttentionColumns(h, layer).width);
  return n;
}
int attended_columns(const Hparams& h) {
  int n = h.delta_net.inner();
  for (int layer = 0; layer < h.n_layers; ++layer) n = std::max(n, h.n_q(layer));
  return n;
}

}  // namespace

TransformerGraph::TransformerGraph(int n_rows, int n_logit_rows, bool short_rope, bool wants_states)
    : n_rows_(n_rows),
      n_logit_rows_(n_logit_rows),
      short_rope_(short_rope),
      has_states_(wants_states),
      tokens_(n_rows),
      positions_(n_rows),
      logit_rows_(n_logit_rows),
      query_scales_(n_rows) {}

ActivationRows TransformerGraph::allocate(int n_rows, int n_cols) {
  const std::size_t values = static_cast<std::size_t>(n_rows) * n_cols;
  const std::size_t bytes = (values * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
  memory_.emplace_back(static_cast<float*>(std::aligned_alloc(kAlignment, bytes)));
  out_of_memory_ = out_of_memory_ || (bytes > 0 && memory_.back() == nullptr);
  bytes_ += static_cast<std::int64_t>(bytes);
  return {memory_.back().get(), n_cols, /*shared=*/true};
}

// Allocates the part of the residual stream that threads share. With few rows, each thread has its own x and
// h.
ResidualRows TransformerGraph::allocate_residual(int n_rows, const Hparams& h) {
  ResidualRows rows{n_rows, {}, {}, allocate(n_rows, h.n_embd)};
  if (!MatrixProduct::is_batch(n_rows)) return rows;
  rows.x = allocate(n_rows, h.n_embd);
  // A block writes y after it has read h, so both may share memory unless the next block reads h again.
  rows.h = h.network_may_read_normed() ? allocate(n_rows, h.n_embd) : rows.y;
  return rows;
}

GraphBuffers TransformerGraph::allocate_shared(const Hparams& h) {
  GraphBuffers b{tokens_.data(), positions_.data(), logit_rows_.data(),
                 h.temperature == 0 ? nullptr : query_scales_.data()};
  b.all = allocate_residual(n_rows_, h);
  b.qkv = allocate(n_rows_, projected_columns(h));
  b.attended = allocate(n_rows_, attended_columns(h));
  if (n_logit_rows_ > 0) {
    b.wanted = allocate_residual(n_logit_rows_, h);
    if (MatrixProduct::is_batch(n_logit_rows_))
      b.wanted_attended = allocate(n_logit_rows_, attended_columns(h));
    (has_states_ ? b.states : b.logits) = allocate(n_logit_rows_, has_states_ ? h.n_embd : h.n_vocab);
  }
  const int n_ff_rows = h.n_layers > 1 ? n_rows_ : n_logit_rows_;
  const int n_ff = std::max(h.n_ff, h.experts.n_ff_shared);
  b.gate = allocate(n_ff_rows, n_ff);
  b.up = allocate(n_ff_rows, n_ff);
  b.router = allocate(n_ff_rows, h.experts.n);
  b.shared = allocate(n_ff_rows, h.experts.n_ff_shared > 0 ? h.n_embd : 0);
  b.layer_inputs = allocate(n_rows_, h.n_layers * h.n_layer_embd);
  b.layer_tokens = allocate(n_rows_, h.n_layers * h.n_layer_embd);
  b.layer_gates = allocate(n_ff_rows, h.n_layer_embd);
  if (MatrixProduct::is_batch(n_logit_rows_)) b.wanted_inputs = allocate(n_logit_rows_, h.n_layer_embd);
  const bool has_dense = h.experts.n > 0 && find_step<RunNetwork>(h.architecture->layer.experts) != nullptr;
  b.dense = allocate(n_ff_rows, has_dense ? h.n_embd : 0);
  outputs_ = has_states_ ? b.states.data : b.logits.data;
  return b;
}

// Allocates the buffers that each thread has for itself.
void TransformerGraph::allocate_private(const Hparams& h, GraphBuffers& b) {
  const auto own = [&](int n_rows, int n_cols, ActivationRows& a) {
    if (n_rows == 0 || MatrixProduct::is_batch(n_rows)) return;
    a = allocate(n_rows, n_cols);
    a.shared = false;
  };
  own(n_rows_, h.n_embd, b.all.x);
  own(n_rows_, h.n_embd, b.all.h);
  own(n_logit_rows_, h.n_embd, b.wanted.x);
  own(n_logit_rows_, h.n_embd, b.wanted.h);
  own(n_logit_rows_, attended_columns(h), b.wanted_attended);
  own(n_logit_rows_, h.n_layer_embd, b.wanted_inputs);
}

Result<std::unique_ptr<TransformerGraph>> TransformerGraph::build(const GraphParts& parts, int n_rows,
                                                                  int n_logit_rows, bool wants_states) {
  std::unique_ptr<TransformerGraph> g(
      new TransformerGraph(n_rows, n_logit_rows, parts.short_rope, wants_states));
  const GraphBuffers shared = g->allocate_shared(parts.hparams);
  std::vector<GraphBuffers> buffers(parts.n_threads, shared);
  for (GraphBuffers& b : buffers) g->allocate_private(parts.hparams, b);
  if (g->out_of_memory_ || !parts.experts.reserve(n_rows) || !g->build_parts(parts, buffers)) {
    return shortage("out of memory: no room for the activations of {} tokens; process fewer in one step",
                    n_rows);
  }
  return g;
}

// Returns false if memory is short. Memory can be short here, because products allocate the rounded rows of a
// batch.
bool TransformerGraph::build_parts(const GraphParts& parts, const std::vector<GraphBuffers>& buffers) {
  try {
    for (int thread = 0; thread < parts.n_threads; ++thread)
      parts_.push_back(std::make_unique<GraphPart>(parts, thread, buffers[thread]));
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void TransformerGraph::set_rows(const Hparams& hparams, const ForwardRows& rows) {
  std::copy(rows.tokens.begin(), rows.tokens.end(), tokens_.begin());
  std::copy(rows.positions.begin(), rows.positions.end(), positions_.begin());
  std::copy(rows.logit_rows.begin(), rows.logit_rows.end(), logit_rows_.begin());
  if (hparams.temperature == 0) return;
  for (int i = 0; i < n_rows_; ++i) query_scales_[i] = hparams.query_scale(positions_[i]);
}

}  // namespace kvant
