// Writes small models with random weights for tests. Both kvant and llama.cpp load them.
#pragma once

#include <ggml.h>
#include <gguf.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"

namespace kvant {

struct TinyModel {
  std::string architecture = "llama";
  int n_layers = 2;
  int n_embd = 64;
  int n_ff = 96;
  int n_heads = 4;
  int n_kv_heads = 2;
  int head_dim = 64;
  int n_rot = 0;  // 0 means head_dim
  // The members from sliding_head_dim to unturned_pairs apply to models whose layers differ.
  // arrays["attention.sliding_window_pattern"] says which layers have a window.
  int sliding_head_dim = 0;    // 0 means head_dim
  int sliding_n_kv_heads = 0;  // 0 means n_kv_heads
  bool k_for_v = false;        // layers without a window have no attn_v
  bool layer_scales = false;
  int n_sharing = 0;            // this many last layers have no K and V, and networks twice as wide
  int n_layer_embd = 0;         // if not 0, layers have embeddings of their own with this many channels
  bool unturned_pairs = false;  // rope_freqs leave three quarters of the pairs unrotated
  int trained_context = 1024;
  bool qkv_bias = false;
  bool fused_qkv = false;
  bool fused_gate_up = false;
  bool qk_norm = false;
  float qk_norm_mean = 1;  // the mean of the norm's weights
  int key_octaves = 0;     // in every fourth pair of channels, the norm weights of keys are larger by this
                           // many octaves, and the norm weights of queries smaller
  bool qk_norm_of_each_head = false;  // every head has weights of its own
  bool qk_norm_of_rows = false;       // all heads of a token are normed as one row
  bool pre_norms = true;
  bool post_norms = false;
  bool layer_norm = false;  // norms subtract the mean and have a bias
  bool norm_biases = true;  // layer norms have biases
  bool ffn_norm = true;     // applies only with pre_norms
  std::string ffn_norm_name = "ffn_norm";
  bool out_bias = false;  // the attention's output projection has a bias
  bool ffn_bias = false;  // networks and experts have biases
  bool ungated = false;   // networks have no ffn_gate
  bool sinks = false;     // query heads have logits that join the softmax's denominator
  int n_experts = 0;
  int n_dense = 0;  // this many first layers have no experts
  int n_ff_expert = 48;
  int n_ff_shared = 0;  // 0 means no shared network
  bool shared_gate = false;
  bool choice_bias = false;
  bool router_bias = false;
  // If this is n > 0, the last of each n layers has attention with gates, and the other layers are gated
  // delta nets.
  int full_attention_interval = 0;
  int n_delta_key_heads = 2;
  int n_delta_value_heads = 6;
  int delta_head_dim = 32;
  int delta_kernel = 4;
  bool delta_grouped = false;  // betas and alphas share a matrix
  // Experts and another network run side by side, each with norms; gate and up share a tensor.
  bool dense_and_experts = false;
  bool tied = false;
  bool output_bias = false;
  bool rope_freqs = false;         // the model has Llama 3's frequency factors
  bool long_rope_factors = false;  // the model has Phi-3's LongRoPE factors
  ggml_type matrix_type = GGML_TYPE_F32;
  ggml_type rounded_to = GGML_TYPE_F32;  // the values of F32 matrices are exact in this type
  std::string damaged;                   // the tensor of this name contains a NaN
  // If this is set, the vocabulary has byte pairs, and the file names this method of splitting texts before
  // merges. An empty string means that the file names no method. If this is unset, there are no merges.
  std::optional<std::string> pre_tokenizer = std::nullopt;
  std::string vocabulary = "llama";  // tokenizer.ggml.model; with byte pairs it is gpt2
  bool byte_tokens = true;           // otherwise the vocabulary has plain texts in their places
  int letter_type = 1;               // the type of the letters' tokens; 3 makes them control tokens
  std::uint32_t seed = 1;
  // The file has these metadata under "<architecture>.".
  std::map<std::string, std::uint32_t> integers;
  std::map<std::string, bool> booleans;
  std::map<std::string, float> numbers;
  std::map<std::string, std::string> texts;
  std::map<std::string, std::vector<std::int32_t>> arrays;
};

// Returns a model in which gated delta nets and attention alternate.
inline TinyModel tiny_hybrid() {
  TinyModel model{.architecture = "qwen35",
                  .n_layers = 4,
                  .n_rot = 32,
                  .qk_norm = true,
                  .ffn_norm_name = "post_attention_norm",
                  .full_attention_interval = 2};
  model.arrays = {{"rope.dimension_sections", {6, 5, 5, 0}}};
  return model;
}

// Returns a model whose first and last layers attend only to the newest 150 tokens, so a window begins and
// ends within pages. The layers between them attend to all tokens.
inline TinyModel tiny_windowed() {
  TinyModel model{.architecture = "gemma3", .n_layers = 3, .qk_norm = true, .post_norms = true, .tied = true};
  model.integers = {{"attention.sliding_window", 150}};
  model.arrays = {{"attention.sliding_window_pattern", {1, 0, 1}}};
  return model;
}

// TinyFile names a file in the system's temporary folder, and deletes the file at the end.
class TinyFile {
 public:
  explicit TinyFile(std::string name)
      : path_(std::filesystem::temp_directory_path() /
              ("kvant_" + std::to_string(std::random_device()()) + "_" + std::move(name))) {}
  TinyFile(const TinyFile&) = delete;
  TinyFile& operator=(const TinyFile&) = delete;
  ~TinyFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

class TinyModelWriter {
 public:
  static constexpr int kVocabulary = 3 + 256 + 29;

