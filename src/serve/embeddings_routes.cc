#include "serve/embeddings_routes.h"

#include <fmt/format.h>
#include <httplib.h>

#include <bit>
#include <cstring>

#include "base/json_reader.h"
#include "serve/answer_delivery.h"
#include "serve/exchange.h"
#include "serve/http_reply.h"
#include "serve/parameter_rule.h"
#include "serve/text_prompts.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;
using httplib::Request;
using httplib::Response;

static_assert(std::endian::native == std::endian::little, "clients expect little-endian floats");

Json response_json(const std::vector<std::vector<float>>& embeddings, const EmbeddingsRequest& wanted,
                   const std::string& model, const TokenUsage& usage) {
  Json data = Json::array();
  for (std::size_t i = 0; i < embeddings.size(); ++i) {
    Json vector = wanted.base64 ? Json(base64_of(embeddings[i])) : Json(embeddings[i]);
    data.push_back({{"object", "embedding"}, {"index", i}, {"embedding", std::move(vector)}});
  }
  return {{"object", "list"},
          {"data", std::move(data)},
          {"model", model},
          {"usage", {{"prompt_tokens", usage.prompt}, {"total_tokens", usage.prompt}}}};
}

void answer(const Request& request, Response& response, ServeLoop& loop, EmbeddingsRequest wanted) {
  std::vector<std::vector<float>> embeddings(wanted.request.prompts.size());
  const std::string model = wanted.request.model;
  auto started = Exchange::start(loop, std::move(wanted.request));
  if (const auto* refused = std::get_if<ApiError>(&started)) return send(response, *refused);
  Exchange& exchange = *std::get<std::shared_ptr<Exchange>>(started);
  if (!read_answers(request, exchange,
                    [&](int choice, const AnswerPart& part) { embeddings[choice] = part.embedding; }))
    return;
  if (const auto failure = exchange.failure()) return send(response, *failure);
  const std::size_t n = embeddings.front().size();
  if (wanted.dimensions > 0 && static_cast<std::size_t>(wanted.dimensions) != n)
    return send(response, ApiError{.message = fmt::format("'dimensions' must be {}: the model's vectors are "
                                                          "not made shorter",
                                                          n),
                                   .parameter = "dimensions"});
  send(response, response_json(embeddings, wanted, model, exchange.usage()));
}

}  // namespace

std::string base64_of(std::span<const float> values) {
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<unsigned char> bytes(values.size_bytes());
  std::memcpy(bytes.data(), values.data(), bytes.size());
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    unsigned group = bytes[i] << 16U;
    if (i + 1 < bytes.size()) group |= bytes[i + 1] << 8U;
    if (i + 2 < bytes.size()) group |= bytes[i + 2];
    for (int digit = 0; digit < 4; ++digit)
      text += i + digit > bytes.size() ? '=' : kDigits[group >> (18 - 6 * digit) & 63U];
  }
  return text;
}

std::variant<EmbeddingsRequest, ApiError> parse_embeddings_request(const Json& body,
                                                                   const Tokenizer& tokenizer,
                                                                   const ApiLimits& limits) {
  JsonFields fields(body);
  EmbeddingsRequest wanted;
  wanted.request.model = fields.text("model").value_or("");
  const std::string client = fields.text("user").value_or("");
  wanted.base64 =
      fields.word("encoding_format", {"float", "base64"}, JsonFields::Missing::is_first) == "base64";
  wanted.dimensions = static_cast<int>(fields.integer("dimensions", 1, INT32_MAX).value_or(0));
  // Texts are text: control tokens in them are none.
  std::vector<TextPrompt> inputs =
      read_prompts(fields, "input", {.add_special = true, .parse_special = false}, tokenizer, limits);
  apply_parameter_rule(fields, limits.log);
  if (fields.error()) return *fields.error();
  for (TextPrompt& input : inputs) {
    GenerationRequest& prompt = wanted.request.prompts.emplace_back();
    prompt.embeds = true;
    prompt.generation.max_tokens = 0;
    prompt.client = client;
    prompt.prompt = std::move(input.tokens);
  }
  return wanted;
}

void add_embeddings_route(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                          const ApiLimits& limits, std::span<const ServerInfo> served) {
  add_post_route(server, "/v1/embeddings",
                 [&loop, &tokenizer, limits, served](const Request& request, Response& response) {
                   const auto body = parse_json(request.body);
                   if (!body.ok()) return send(response, ApiError{.message = body.error().message});
                   auto parsed = parse_embeddings_request(*body, tokenizer, limits);
                   if (const auto* wrong = std::get_if<ApiError>(&parsed)) return send(response, *wrong);
                   auto& wanted = std::get<EmbeddingsRequest>(parsed);
                   const auto recipe = address(wanted.request, served, request.remote_addr);
                   if (const auto* unknown = std::get_if<ApiError>(&recipe)) return send(response, *unknown);
                   answer(request, response, loop, std::move(wanted));
                 });
}

}  // namespace kvant
