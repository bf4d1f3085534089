// Fuzzes the bodies of HTTP requests with libFuzzer. Any bytes, sent to any endpoint that generates, must
// give either requests that a scheduler can take or an error that a client can read. cmake/fuzz.cmake builds
// the program; fuzz/seeds/api has the seeds.
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/json_reader.h"
#include "model/grammar.h"
#include "model/sampler.h"
#include "model/tiny_model.h"
#include "serve/api_request.h"
#include "serve/embeddings_routes.h"
#include "serve/infill_routes.h"
#include "serve/json_fields.h"
#include "serve/messages_api.h"
#include "serve/messages_error.h"
#include "serve/responses_request.h"

namespace {

constexpr int kVocabulary = 256;

void check(bool condition) {
  if (!condition) __builtin_trap();
}

// ByteTokenizer has a token for each byte. Grammars use the vocabulary of a tiny model.
class ByteTokenizer final : public kvant::Tokenizer {
 public:
  ByteTokenizer() {
    const auto file = kvant::write_tiny_model({.n_layers = 1});
    vocabulary_ = kvant::Tokenizer::load(file->path()).value();
    grammars_ = kvant::Grammar::vocabulary(*vocabulary_);
  }
  const llama_model* library_model() const override { return vocabulary_->library_model(); }
  kvant::Result<std::vector<std::int32_t>> encode(const std::string& text, bool, bool) const override {
    return std::vector<std::int32_t>(text.begin(), text.end());
  }
  std::string piece(std::int32_t token) const override { return {static_cast<char>(token)}; }
  bool ends_generation(std::int32_t token) const override { return token == 0; }
  kvant::FimTokens fim_tokens() const override { return {.prefix = 1, .suffix = 2, .middle = 3}; }

 private:
  std::unique_ptr<kvant::Tokenizer> vocabulary_;
  // The vocabulary is kept, because making it for each input would be slow.
  std::shared_ptr<const kvant::GrammarVocabulary> grammars_;
};

void check_error(const kvant::ApiError& error) {
  check(error.status >= 400 && error.status < 500 && !error.message.empty());
  check(kvant::parse_json(error.body()).ok() &&
        kvant::parse_json(kvant::messages_error(error, "req-1")).ok());
}

void check_parsed(const kvant::ParsedRequest& parsed) {
  if (const auto* error = std::get_if<kvant::ApiError>(&parsed)) return check_error(*error);
  const auto& request = std::get<kvant::ApiRequest>(parsed);
  check(!request.prompts.empty());
  for (const kvant::GenerationRequest& prompt : request.prompts) {
    check(prompt.n_answers > 0 && prompt.generation.max_tokens >= -1);
    check(prompt.generation.stops.size() <= kvant::kMaxStops && prompt.generation.alternatives >= 0);
    for (const std::string& stop : prompt.generation.stops) check(!stop.empty());
    check(kvant::Sampler::make(prompt.sampling).ok());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const ByteTokenizer kTokenizer;
  static const auto kTemplate = kvant::ChatTemplate::open(kTokenizer, "").value();
  const auto body = kvant::parse_json({reinterpret_cast<const char*>(data), size});
  if (!body.ok()) {
    check(!body.error().message.empty());
    return 0;
  }
  check_parsed(kvant::parse_chat_request(*body, kTokenizer,
                                         {.n_vocab = kVocabulary, .chat_template = kTemplate.get()}));
  check_parsed(kvant::parse_completion_request(*body, kTokenizer, {.n_vocab = kVocabulary}));
  check_parsed(kvant::parse_messages_request(*body, kTokenizer, {.chat_template = kTemplate.get()}));
  check_parsed(kvant::parse_infill_request(*body, kTokenizer, {.n_vocab = kVocabulary}));
  const auto embeddings = kvant::parse_embeddings_request(*body, kTokenizer, {.n_vocab = kVocabulary});
  if (const auto* error = std::get_if<kvant::ApiError>(&embeddings)) check_error(*error);
  check_parsed(kvant::parse_responses_request(*body, kTokenizer, {.chat_template = kTemplate.get()}));
  kvant::JsonFields fork(*body);
  (void)fork.text("to");
  fork.leave_others();
  if (fork.error()) check_error(*fork.error());
  return 0;
}
