#include "model/tokenizer.h"

#include <llama.h>

#include <climits>
#include <stdexcept>

#include "base/warn.h"
#include "model/gguf_file.h"
#include "model/library_abort.h"
#include "model/library_log.h"
#include "model/processor.h"
#include "model/utf8.h"

namespace kvant {
namespace {

struct ModelDeleter {
  void operator()(llama_model* m) const { llama_model_free(m); }
};
using ModelPointer = std::unique_ptr<llama_model, ModelDeleter>;

class GgufTokenizer : public Tokenizer {
 public:
  GgufTokenizer(std::string path, ModelPointer model)
      : path_(std::move(path)), model_(std::move(model)), vocab_(llama_model_get_vocab(model_.get())) {}

  Result<std::vector<std::int32_t>> encode(const std::string& text, bool add_special,
                                           bool parse_special) const override {
    KVANT_RETURN_IF_ERROR(check_utf8("the text", text));
    if (text.size() > INT_MAX / 2) return error("a text of {} bytes is too long for one prompt", text.size());
    const auto bytes = static_cast<std::int32_t>(text.size());
    // Each token covers at least one byte, except for a few special ones.
    std::vector<std::int32_t> tokens(text.size() + 8);
    std::int32_t n = 0;
    try {
      n = llama_tokenize(vocab_, text.data(), bytes, tokens.data(), static_cast<std::int32_t>(tokens.size()),
                         add_special, parse_special);
      if (n < 0 && n != INT_MIN) {
        tokens.resize(-static_cast<std::size_t>(n));
        n = llama_tokenize(vocab_, text.data(), bytes, tokens.data(), -n, add_special, parse_special);
      }
    } catch (const std::out_of_range&) {  // llama.cpp looked for a byte's token in vain
      return error(
          "the vocabulary of '{}' has no token for a character of the text: leave the character out or use "
          "another model",
          path_);
    }
    if (n < 0) return error("the tokenizer of '{}' failed on the text", path_);
    tokens.resize(n);
    if (add_special && parse_special) drop_second_start(tokens);
    return tokens;
  }

  std::string piece(std::int32_t token) const override {
    if (token < 0 || token >= llama_vocab_n_tokens(vocab_)) return "";
    std::string text(64, '\0');
    int n = llama_token_to_piece(vocab_, token, text.data(), static_cast<int>(text.size()), 0, true);
    if (n < 0) {
      text.resize(-n);
      n = llama_token_to_piece(vocab_, token, text.data(), static_cast<int>(text.size()), 0, true);
    }
    text.resize(std::max(n, 0));
    return text;
  }

  bool ends_generation(std::int32_t token) const override { return llama_vocab_is_eog(vocab_, token); }

  bool is_control(std::int32_t token) const override {
    constexpr int kControl = LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN;
    return token >= 0 && token < llama_vocab_n_tokens(vocab_) &&
           (llama_vocab_get_attr(vocab_, token) & kControl) != 0;
  }

  FimTokens fim_tokens() const override {
    return {.prefix = llama_vocab_fim_pre(vocab_),
            .suffix = llama_vocab_fim_suf(vocab_),
            .middle = llama_vocab_fim_mid(vocab_),
            .repository = llama_vocab_fim_rep(vocab_),
            .file = llama_vocab_fim_sep(vocab_)};
  }

  const llama_model* library_model() const override { return model_.get(); }

 private:
  // Removes a second start token if the text itself begins with one.
  void drop_second_start(std::vector<std::int32_t>& tokens) const {
    const std::int32_t start = llama_vocab_bos(vocab_);
    const bool is_double = llama_vocab_get_add_bos(vocab_) && tokens.size() > 1 && tokens[0] == start;
    if (is_double && tokens[1] == start) tokens.erase(tokens.begin());
  }

  std::string path_;
  ModelPointer model_;
  const llama_vocab* vocab_;
};

// Checks the arrays of the vocabulary, because llama.cpp trusts their types and lengths.
Status check_vocabulary(const GgufFile& file) {
  if (!file.text("tokenizer.ggml.model"))
    return error("'{}' has no tokenizer (tokenizer.ggml.model)", file.path());
  const auto n_tokens = file.texts_count("tokenizer.ggml.tokens");
  if (!n_tokens || *n_tokens == 0)
    return error("'{}' has no list of tokens (tokenizer.ggml.tokens)", file.path());
  const auto disagrees = [&](const char* key, std::optional<std::size_t> count) {
    return file.has(key) && count != n_tokens;
  };
  for (const char* key : {"tokenizer.ggml.scores", "tokenizer.ggml.token_type"}) {
    const bool scores = std::string(key) == "tokenizer.ggml.scores";
    if (disagrees(key, scores ? file.numbers_count(key) : file.integers_count(key))) {
      return error("'{}': metadata '{}' does not match the list of tokens", file.path(), key);
    }
  }
  if (file.has("tokenizer.ggml.merges") && !file.texts_count("tokenizer.ggml.merges")) {
    return error("'{}': metadata 'tokenizer.ggml.merges' is not a list of texts", file.path());
  }
  return {};
}

// Returns the file's name for the method by which texts are split before byte pairs are merged. An empty
// string means that the file names no method; llama.cpp's choice may then differ from the model's training.
// Returns nothing if the tokenizer does not split texts.
std::optional<std::string> cut_before_merges(const GgufFile& file) {
  if (file.text("tokenizer.ggml.model") != "gpt2") return std::nullopt;
  return file.text("tokenizer.ggml.pre").value_or("");
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::string& path) {
  KVANT_RETURN_IF_ERROR(check_processor());
  quiet_library_log();
  std::string kind;
  std::optional<std::string> cut;
  {
    const auto file = GgufFile::open(path);
    if (!file.ok()) return file.error();
    KVANT_RETURN_IF_ERROR(check_vocabulary(**file));
    kind = (*file)->text("tokenizer.ggml.model").value_or("");
    cut = cut_before_merges(**file);
  }
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  params.n_gpu_layers = 0;
  ModelPointer model;
  const auto failure =
      catch_library_abort([&] { model.reset(llama_model_load_from_file(path.c_str(), params)); });
  if ((failure || model == nullptr) && cut && !cut->empty())
    return error(
        "llama.cpp cannot read the tokenizer of '{}', whose pre-tokenizer (tokenizer.ggml.pre) is '{}': it "
        "may be of a newer llama.cpp; -v shows what it says",
        path, *cut);
  if (failure || model == nullptr)
    return error("llama.cpp cannot read the tokenizer of '{}'; -v shows what it says", path);
  switch (llama_vocab_type(llama_model_get_vocab(model.get()))) {
    case LLAMA_VOCAB_TYPE_SPM:
    case LLAMA_VOCAB_TYPE_BPE:
    case LLAMA_VOCAB_TYPE_UGM:
    case LLAMA_VOCAB_TYPE_WPM:
      break;
    default:  // With some of these kinds, llama.cpp ends the program or never returns.
      return error("'{}' has a kind of vocabulary that no supported model has: tokenizer.ggml.model is '{}'",
                   path, kind);
  }
  if (cut && cut->empty())
    warn(
        fmt::format("'{}' doesn't name its pre-tokenizer (tokenizer.ggml.pre): texts are split into tokens "
                    "by a general rule, which may differ from the model's: convert the model again",
                    path));
  return std::unique_ptr<Tokenizer>(std::make_unique<GgufTokenizer>(path, std::move(model)));
}

}  // namespace kvant
