#include "model/hparams.h"

#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace kvant {
namespace {

// Reader looks up typed values under "<architecture>." and remembers the first mistake in the file.
class Reader {
 public:
  Reader(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  std::string key(const char* name) const { return prefix_ + "." + name; }

  // Returns an integer in [1, limit], or `fallback` if the key is absent. Without a fallback, an absent key
  // is a mistake.
  int count(const char* name, std::int64_t limit, std::optional<int> fallback = {}) {
    return most(name, limit, fallback, /*may_differ=*/false);
  }

  // Returns an integer like count(). If layers may differ, the file may give a list, and the result is the
  // list's largest value.
  int most(const char* name, std::int64_t limit, std::optional<int> fallback, bool may_differ) {
    const auto values = file_.integers(key(name));
    if (values.empty()) {
      if (file_.has(key(name)))
        fail(name, "is not an integer");
      else if (!fallback)
        fail(name, "is missing");
      return fallback.value_or(1);
    }
    for (const std::int64_t v : values) {
      if (v < 1 || v > limit) {
        fail(name, fmt::format("is {}, not in 1..{}", v, limit));
        return 1;
      }
      if (v != values[0] && !may_differ) {
        fail(name, "differs between layers, which kvant does not support");
        return 1;
      }
    }
    return static_cast<int>(*std::max_element(values.begin(), values.end()));
  }

  // Returns an integer like count(). A value of 0 in the file counts as an absent key.
  int optional_count(const char* name, std::int64_t limit, int fallback) {
    return file_.integer(key(name)) == 0 ? fallback : count(name, limit, fallback);
  }

  float number(const char* name, float fallback) {
    if (!file_.has(key(name))) return fallback;
    const auto value = file_.number(key(name));
    if (!value || !std::isfinite(*value)) {
      fail(name, "is not a finite number");
      return fallback;
    }
    return static_cast<float>(*value);
  }

  float positive(const char* name, std::optional<float> fallback = {}) {
    if (!file_.has(key(name)) && !fallback) fail(name, "is missing");
    const float value = number(name, fallback.value_or(1));
    if (value > 0) return value;
    fail(name, "is not positive");
    return 1;
  }

  void fail(const char* name, const std::string& what) {
    if (!failure_) failure_ = error("'{}': metadata '{}' {}", file_.path(), key(name), what);
  }
  const std::optional<Error>& failure() const { return failure_; }
  const GgufFile& file() const { return file_; }

 private:
  const GgufFile& file_;
  std::string prefix_;
  std::optional<Error> failure_;
};

// Returns an error for kinds of attention and layers that kvant does not support, although their files name a
// supported architecture.
std::optional<Error> unsupported_kind(const Reader& reader, bool unlike_layers) {
  const GgufFile& file = reader.file();
  const auto refuse = [&](const char* what) {
    return error("'{}' has {}; kvant supports models with plain or sliding grouped-query attention of: {}",
                 file.path(), what, architecture_names());
  };
  if (file.has(reader.key("attention.kv_lora_rank"))) return refuse("multi-head latent attention (MLA)");
  if (file.boolean(reader.key("attention.causal")) == false) return refuse("bidirectional attention");
  if (unlike_layers) return std::nullopt;
  if (file.integer(reader.key("attention.shared_kv_layers")).value_or(0) > 0)
    return refuse("layers that attend to another layer's cache");
  if (file.integer(reader.key("embedding_length_per_layer_input")).value_or(0) > 0)
    return refuse("token embeddings of every layer");
  return std::nullopt;
}

void read_rope(Reader& in, Hparams& h, int context) {
  const GgufFile& file = in.file();
  Rope& rope = h.rope;
  rope.base = in.positive("rope.freq_base", 10000.0F);
  rope.original_context =
      in.optional_count("rope.scaling.original_context_length", 1 << 30, h.trained_context);
  const std::string kind = file.text(in.key("rope.scaling.type")).value_or("linear");
  if (kind != "none" && kind != "linear" && kind != "yarn" && kind != "longrope") {
    in.fail("rope.scaling.type", "is '" + kind + "'; kvant knows none, linear, yarn and longrope");
  }
  const float factor = in.number("rope.scaling.factor", in.number("rope.scale_linear", 0));
  if (factor < 0) in.fail("rope.scaling.factor", "is negative");
  if (kind != "none" && factor > 0) rope.frequency_scale = 1 / factor;
  rope.extension = in.number("rope.scaling.yarn_ext_factor", -1);
  if (rope.extension < 0) rope.extension = kind == "yarn" ? 1.0F : 0.0F;
  if (rope.extension == 0) rope.magnitude = in.number("rope.scaling.yarn_attn_factor", 1);
  rope.magnitude *= in.number("rope.scaling.attn_factor", 1);
  // YaRN multiplies the magnitude by 1 + 0.1 ln s, and ggml does so, too. With a multiplier m in the file,
  // the factor must be (1 + 0.1 ln s) / (1 + 0.1 m ln s), so the code divides by the denominator.
  const float multiplier = in.number("rope.scaling.yarn_log_multiplier", 0);
  if (rope.extension != 0 && multiplier != 0 && factor > 1)
    rope.magnitude /= 1 + 0.1F * multiplier * std::log(factor);
  rope.beta_fast = in.positive("rope.scaling.yarn_beta_fast", 32.0F);
  rope.beta_slow = in.positive("rope.scaling.yarn_beta_slow", 1.0F);
  const int reach = context > 0 ? context : h.trained_context;
  h.long_rope = reach > rope.original_context ? LongRope::long_factors : LongRope::short_factors;

  // Hunyuan raises the base of RoPE for longer contexts.
  const float alpha = in.number("rope.scaling.alpha", 0);
  if (alpha > 0 && h.head_dim > 2)
    rope.base *= std::pow(alpha, static_cast<float>(h.head_dim) / static_cast<float>(h.head_dim - 2));

  const auto sections = file.integers(in.key("rope.dimension_sections"));
  const bool has_sections = sections.size() > 1 && sections[0] > 0 && sections[1] > 0;
  const RopePairs pairs = h.architecture->rope;
  h.rope_neox = pairs == RopePairs::neox || (pairs == RopePairs::neox_with_sections && has_sections);

  h.sliding_rope = rope;
  const Windows& windows = h.architecture->windows;
  if (windows.rope_base > 0) {
    h.sliding_rope.base = windows.rope_base;
    h.sliding_rope.frequency_scale = 1;
  }
  if (windows.rope_plain) {
    h.sliding_rope.frequency_scale = h.sliding_rope.magnitude = 1;
    h.sliding_rope.extension = 0;
  }
  h.sliding_rope.base = in.positive("rope.freq_base_swa", h.sliding_rope.base);
}

Status check_head_dim(int head_dim) {
  if (head_dim % 8 == 0 && head_dim <= kMaxHeadDim) return {};
  return error("makes heads of {} channels; kvant supports multiples of 8 up to {}", head_dim, kMaxHeadDim);
}

// Reads the sizes of heads where layers differ. Layers with a window may have a different head size, and each
// layer may have its own number of KV heads.
void read_layer_heads(Reader& in, Hparams& h) {
  h.sliding_n_rot = h.n_rot;
  if (!h.architecture->unlike_layers) return;
  const int sliding_dim = in.count("attention.key_length_swa", 65536, h.head_dim);
  if (const Status known = check_head_dim(sliding_dim); !known.ok())
    in.fail("attention.key_length_swa", known.error().message);
  if (in.count("attention.value_length_swa", 65536, h.head_dim) != sliding_dim)
    in.fail("attention.value_length_swa", "differs from key_length_swa: K and V are to be alike");
  h.sliding_n_rot = in.count("rope.dimension_count_swa", sliding_dim, std::min(h.n_rot, sliding_dim));
  if (h.sliding_n_rot % 2 != 0) in.fail("rope.dimension_count_swa", "is odd");
  const auto kv_heads = in.file().integers(in.key("attention.head_count_kv"));
  if (kv_heads.size() > 1 && std::ssize(kv_heads) < h.n_layers)
    return in.fail("attention.head_count_kv", "does not cover every layer");
  std::vector<LayerHeads> layers;
  for (int layer = 0; layer < h.n_layers; ++layer) {
    const int n = kv_heads.size() > 1 ? static_cast<int>(kv_heads[layer]) : h.n_kv_heads;
    layers.push_back({n, h.sliding_window[layer] > 0 ? sliding_dim : h.head_dim});
  }
  const bool differ = std::any_of(layers.begin(), layers.end(), [&](const LayerHeads& of_layer) {
    return of_layer.n_kv_heads != layers[0].n_kv_heads || of_layer.head_dim != layers[0].head_dim;
  });
  if (differ) {
    h.layer_heads = std::move(layers);
  } else {
    h.head_dim = layers[0].head_dim;
    h.n_kv_heads = layers[0].n_kv_heads;
  }
}

// Reads which layers have a sliding window. The file gives a list, or a period p: the last of every p layers
// has full attention.
void read_sliding_windows(Reader& in, Hparams& h) {
  h.sliding_window.assign(h.n_layers, 0);
  const Windows& windows = h.architecture->windows;
  if (windows.period == 0 || (windows.only_member != 0 && windows.only_member != h.n_layers)) return;
  const auto window = in.file().integer(in.key("attention.sliding_window")).value_or(windows.tokens);
  if (window <= 0) return;
  if (window > (1 << 30)) return in.fail("attention.sliding_window", "is implausibly large");
  const auto pattern = in.file().integers(in.key("attention.sliding_window_pattern"));
  if (pattern.size() > 1 && pattern.size() < static_cast<std::size_t>(h.n_layers)) {
    return in.fail("attention.sliding_window_pattern", "does not cover every layer");
  }
  const std::int64_t period = pattern.size() == 1 ? pattern[0] : windows.period;
  for (int layer = 0; layer < h.n_layers; ++layer) {
    const bool slides = pattern.size() > 1 ? pattern[layer] != 0 : period <= 0 || layer % period < period - 1;
    if (slides) h.sliding_window[layer] = static_cast<int>(window);
  }
}

void read_rotated_layers(const Reader& in, Hparams& h) {
  const bool any =
      in.file().boolean(in.key("rope.scaling.finetuned")).value_or(true) || !h.architecture->switches_rope;
  const bool slides =
      std::any_of(h.sliding_window.begin(), h.sliding_window.end(), [](int w) { return w > 0; });
  const auto* turn = find_step<TurnHeads>(h.architecture->layer.attention);
  for (int layer = 0; layer < h.n_layers; ++layer) {
    const bool left_out =
        turn == nullptr ||
        (turn->layers == RotatedLayers::sliding && slides && h.sliding_window[layer] == 0) ||
        (turn->layers == RotatedLayers::all_but_every_fourth && layer % 4 == 3);
    h.rotated.push_back(any && !left_out);
  }
}

// Reads factors of embeddings, scores, residuals and logits.
void read_scales(Reader& in, Hparams& h) {
  const Architecture& a = *h.architecture;
  if (a.scales_embedding) h.embedding_scale = std::sqrt(static_cast<float>(h.n_embd));
  if (a.scales == FileScales::required) {
    for (const char* name : {"embedding_scale", "residual_scale", "logit_scale"})
      if (in.number(name, 0) == 0) in.fail(name, "is missing: convert the model again");
  }
  if (a.scales != FileScales::none) {
    const auto factor = [&](const char* name, float& value) {  // 0 in the file means no factor
      if (const float given = in.number(name, 0); given != 0) value = given;
    };
    factor("embedding_scale", h.embedding_scale);
    factor("residual_scale", h.residual_scale);
    factor("attention.scale", h.softmax_scale);
  }
  const float logit_scale = in.number("logit_scale", 0);
  if (a.logit_scale != LogitScale::none && logit_scale != 0)
    h.logit_scale = a.logit_scale == LogitScale::divides ? 1 / logit_scale : logit_scale;
  if (find_step<TemperQueries>(a.layer.attention) == nullptr) return;
  h.temperature = in.number("attention.temperature_scale", 0);
  h.temperature_step = h.rope.original_context;
}

// If a file asks for something that its architecture does not support, ignoring it would give wrong results.
// Only 0 and the value that applies anyway are accepted.
void check_unread(Reader& in, const Hparams& h) {
  const auto only = [&](const char* name, float holds) {
    const float given = in.number(name, 0);
    if (given != 0 && std::abs(given - holds) > 1e-5F * std::abs(holds))
      in.fail(name,
              fmt::format("is {}, which kvant does not support in '{}' models", given, h.architecture->name));
  };
  for (const char* name : {"attention.clamp_kqv", "attention.max_alibi_bias"}) only(name, 0);
  if (!h.architecture->unlike_layers) {
    for (const char* name : {"attention.key_length_swa", "attention.value_length_swa"})
      only(name, static_cast<float>(h.head_dim));
    only("rope.dimension_count_swa", static_cast<float>(h.n_rot));
  }
  only("embedding_scale", h.embedding_scale);
  only("residual_scale", h.residual_scale);
  only("attention.scale", h.softmax_scale);
  only("attention.temperature_scale", h.temperature);
  if (h.architecture->logit_scale == LogitScale::none) only("logit_scale", 1);
}

// Files name the widths of experts in several ways, so the widths come from the tensors of the first layer
// with experts.
void read_experts(Reader& in, Hparams& h) {
  Experts& e = h.experts;
  const GgufFile& file = in.file();
  if (file.integer(in.key("expert_count")).value_or(0) <= 1) return;
  e.n = in.count("expert_count", kMaxExperts);
  e.n_used = in.count("expert_used_count", e.n);
  e.n_groups = in.optional_count("expert_group_count", e.n, 1);
  e.n_groups_used = in.optional_count("expert_group_used_count", e.n_groups, e.n_groups);
  if (e.n % e.n_groups != 0 || e.n / e.n_groups * e.n_groups_used < e.n_used)
    in.fail("expert_group_count", "doesn't go with the number of experts");
  e.gating = h.architecture->experts.gating;
  constexpr Gating kByNumber[] = {Gating::softmax, Gating::sigmoid, Gating::softmax_of_chosen};
  if (const int n = in.optional_count("expert_gating_func", std::size(kByNumber), 0); n > 0)
    e.gating = kByNumber[n - 1];
  e.normalizes = file.boolean(in.key("expert_weights_norm")).value_or(h.architecture->experts.normalizes);
  if (const float scale = in.number("expert_weights_scale", 0); scale != 0) e.scale = scale;
  for (int layer = h.n_layers - 1; layer >= 0; --layer) {
    const std::string prefix = fmt::format("blk.{}.", layer);
    if (const ggml_tensor* up = file.tensor(prefix + "ffn_up_exps.weight"))
      e.n_ff = static_cast<int>(up->ne[1]);
    if (const ggml_tensor* both = file.tensor(prefix + "ffn_gate_up_exps.weight"))
      e.n_ff = static_cast<int>(both->ne[1] / 2);
    if (const ggml_tensor* up = file.tensor(prefix + "ffn_up_shexp.weight"))
      e.n_ff_shared = static_cast<int>(up->ne[1]);
  }
  if (e.n_ff == 0 && !in.failure())
    in.fail("expert_count", "is there, but no tensor 'blk.*.ffn_up_exps.weight': convert the model again");
}

// Reads which layers have attention. The file gives a list, or a period. The last layer of each period has
// attention.
void read_layer_kinds(Reader& in, Hparams& h) {
  h.recurrent.assign(h.n_layers, false);
  if (!h.architecture->layer.delta_net.empty()) {
    const auto listed = in.file().integers(in.key("attention.recurrent_layers"));
    if (!listed.empty() && std::ssize(listed) < h.n_layers)
      return in.fail("attention.recurrent_layers", "does not cover every layer");
    const int period = in.count("full_attention_interval", h.n_layers_in_file, 4);
    for (int layer = 0; layer < h.n_layers; ++layer)
      h.recurrent[layer] = listed.empty() ? layer % period < period - 1 : listed[layer] != 0;
  }
  int n_of_kind[2] = {};
  for (int layer = 0; layer < h.n_layers; ++layer) h.place.push_back(n_of_kind[h.recurrent[layer] ? 1 : 0]++);
  if (n_of_kind[0] == 0) in.fail("full_attention_interval", "leaves no layer with attention");
}

// Reads which layers share a cache. Each of the last layers attends to the cache of the last earlier layer of
// its kind, with or without a window.
void read_sharing(Reader& in, Hparams& h) {
  if (!h.architecture->unlike_layers) return;
  h.n_layer_embd = in.optional_count("embedding_length_per_layer_input", 1 << 20, 0);
  h.n_sharing = in.optional_count("attention.shared_kv_layers", h.n_layers - 1, 0);
  for (int layer = h.n_layers - h.n_sharing; layer < h.n_layers; ++layer) {
    int source = h.n_layers - h.n_sharing - 1;
    while (source >= 0 && h.sliding_window[source] != h.sliding_window[layer]) --source;
    if (source < 0)
      return in.fail("attention.shared_kv_layers", fmt::format("leaves no cache for layer {}", layer));
    h.place[layer] = h.place[source];
    if (h.kv_heads(layer) != h.kv_heads(source))
      return in.fail("attention.head_count_kv",
                     fmt::format("of layer {} is not that of the cache it shares", layer));
  }
}

// Reads the width of feed-forward networks. A file whose layers differ gives a list.
void read_ff(Reader& in, Hparams& h) {
  constexpr int kMost = 1 << 24;
  std::optional<int> fallback;  // if every layer has experts, files may leave the key out
  if (const auto of_experts = in.file().integer(in.key("expert_feed_forward_length")))
    fallback = static_cast<int>(std::clamp<std::int64_t>(*of_experts, 1, kMost));
  h.n_ff = in.most("feed_forward_length", kMost, fallback, h.architecture->unlike_layers);
  const auto all = in.file().integers(in.key("feed_forward_length"));
  if (all.size() <= 1 || std::all_of(all.begin(), all.end(), [&](std::int64_t n) { return n == h.n_ff; }))
    return;
  if (std::ssize(all) < h.n_layers) return in.fail("feed_forward_length", "does not cover every layer");
  for (int layer = 0; layer < h.n_layers; ++layer) h.all_ff.push_back(static_cast<int>(all[layer]));
}

void read_delta_net(Reader& in, Hparams& h) {
  const auto* step = find_step<RunDeltaNet>(h.architecture->layer.delta_net);
  if (step == nullptr) return;
  constexpr int kMaxHeads = 1024, kMaxDim = 256, kMaxKernel = 16;
  DeltaNet& d = h.delta_net;
  d.grouped = step->grouped;
  d.n_key_heads = in.count("ssm.group_count", kMaxHeads);
  d.n_value_heads = in.count("ssm.time_step_rank", kMaxHeads);
  d.head_dim = in.count("ssm.state_size", kMaxDim);
  d.kernel = in.count("ssm.conv_kernel", kMaxKernel);
  const int inner = in.count("ssm.inner_size", kMaxHeads * kMaxDim);
  if (d.n_value_heads % d.n_key_heads != 0)
    in.fail("ssm.group_count", "does not divide the number of value heads (ssm.time_step_rank)");
  if (d.head_dim % kDeltaColumns != 0) {
    in.fail("ssm.state_size", fmt::format("is {}: kvant supports multiples of {} up to {}", d.head_dim,
                                          kDeltaColumns, kMaxDim));
  }
  if (inner != d.inner()) in.fail("ssm.inner_size", "is not ssm.time_step_rank heads of ssm.state_size");
}

void read_attention(Reader& in, Hparams& h) {
  h.n_heads = in.count("attention.head_count", 4096);
  h.n_kv_heads = in.most("attention.head_count_kv", 4096, h.n_heads, h.architecture->unlike_layers);
  for (const std::int64_t n : in.file().integers(in.key("attention.head_count_kv"))) {
    if (n > 0 && h.n_heads % n != 0)
      in.fail("attention.head_count_kv", "does not divide the number of heads");
  }
  h.head_dim = in.count("attention.key_length", 65536, std::max(1, h.n_embd / h.n_heads));
  const int value_dim = in.count("attention.value_length", 65536, std::max(1, h.n_embd / h.n_heads));
  if (value_dim != h.head_dim) {
    in.fail("attention.value_length",
            "differs from key_length: kvant supports heads whose K and V are alike");
  }
  if (const Status known = check_head_dim(h.head_dim); !known.ok())
    in.fail("attention.key_length", known.error().message);
  h.n_rot = in.count("rope.dimension_count", h.head_dim, h.head_dim);
  if (h.n_rot % 2 != 0) in.fail("rope.dimension_count", "is odd");
  const ScoreRules& scores = h.architecture->scores;
  const bool wide = scores.wide_layers == h.n_layers;
  h.softmax_scale = 1 / std::sqrt(static_cast<float>(wide ? h.n_embd / h.n_heads : h.head_dim));
  if (scores.unscaled) h.softmax_scale = 1;
  if (scores.softcap > 0) h.score_softcap = in.number("attn_logit_softcapping", scores.softcap);
  h.gated_heads = find_step<ProjectHeads>(h.architecture->layer.attention)->gates;
}

}  // namespace

float Hparams::query_scale(int position) const {
  return 1 + temperature * std::log(1 + std::floor(static_cast<float>(position) /
                                                   static_cast<float>(temperature_step)));
}

LayerSteps Hparams::steps_to_attention(int layer) const {
  return recurrent[layer] ? architecture->layer.delta_net : architecture->layer.attention;
}

std::array<LayerSteps, 4> Hparams::steps_after_attention(bool has_experts) const {
  const LayerProgram& p = architecture->layer;
  return {p.back, has_experts ? p.experts : p.network, n_layer_embd > 0 ? p.inputs : LayerSteps{}, p.end};
}

bool Hparams::network_may_read_normed() const {
  const auto* norm = find_step<Norm>(architecture->layer.network);
  return norm != nullptr && norm->optional;
}

int Hparams::n_recurrent() const {
  return static_cast<int>(std::count(recurrent.begin(), recurrent.end(), true));
}

Geometry Hparams::geometry() const {
  Geometry g;
  g.model = architecture->name;
  if (!size_label.empty()) g.model += " " + size_label;
  g.n_recurrent_layers = n_recurrent();
  g.n_layers = n_layers - g.n_recurrent_layers - n_sharing;
  g.recurrent_values = g.n_recurrent_layers * delta_net.state_values();
  if (g.n_recurrent_layers > 0) g.state_matrices = delta_net.state_matrices();
  g.n_heads = n_heads;
  g.n_kv_heads = n_kv_heads;
  g.head_dim = head_dim;
  g.softmax_scale = softmax_scale;
  g.score_softcap = score_softcap;
  g.trained_context = trained_context;
  int n_heads_before = 0;  // KV heads of all earlier layers that have a cache
  for (int layer = 0; layer < n_layers; ++layer) {
    if (recurrent[layer]) continue;
    if (!has_kv(layer)) {
      g.shared.resize(g.n_layers);
      g.shared[place[layer]] = true;
      continue;
    }
    g.sliding_window.push_back(sliding_window[layer]);
    if (layer_heads.empty()) continue;
    g.layer_heads.push_back(layer_heads[layer]);
    g.layer_heads.back().first = n_heads_before;
    n_heads_before += layer_heads[layer].n_kv_heads;
  }
  for (const LayerHeads& of_layer : layer_heads) g.head_dim = std::max(g.head_dim, of_layer.head_dim);
  g.sink_logits = sink_logits;
  return g;
}

Result<Hparams> read_hparams(const GgufFile& file, int context) {
  if (const std::int64_t n = file.integer("split.count").value_or(0); n > 1) {
    return error("'{}' is one of {} parts of a model: join them first (llama-gguf-split --merge FIRST WHOLE)",
                 file.path(), n);
  }
  const auto name = file.text("general.architecture");
  if (!name)
    return error("'{}' does not say its architecture (general.architecture): is it a model?", file.path());
  Hparams h;
  h.architecture = find_architecture(*name);
  if (const char* layers = unsupported_layers(*name)) {
    return error("'{}' is a '{}' model: it has {}, which kvant does not support; supported: {}", file.path(),
                 *name, layers, architecture_names());
  }
  if (h.architecture == nullptr) {
    return error("'{}' is a '{}' model, which kvant does not support; supported: {}", file.path(), *name,
                 architecture_names());
  }
  Reader in(file, *name);
  if (auto unsupported = unsupported_kind(in, h.architecture->unlike_layers)) return *unsupported;
  h.n_layers = in.count("block_count", 4096);
  h.n_layers_in_file = h.n_layers;
  const std::int64_t n_next = in.file().integer(in.key("nextn_predict_layers")).value_or(0);
  if (n_next < 0 || n_next >= h.n_layers) {
    in.fail("nextn_predict_layers", "leaves no layer");
  } else {
    h.n_layers -= static_cast<int>(n_next);
  }
  h.n_embd = in.count("embedding_length", 1 << 20);
  read_ff(in, h);
  h.trained_context = in.count("context_length", 1 << 30);
  h.norm_epsilon = in.positive(h.architecture->layer_norm ? "attention.layer_norm_epsilon"
                                                          : "attention.layer_norm_rms_epsilon");
  h.logit_softcap = in.number("final_logit_softcapping", h.architecture->logit_softcap);
  h.size_label = file.text("general.size_label").value_or("");
  read_layer_kinds(in, h);
  read_delta_net(in, h);
  read_attention(in, h);
  read_rope(in, h, context);
  read_sliding_windows(in, h);
  read_layer_heads(in, h);
  read_sharing(in, h);
  read_rotated_layers(in, h);
  read_scales(in, h);
  check_unread(in, h);
  read_experts(in, h);
  if (in.failure()) return *in.failure();
  return h;
}

}  // namespace kvant
