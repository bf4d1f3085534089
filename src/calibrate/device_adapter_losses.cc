#include "calibrate/device_adapter_losses.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/warn.h"
#include "calibrate/device_graph_runner.h"

namespace kvant {
namespace {

constexpr int kGraphTensors = 96;
constexpr int kContextTensors = 5;
constexpr int kSharedTensors = 6;
// kTiny keeps zeros out of divisions and logarithms, because invisible keys have weights of zero.
constexpr float kTiny = 1e-30F;

// Holds one context on the device. Shapes are in ggml's order: [columns, rows].
struct DeviceContext {
  int n_rows = 0;             // G * m
  ggml_tensor* errors;        // [d, n]
  ggml_tensor* queries;       // [d, m, G]
  ggml_tensor* exponentials;  // [n, n_rows], at least kTiny
  ggml_tensor* targets;       // [n, n_rows]
  ggml_tensor* scale;         // [n, n_rows], c for corrected keys and 0 for all other keys
};

struct Outputs {
  ggml_tensor* loss;      // [1], the sum over all rows
  ggml_tensor* key[2];    // [D / 2, d], derivatives by the weights of each part
  ggml_tensor* query[2];  // [D / 2, d, G]
};

ggml_tensor* transposed(ggml_context* context, ggml_tensor* of) {
  return ggml_cont(context, ggml_transpose(context, of));
}

void send(const std::vector<float>& values, ggml_tensor* to) {
  KVANT_CHECK(std::ssize(values) == ggml_nelements(to), "values of a different size");
  ggml_backend_tensor_set(to, values.data(), 0, ggml_nbytes(to));
}

class DeviceAdapterLosses final : public AdapterLosses {
 public:
  DeviceAdapterLosses(const ComputeDevice& device, std::span<const AdapterContext> contexts, int features)
      : device_(device),
        runner_(device.backend(), kGraphTensors),
        half_(features / 2),
        d_(contexts.front().head_dim),
        group_(static_cast<int>(contexts.front().scale.size()) / contexts.front().m) {}

  Status load(std::span<const AdapterContext> contexts) {
    device_.pages()->enter();
    context_ = make_graph_context(static_cast<int>(contexts.size()) * kContextTensors + kSharedTensors);
    ggml_context* c = context_.get();
    for (int part = 0; part < 2; ++part) {
      key_[part] = ggml_new_tensor_2d(c, GGML_TYPE_F32, half_, d_);
      query_[part] = ggml_new_tensor_3d(c, GGML_TYPE_F32, half_, d_, group_);
    }
    one_ = ggml_new_tensor_1d(c, GGML_TYPE_F32, 1);
    tiny_ = ggml_new_tensor_1d(c, GGML_TYPE_F32, 1);
    for (const AdapterContext& context : contexts) {
      const int n_rows = static_cast<int>(context.scale.size());
      ggml_tensor* weights = ggml_new_tensor_2d(c, GGML_TYPE_F32, context.n, n_rows);
      contexts_.push_back({n_rows, ggml_new_tensor_2d(c, GGML_TYPE_F32, d_, context.n),
                           ggml_new_tensor_3d(c, GGML_TYPE_F32, d_, context.m, group_), weights,
                           ggml_dup_tensor(c, weights), ggml_dup_tensor(c, weights)});
    }
    auto buffer = allocate_tensors(c, device_.backend());
    if (!buffer.ok()) return buffer.error();
    buffer_ = std::move(buffer).value();
    send({1.0F}, one_);
    send({kTiny}, tiny_);
    for (std::size_t i = 0; i < contexts.size(); ++i) send_context(contexts[i], contexts_[i]);
    const auto largest = std::ranges::max_element(
        contexts_, {}, [](const DeviceContext& x) { return ggml_nelements(x.targets); });
    Outputs outputs;
    return runner_.check(
        [&](ggml_context* graph) { return make_graph(graph, *largest, /*differentiates=*/true, outputs); });
  }

