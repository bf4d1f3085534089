#include "serve/http_server.h"

#include <arpa/inet.h>
#include <httplib.h>

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "base/json_reader.h"
#include "serve/api_key.h"
#include "serve/api_response.h"
#include "serve/completion_routes.h"
#include "serve/connection_server.h"
#include "serve/embeddings_routes.h"
#include "serve/http_reply.h"
#include "serve/infill_routes.h"
#include "serve/json_fields.h"
#include "serve/listening.h"
#include "serve/messages_routes.h"
#include "serve/metrics_text.h"
#include "serve/page_routes.h"
#include "serve/request_guard.h"
#include "serve/responses_routes.h"
#include "serve/session_routes.h"
#include "serve/template_route.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;
using httplib::Request;
using httplib::Response;

// Monitoring programs request these paths again and again, so the log has only their failures.
constexpr std::array kWatched = {"/health", "/metrics", "/slots", "/cache"};

const char* state_name(JobState state) {
  static constexpr const char* kNames[] = {"waiting", "reading", "generating", "done"};
  return kNames[static_cast<int>(state)];
}

// Returns a hint at the right path for a path with one "/v1" too many or too few. Users often give a client
// such an address.
std::string hint_at(const std::string& path) {
  std::string_view name = path;
  while (name.starts_with("/v1")) name.remove_prefix(3);
  constexpr std::array kNames = {"/chat/completions", "/completions", "/models",
                                 "/messages",         "/responses",   "/embeddings"};
  if (path == "/completion") return ": use /v1/completions, which has OpenAI's parameters";
  if (std::ranges::find(kNames, name) == kNames.end()) return "";
  return fmt::format(": use /v1{}, so give your client this server's address {} '/v1' at its end", name,
                     path.starts_with("/v1") ? "without" : "with");
}

Json slot_json(const RequestStatus& request, const ServerInfo& info) {
  return {{"id", request.id},
          {"model", info.model},
          {"state", state_name(request.state)},
          {"is_processing", request.state != JobState::waiting},
          {"prompt_tokens", request.prompt_tokens},
          {"read_tokens", request.read_tokens},
          {"cached_tokens", request.cached_tokens},
          {"generated_tokens", request.generated_tokens},
          {"answers", request.n_answers},
          {"kv_bytes", request.bytes},
          {"guard", request.guard ? guard_json(*request.guard) : Json(nullptr)}};
}

}  // namespace

std::string url_host(const std::string& host) {
  in6_addr address{};
  return inet_pton(AF_INET6, host.c_str(), &address) == 1 ? "[" + host + "]" : host;
}

class HttpServer::Routes {
 public:
  Routes(ServeLoop& loop, const Tokenizer& tokenizer, std::shared_ptr<const ChatTemplate> chat_template,
         std::vector<ServerInfo> served, HttpOptions options);

  Result<int> bind();
  void serve() { server_.serve(); }
  void stop() { server_.stop(); }

 private:
  void add_routes();
  ApiLimits limits() const;
  httplib::Server::HandlerResponse check(const Request& request, Response& response) const;
  std::string status_sentence(int status, const std::string& path) const;
  // Returns what is wrong with a request, whatever its path. Returns nothing if the request is acceptable.
  std::optional<ApiError> refusal(const Request& request) const;
  void log(const RequestRecord& record) const;
  Json model_json(int recipe, const std::string& name) const;
  Json kv_json(int recipe) const;
  void models(const Request& request, Response& response) const;
  void props(Response& response) const;
  void metrics(Response& response);
  void slots(Response& response);
  void health(Response& response) const;
  void tokenize(const Request& request, Response& response) const;
  void detokenize(const Request& request, Response& response) const;

  ServeLoop& loop_;
  const Tokenizer& tokenizer_;
  std::shared_ptr<const ChatTemplate> chat_template_;
  std::vector<ServerInfo> served_;
  HttpOptions options_;
  ConnectionServer server_;
};

