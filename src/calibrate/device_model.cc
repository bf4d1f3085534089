#include "calibrate/device_model.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "base/page_size.h"
#include "calibrate/capture.h"
#include "calibrate/device_graph_runner.h"
#include "calibrate/device_layer_graph.h"
#include "calibrate/device_vocabulary.h"
#include "calibrate/score_gradient.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace kvant {
namespace {

void copy(const ggml_tensor* from, std::vector<float>& to) {
  to.resize(ggml_nelements(from));
  ggml_backend_tensor_get(from, to.data(), 0, ggml_nbytes(from));
}

// DeviceLayerGradient holds a layer's results after they were copied from the device.
class DeviceLayerGradient final : public LayerGradient {
 public:
  void read(const AttentionShape& shape, const LayerOutputs& of) {
    shape_ = shape;
    group_ = static_cast<int>(of.q->ne[2] / of.k->ne[2]);
    head_dim_ = static_cast<int>(of.k->ne[0]);
    n_rows_ = static_cast<int>(of.k->ne[1]);
    copy(of.k, stored_[0]);
    copy(of.v, stored_[1]);
    copy(of.q, queries_);
    copy(of.attended_gradient, output_gradient_);
    copy(of.moments, moments_);
  }

  MatrixView<const float> stored(int kv_head, Side side) const override {
    return of_head(stored_[static_cast<int>(side)], kv_head);
  }
  HeadAttention attention(int head) const override {
    return {shape_, of_head(queries_, head), stored(head / group_, Side::key),
            stored(head / group_, Side::value)};
  }
  MatrixView<const float> output_gradient(int head) const override { return of_head(output_gradient_, head); }
  std::vector<double> query_moments(int kv_head) const override {
    const std::ptrdiff_t size = std::ptrdiff_t{1} * head_dim_ * head_dim_;
    return {moments_.begin() + kv_head * size, moments_.begin() + (kv_head + 1) * size};
  }

 private:
  MatrixView<const float> of_head(const std::vector<float>& all, int head) const {
    return {all.data() + static_cast<std::ptrdiff_t>(head) * n_rows_ * head_dim_, n_rows_, head_dim_};
  }

  AttentionShape shape_;
  int n_rows_ = 0, head_dim_ = 0, group_ = 1;
  std::vector<float> stored_[2];                  // [n_kv_heads, n_rows, head_dim]
  std::vector<float> queries_, output_gradient_;  // [n_heads, n_rows, head_dim]
  std::vector<float> moments_;                    // [n_kv_heads, head_dim, head_dim]
};

template <class T>
void send(const std::vector<T>& values, ggml_tensor* to) {
  ggml_backend_tensor_set(to, values.data(), 0, sizeof(T) * values.size());
}

class GraphModel final : public DifferentiableModel {
 public:
  GraphModel(const ModelParts& model, const ComputeDevice& device)
      : model_(model),
        h_(model.hparams),
        device_(device),
        runner_(device.backend(), kLayerGraphTensors),
        vocabulary_(model.weights.output(), device.backend()) {}

  // Reserves the memory for contexts of n_rows tokens.
  Status reserve(int n_rows) {
    device_.pages()->enter();
    KVANT_RETURN_IF_ERROR(begin(n_rows));
    LayerOutputs outputs;
    for (int layer = 0; layer < h_.n_layers; ++layer) {
      KVANT_RETURN_IF_ERROR(runner_.check([&](ggml_context* context) {
        return layer_gradient_graph(context, h_, model_.weights, layer, inputs_, outputs);
      }));
    }
    return vocabulary_.reserve(n_rows, kVocabularyBlock);
  }

  const ModelParts& parts() const override { return model_; }

  Status begin(int n_rows) override {
    device_.pages()->enter();
    if (n_rows == n_rows_) return {};
    n_rows_ = 0;  // n_rows_ stays 0 if memory is short
    context_ = make_graph_context(kInputs);
    ggml_context* c = context_.get();
    inputs_.x = ggml_new_tensor_2d(c, GGML_TYPE_F32, h_.n_embd, n_rows);
    inputs_.gradient = ggml_dup_tensor(c, inputs_.x);
    inputs_.positions = ggml_new_tensor_1d(c, GGML_TYPE_I32, n_rows);
    inputs_.numbers = ggml_new_tensor_1d(c, GGML_TYPE_I32, most_outputs());
    inputs_.mask = ggml_new_tensor_2d(c, GGML_TYPE_F32, n_rows, n_rows);
    inputs_.sliding_mask = ggml_dup_tensor(c, inputs_.mask);
    inputs_.sealed = ggml_dup_tensor(c, inputs_.mask);
    inputs_.after_sink = ggml_new_tensor_1d(c, GGML_TYPE_F32, n_rows);
    buffer_.reset();
    auto buffer = allocate_tensors(c, device_.backend());
    if (!buffer.ok()) return buffer.error();
    buffer_ = std::move(buffer).value();
    n_rows_ = n_rows;
    send_inputs();
    return {};
  }

