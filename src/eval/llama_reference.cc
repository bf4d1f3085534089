#include "eval/llama_reference.h"

#include <algorithm>
#include <cstring>

#include "eval/f32_gguf.h"
#include "eval/llama_runtime.h"

namespace kvant {
namespace {

constexpr const char* kPrefix = "llama.cpp:";

class LlamaSource : public LogitSource {
 public:
  LlamaSource(std::string name, LlamaModelPointer model, LlamaContextPointer context, int step_tokens,
              double bits, std::vector<std::string> notes)
      : name_(std::move(name)),
        model_(std::move(model)),
        context_(std::move(context)),
        step_tokens_(step_tokens),
        bits_(bits),
        notes_(std::move(notes)) {}

  const std::string& name() const override { return name_; }
  CacheBits bits() const override { return {bits_, bits_}; }
  PlanReport plan() const override {
    PlanReport report;
    report.summary = name_;
    for (const std::string& note : notes_) report.summary += ", " + note;
    return report;
  }
  Status begin() override {
    llama_memory_clear(llama_get_memory(context_.get()), /*data=*/false);
    length_ = 0;
    return {};
  }
  Status mark() override {
    marked_ = length_;
    return {};
  }
  Status rewind() override {
    if (!llama_memory_seq_rm(llama_get_memory(context_.get()), /*seq_id=*/0, marked_, /*p1=*/-1)) {
      return error("llama.cpp cannot remove tokens from this model's cache: leave llama.cpp out of this run");
    }
    length_ = marked_;
    return {};
  }
  Status step(std::span<const std::int32_t> tokens, bool /*is_prompt*/, MatrixView<float> logits) override {
    const int n = static_cast<int>(tokens.size()), first_wanted = n - logits.rows;
    for (int start = 0; start < n; start += step_tokens_) {
      const int count = std::min(step_tokens_, n - start);
      const int skipped = std::clamp(first_wanted - start, 0, count);
      const int first_row = std::max(start - first_wanted, 0);
      KVANT_RETURN_IF_ERROR(run(tokens.subspan(start, count), logits.slice(first_row, count - skipped)));
    }
    return {};
  }

 private:
  // Runs at most step_tokens_ tokens.
  Status run(std::span<const std::int32_t> tokens, MatrixView<float> logits) {
    const int n = static_cast<int>(tokens.size());
    KVANT_RETURN_IF_ERROR(llama_run(*context_, tokens, length_, logits.rows));
    length_ += n;
    for (int r = 0; r < logits.rows; ++r) {
      const float* row = llama_get_logits_ith(context_.get(), n - logits.rows + r);
      if (row == nullptr) return error("llama.cpp gave no logits");
      std::memcpy(logits.row(r), row, sizeof(float) * logits.cols);
    }
    return {};
  }

  std::string name_;
  // The model must outlive the context, so it is declared first.
  LlamaModelPointer model_;
  LlamaContextPointer context_;
  int step_tokens_;
  double bits_;
  std::vector<std::string> notes_;
  int length_ = 0;
  int marked_ = 0;
};

class Reference : public LlamaReference {
 public:
  Reference(LlamaModelPointer model, ggml_backend_dev_t device, const LlamaPlace& place)
      : model_(std::move(model)), device_(device), place_(place) {}

  Result<std::unique_ptr<LogitSource>> source(const std::string& name, int context, int step_tokens,
                                              int n_threads) const override {
    auto types = parse_llama_types(name.substr(std::strlen(kPrefix)));
    if (!types.ok()) return types.error();
    if (device_ != nullptr && place_.kv_offload)
      KVANT_RETURN_IF_ERROR(check_flash_attention(name, device_, place_.geometry, *types));
    const LlamaContextOptions options{.types = *types,
                                      .context = context,
                                      .step_tokens = step_tokens,
                                      .on_device = device_ != nullptr,
                                      .kv_offload = place_.kv_offload,
                                      .n_threads = n_threads};
    std::vector<std::string> notes;
    auto made = make_llama_context(*model_, options, &notes);
    if (!made.ok()) return made.error();
    return std::unique_ptr<LogitSource>(std::make_unique<LlamaSource>(
        name, model_, std::move(made).value(), step_tokens, bits_per_element(*types), std::move(notes)));
  }

 private:
  LlamaModelPointer model_;
  ggml_backend_dev_t device_;  // null means the CPU
  LlamaPlace place_;
};

}  // namespace

bool names_llama(const std::string& name) {
  return name.starts_with(kPrefix);
}

Status check_llama_name(const std::string& name) {
  KVANT_CHECK(names_llama(name), "not a llama.cpp row");
  const auto types = parse_llama_types(name.substr(std::strlen(kPrefix)));
  if (!types.ok()) return types.error();
  return {};
}

Result<std::unique_ptr<LlamaReference>> LlamaReference::load_f32(const std::string& path,
                                                                 const LlamaPlace& place) {
  auto file = dequantize_to_f32(path);
  if (!file.ok()) return file.error();
  ggml_backend_dev_t device =
      place.device == nullptr ? nullptr : ggml_backend_get_device(place.device->backend());
  auto model = load_llama_model(file->path(), device);
  if (!model.ok()) return error("llama.cpp cannot load '{}': leave llama.cpp out of this run", path);
  return std::unique_ptr<LlamaReference>(
      std::make_unique<Reference>(std::move(model).value(), device, place));
}

}  // namespace kvant
