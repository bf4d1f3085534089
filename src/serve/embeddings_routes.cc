#include "serve/embeddings_routes.h"

#include <fmt/format.h>

#include <bit>
#include <cstddef>

#include "serve/answer_route.h"
#include "serve/json_fields.h"
#include "serve/parameter_rule.h"
#include "serve/text_prompts.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "clients expect little-endian floats");

class EmbeddingsAnswers final : public ApiAnswers {
 public:
  explicit EmbeddingsAnswers(const ApiRequest& wanted)
      : model_(wanted.model), base64_(wanted.base64), vectors_(wanted.prompts.size()) {}

  void add(int choice, const AnswerPart& part) override { vectors_[choice] = part.embedding; }
  Json whole(const TokenUsage& usage) override {
    Json data = Json::array();
    for (std::size_t i = 0; i < vectors_.size(); ++i) {
      Json vector = base64_ ? Json(base64_of(vectors_[i])) : Json(vectors_[i]);
      data.push_back({{"object", "embedding"}, {"index", i}, {"embedding", std::move(vector)}});
    }
    return {{"object", "list"},
            {"data", std::move(data)},
            {"model", model_},
            {"usage", {{"prompt_tokens", usage.prompt}, {"total_tokens", usage.prompt}}}};
  }

  // Requests for embeddings are never streamed, so the event functions are unused.
  std::string part_events(int, const AnswerPart&) override { return ""; }
  std::string end_events(const TokenUsage&) override { return ""; }
  std::string failure_events(const ApiError&) override { return ""; }

 private:
  std::string model_;
  bool base64_;
  std::vector<std::vector<float>> vectors_;
};

}  // namespace

std::string base64_of(std::span<const float> values) {
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::span<const std::byte> bytes = std::as_bytes(values);
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    unsigned group = std::to_integer<unsigned>(bytes[i]) << 16U;
    if (i + 1 < bytes.size()) group |= std::to_integer<unsigned>(bytes[i + 1]) << 8U;
    if (i + 2 < bytes.size()) group |= std::to_integer<unsigned>(bytes[i + 2]);
    for (int digit = 0; digit < 4; ++digit)
      text += i + digit > bytes.size() ? '=' : kDigits[group >> (18 - 6 * digit) & 63U];
  }
  return text;
}

ParsedRequest parse_embeddings_request(const Json& body, const Tokenizer& tokenizer,
                                       const ApiLimits& limits) {
  JsonFields fields(body);
  ApiRequest wanted{.parameter = "input"};
  wanted.model = fields.text("model").value_or("");
  const std::string client = fields.text("user").value_or("");
  wanted.base64 =
      fields.word("encoding_format", {"float", "base64"}, JsonFields::Missing::is_first) == "base64";
  const auto dimensions = fields.integer("dimensions", 1, INT32_MAX);
  if (dimensions && *dimensions != limits.n_embd)
    fields.fail("dimensions", fmt::format("'dimensions' must be {}: the model's vectors cannot be shortened",
                                          limits.n_embd));
  // Inputs are plain text, so the text of a control token in an input stays text.
  std::vector<TextPrompt> inputs =
      read_prompts(fields, "input", {.add_special = true, .parse_special = false}, tokenizer, limits);
  apply_parameter_rule(fields, limits.log);
  if (fields.error()) return *fields.error();
  for (TextPrompt& input : inputs) {
    GenerationRequest& prompt = wanted.prompts.emplace_back();
    prompt.embeds = true;
    prompt.generation.max_tokens = 0;
    prompt.client = client;
    prompt.prompt = std::move(input.tokens);
  }
  return wanted;
}

void add_embeddings_route(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                          const ApiLimits& limits, std::span<const ServerInfo> served) {
  add_answer_route(
      server, "/v1/embeddings", loop, served,
      {.parse = [&tokenizer,
                 limits](const Json& body) { return parse_embeddings_request(body, tokenizer, limits); },
       .answers = [](const Json&, const ApiRequest& wanted, const ServerInfo&,
                     const std::string&) { return std::make_unique<EmbeddingsAnswers>(wanted); }});
}

}  // namespace kvant