HttpServer::Routes::Routes(ServeLoop& loop, const Tokenizer& tokenizer,
                           std::shared_ptr<const ChatTemplate> chat_template, std::vector<ServerInfo> served,
                           HttpOptions options)
    : loop_(loop),
      tokenizer_(tokenizer),
      chat_template_(std::move(chat_template)),
      served_(std::move(served)),
      options_(std::move(options)),
      server_({.workers = static_cast<std::size_t>(options_.requests),
               .connections = options_.connections,
               .max_body = options_.max_body}) {
  server_.set_normalizer(normalize_request);
  server_.set_check([this](const Request& request, Response& response) { return check(request, response); });
  server_.set_done([this](const RequestRecord& record) { log(record); });
  server_.set_refusal([this](const Request& request, Response& response) {
    if (response.body.empty())
      send(request, response,
           ApiError{.status = response.status, .message = status_sentence(response.status, request.path)});
  });
  server_.set_exception_handler([](const Request& request, Response& response, const std::exception_ptr&) {
    send(request, response, ApiError{.status = 500, .message = "the server failed to process this request"});
  });
  add_routes();
}

void HttpServer::Routes::add_routes() {
  add_completion_routes(server_, loop_, tokenizer_, limits(), served_);
  add_get_route(server_, "/v1/models", [this](const Request&, Response& response) {
    Json data = Json::array();
    for (std::size_t i = 0; i < served_.size(); ++i) {
      for (const std::string& name : names_of(served_[i]))
        data.push_back(model_json(static_cast<int>(i), name));
    }
    send(response, Json{{"object", "list"}, {"data", std::move(data)}});
  });
  add_get_route(server_, R"(/v1/models/(.+))",
                [this](const Request& request, Response& response) { models(request, response); });
  add_get_route(server_, "/health", [this](const Request&, Response& response) { health(response); });
  add_get_route(server_, "/metrics", [this](const Request&, Response& response) { metrics(response); });
  add_get_route(server_, "/props", [this](const Request&, Response& response) { props(response); });
  add_messages_route(server_, loop_, tokenizer_, limits(), served_);
  add_responses_route(server_, loop_, tokenizer_, limits(), served_);
  add_embeddings_route(server_, loop_, tokenizer_, limits(), served_);
  add_infill_route(server_, loop_, tokenizer_, limits(), served_);
  add_template_route(server_, chat_template_.get());
  add_cache_route(server_, loop_, served_);
  add_page_routes(server_);
  add_get_route(server_, "/slots", [this](const Request&, Response& response) { slots(response); });
  add_post_route(server_, "/tokenize",
                 [this](const Request& request, Response& response) { tokenize(request, response); });
  add_post_route(server_, "/detokenize",
                 [this](const Request& request, Response& response) { detokenize(request, response); });
  add_session_routes(server_, loop_);
}

Result<int> HttpServer::Routes::bind() {
  const auto address = free_address(options_.host, options_.port);
  if (!address.ok()) return address.error();
  server_.set_socket_options(share_no_port);
  const bool any = options_.port == 0;
  const int port = any ? server_.bind_to_any_port(*address) : options_.port;
  if (any ? port > 0 : server_.bind_to_port(*address, port)) return port;
  return port_is_taken(options_.host, options_.port);
}

// Returns a sentence for a request that no route has answered.
std::string HttpServer::Routes::status_sentence(int status, const std::string& path) const {
  switch (status) {
    case 404:
      return "there is nothing at " + path + hint_at(path);
    case 413:
      return fmt::format("the body is larger than the {} bytes that this server accepts", options_.max_body);
    case 414:
      return fmt::format("the URI is longer than the {} bytes that this server accepts",
                         CPPHTTPLIB_REQUEST_URI_MAX_LENGTH);
    case 416:
      return "the header Range asks for bytes that the response does not have: leave it out";
    case 431:
      return fmt::format(
          "the request's head has more than the {} bytes or {} fields that this server accepts", kLargestHead,
          kMostFields);
    case 501:
      return "this server does not support the request's method: use GET, HEAD, POST, DELETE or OPTIONS";
    case 505:
      return "this server supports HTTP/1.1 and HTTP/1.0: make your client use one of them";
    default:
      return "the request is not valid HTTP: each line of its head must end with CR LF, "
             "Content-Length may come only once, and Transfer-Encoding can only be chunked";
  }
}

