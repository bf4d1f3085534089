#include "eval/llama_runtime.h"

#include <string_view>

#include "model/gguf_file.h"
#include "model/library_log.h"
#include "model/repacking.h"

namespace kvant {
namespace {

constexpr ggml_type kCacheTypes[] = {GGML_TYPE_F32,  GGML_TYPE_F16,    GGML_TYPE_BF16,
                                     GGML_TYPE_Q8_0, GGML_TYPE_Q5_1,   GGML_TYPE_Q5_0,
                                     GGML_TYPE_Q4_1, GGML_TYPE_IQ4_NL, GGML_TYPE_Q4_0};

Result<ggml_type> parse_type(const std::string& name) {
  std::string known;
  for (const ggml_type type : kCacheTypes) {
    if (name == ggml_type_name(type)) return type;
    known += (known.empty() ? "" : ", ") + std::string(ggml_type_name(type));
  }
  return error("llama.cpp has no cache type '{}'; it has {}", name, known);
}

double bits_of(ggml_type type) {
  return 8.0 * static_cast<double>(ggml_type_size(type)) / static_cast<double>(ggml_blck_size(type));
}

// Collects llama.cpp's log during the object's lifetime. The destructor restores the previous receiver of the
// log.
class LogCapture {
 public:
  LogCapture() {
    llama_log_get(&former_, &former_data_);
    llama_log_set(
        [](ggml_log_level, const char* text, void* self) { static_cast<LogCapture*>(self)->text_ += text; },
        this);
  }
  ~LogCapture() { llama_log_set(former_, former_data_); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  // Returns the value after "NAME = " in the log, or an empty string if there is no such value.
  std::string value(const std::string& name) const {
    const auto at = text_.find(name + " = ");
    if (at == std::string::npos) return "";
    const auto start = at + name.size() + 3;
    return text_.substr(start, text_.find_first_of(",\n", start) - start);
  }

 private:
  ggml_log_callback former_ = nullptr;
  void* former_data_ = nullptr;
  std::string text_;
};

Result<LlamaModelPointer> load(const std::string& path, const llama_model_params& params) {
  llama_model* model = llama_model_load_from_file(path.c_str(), params);
  if (model == nullptr) return error("llama.cpp cannot load '{}': leave llama.cpp out of this run", path);
  return LlamaModelPointer(model, LlamaFree{});
}

// llama.cpp would choose repacked layouts with AMX tiles. ggml faults on AMX in virtual machines that
// announce AMX but do not let programs configure it. The function therefore passes to llama.cpp the names of
// the layouts that kvant's engine uses.
Result<LlamaModelPointer> load_on_cpu(const std::string& path) {
  auto file = GgufFile::open(path);
  if (!file.ok()) return file.error();
  std::vector<std::string> patterns;
  std::vector<ggml_backend_buffer_type_t> layouts;
  for (const std::string& name : (*file)->tensor_names()) {
    const ggml_tensor* weight = (*file)->tensor(name);
    const bool is_table = name == "token_embd.weight" || name == "per_layer_token_embd.weight";
    const bool is_matrix = ggml_n_dims(weight) == 2 && !is_table;
    ggml_backend_buffer_type_t layout = is_matrix ? repacked_buffer_type(weight) : nullptr;
    if (layout == nullptr) continue;
    patterns.push_back("^" + name + "$");
    layouts.push_back(layout);
  }
  std::vector<llama_model_tensor_buft_override> overrides;
  for (std::size_t i = 0; i < patterns.size(); ++i) overrides.push_back({patterns[i].c_str(), layouts[i]});
  overrides.push_back({nullptr, nullptr});

  // Neither layers nor single operations may go to a GPU, whatever backends are registered.
  ggml_backend_dev_t no_devices[] = {nullptr};
  llama_model_params params = llama_model_default_params();
  params.devices = no_devices;
  params.n_gpu_layers = 0;
  params.use_extra_bufts = false;
  params.tensor_buft_overrides = overrides.data();
  return load(path, params);
}

Result<LlamaModelPointer> load_on_device(const std::string& path, ggml_backend_dev_t device) {
  ggml_backend_dev_t devices[] = {device, nullptr};
  llama_model_params params = llama_model_default_params();
  params.devices = devices;
  params.n_gpu_layers = -1;  // -1 means all layers
  return load(path, params);
}

// Runs the batch and frees it.
Status decode(llama_context& context, llama_batch batch) {
  const int code = llama_decode(&context, batch);
  const int n = batch.n_tokens, first = batch.pos[0];
  llama_batch_free(batch);
  if (code != 0) return error("llama.cpp failed to run {} tokens at position {} (code {})", n, first, code);
  return {};
}

void put(llama_batch& batch, std::int32_t token, int position, int sequence, bool wants_logits) {
  const int i = batch.n_tokens++;
  batch.token[i] = token;
  batch.pos[i] = position;
  batch.n_seq_id[i] = 1;
  batch.seq_id[i][0] = sequence;
  batch.logits[i] = wants_logits ? 1 : 0;
}

// Returns whether the device can run llama.cpp's flash attention with the cache types.
bool has_flash_attention(ggml_backend_dev_t device, const Geometry& geometry, const LlamaCacheTypes& types) {
  constexpr int kTokens = 256;
  const int d = geometry.head_dim, n_heads = geometry.n_heads, n_kv_heads = geometry.n_kv_heads;
  ggml_context* context = ggml_init({.mem_size = 8 * ggml_tensor_overhead(), .no_alloc = true});
  ggml_tensor* attended =
      ggml_flash_attn_ext(context, ggml_new_tensor_3d(context, GGML_TYPE_F32, d, 1, n_heads),
                          ggml_new_tensor_3d(context, types.k, d, kTokens, n_kv_heads),
                          ggml_new_tensor_3d(context, types.v, d, kTokens, n_kv_heads),
                          ggml_new_tensor_2d(context, GGML_TYPE_F16, kTokens, 1), /*scale=*/1, /*max_bias=*/0,
                          /*logit_softcap=*/0);
  const bool supported = ggml_backend_dev_supports_op(device, attended);
  ggml_free(context);
  return supported;
}

}  // namespace

Result<LlamaCacheTypes> parse_llama_types(const std::string& text) {
  constexpr std::string_view kPlain = "-plain";
  const bool plain = text.ends_with(kPlain);
  const std::string types = text.substr(0, text.size() - (plain ? kPlain.size() : 0));
  const auto slash = types.find('/');
  auto k = parse_type(types.substr(0, slash));
  if (!k.ok()) return k.error();
  auto v = slash == std::string::npos ? k : parse_type(types.substr(slash + 1));
  if (!v.ok()) return v.error();
  if (plain && ggml_is_quantized(*v))
    return error("llama.cpp has no '{}': a quantized V requires its flash attention; try '{}/f16-plain'",
                 text, ggml_type_name(*k));
  return LlamaCacheTypes{*k, *v, plain};
}

double bits_per_element(const LlamaCacheTypes& types) {
  return (bits_of(types.k) + bits_of(types.v)) / 2;
}

Result<LlamaModelPointer> load_llama_model(const std::string& path, ggml_backend_dev_t device) {
  quiet_library_log();
  llama_backend_init();
  return device == nullptr ? load_on_cpu(path) : load_on_device(path, device);
}

Status check_flash_attention(const std::string& name, ggml_backend_dev_t device, const Geometry& geometry,
                             const LlamaCacheTypes& types) {
  if (types.plain || has_flash_attention(device, geometry, types)) return {};
  return error(
      "{} needs llama.cpp's flash attention, which this libggml-cuda.so lacks: KVANT_GPU=rival "
      "scripts/setup.sh compiles it; or leave llama.cpp out",
      name);
}

Result<LlamaContextPointer> make_llama_context(llama_model& model, const LlamaContextOptions& options,
                                               std::vector<std::string>* notes) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(options.context);
  params.n_batch = static_cast<std::uint32_t>(options.step_tokens);
  params.n_ubatch = params.n_batch;
  params.n_seq_max = static_cast<std::uint32_t>(options.n_sequences);
  params.kv_unified = options.shares_cells;
  params.n_threads = options.n_threads;
  params.n_threads_batch = options.n_threads;
  params.type_k = options.types.k;
  params.type_v = options.types.v;
  params.offload_kqv = options.on_device && options.kv_offload;
  params.op_offload = options.on_device;
  // llama.cpp chooses the graph by default, but a quantized V requires flash attention.
  if (ggml_is_quantized(options.types.v)) params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  if (options.types.plain) params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  const LogCapture log;
  LlamaContextPointer context(llama_init_from_model(&model, params));
  if (context == nullptr) {
    return error("llama.cpp cannot make a context of {} tokens with a {}/{} cache", options.context,
                 ggml_type_name(options.types.k), ggml_type_name(options.types.v));
  }
  if (notes == nullptr) return context;
  for (const char* side : {"k", "v"}) {
    const std::string rotated = log.value(std::string("attn_rot_") + side);
    if (rotated.empty()) continue;
    notes->push_back(
        fmt::format("{} {}", *side == 'k' ? "K" : "V", rotated == "0" ? "not rotated" : "rotated"));
  }
  return context;
}

Status llama_run(llama_context& context, std::span<const std::int32_t> tokens, int first, int n_logits) {
  const int n = static_cast<int>(tokens.size());
  llama_batch batch = llama_batch_init(n, 0, 1);
  for (int i = 0; i < n; ++i) put(batch, tokens[i], first + i, /*sequence=*/0, i >= n - n_logits);
  return decode(context, batch);
}

Status llama_run_each(llama_context& context, std::span<const std::int32_t> tokens, int position) {
  const int n = static_cast<int>(tokens.size());
  llama_batch batch = llama_batch_init(n, 0, 1);
  for (int i = 0; i < n; ++i) put(batch, tokens[i], position, /*sequence=*/i, /*wants_logits=*/true);
  return decode(context, batch);
}

}  // namespace kvant