  Result<double> mean(std::span<const std::size_t> contexts, const AdapterWeights& weights,
                      AdapterWeights* gradient) override {
    device_.pages()->enter();
    for (int part = 0; part < 2; ++part) {
      send_part(weights.key, part, key_[part]);
      send_part(weights.query, part, query_[part]);
    }
    if (gradient != nullptr) {
      gradient->key.assign(weights.key.size(), 0.0F);
      gradient->query.assign(weights.query.size(), 0.0F);
    }
    double sum = 0;
    for (const std::size_t i : contexts) {
      Outputs outputs;
      KVANT_RETURN_IF_ERROR(runner_.run([&](ggml_context* graph) {
        return make_graph(graph, contexts_[i], gradient != nullptr, outputs);
      }));
      float loss = 0;
      ggml_backend_tensor_get(outputs.loss, &loss, 0, sizeof(loss));
      sum += loss / static_cast<double>(contexts_[i].n_rows);
      for (int part = 0; gradient != nullptr && part < 2; ++part) {
        add_part(outputs.key[part], part, contexts.size(), gradient->key);
        add_part(outputs.query[part], part, contexts.size(), gradient->query);
      }
    }
    return sum / static_cast<double>(contexts.size());
  }

 private:
  void send_context(const AdapterContext& from, const DeviceContext& to) const {
    std::vector<float> errors = from.errors;
    errors.resize(static_cast<std::size_t>(from.n) * d_);
    send(errors, to.errors);
    send(from.queries, to.queries);
    send(from.targets, to.targets);
    std::vector<float> exponentials = from.exponentials;
    for (float& x : exponentials) x = std::max(x, kTiny);
    send(exponentials, to.exponentials);
    std::vector<float> scale(from.exponentials.size());
    for (int r = 0; r < to.n_rows; ++r) {
      const auto row = scale.begin() + static_cast<std::ptrdiff_t>(r) * from.n;
      std::fill(row + from.first[r % from.m], row + std::max(from.first[r % from.m], from.end[r % from.m]),
                from.scale[r]);
    }
    send(scale, to.scale);
  }

  // Weights are [n_heads, 2, d, D / 2] on the host. Returns where a head's weights of one part begin.
  std::size_t begin_of(int head, int part) const {
    return (static_cast<std::size_t>(head) * 2 + part) * d_ * half_;
  }
  void send_part(const std::vector<float>& weights, int part, ggml_tensor* to) const {
    for (int head = 0; head < to->ne[2]; ++head)
      ggml_backend_tensor_set(to, weights.data() + begin_of(head, part), head * to->nb[2], to->nb[2]);
  }
  // Adds the derivatives of one part, divided by `divisor`, to all derivatives.
  void add_part(const ggml_tensor* from, int part, std::size_t divisor, std::vector<float>& to) {
    host_.resize(ggml_nelements(from));
    ggml_backend_tensor_get(from, host_.data(), 0, ggml_nbytes(from));
    const float factor = 1 / static_cast<float>(divisor);
    const std::size_t size = static_cast<std::size_t>(d_) * half_;
    for (int head = 0; head < from->ne[2]; ++head) {
      const float* more = host_.data() + head * size;
      float* sums = to.data() + begin_of(head, part);
      for (std::size_t i = 0; i < size; ++i) sums[i] += factor * more[i];
    }
  }