  explicit TinyModelWriter(const TinyModel& model)
      : m_(model),
        random_(model.seed),
        header_(gguf_init_empty(), gguf_free),
        context_(ggml_init({64 << 20, nullptr, /*no_alloc=*/false}), ggml_free) {}

  void write(const std::string& path) {
    add_metadata();
    add_vocabulary();
    add_tensors();
    KVANT_CHECK(gguf_write_to_file(header_.get(), path.c_str(), /*only_meta=*/false),
                "cannot write a tiny model");
  }

 private:
  std::string key(const std::string& name) const { return m_.architecture + "." + name; }
  void set(const std::string& name, int value) {
    gguf_set_val_u32(header_.get(), key(name).c_str(), static_cast<std::uint32_t>(value));
  }

  void add_metadata() {
    gguf_set_val_str(header_.get(), "general.architecture", m_.architecture.c_str());
    gguf_set_val_str(header_.get(), "general.size_label", "tiny");
    set("block_count", m_.n_layers);
    set("context_length", m_.trained_context);
    set("embedding_length", m_.n_embd);
    set("feed_forward_length", m_.n_ff);
    set("attention.head_count", m_.n_heads);
    set("attention.head_count_kv", m_.n_kv_heads);
    if (m_.sliding_n_kv_heads > 0) {
      std::vector<std::int32_t> kv_heads;
      kv_heads.reserve(m_.n_layers);
      for (int layer = 0; layer < m_.n_layers; ++layer) kv_heads.push_back(n_kv_heads(layer));
      gguf_set_arr_data(header_.get(), key("attention.head_count_kv").c_str(), GGUF_TYPE_INT32,
                        kv_heads.data(), kv_heads.size());
    }
    if (m_.n_sharing > 0) {
      set("attention.shared_kv_layers", m_.n_sharing);
      std::vector<std::int32_t> widths;
      widths.reserve(m_.n_layers);
      for (int layer = 0; layer < m_.n_layers; ++layer) widths.push_back(n_ff(layer));
      gguf_set_arr_data(header_.get(), key("feed_forward_length").c_str(), GGUF_TYPE_INT32, widths.data(),
                        widths.size());
    }
    if (m_.n_layer_embd > 0) set("embedding_length_per_layer_input", m_.n_layer_embd);
    if (m_.sliding_head_dim > 0) {
      set("attention.key_length_swa", m_.sliding_head_dim);
      set("attention.value_length_swa", m_.sliding_head_dim);
      set("rope.dimension_count_swa", m_.sliding_head_dim);
    }
    set("attention.key_length", m_.head_dim);
    set("attention.value_length", m_.head_dim);
    set("rope.dimension_count", n_rot());
    for (const char* epsilon : {"attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"})
      gguf_set_val_f32(header_.get(), key(epsilon).c_str(), 1e-5F);
    if (m_.n_experts > 0) {
      set("expert_count", m_.n_experts);
      set("expert_feed_forward_length", m_.n_ff_expert);
      set("leading_dense_block_count", m_.n_dense);
    }
    if (m_.n_ff_shared > 0) {
      set("expert_shared_feed_forward_length", m_.n_ff_shared);
      set("expert_shared_count", m_.n_ff_shared / m_.n_ff_expert);
    }
    if (m_.full_attention_interval > 0) {
      set("full_attention_interval", m_.full_attention_interval);
      set("ssm.group_count", m_.n_delta_key_heads);
      set("ssm.time_step_rank", m_.n_delta_value_heads);
      set("ssm.state_size", m_.delta_head_dim);
      set("ssm.inner_size", m_.n_delta_value_heads * m_.delta_head_dim);
      set("ssm.conv_kernel", m_.delta_kernel);
    }
    for (const auto& [name, value] : m_.booleans) gguf_set_val_bool(header_.get(), key(name).c_str(), value);
    for (const auto& [name, value] : m_.integers) gguf_set_val_u32(header_.get(), key(name).c_str(), value);
    for (const auto& [name, value] : m_.numbers) gguf_set_val_f32(header_.get(), key(name).c_str(), value);
    for (const auto& [name, values] : m_.arrays)
      gguf_set_arr_data(header_.get(), key(name).c_str(), GGUF_TYPE_INT32, values.data(), values.size());
    for (const auto& [name, value] : m_.texts)
      gguf_set_val_str(header_.get(), key(name).c_str(), value.c_str());
  }