std::optional<ApiError> HttpServer::Routes::refusal(const Request& request) const {
  if (!options_.api_key.empty() && request.path != "/health" && !is_page_path(request.path) &&
      !is_authorized(options_.api_key, request.get_header_value("Authorization")) &&
      !equal_in_constant_time(options_.api_key, request.get_header_value("x-api-key")))
    return ApiError{.status = 401, .message = "the API key is missing or wrong"};
  // A web page can make its own name point to this machine (DNS rebinding), but the browser still sends that
  // name as Host. HTTP/1.0 needs no Host.
  const bool says_host = request.has_header("Host");
  if (!says_host && request.version != "HTTP/1.0")
    return ApiError{.status = 400, .message = "the request has no header Host, which HTTP/1.1 requires"};
  if (request.get_header_value_count("Host") > 1)
    return ApiError{.status = 400, .message = "the request has the header Host more than once"};
  if (options_.api_key.empty() && is_loopback(url_host(options_.host)) && says_host &&
      !is_loopback(request.get_header_value("Host")))
    return ApiError{.status = 403,
                    .message = "without an API key, this server accepts requests to localhost only"};
  if (const std::string coding = request.get_header_value("Content-Encoding");
      !coding.empty() && coding != "identity")
    return ApiError{
        .status = 415,
        .message = fmt::format(
            "this server does not support the Content-Encoding '{}': send the JSON without it", coding)};
  if (request.method == "POST" && !is_json(request))
    return ApiError{.status = 415, .message = "the body must be JSON: send 'Content-Type: application/json'"};
  return std::nullopt;
}

// The check runs before a body is read. A foreign web page can make a browser send texts and forms to this
// machine without a preflight. The page can send JSON only if --cors allows it.
httplib::Server::HandlerResponse HttpServer::Routes::check(const Request& request, Response& response) const {
  using httplib::Server;
  options_.cors.allow(request, response);
  if (is_messages_path(request.path)) response.set_header("request-id", request_id(response));
  if (request.method == "OPTIONS") {  // browsers send no key with a preflight
    response.status = 204;
    response.set_header("Allow", "GET, HEAD, POST, DELETE, OPTIONS");
    return Server::HandlerResponse::Handled;
  }
  const auto wrong = refusal(request);
  if (!wrong) return Server::HandlerResponse::Unhandled;
  if (wrong->status == 401) response.set_header("WWW-Authenticate", "Bearer");
  send(request, response, *wrong);
  return Server::HandlerResponse::Handled;
}

void HttpServer::Routes::log(const RequestRecord& record) const {
  const bool is_watched =
      std::ranges::find(kWatched, record.path) != kWatched.end() || is_page_path(record.path);
  if (options_.log == nullptr || record.method.empty() || (is_watched && record.status < 400)) return;
  options_.log->request(record);
}

ApiLimits HttpServer::Routes::limits() const {
  return {.n_vocab = served_.front().n_vocab,
          .n_embd = served_.front().n_embd,
          .chat_template = chat_template_.get(),
          .log = options_.log};
}

Json HttpServer::Routes::model_json(int recipe, const std::string& name) const {
  return {{"id", name},
          {"object", "model"},
          {"created", 0},
          {"owned_by", "kvant"},
          {"max_model_len", loop_.options(recipe).context},
          {"kv_recipe", served_[recipe].recipe}};
}

void HttpServer::Routes::models(const Request& request, Response& response) const {
  const std::string name = request.matches[1];
  const int recipe = recipe_of(served_, name);
  if (recipe >= 0) return send(response, model_json(recipe, answering_name(served_[recipe], name)));
  send(response, unknown_model(name, served_));
}

void HttpServer::Routes::health(Response& response) const {
  if (!loop_.refuses_requests()) return send(response, Json{{"status", "ok"}});
  send(response, ApiError{.status = 503, .message = "the server is shutting down", .retry_seconds = 1});
}

void HttpServer::Routes::metrics(Response& response) {
  std::vector<RecipeMetrics> recipes;
  for (std::size_t i = 0; i < served_.size(); ++i) {
    const int recipe = static_cast<int>(i);
    recipes.push_back({served_[i], loop_.options(recipe), loop_.status(recipe)});
  }
  response.set_content(metrics_text(recipes), "text/plain; version=0.0.4");
}

Json HttpServer::Routes::kv_json(int recipe) const {
  const ServerInfo& info = served_[recipe];
  const SchedulerOptions& o = loop_.options(recipe);
  Json json = {{"recipe", info.recipe},
               {"bits", info.bits},
               {"kernels", info.kernels},
               {"limit_bytes", o.memory},
               {"sequence_bytes", o.sequence_bytes(o.context)}};
  if (!info.device.empty()) json["device"] = info.device;
  return json;
}