  // Builds the graph of one context. The steps have the names of adapter_loss.cc.
  ggml_cgraph* make_graph(ggml_context* c, const DeviceContext& x, bool differentiates, Outputs& out) const {
    ggml_cgraph* graph = ggml_new_graph_custom(c, kGraphTensors, /*grads=*/false);
    const auto add = [&](ggml_tensor* result) {
      ggml_set_output(result);
      ggml_build_forward_expand(graph, result);
    };
    ggml_tensor *k[2], *q[2];
    for (int part = 0; part < 2; ++part) {
      k[part] = ggml_soft_max(c, ggml_mul_mat(c, transposed(c, key_[part]), x.errors));
      q[part] = ggml_soft_max(c, ggml_mul_mat(c, transposed(c, query_[part]), x.queries));
    }
    ggml_tensor* phi_k = ggml_concat(c, k[0], k[1], 0);
    ggml_tensor* phi_q = ggml_reshape_2d(c, ggml_concat(c, q[0], q[1], 0), 2 * half_, x.n_rows);
    ggml_tensor* f = ggml_mul(c, ggml_mul_mat(c, phi_k, phi_q), x.scale);
    ggml_tensor* w = ggml_add(c, f, x.exponentials);
    ggml_tensor* sums = ggml_sum_rows(c, w);
    ggml_tensor* ratio = ggml_div(c, x.targets, w);
    ggml_tensor* by_key = ggml_mul(c, ggml_log(c, ggml_add(c, ratio, tiny_)), x.targets);
    out.loss = ggml_add(c, ggml_sum(c, by_key), ggml_sum(c, ggml_log(c, sums)));
    add(out.loss);
    if (!differentiates) return graph;

    ggml_tensor* inverse = ggml_div(c, ggml_repeat(c, one_, sums), sums);
    ggml_tensor* slope = ggml_scale(c, ggml_mul(c, ggml_sub(c, ratio, inverse), x.scale),
                                    -1.0F / static_cast<float>(x.n_rows));
    ggml_tensor* by_q = ggml_mul_mat(c, transposed(c, phi_k), slope);
    ggml_tensor* by_k = ggml_out_prod(c, phi_q, slope);
    for (int part = 0; part < 2; ++part) {
      out.key[part] = ggml_out_prod(c, through_softmax(c, by_k, part, k[part]), x.errors);
      out.query[part] = ggml_out_prod(c, through_softmax(c, by_q, part, q[part]), x.queries);
      add(out.key[part]);
      add(out.query[part]);
    }
    return graph;
  }

  // Returns the derivative by the softmax's input from the derivative [D, rows] by the features.
  ggml_tensor* through_softmax(ggml_context* c, ggml_tensor* gradient, int part, ggml_tensor* phi) const {
    ggml_tensor* of_part =
        ggml_view_2d(c, gradient, half_, gradient->ne[1], gradient->nb[1], part * half_ * sizeof(float));
    of_part = ggml_reshape_3d(c, ggml_cont(c, of_part), half_, phi->ne[1], phi->ne[2]);
    // ggml_soft_max_ext_back() would overwrite `phi`, its second input, in place, and read it afterwards.
    ggml_tensor* weighted = ggml_mul(c, of_part, phi);
    return ggml_sub(c, weighted, ggml_mul(c, phi, ggml_sum_rows(c, weighted)));
  }

  const ComputeDevice& device_;
  GraphRunner runner_;
  int half_, d_, group_;  // D / 2, channels and query heads
  GgmlContext context_{nullptr, ggml_free};
  GgmlBuffer buffer_{nullptr, ggml_backend_buffer_free};
  ggml_tensor *key_[2]{}, *query_[2]{};           // the weights, with the shapes of Outputs
  ggml_tensor *one_ = nullptr, *tiny_ = nullptr;  // [1], the numbers 1 and kTiny
  std::vector<DeviceContext> contexts_;
  std::vector<float> host_;
};

}  // namespace

Result<std::unique_ptr<AdapterLosses>> make_device_adapter_losses(const ComputeDevice& device,
                                                                  std::span<const AdapterContext> contexts,
                                                                  int features) {
  auto made = std::make_unique<DeviceAdapterLosses>(device, contexts, features);
  KVANT_RETURN_IF_ERROR(made->load(contexts));
  return std::unique_ptr<AdapterLosses>(std::move(made));
}

TrainedAdapters AdapterDevice::train(std::span<const AdapterContext> training,
                                     std::span<const AdapterContext> judged, int n_query_heads,
                                     const AdapterOptions& options) {
  {
    const std::lock_guard lock(mutex_);
    if (!has_failed_) {
      auto trained = train_adapters(training, judged, n_query_heads, options,
                                    [&](std::span<const AdapterContext> contexts, int features) {
                                      return make_device_adapter_losses(device_, contexts, features);
                                    });
      if (trained.ok()) return std::move(trained).value();
      has_failed_ = true;
      warn(fmt::format("the CPU trains the adapters: {}", trained.error().message));
    }
  }
  return train_adapters(training, judged, n_query_heads, options);
}

}  // namespace kvant