  // Adds <unk>, <s>, </s>, the bytes, a mark for spaces, the letters, a full stop and a comma.
  void add_vocabulary() {
    std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
    std::vector<std::int32_t> types{2, 3, 3};  // the types mean unknown, control, control
    for (int byte = 0; byte < 256; ++byte) {
      char text[8];
      std::snprintf(text, sizeof text, m_.byte_tokens ? "<0x%02X>" : "byte%02X", byte);
      tokens.emplace_back(text);
      types.push_back(m_.byte_tokens ? 6 : 1);  // 6 means a byte
    }
    tokens.emplace_back("\xe2\x96\x81");  // the mark that stands for a space
    for (char c = 'a'; c <= 'z'; ++c) tokens.emplace_back(1, c);
    tokens.emplace_back(".");
    tokens.emplace_back(",");
    types.resize(tokens.size(), m_.letter_type);
    std::vector<float> scores(tokens.size(), 0.0F);
    std::vector<const char*> texts;
    texts.reserve(tokens.size());
    for (const std::string& t : tokens) texts.push_back(t.c_str());
    gguf_set_val_str(header_.get(), "tokenizer.ggml.model",
                     m_.pre_tokenizer ? "gpt2" : m_.vocabulary.c_str());
    if (m_.pre_tokenizer) {
      const char* merge = "a b";
      gguf_set_arr_str(header_.get(), "tokenizer.ggml.merges", &merge, 1);
      if (!m_.pre_tokenizer->empty())
        gguf_set_val_str(header_.get(), "tokenizer.ggml.pre", m_.pre_tokenizer->c_str());
    }
    gguf_set_arr_str(header_.get(), "tokenizer.ggml.tokens", texts.data(), texts.size());
    gguf_set_arr_data(header_.get(), "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(),
                      scores.size());
    gguf_set_arr_data(header_.get(), "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(),
                      types.size());
    gguf_set_val_u32(header_.get(), "tokenizer.ggml.bos_token_id", 1);
    gguf_set_val_u32(header_.get(), "tokenizer.ggml.eos_token_id", 2);
    gguf_set_val_u32(header_.get(), "tokenizer.ggml.unknown_token_id", 0);
    gguf_set_val_str(header_.get(), "tokenizer.chat_template",
                     "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
                     "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
                     "{% if add_generation_prompt %}{{'<|im_start|>assistant\\n'}}{% endif %}");
  }

  // Returns rows of n_in values after quantization by ggml.
  static std::vector<float> rounded(const std::vector<float>& values, int n_in, ggml_type type) {
    const auto n_rows = static_cast<std::int64_t>(values.size()) / n_in;
    std::vector<char> stored(ggml_row_size(type, n_in) * n_rows);
    ggml_quantize_chunk(type, values.data(), stored.data(), 0, n_rows, n_in, nullptr);
    std::vector<float> result(values.size());
    ggml_get_type_traits(type)->to_float(stored.data(), result.data(),
                                         static_cast<std::int64_t>(values.size()));
    return result;
  }