  Status forward(int layer, MatrixView<float> x) override {
    LayerOutputs outputs;
    set(inputs_.x, x);
    KVANT_RETURN_IF_ERROR(runner_.run([&](ggml_context* context) {
      return layer_graph(context, h_, model_.weights, layer, inputs_, outputs);
    }));
    ggml_backend_tensor_get(outputs.x, x.data, 0, ggml_nbytes(outputs.x));
    return {};
  }

  Result<const LayerGradient*> backward(int layer, MatrixView<const float> x,
                                        MatrixView<float> gradient) override {
    LayerOutputs outputs;
    set(inputs_.x, x);
    set(inputs_.gradient, gradient);
    KVANT_RETURN_IF_ERROR(runner_.run([&](ggml_context* context) {
      return layer_gradient_graph(context, h_, model_.weights, layer, inputs_, outputs);
    }));
    ggml_backend_tensor_get(outputs.gradient, gradient.data, 0, ggml_nbytes(outputs.gradient));
    state_.read(attention_shape(h_, layer), outputs);
    return &state_;
  }

  VocabularyProducts& vocabulary() override { return vocabulary_; }

 private:
  static constexpr int kInputs = 8;  // LayerInputs has this many tensors

  static void set(ggml_tensor* to, MatrixView<const float> rows) {
    KVANT_CHECK(rows.stride == rows.cols && rows.rows == to->ne[1], "rows of another context");
    ggml_backend_tensor_set(to, rows.data, 0, ggml_nbytes(to));
  }

  std::int64_t most_outputs() const {
    std::int64_t most = 1;
    for (int i = 0; i < h_.n_layers; ++i) {
      const LayerWeights& w = model_.weights.layer(i);
      for (const ggml_tensor* t : {w.qkv, w.q, w.k, w.v, w.attn_out, w.ffn.gate, w.ffn.up, w.ffn.down})
        if (t != nullptr) most = std::max(most, t->ne[1]);
    }
    return most;
  }

  // Sends the inputs that do not depend on the contents of the rows.
  void send_inputs() {
    std::vector<std::int32_t> numbers(std::max<std::size_t>(inputs_.numbers->ne[0], n_rows_));
    std::iota(numbers.begin(), numbers.end(), 0);
    ggml_backend_tensor_set(inputs_.positions, numbers.data(), 0, ggml_nbytes(inputs_.positions));
    ggml_backend_tensor_set(inputs_.numbers, numbers.data(), 0, ggml_nbytes(inputs_.numbers));
    send(mask(/*window=*/0), inputs_.mask);
    send(mask(*std::max_element(h_.sliding_window.begin(), h_.sliding_window.end())), inputs_.sliding_mask);
    std::vector<float> sealed(static_cast<std::size_t>(n_rows_) * n_rows_, 0.0F), counts(n_rows_, 1.0F);
    for (int q = 0; q < n_rows_; ++q)
      std::fill_n(sealed.begin() + static_cast<std::ptrdiff_t>(q) * n_rows_, q / kPageTokens * kPageTokens,
                  1.0F);
    send(sealed, inputs_.sealed);
    std::fill_n(counts.begin(), std::min(kSinkTokens, n_rows_), 0.0F);
    send(counts, inputs_.after_sink);
  }

  // Returns the attention mask. A query attends to the newest `window` tokens, or to all tokens if `window`
  // is 0.
  std::vector<float> mask(int window) const {
    std::vector<float> all(static_cast<std::size_t>(n_rows_) * n_rows_,
                           -std::numeric_limits<float>::infinity());
    for (int q = 0; q < n_rows_; ++q) {
      const int first = window > 0 ? std::max(0, q + 1 - window) : 0;
      std::fill_n(all.begin() + static_cast<std::ptrdiff_t>(q) * n_rows_ + first, q + 1 - first, 0.0F);
    }
    return all;
  }

  const ModelParts model_;
  const Hparams& h_;
  const ComputeDevice& device_;
  GraphRunner runner_;
  DeviceVocabulary vocabulary_;
  int n_rows_ = 0;
  GgmlContext context_{nullptr, ggml_free};
  GgmlBuffer buffer_{nullptr, ggml_backend_buffer_free};
  LayerInputs inputs_{};
  DeviceLayerGradient state_;
};

}  // namespace

Result<std::unique_ptr<DifferentiableModel>> make_device_model(const ModelParts& model,
                                                               const ComputeDevice& device, int n_rows) {
  auto made = std::make_unique<GraphModel>(model, device);
  KVANT_RETURN_IF_ERROR(made->reserve(n_rows));
  return std::unique_ptr<DifferentiableModel>(std::move(made));
}

}  // namespace kvant
