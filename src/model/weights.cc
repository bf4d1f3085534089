#include "model/weights.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>

#include "base/team.h"
#include "model/query_key_balance.h"
#include "model/repacking.h"

namespace kvant {
namespace {

using Shape = std::array<std::int64_t, 3>;  // {n_in, n_out, n} for n matrices; {n, 1, 1} for a vector

struct ContextDeleter {
  void operator()(ggml_context* c) const { ggml_free(c); }
};
struct BufferDeleter {
  void operator()(ggml_backend_buffer* b) const { ggml_backend_buffer_free(b); }
};
using ContextPointer = std::unique_ptr<ggml_context, ContextDeleter>;
using BufferPointer = std::unique_ptr<ggml_backend_buffer, BufferDeleter>;

ContextPointer new_context(std::size_t n_tensors) {
  return ContextPointer(ggml_init({(n_tensors + 1) * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
}

// Place says what happens to a tensor's values when they are loaded.
enum class Place : std::uint8_t { mapped, dequantized, repacked, device, host_of_device };

struct Planned {
  const ggml_tensor* source;
  Place place;
  ggml_backend_buffer_type* repacked_type;  // set only for Place::repacked
  ggml_tensor** target;
  bool expands = false;            // the device's copy is expanded to F32
  std::vector<float> values = {};  // replaces the file's values if it is not empty
};

void dequantize_row(const ggml_tensor* source, const std::uint8_t* bytes, float* out) {
  if (source->type == GGML_TYPE_F32) {
    std::copy_n(reinterpret_cast<const float*>(bytes), source->ne[0], out);
  } else {
    ggml_get_type_traits(source->type)->to_float(bytes, out, source->ne[0]);
  }
}

// Converts all rows of `source` to F32.
void dequantize(const ggml_tensor* source, const void* bytes, float* out, int n_threads) {
  const std::size_t row_bytes = ggml_row_size(source->type, source->ne[0]);
  const auto rows = static_cast<int>(ggml_nrows(source));
  constexpr int kRows = 256;  // rows per piece of work
  run_team(n_threads, [&](Team& team) {
    team.for_each((rows + kRows - 1) / kRows, [&](int block) {
      for (int r = block * kRows; r < std::min(rows, (block + 1) * kRows); ++r) {
        dequantize_row(source, static_cast<const std::uint8_t*>(bytes) + r * row_bytes,
                       out + r * source->ne[0]);
      }
    });
  });
}

}  // namespace

struct Weights::Storage {
  std::shared_ptr<GgufFile> file;
  BufferPointer mapping;
  std::vector<ContextPointer> contexts;
  std::vector<BufferPointer> buffers;
};

Weights::Weights() : storage_(std::make_unique<Storage>()) {}
Weights::~Weights() = default;

// Loader finds the tensors by name, checks their shapes, and then puts them into memory.
class Weights::Loader {
 public:
  Loader(Weights& weights, std::shared_ptr<GgufFile> file, Hparams& hparams, WeightMode mode, int n_threads,
         const DeviceWeights& device)
      : weights_(weights),
        file_(std::move(file)),
        h_(hparams),
        mode_(mode),
        n_threads_(n_threads),
        device_(device) {}

  Status run() {
    plan_model();
    for (int i = 0; i < h_.n_layers; ++i) {
      stays_in_host_ = i < device_.n_host_layers;
      plan_layer(i);
    }
    if (failure_) return *failure_;
    for (const std::string& name : file_->tensor_names()) {
      if (used_.count(name) == 0 && !of_left_out_layer(name)) {
        return error("'{}' has a tensor '{}' that kvant does not support in '{}' models", file_->path(), name,
                     h_.architecture->name);
      }
    }
    weights_.storage_->file = file_;
    KVANT_RETURN_IF_ERROR(place_mapped());
    KVANT_RETURN_IF_ERROR(place_dequantized());
    KVANT_RETURN_IF_ERROR(place_repacked());
    KVANT_RETURN_IF_ERROR(place_on_device());
    KVANT_RETURN_IF_ERROR(place_in_host());
    if (weights_.output_ == nullptr) weights_.output_ = weights_.embedding_;
    for (LayerWeights& w : weights_.layers_) {
      if (w.v == nullptr) w.v = w.k;
    }
    name_type();
    return {};
  }

  // Each function run() plans which tensors a step of a layer takes from the file.
  void run(const Norm& step) {
    const VectorName& v = step.weights;
    LayerWeights& w = planned_layer();
    vector(prefix_ + v.name + v.suffix, h_.n_embd, step.optional ? Need::optional : Need::required,
           &(w.*v.weight));
    if (v.bias != nullptr) vector(prefix_ + v.name + ".bias", h_.n_embd, norm_bias(), &(w.*v.bias));
  }
  void run(const ProjectHeads&) { plan_projections(); }
  void run(const NormHeads& step) { plan_qk_norms(step); }
  void run(const Attend& step) {
    if (!step.sinks) return;
    const auto logits = read_values(prefix_ + "attn_sinks.weight", h_.n_heads, Need::required);
    h_.sink_logits.insert(h_.sink_logits.end(), logits.begin(), logits.end());
  }
  void run(const RunDeltaNet&) { plan_delta_net(); }
  void run(const ProjectBack&) {
    LayerWeights& w = planned_layer();
    if (h_.recurrent[layer_])
      return matrix(prefix_ + "ssm_out.weight", h_.delta_net.inner(), h_.n_embd, &w.attn_out);
    matrix(prefix_ + "attn_output.weight", h_.n_q(layer_), h_.n_embd, &w.attn_out);
    vector(prefix_ + "attn_output.bias", h_.n_embd, Need::optional, &w.attn_out_bias);
  }
  void run(const RunNetwork&) { plan_network("", h_.ff(layer_), 0, planned_layer().ffn); }
  void run(const RouteRows&) {
    LayerWeights& w = planned_layer();
    const int n = h_.experts.n;
    // The router is small, and a rounding error can change the choice of experts. The router's product is
    // therefore computed in F32.
    take(prefix_ + "ffn_gate_inp.weight", {h_.n_embd, n, 1}, Need::required, Use::matrix, &w.router);
    vector(prefix_ + "ffn_gate_inp.bias", n, Need::optional, &w.router_bias);
    vector(prefix_ + "exp_probs_b.bias", n, Need::optional, &w.choice_bias);
  }
  void run(const RunExperts& step) {
    LayerWeights& w = planned_layer();
    const Experts& x = h_.experts;
    plan_network("_exps", x.n_ff, x.n, w.experts);
    const std::string scales = prefix_ + "ffn_down_exps.scale";
    if (step.scaled && device_.memory != nullptr)
      vector(scales, x.n, Need::optional, &w.device_expert_scales);
    else if (step.scaled)
      w.expert_scales = read_values(scales, x.n, Need::optional);
    if (x.n_ff_shared == 0) return;
    plan_network("_shexp", x.n_ff_shared, 0, w.shared);
    vector(prefix_ + "ffn_gate_inp_shexp.weight", h_.n_embd, Need::optional, &w.shared_gate);
  }
  void run(const ReadLayerInput&) {
    LayerWeights& w = planned_layer();
    matrix(prefix_ + "inp_gate.weight", h_.n_embd, h_.n_layer_embd, &w.embd_gate);
    matrix(prefix_ + "proj.weight", h_.n_layer_embd, h_.n_embd, &w.embd_out);
  }
  void run(const ScaleLayer&) {
    const auto scale = read_values(prefix_ + "layer_output_scale.weight", 1, Need::optional);
    if (!scale.empty()) planned_layer().scale = scale[0];
  }
  template <class Other>
  requires(one_of<Other, TurnHeads, NormValues, TemperQueries, GateHeads, Add, ScaleByWidth>) void run(
      const Other&) {}  // these steps have no weights

 private:
  enum class Need : std::uint8_t { required, optional, none };
  // A `table` is only used to look rows up, which dequantizes them.
  enum class Use : std::uint8_t { vector, matrix, experts, embedding, table, tied_output };

  void take(const std::string& name, Shape shape, Need need, Use use, ggml_tensor** target) {
    const ggml_tensor* t = file_->tensor(name);
    if (failure_ || need == Need::none || (t == nullptr && need == Need::optional)) return;
    if (t == nullptr) {
      failure_ = error("'{}' has no tensor '{}', which a '{}' model needs", file_->path(), name,
                       h_.architecture->name);
      return;
    }
    if (t->ne[0] != shape[0] || t->ne[1] != shape[1] || t->ne[2] != shape[2] || t->ne[3] != 1) {
      failure_ =
          error("'{}': tensor '{}' is {} x {} x {} x {}, but its metadata ask for {} x {} x {}",
                file_->path(), name, t->ne[0], t->ne[1], t->ne[2], t->ne[3], shape[0], shape[1], shape[2]);
      return;
    }
    if (t->type != GGML_TYPE_F32 && ggml_get_type_traits(t->type)->to_float == nullptr) {
      failure_ = error("'{}': tensor '{}' is of type {}, which is not a weight type", file_->path(), name,
                       ggml_type_name(t->type));
      return;
    }
    used_.insert(name);
    planned_.push_back(plan(t, use, target));
  }

  Planned plan(const ggml_tensor* t, Use use, ggml_tensor** target) {
    if (use == Use::matrix || use == Use::experts) values_by_type_[t->type] += ggml_nelements(t);
    const bool wants_f32 = use == Use::vector || mode_ == WeightMode::f32;
    if (use == Use::table) return {t, Place::mapped, nullptr, target};
    const bool on_device = device_.memory != nullptr;
    if (on_device && use == Use::embedding) return {t, Place::mapped, nullptr, target};
    const bool is_large = use == Use::matrix || use == Use::experts;
    if (on_device && is_large && stays_in_host_)
      return {t, Place::host_of_device, nullptr, target, wants_f32};
    if (on_device) return {t, Place::device, nullptr, target, wants_f32};
    if (wants_f32 && t->type != GGML_TYPE_F32) return {t, Place::dequantized, nullptr, target};
    if (use == Use::matrix) {
      if (ggml_backend_buffer_type* type = repacked_buffer_type(t)) return {t, Place::repacked, type, target};
    }
    return {t, Place::mapped, nullptr, target};
  }

  void plan_model() {
    const int e = h_.n_embd;
    take("token_embd.weight", {e, h_.n_vocab, 1}, Need::required, Use::embedding, &weights_.embedding_);
    take("output_norm.weight", {e, 1, 1}, Need::required, Use::vector, &weights_.output_norm_);
    take("output_norm.bias", {e, 1, 1}, norm_bias(), Use::vector, &weights_.output_norm_bias_);
    take("output.weight", {e, h_.n_vocab, 1}, Need::optional, Use::matrix, &weights_.output_);
    if (device_.memory != nullptr && file_->tensor("output.weight") == nullptr)
      take("token_embd.weight", {e, h_.n_vocab, 1}, Need::required, Use::tied_output, &weights_.output_);
    take("output.bias", {h_.n_vocab, 1, 1}, Need::optional, Use::vector, &weights_.output_bias_);
    const Shape factors{h_.n_rot / 2, 1, 1};
    take("rope_freqs.weight", factors, Need::optional, Use::vector, &weights_.rope_factors_);
    const bool use_long = h_.long_rope == LongRope::long_factors;
    take("rope_factors_long.weight", factors, Need::optional, Use::vector,
         use_long ? &weights_.rope_factors_ : &unused_factors_);
    take("rope_factors_short.weight", factors, Need::optional, Use::vector,
         use_long ? &weights_.short_rope_factors_ : &weights_.rope_factors_);
    weights_.layers_.resize(h_.n_layers);
    if (h_.n_layer_embd == 0) return;
    const int of_all = h_.n_layers * h_.n_layer_embd;
    take("per_layer_token_embd.weight", {of_all, h_.n_vocab, 1}, Need::required, Use::table,
         &weights_.layer_embedding_);
    matrix("per_layer_model_proj.weight", e, of_all, &weights_.layer_projection_);
    vector("per_layer_proj_norm.weight", h_.n_layer_embd, Need::required, &weights_.layer_projection_norm_);
  }

  // Returns whether the tensor belongs to a layer that kvant leaves out, after the last layer that runs.
  bool of_left_out_layer(const std::string& name) const {
    int layer = 0;
    return std::sscanf(name.c_str(), "blk.%d.", &layer) == 1 && layer >= h_.n_layers &&
           layer < h_.n_layers_in_file;
  }

  // Returns whether norms may have biases; RMS norms have none.
  Need norm_bias() const { return h_.architecture->layer_norm ? Need::optional : Need::none; }

  void vector(const std::string& name, int n, Need need, ggml_tensor** target) {
    take(name, {n, 1, 1}, need, Use::vector, target);
  }
  void matrix(const std::string& name, int n_in, int n_out, ggml_tensor** target) {
    take(name, {n_in, n_out, 1}, Need::required, Use::matrix, target);
  }

  void plan_layer(int i) {
    layer_ = i;
    prefix_ = fmt::format("blk.{}.", i);
    walk(h_.steps_to_attention(i), *this);
    const bool has_experts = h_.experts.n > 0 && file_->tensor(prefix_ + "ffn_gate_inp.weight") != nullptr;
    for (const LayerSteps& steps : h_.steps_after_attention(has_experts)) walk(steps, *this);
  }
  LayerWeights& planned_layer() { return weights_.layers_[layer_]; }

  void plan_delta_net() {
    LayerWeights& w = planned_layer();
    const std::string& prefix = prefix_;
    const DeltaNet& d = h_.delta_net;
    const int e = h_.n_embd;
    matrix(prefix + "attn_qkv.weight", e, d.channels(), &w.delta.qkv);
    matrix(prefix + "attn_gate.weight", e, d.inner(), &w.delta.z);
    if (d.grouped) {
      matrix(prefix + "ssm_ba.weight", e, 2 * d.n_value_heads, &w.delta.beta_alpha);
    } else {
      matrix(prefix + "ssm_beta.weight", e, d.n_value_heads, &w.delta.beta);
      matrix(prefix + "ssm_alpha.weight", e, d.n_value_heads, &w.delta.alpha);
    }
    take(prefix + "ssm_conv1d.weight", {d.kernel, d.channels(), 1}, Need::required, Use::vector,
         &w.delta.conv);
    vector(prefix + "ssm_dt.bias", d.n_value_heads, Need::required, &w.delta.dt_bias);
    vector(prefix + "ssm_a", d.n_value_heads, Need::required, &w.delta.a);
    vector(prefix + "ssm_norm.weight", d.head_dim, Need::required, &w.delta.norm);
  }

  // Plans the tensors "ffn_up<suffix>" and so on. n is the number of networks in a tensor; 0 means a single
  // network.
  void plan_network(const char* suffix, int n_ff, int n, NetworkWeights& w) {
    const std::string& prefix = prefix_;
    const NetworkUnit& unit = h_.architecture->unit;
    const int e = h_.n_embd;
    const std::string both = prefix + "ffn_gate_up" + suffix;  // some files store gate and up in this tensor
    const bool named = n > 0 && file_->tensor(both + ".weight") != nullptr;
    const bool fused = named || (unit.fused && n == 0);
    const auto add = [&](const char* name, int n_in, int n_out, ggml_tensor** weight, ggml_tensor** bias) {
      const std::string tensor = named && weight == &w.up ? both : prefix + name + suffix;
      take(tensor + ".weight", {n_in, n_out, std::max(n, 1)}, Need::required,
           n > 0 ? Use::experts : Use::matrix, weight);
      take(tensor + ".bias", {n_out, std::max(n, 1), 1}, named ? Need::none : Need::optional, Use::vector,
           bias);
    };
    if (!fused && !unit.ungated) add("ffn_gate", e, n_ff, &w.gate, &w.gate_bias);
    add("ffn_up", e, fused ? 2 * n_ff : n_ff, &w.up, &w.up_bias);
    add("ffn_down", n_ff, e, &w.down, &w.down_bias);
  }

  void plan_qk_norms(const NormHeads& step) {
    LayerWeights& w = planned_layer();
    const auto add = [&](const char* name, int n_heads, ggml_tensor** target) {
      const std::string tensor = prefix_ + name + ".weight";
      const ggml_tensor* t = file_->tensor(tensor);
      // Each head has weights of its own.
      const bool by_head = t != nullptr && t->ne[1] > 1 && !h_.gated_heads;
      const Shape shape = step.of_rows ? Shape{std::int64_t{n_heads} * h_.dim(layer_), 1, 1}
                                       : Shape{h_.dim(layer_), by_head ? n_heads : 1, 1};
      take(tensor, shape, step.optional ? Need::optional : Need::required, Use::vector, target);
    };
    const std::size_t first = planned_.size();
    add("attn_q_norm", h_.n_heads, &w.q_norm);
    if (h_.has_kv(layer_)) {
      add("attn_k_norm", h_.kv_heads(layer_), &w.k_norm);
      if (planned_.size() == first + 2) balance(layer_, planned_[first], planned_[first + 1]);
    } else {
      used_.insert(prefix_ + "attn_k_norm.weight");
    }
  }

  // Balances the norms of queries and keys (query_key_balance.h). Models whose layers may share a cache stay
  // as they are, because a sharing layer's queries would need the factors of the other layer's keys.
  void balance(int layer, Planned& queries, Planned& keys) {
    if (h_.architecture->unlike_layers) return;
    for (Planned* p : {&queries, &keys}) {
      p->values.resize(ggml_nelements(p->source));
      dequantize(p->source, file_->tensor_data(p->source), p->values.data(), /*n_threads=*/1);
      if (p->place == Place::mapped) p->place = Place::dequantized;
    }
    const bool turned =
        h_.rotated[layer] && comes_before<NormHeads, TurnHeads>(h_.architecture->layer.attention);
    const int n_rot = h_.sliding_window[layer] > 0 ? h_.sliding_n_rot : h_.n_rot;
    std::vector<float> factors = keys.values;
    balance_norms(queries.values, keys.values, h_.dim(layer), {turned ? n_rot : 0, h_.rope_neox});
    for (std::size_t i = 0; i < factors.size(); ++i)
      factors[i] = factors[i] == 0 ? 1 : keys.values[i] / factors[i];
    weights_.key_factors_.resize(h_.n_layers);
    weights_.key_factors_[layer] = {std::move(factors), h_.dim(layer)};
  }

  // Reads values that are not kept as a tensor. The result is empty if the file does not have them.
  std::vector<float> read_values(const std::string& name, int n, Need need) {
    if (need == Need::optional && file_->tensor(name) == nullptr) return {};
    ggml_tensor* unused = nullptr;
    vector(name, n, need, &unused);
    if (failure_) return {};
    const ggml_tensor* t = planned_.back().source;
    planned_.pop_back();
    std::vector<float> values(n);
    dequantize(t, file_->tensor_data(t), values.data(), /*n_threads=*/1);
    return values;
  }

  void plan_projections() {
    LayerWeights& w = planned_layer();
    const int n_q = h_.q_columns(layer_), n_kv = h_.n_kv(layer_);
    const auto projection = [&](const char* name, int n_out, ggml_tensor** weight, ggml_tensor** bias,
                                Need need = Need::required) {
      take(prefix_ + name + ".weight", {h_.n_embd, n_out, 1}, need, Use::matrix, weight);
      take(prefix_ + name + ".bias", {n_out, 1, 1}, Need::optional, Use::vector, bias);
    };
    if (file_->tensor(prefix_ + "attn_qkv.weight") != nullptr) {
      projection("attn_qkv", n_q + 2 * n_kv, &w.qkv, &w.qkv_bias);
      return;
    }
    projection("attn_q", n_q, &w.q, &w.q_bias);
    if (!h_.has_kv(layer_)) {  // files may still have k and v
      for (const char* name : {"attn_k.weight", "attn_v.weight"}) used_.insert(prefix_ + name);
      return;
    }
    projection("attn_k", n_kv, &w.k, &w.k_bias);
    // If V has a norm of its own, the layer may use the projection of K for V.
    const bool may_be_k = find_step<NormValues>(h_.architecture->layer.attention) != nullptr;
    projection("attn_v", n_kv, &w.v, &w.v_bias, may_be_k ? Need::optional : Need::required);
  }

  Error out_of_memory(std::size_t bytes) const {
    return error("out of memory: the weights of '{}' need {} MB more", file_->path(), bytes >> 20);
  }

  Error out_of_device_memory(std::size_t bytes) const {
    return error(
        "out of memory: the weights of '{}' need {} MB of the device's: keep some of the {} layers in host "
        "memory with -ngl, the number of layers in GPU memory",
        file_->path(), bytes >> 20, h_.n_layers);
  }

  std::vector<Planned> planned(Place place) const {
    std::vector<Planned> some;
    for (const Planned& p : planned_) {
      if (p.place == place) some.push_back(p);
    }
    return some;
  }

  // Places the tensors whose bytes are used where they lie in the mapped file.
  Status place_mapped() {
    const std::vector<Planned> mapped = planned(Place::mapped);
    auto context = new_context(mapped.size());
    // ggml takes a writable pointer, but weights are only read.
    void* base = const_cast<void*>(file_->mapping());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    BufferPointer buffer(ggml_backend_cpu_buffer_from_ptr(base, file_->mapping_bytes()));
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (const Planned& p : mapped) {
      ggml_tensor* t = ggml_dup_tensor(context.get(), p.source);
      ggml_set_name(t, p.source->name);
      const auto offset =
          static_cast<const char*>(file_->tensor_data(p.source)) - static_cast<const char*>(file_->mapping());
      if (ggml_backend_tensor_alloc(buffer.get(), t, static_cast<char*>(base) + offset) !=
          GGML_STATUS_SUCCESS) {
        return error("'{}': tensor '{}' cannot be used in place", file_->path(), p.source->name);
      }
      weights_.bytes_ += static_cast<std::int64_t>(ggml_nbytes(t));
      *p.target = t;
    }
    weights_.storage_->contexts.push_back(std::move(context));
    weights_.storage_->mapping = std::move(buffer);
    return {};
  }

  // Allocates a tensor for each of `some`, of the type that type_of returns.
  template <class TypeOf>
  Status allocate(const std::vector<Planned>& some, ggml_backend_buffer_type* buffer_type,
                  const TypeOf& type_of) {
    auto context = new_context(some.size());
    std::size_t bytes = 0;
    for (const Planned& p : some) {
      *p.target = ggml_new_tensor(context.get(), type_of(p), ggml_n_dims(p.source), p.source->ne);
      ggml_set_name(*p.target, p.source->name);
      bytes += ggml_nbytes(*p.target);
    }
    BufferPointer buffer(ggml_backend_alloc_ctx_tensors_from_buft(context.get(), buffer_type));
    if (buffer == nullptr)
      return buffer_type == device_.memory ? out_of_device_memory(bytes) : out_of_memory(bytes);
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    weights_.bytes_ += static_cast<std::int64_t>(ggml_backend_buffer_get_size(buffer.get()));
    weights_.storage_->contexts.push_back(std::move(context));
    weights_.storage_->buffers.push_back(std::move(buffer));
    return {};
  }

  Status place_dequantized() {
    const std::vector<Planned> some = planned(Place::dequantized);
    if (some.empty()) return {};
    KVANT_RETURN_IF_ERROR(
        allocate(some, ggml_backend_cpu_buffer_type(), [](const Planned&) { return GGML_TYPE_F32; }));
    for (const Planned& p : some) {
      auto* values = static_cast<float*>((*p.target)->data);
      if (p.values.empty()) {
        dequantize(p.source, file_->tensor_data(p.source), values, n_threads_);
      } else {
        std::ranges::copy(p.values, values);
      }
    }
    return {};
  }

  Status place_repacked() {
    std::map<ggml_backend_buffer_type*, std::vector<Planned>> by_type;
    for (const Planned& p : planned(Place::repacked)) by_type[p.repacked_type].push_back(p);
    for (const auto& [type, some] : by_type) {
      KVANT_RETURN_IF_ERROR(allocate(some, type, [](const Planned& p) { return p.source->type; }));
      for (const Planned& p : some) {
        ggml_backend_tensor_set(*p.target, file_->tensor_data(p.source), 0, ggml_nbytes(p.source));
      }
    }
    return {};
  }

  Status place_on_device() {
    const std::vector<Planned> some = planned(Place::device);
    if (some.empty()) return {};
    KVANT_RETURN_IF_ERROR(allocate(some, device_.memory, [](const Planned& p) { return stored_type(p); }));
    fill(some);
    return {};
  }

  static ggml_type stored_type(const Planned& p) { return p.expands ? GGML_TYPE_F32 : p.source->type; }

  void fill(const std::vector<Planned>& some) const {
    std::vector<float> values;
    for (const Planned& p : some) {
      const void* from = file_->tensor_data(p.source);
      if (!p.values.empty()) {
        from = p.values.data();
      } else if (p.expands) {
        values.resize(ggml_nelements(p.source));
        dequantize(p.source, from, values.data(), n_threads_);
        from = values.data();
      }
      ggml_backend_tensor_set(*p.target, from, 0, ggml_nbytes(*p.target));
    }
  }

  // Places tensors in host memory with the padding of device memory. A device's kernels read beyond the last
  // row of some types and must find zeros there.
  Status place_in_host() {
    const std::vector<Planned> some = planned(Place::host_of_device);
    if (some.empty()) return {};
    constexpr std::size_t kAlignment = 128;
    auto context = new_context(some.size());
    std::vector<std::size_t> places;
    std::size_t bytes = 0;
    for (const Planned& p : some) {
      *p.target = ggml_new_tensor(context.get(), stored_type(p), ggml_n_dims(p.source), p.source->ne);
      ggml_set_name(*p.target, p.source->name);
      places.push_back(bytes);
      const std::size_t size = ggml_backend_buft_get_alloc_size(device_.memory, *p.target);
      bytes += (size + kAlignment - 1) / kAlignment * kAlignment;
    }
    ggml_backend_buffer_type* type =
        device_.host_memory != nullptr ? device_.host_memory : ggml_backend_cpu_buffer_type();
    BufferPointer buffer(ggml_backend_buft_alloc_buffer(type, bytes + kAlignment));
    // If the device can read no more host memory, ggml returns other memory.
    if (buffer == nullptr || ggml_backend_buffer_get_type(buffer.get()) != type) return out_of_memory(bytes);
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_clear(buffer.get(), 0);
    auto* base = static_cast<char*>(ggml_backend_buffer_get_base(buffer.get()));
    base += (kAlignment - reinterpret_cast<std::uintptr_t>(base) % kAlignment) % kAlignment;
    for (std::size_t i = 0; i < some.size(); ++i) {
      if (ggml_backend_tensor_alloc(buffer.get(), *some[i].target, base + places[i]) != GGML_STATUS_SUCCESS)
        return out_of_memory(bytes);
    }
    fill(some);
    weights_.bytes_ += static_cast<std::int64_t>(bytes);
    weights_.host_bytes_ = static_cast<std::int64_t>(bytes);
    weights_.storage_->contexts.push_back(std::move(context));
    weights_.storage_->buffers.push_back(std::move(buffer));
    return {};
  }

  void name_type() {
    std::int64_t maximum = 0;
    for (const auto& [type, values] : values_by_type_) {
      if (values <= maximum) continue;
      maximum = values;
      weights_.type_name_ = ggml_type_name(type);
    }
    for (char& c : weights_.type_name_) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }

  Weights& weights_;
  std::shared_ptr<GgufFile> file_;
  Hparams& h_;
  WeightMode mode_;
  int n_threads_;
  const DeviceWeights device_;
  bool stays_in_host_ = false;  // the layer that is being planned stays in host memory
  int layer_ = 0;               // the layer that is being planned
  std::string prefix_;          // the prefix of the layer's tensor names
  std::vector<Planned> planned_;
  std::set<std::string> used_;
  std::map<ggml_type, std::int64_t> values_by_type_;
  ggml_tensor* unused_factors_ = nullptr;
  std::optional<Error> failure_;
};

std::span<const float> Weights::key_factors(int layer, int kv_head) const {
  if (key_factors_.empty() || key_factors_[layer].of_heads.empty()) return {};
  const auto& [of_heads, d] = key_factors_[layer];
  const bool is_one = of_heads.size() == static_cast<std::size_t>(d);
  return std::span(of_heads).subspan(is_one ? 0 : static_cast<std::size_t>(kv_head) * d, d);
}

Result<std::unique_ptr<Weights>> Weights::load(std::shared_ptr<GgufFile> file, Hparams& hparams,
                                               WeightMode mode, int n_threads, const DeviceWeights& device) {
  const ggml_tensor* embedding = file->tensor("token_embd.weight");
  if (embedding == nullptr)
    return error("'{}' has no tensor 'token_embd.weight': is it a model?", file->path());
  if (embedding->ne[1] > (1 << 30)) return error("'{}' has an implausibly large vocabulary", file->path());
  hparams.n_vocab = static_cast<int>(embedding->ne[1]);
  std::unique_ptr<Weights> weights(new Weights());
  KVANT_RETURN_IF_ERROR(Loader(*weights, std::move(file), hparams, mode, n_threads, device).run());
  return weights;
}

}  // namespace kvant