  // Adds n matrices of normally distributed values with a mean and a spread. With n_out = 0, adds n vectors.
  void tensor(const std::string& name, int n_in, int n_out, float mean, float spread, int n = 1) {
    const ggml_type type = n_out > 0 ? m_.matrix_type : GGML_TYPE_F32;
    ggml_tensor* t = n_out > 0 ? ggml_new_tensor_3d(context_.get(), type, n_in, n_out, n)
                               : ggml_new_tensor_2d(context_.get(), type, n_in, n);
    ggml_set_name(t, name.c_str());
    std::vector<float> values(ggml_nelements(t));
    std::normal_distribution<float> normal(mean, spread);
    for (float& v : values) v = normal(random_);
    if (name == m_.damaged) values[0] = std::nanf("");
    if (n_out > 0 && m_.rounded_to != GGML_TYPE_F32) values = rounded(values, n_in, m_.rounded_to);
    if (type == GGML_TYPE_F32) {
      std::copy(values.begin(), values.end(), static_cast<float*>(t->data));
    } else {
      ggml_quantize_chunk(type, values.data(), t->data, 0, ggml_nrows(t), t->ne[0], nullptr);
    }
    gguf_add_tensor(header_.get(), t);
  }
  void matrix(const std::string& name, int n_in, int n_out, float gain, int n = 1) {
    tensor(name, n_in, n_out, 0.0F, gain / std::sqrt(static_cast<float>(n_in)), n);
  }
  void vector(const std::string& name, int n_values, float spread, int n = 1) {
    tensor(name, n_values, 0, 0.0F, spread, n);
  }
  // `prefix` is for example "blk.0.attn_norm".
  void norm(const std::string& prefix, int n_values, int n = 1, bool of_layer = false) {
    tensor(prefix + ".weight", n_values, 0, 1.0F, 0.2F, n);
    if (of_layer && m_.layer_norm && m_.norm_biases) vector(prefix + ".bias", n_values, 0.2F);
  }

  void add_tensors() {
    matrix("token_embd.weight", m_.n_embd, kVocabulary, m_.tied ? 1.0F : 4.0F);
    norm("output_norm", m_.n_embd, 1, true);
    if (!m_.tied) matrix("output.weight", m_.n_embd, kVocabulary, 1.0F);
    if (m_.output_bias) vector("output.bias", kVocabulary, 0.3F);
    if (m_.rope_freqs) tensor("rope_freqs.weight", n_rot() / 2, 0, 4.0F, 0.5F);
    if (m_.unturned_pairs) add_unturned_pairs();
    if (m_.long_rope_factors) {
      tensor("rope_factors_long.weight", n_rot() / 2, 0, 4.0F, 0.5F);
      tensor("rope_factors_short.weight", n_rot() / 2, 0, 1.2F, 0.05F);
    }
    if (m_.n_layer_embd > 0) {
      const int of_all = m_.n_layers * m_.n_layer_embd;
      matrix("per_layer_token_embd.weight", of_all, kVocabulary, 4.0F);
      matrix("per_layer_model_proj.weight", m_.n_embd, of_all, 1.0F);
      norm("per_layer_proj_norm", m_.n_layer_embd);
    }
    for (int layer = 0; layer < m_.n_layers; ++layer) add_layer(layer);
  }

  void add_layer(int layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    if (m_.pre_norms) norm(prefix + "attn_norm", m_.n_embd, 1, true);
    const int interval = m_.full_attention_interval;
    if (interval > 0 && layer % interval < interval - 1) {
      add_delta_net(prefix);
    } else {
      add_attention(prefix, layer);
    }
    if (m_.post_norms) norm(prefix + "post_attention_norm", m_.n_embd);
    if (m_.pre_norms && m_.ffn_norm) norm(prefix + m_.ffn_norm_name, m_.n_embd, 1, true);
    const bool has_experts = m_.n_experts > 0 && layer >= m_.n_dense;
    if (has_experts) add_experts(prefix);
    if (!has_experts || m_.dense_and_experts) add_network(prefix, "", n_ff(layer), 1);
    if (m_.post_norms) norm(prefix + "post_ffw_norm", m_.n_embd);
    if (m_.n_layer_embd > 0) {
      matrix(prefix + "inp_gate.weight", m_.n_embd, m_.n_layer_embd, 1.0F);
      matrix(prefix + "proj.weight", m_.n_layer_embd, m_.n_embd, 1.0F);
      norm(prefix + "post_norm", m_.n_embd);
    }
    if (m_.layer_scales) tensor(prefix + "layer_output_scale.weight", 1, 0, 0.8F, 0.1F);
  }

