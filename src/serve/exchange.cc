#include "serve/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace kvant {
namespace {

// kPause separates two checks for new parts of several prompts' completions.
constexpr std::chrono::milliseconds kPause{5};

ApiError api_error(const Refusal& refusal, const char* parameter) {
  switch (refusal.reason) {
    case Refusal::Reason::busy:
      return {.status = 503, .message = refusal.message, .retry_seconds = refusal.retry_seconds};
    case Refusal::Reason::conflict:
      return {.status = 409, .message = refusal.message, .retry_seconds = refusal.retry_seconds};
    case Refusal::Reason::too_long:
      return context_overflow({refusal.prompt_tokens, refusal.context, parameter});
    case Refusal::Reason::wrong:
      break;
  }
  return {.message = refusal.message, .parameter = refusal.parameter};
}

}  // namespace

std::variant<int, ApiError> address(ApiRequest& request, std::span<const ServerInfo> served,
                                    const std::string& client) {
  const int recipe = recipe_of(served, request.model);
  if (recipe < 0) return unknown_model(request.model, served);
  for (GenerationRequest& prompt : request.prompts) {
    if (recipe > 0 && !prompt.session.empty()) {
      return ApiError{.message = fmt::format("sessions are for the model '{}' only, not for '{}'",
                                             served.front().model, served[recipe].model),
                      .parameter = "session"};
    }
    prompt.recipe = recipe;
    prompt.client = client + "/" + prompt.client;
  }
  request.model = answering_name(served[recipe], request.model);
  return recipe;
}

std::variant<std::shared_ptr<Exchange>, ApiError> Exchange::start(ServeLoop& loop, ApiRequest request) {
  auto exchange = std::make_shared<Exchange>(request.prompts.front().n_answers, request.model);
  for (std::size_t i = 0; i < request.prompts.size(); ++i)
    exchange->streams_.push_back(std::make_shared<AnswerStream>());
  const char* parameter = request.parameter;
  const std::optional<Refusal> refusal = loop.submit(std::move(request.prompts), exchange->streams_);
  if (refusal) return api_error(*refusal, parameter);
  return exchange;
}

Exchange::~Exchange() {
  for (const auto& stream : streams_) stream->cancel();
}

AnswerStream::Next Exchange::read(std::chrono::milliseconds patience, int& choice, AnswerPart& part) {
  using Next = AnswerStream::Next;
  const bool is_one = streams_.size() == 1;
  std::size_t n_closed = 0;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    const std::size_t s = (next_ + i) % streams_.size();
    const Next next = streams_[s]->read(is_one ? patience : std::chrono::milliseconds(0), part);
    if (next == Next::closed) ++n_closed;
    if (next != Next::part) continue;
    choice = static_cast<int>(s) * n_answers_ + part.answer;
    next_ = (s + 1) % streams_.size();
    return Next::part;
  }
  if (n_closed == streams_.size()) return Next::closed;
  if (!is_one) std::this_thread::sleep_for(std::min(patience, kPause));
  return Next::nothing_yet;
}

std::optional<ApiError> Exchange::failure() const {
  for (const auto& stream : streams_) {
    if (stream->failure())
      return ApiError{.status = stream->failed_by_request() ? 400 : 500,
                      .message = stream->failure()->message};
  }
  return std::nullopt;
}

bool Exchange::has_begun() const {
  return std::ranges::all_of(streams_, [](const auto& stream) { return stream->usage().prompt > 0; });
}

TokenUsage Exchange::usage() const {
  TokenUsage total;
  for (const auto& stream : streams_) {
    const TokenUsage usage = stream->usage();
    total.prompt += usage.prompt;
    total.cached += usage.cached;
    total.generated += usage.generated;
    total.drafted += usage.drafted;
    total.accepted += usage.accepted;
    if (!usage.guard) continue;
    if (!total.guard) total.guard.emplace();
    total.guard->tokens += usage.guard->tokens;
    total.guard->differing += usage.guard->differing;
    total.guard->kld_sum += usage.guard->kld_sum;
  }
  return total;
}

}  // namespace kvant