void HttpServer::Routes::props(Response& response) const {
  const SchedulerOptions& o = loop_.options();
  const ServerInfo& info = served_.front();
  const bool compares = served_.size() > 1;
  send(response,
       Json{{"model", info.model},
            {"model_path", info.model_path},
            {"description", info.description},
            {"fingerprint", info.fingerprint},
            {"weight_bytes", info.weight_bytes},
            {"total_slots", o.parallel},
            {"default_generation_settings",
             {{"n_ctx", o.context}, {"temperature", 1.0}, {"top_p", 1.0}, {"top_k", 0}, {"min_p", 0.0}}},
            {"tools", chat_template_ != nullptr && chat_template_->has_tools()},
            {"queue", o.queue},
            {"prompt_step", o.prompt_step},
            {"answer_pause", o.answer_pause},
            {"guard", o.shadow_plan != nullptr},
            {"kv", kv_json(0)},
            {"compare",
             compares ? Json{{"model", served_.back().model}, {"kv", kv_json(1)}} : Json(nullptr)}});
}

void HttpServer::Routes::slots(Response& response) {
  Json slots = Json::array();
  for (std::size_t i = 0; i < served_.size(); ++i) {
    for (const RequestStatus& request : loop_.status(static_cast<int>(i)).requests)
      slots.push_back(slot_json(request, served_[i]));
  }
  send(response, slots);
}

void HttpServer::Routes::tokenize(const Request& request, Response& response) const {
  const auto body = parse_json(request.body);
  if (!body.ok()) return send(response, ApiError{.message = body.error().message});
  JsonFields fields(*body);
  const auto content = fields.text("content");
  if (!content) fields.fail_missing("content", "a text");
  const bool add_special = fields.boolean("add_special").value_or(false);
  const bool parse_special = fields.boolean("parse_special").value_or(true);
  const bool with_pieces = fields.boolean("with_pieces").value_or(false);
  fields.leave_others();
  if (fields.error()) return send(response, *fields.error());
  const auto tokens = tokenizer_.encode(*content, add_special, parse_special);
  if (!tokens.ok())
    return send(response, ApiError{.message = tokens.error().message, .parameter = "content"});
  Json list = Json::array();
  for (const std::int32_t token : *tokens) {
    if (with_pieces) {
      list.push_back({{"id", token}, {"piece", tokenizer_.piece(token)}});
    } else {
      list.push_back(token);
    }
  }
  send(response, Json{{"tokens", std::move(list)}});
}

void HttpServer::Routes::detokenize(const Request& request, Response& response) const {
  const auto body = parse_json(request.body);
  if (!body.ok()) return send(response, ApiError{.message = body.error().message});
  JsonFields fields(*body);
  const auto tokens = numbers_member(*body, "tokens");
  if (fields.list("tokens", "tokens") == nullptr) fields.fail_missing("tokens", "a list of tokens");
  fields.leave_others();
  if (!tokens) fields.fail("tokens", "'tokens' must be a list of tokens", kInvalidType);
  std::string text;
  for (const double token : tokens.value_or(std::vector<double>())) {
    if (!(token >= 0 && token < served_.front().n_vocab))
      fields.fail("tokens",
                  fmt::format("a token is not in the model's vocabulary of {}", served_.front().n_vocab));
    if (fields.error()) break;
    text += tokenizer_.piece(static_cast<std::int32_t>(token));
  }
  if (fields.error()) return send(response, *fields.error());
  send(response, Json{{"content", text}});
}

Status check_address(const std::string& host, int port) {
  const auto address = free_address(host, port);
  return address.ok() ? Status() : Status(address.error());
}

HttpServer::HttpServer(ServeLoop& loop, const Tokenizer& tokenizer,
                       std::shared_ptr<const ChatTemplate> chat_template, std::vector<ServerInfo> served,
                       HttpOptions options)
    : routes_(std::make_unique<Routes>(loop, tokenizer, std::move(chat_template), std::move(served),
                                       std::move(options))) {}
HttpServer::~HttpServer() = default;

Result<int> HttpServer::bind() {
  return routes_->bind();
}
void HttpServer::serve() {
  routes_->serve();
}
void HttpServer::stop() {
  routes_->stop();
}

}  // namespace kvant