  void add_attention(const std::string& prefix, int layer) {
    const int d = head_dim(layer), n_q = m_.n_heads * d, n_kv = n_kv_heads(layer) * d;
    // The projection contains the gates.
    const int n_projected_q = m_.full_attention_interval > 0 ? 2 * n_q : n_q;
    const auto projection = [&](const char* name, int n_out, float gain) {
      matrix(prefix + name + ".weight", m_.n_embd, n_out, gain);
      if (m_.qkv_bias) tensor(prefix + name + ".bias", n_out, 0, 0.0F, 0.3F);
    };
    if (m_.fused_qkv) {
      projection("attn_qkv", n_projected_q + 2 * n_kv, 1.0F);
    } else {
      projection("attn_q", n_projected_q, 1.5F);
      if (has_kv(layer)) projection("attn_k", n_kv, 1.5F);
      if (has_kv(layer) && (!m_.k_for_v || slides(layer))) projection("attn_v", n_kv, 1.0F);
    }
    add_qk_norms(prefix, layer);
    if (m_.sinks) tensor(prefix + "attn_sinks.weight", m_.n_heads, 0, 1.0F, 1.0F);
    matrix(prefix + "attn_output.weight", n_q, m_.n_embd, 1.0F);
    if (m_.out_bias) vector(prefix + "attn_output.bias", m_.n_embd, 0.3F);
  }

  // Adds a delta net whose heads forget half of their contents within a few to a few dozen tokens.
  void add_delta_net(const std::string& prefix) {
    const int n_heads = m_.n_delta_value_heads, inner = n_heads * m_.delta_head_dim;
    const int channels = 2 * m_.n_delta_key_heads * m_.delta_head_dim + inner;
    matrix(prefix + "attn_qkv.weight", m_.n_embd, channels, 1.5F);
    matrix(prefix + "attn_gate.weight", m_.n_embd, inner, 1.5F);
    if (m_.delta_grouped) {
      matrix(prefix + "ssm_ba.weight", m_.n_embd, 2 * n_heads, 1.0F);
    } else {
      matrix(prefix + "ssm_beta.weight", m_.n_embd, n_heads, 1.0F);
      matrix(prefix + "ssm_alpha.weight", m_.n_embd, n_heads, 1.0F);
    }
    vector(prefix + "ssm_conv1d.weight", m_.delta_kernel, 0.5F, channels);
    tensor(prefix + "ssm_dt.bias", n_heads, 0, -2.0F, 1.0F);
    tensor(prefix + "ssm_a", n_heads, 0, -1.0F, 0.2F);
    norm(prefix + "ssm_norm", m_.delta_head_dim);
    matrix(prefix + "ssm_out.weight", inner, m_.n_embd, 1.0F);
  }

  void add_qk_norms(const std::string& prefix, int layer) {
    const int d = head_dim(layer);
    const auto add = [&](const char* name, int n_heads) {
      if (m_.qk_norm) tensor(prefix + name + ".weight", d, 0, m_.qk_norm_mean, 0.2F * m_.qk_norm_mean);
      if (m_.key_octaves != 0) skew(prefix + name + ".weight", name == std::string("attn_k_norm"));
      if (m_.qk_norm_of_each_head) norm(prefix + name, d, n_heads);
      if (m_.qk_norm_of_rows) norm(prefix + name, d * n_heads);
    };
    add("attn_q_norm", m_.n_heads);
    if (has_kv(layer)) add("attn_k_norm", n_kv_heads(layer));
  }

  // Makes the norm's weights uneven in every fourth pair. Channels i and i + d / 2 form a pair.
  void skew(const std::string& tensor, bool of_keys) {
    ggml_tensor* t = ggml_get_tensor(context_.get(), tensor.c_str());
    auto* weights = static_cast<float*>(t->data);
    for (std::int64_t i = 0; i < t->ne[0]; ++i)
      if (i % (t->ne[0] / 2) % 4 == 0)
        weights[i] = std::ldexp(weights[i], of_keys ? m_.key_octaves : -m_.key_octaves);
  }

