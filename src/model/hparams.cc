#include "model/hparams.h"

#include <cmath>
#include <optional>

namespace kvant {
namespace {

// Typed look-ups under "<architecture>.", which remember the first thing that is wrong.
class Reader {
 public:
  Reader(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  std::string key(const char* name) const { return prefix_ + "." + name; }

  // An integer in [1, limit]; `fallback` when absent, an error when there is no fallback either.
  int count(const char* name, std::int64_t limit, std::optional<int> fallback = {}) {
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
      if (v != values[0]) {
        fail(name, "differs between layers, which kvant does not support");
        return 1;
      }
    }
    return static_cast<int>(values[0]);
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

// Attention and layer kinds that share a supported architecture's name.
std::optional<Error> unsupported_kind(const Reader& reader) {
  const GgufFile& file = reader.file();
  const auto refuse = [&](const char* what) {
    return error(
        "'{}' has {}; kvant supports dense models with plain or sliding grouped-query attention of: {}",
        file.path(), what, architecture_names());
  };
  if (file.integer(reader.key("expert_count")).value_or(0) > 0) return refuse("mixture-of-experts layers");
  if (file.has(reader.key("attention.kv_lora_rank"))) return refuse("multi-head latent attention (MLA)");
  if (file.boolean(reader.key("attention.causal")) == false) return refuse("bidirectional attention");
  return std::nullopt;
}

void read_rope(Reader& in, Hparams& h, int context) {
  const GgufFile& file = in.file();
  Rope& rope = h.rope;
  rope.base = in.positive("rope.freq_base", 10000.0F);
  rope.original_context = in.count("rope.scaling.original_context_length", 1 << 30, h.trained_context);
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
  rope.beta_fast = in.positive("rope.scaling.yarn_beta_fast", 32.0F);
  rope.beta_slow = in.positive("rope.scaling.yarn_beta_slow", 1.0F);
  const int reach = context > 0 ? context : h.trained_context;
  h.long_rope = reach > rope.original_context ? LongRope::long_factors : LongRope::short_factors;

  h.sliding_rope = rope;
  if (h.architecture->sliding_rope_base > 0) {
    h.sliding_rope.base = h.architecture->sliding_rope_base;
    h.sliding_rope.frequency_scale = 1;
  }
  h.sliding_rope.base = in.positive("rope.freq_base_swa", h.sliding_rope.base);
}

// The file gives the pattern as a period (of p layers the last has full attention) or layer by layer.
void read_sliding_windows(Reader& in, Hparams& h) {
  h.sliding_window.assign(h.n_layers, 0);
  const Architecture& a = *h.architecture;
  if (a.sliding_period == 0) return;
  const auto window = in.file().integer(in.key("attention.sliding_window")).value_or(a.default_window);
  if (window <= 0) return;
  if (window > (1 << 30)) return in.fail("attention.sliding_window", "is implausibly large");
  const auto pattern = in.file().integers(in.key("attention.sliding_window_pattern"));
  if (pattern.size() > 1 && pattern.size() < static_cast<std::size_t>(h.n_layers)) {
    return in.fail("attention.sliding_window_pattern", "does not cover every layer");
  }
  const std::int64_t period = pattern.size() == 1 ? pattern[0] : a.sliding_period;
  for (int layer = 0; layer < h.n_layers; ++layer) {
    const bool slides = pattern.size() > 1 ? pattern[layer] != 0 : period <= 0 || layer % period < period - 1;
    if (slides) h.sliding_window[layer] = static_cast<int>(window);
  }
}

void read_attention(Reader& in, Hparams& h) {
  h.n_heads = in.count("attention.head_count", 4096);
  h.n_kv_heads = in.count("attention.head_count_kv", 4096, h.n_heads);
  if (h.n_heads % h.n_kv_heads != 0)
    in.fail("attention.head_count_kv", "does not divide the number of heads");
  h.head_dim = in.count("attention.key_length", 65536, std::max(1, h.n_embd / h.n_heads));
  const int value_dim = in.count("attention.value_length", 65536, std::max(1, h.n_embd / h.n_heads));
  if (value_dim != h.head_dim) {
    in.fail("attention.value_length",
            "differs from key_length: kvant supports heads whose K and V are alike");
  }
  if (h.head_dim % 8 != 0 || h.head_dim > 256) {
    in.fail("attention.key_length",
            fmt::format("makes heads of {} channels; kvant supports multiples of 8 up to "
                        "256",
                        h.head_dim));
  }
  h.n_rot = in.count("rope.dimension_count", h.head_dim, h.head_dim);
  if (h.n_rot % 2 != 0) in.fail("rope.dimension_count", "is odd");
  const bool wide = h.architecture->wide_query_layers == h.n_layers;
  h.softmax_scale = 1 / std::sqrt(static_cast<float>(wide ? h.n_embd / h.n_heads : h.head_dim));
  if (h.architecture->default_score_softcap > 0) {
    h.score_softcap = in.number("attn_logit_softcapping", h.architecture->default_score_softcap);
  }
}

}  // namespace

Geometry Hparams::geometry() const {
  Geometry g;
  g.model = architecture->name;
  if (!size_label.empty()) g.model += " " + size_label;
  g.n_layers = n_layers;
  g.n_heads = n_heads;
  g.n_kv_heads = n_kv_heads;
  g.head_dim = head_dim;
  g.softmax_scale = softmax_scale;
  g.score_softcap = score_softcap;
  g.trained_context = trained_context;
  g.sliding_window = sliding_window;
  return g;
}

Result<Hparams> read_hparams(const GgufFile& file, int context) {
  const auto name = file.text("general.architecture");
  if (!name)
    return error("'{}' does not say its architecture (general.architecture): is it a model?", file.path());
  Hparams h;
  h.architecture = find_architecture(*name);
  if (h.architecture == nullptr) {
    return error("'{}' is a '{}' model, which kvant does not support; supported: {}", file.path(), *name,
                 architecture_names());
  }
  Reader in(file, *name);
  if (auto unsupported = unsupported_kind(in)) return *unsupported;
  h.n_layers = in.count("block_count", 4096);
  h.n_embd = in.count("embedding_length", 1 << 20);
  h.n_ff = in.count("feed_forward_length", 1 << 24);
  h.trained_context = in.count("context_length", 1 << 30);
  h.rms_epsilon = in.positive("attention.layer_norm_rms_epsilon");
  h.logit_softcap = in.number("final_logit_softcapping", h.architecture->default_logit_softcap);
  h.size_label = file.text("general.size_label").value_or("");
  read_attention(in, h);
  read_rope(in, h, context);
  read_sliding_windows(in, h);
  if (in.failure()) return *in.failure();
  return h;
}

}  // namespace kvant
