// TransformerGraph is the compute graph of a decoder-only transformer on the CPU, for one batch shape. The
// graph has a part for each thread of a team, and activations that the parts share.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/result.h"
#include "model/executor.h"
#include "model/graph_part.h"

namespace kvant {

// A graph is built once for a number of rows and of wanted logits, and runs many times with different tokens.
class TransformerGraph {
 public:
  // Builds the graph and allocates its activations. With n_logit_rows = 0, the graph ends with the last
  // layer's attention. With wants_states, the outputs are hidden states in place of logits. The objects to
  // which `parts` refers must outlive the graph. Returns an error if memory is short.
  static Result<std::unique_ptr<TransformerGraph>> build(const GraphParts& parts, int n_rows,
                                                         int n_logit_rows, bool wants_states);

  int n_rows() const { return n_rows_; }
  int n_logit_rows() const { return n_logit_rows_; }
  bool short_rope() const { return short_rope_; }
  bool has_states() const { return has_states_; }
  ggml_cgraph* part(int thread) const { return parts_[thread]->graph(); }
  std::int64_t bytes() const { return bytes_; }  // bytes of the activations

  void set_rows(const Hparams& hparams, const ForwardRows& rows);
  // Returns the outputs of a run: logits [n_logit_rows, n_vocab], or states [n_logit_rows, n_embd].
  const float* outputs() const { return outputs_; }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  TransformerGraph(int n_rows, int n_logit_rows, bool short_rope, bool wants_states);
  ActivationRows allocate(int n_rows, int n_cols);
  ResidualRows allocate_residual(int n_rows, const Hparams& hparams);
  GraphBuffers allocate_shared(const Hparams& hparams);
  void allocate_private(const Hparams& hparams, GraphBuffers& buffers);
  bool build_parts(const GraphParts& parts, const std::vector<GraphBuffers>& buffers);

  int n_rows_;
  int n_logit_rows_;
  bool short_rope_;
  bool has_states_;
  std::vector<std::int32_t> tokens_, positions_, logit_rows_;
  std::vector<float> query_scales_;
  std::vector<std::unique_ptr<float, Free>> memory_;
  std::int64_t bytes_ = 0;
  bool out_of_memory_ = false;
  const float* outputs_ = nullptr;
  std::vector<std::unique_ptr<GraphPart>> parts_;  // one per thread
};

}  // namespace kvant