  // Adds frequency factors as in proportional RoPE: most factors are so large that the angles are 0.
  void add_unturned_pairs() {
    const int n = n_rot() / 2;
    ggml_tensor* t = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, n);
    ggml_set_name(t, "rope_freqs.weight");
    for (int i = 0; i < n; ++i) static_cast<float*>(t->data)[i] = i < n / 4 ? 1.0F : 1e30F;
    gguf_add_tensor(header_.get(), t);
  }

  bool slides(int layer) const {
    const auto pattern = m_.arrays.find("attention.sliding_window_pattern");
    return pattern != m_.arrays.end() && pattern->second[layer] != 0;
  }
  int head_dim(int layer) const {
    return m_.sliding_head_dim > 0 && slides(layer) ? m_.sliding_head_dim : m_.head_dim;
  }
  int n_kv_heads(int layer) const {
    return m_.sliding_n_kv_heads > 0 && slides(layer) ? m_.sliding_n_kv_heads : m_.n_kv_heads;
  }

  bool has_kv(int layer) const { return layer < m_.n_layers - m_.n_sharing; }
  int n_ff(int layer) const { return has_kv(layer) ? m_.n_ff : 2 * m_.n_ff; }

  // Adds n networks, as one tensor per weight.
  void add_network(const std::string& prefix, const std::string& suffix, int n_ff, int n) {
    const auto add = [&](const char* name, int n_in, int n_out) {
      matrix(prefix + name + suffix + ".weight", n_in, n_out, 1.0F, n);
      if (m_.ffn_bias) vector(prefix + name + suffix + ".bias", n_out, 0.3F, n);
    };
    const bool fused = m_.fused_gate_up && n == 1;
    if (!fused && !m_.ungated) add("ffn_gate", m_.n_embd, n_ff);
    add("ffn_up", m_.n_embd, fused ? 2 * n_ff : n_ff);
    add("ffn_down", n_ff, m_.n_embd);
  }

  void add_experts(const std::string& prefix) {
    tensor(prefix + "ffn_gate_inp.weight", m_.n_embd, 0, 0.0F, 2 / std::sqrt(static_cast<float>(m_.n_embd)),
           m_.n_experts);
    if (m_.router_bias) vector(prefix + "ffn_gate_inp.bias", m_.n_experts, 0.5F);
    if (m_.choice_bias) vector(prefix + "exp_probs_b.bias", m_.n_experts, 0.2F);
    if (m_.dense_and_experts) {
      tensor(prefix + "ffn_gate_inp.scale", m_.n_embd, 0, std::sqrt(static_cast<float>(m_.n_embd)), 2.0F);
      tensor(prefix + "ffn_down_exps.scale", m_.n_experts, 0, 1.0F, 0.3F);
      for (const char* name : {"pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"})
        norm(prefix + name, m_.n_embd);
      matrix(prefix + "ffn_gate_up_exps.weight", m_.n_embd, 2 * m_.n_ff_expert, 1.0F, m_.n_experts);
      matrix(prefix + "ffn_down_exps.weight", m_.n_ff_expert, m_.n_embd, 1.0F, m_.n_experts);
      return;
    }
    add_network(prefix, "_exps", m_.n_ff_expert, m_.n_experts);
    if (m_.n_ff_shared == 0) return;
    add_network(prefix, "_shexp", m_.n_ff_shared, 1);
    if (m_.shared_gate)
      vector(prefix + "ffn_gate_inp_shexp.weight", m_.n_embd, 1 / std::sqrt(static_cast<float>(m_.n_embd)));
  }

  int n_rot() const { return m_.n_rot > 0 ? m_.n_rot : m_.head_dim; }

  const TinyModel& m_;
  std::mt19937 random_;
  std::unique_ptr<gguf_context, decltype(&gguf_free)> header_;
  std::unique_ptr<ggml_context, decltype(&ggml_free)> context_;
};

inline std::unique_ptr<TinyFile> write_tiny_model(const TinyModel& model) {
  auto file = std::make_unique<TinyFile>(model.architecture + ".gguf");
  TinyModelWriter(model).write(file->path());
  return file;
}

}  // namespace kvant
