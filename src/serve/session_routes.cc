#include "serve/session_routes.h"

#include <httplib.h>

#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <variant>

#include "base/json_reader.h"
#include "serve/http_reply.h"
#include "serve/json_fields.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;
using httplib::Request;
using httplib::Response;
using Reply = std::variant<Json, ApiError>;

ApiError api_error(const SessionError& failure) {
  using Kind = SessionError::Kind;
  switch (failure.kind) {
    case Kind::missing:
      return {.status = 404, .message = failure.message};
    case Kind::in_use:
      return {.status = 409, .message = failure.message, .retry_seconds = 1};
    case Kind::exists:
    case Kind::unusable:
      return {.status = 409, .message = failure.message};
    case Kind::no_memory:
      return {.status = 503, .message = failure.message, .retry_seconds = 1};
    case Kind::not_written:
      return {.status = 507, .message = failure.message};
  }
  return {.status = 500, .message = failure.message};
}

Json session_json(const SessionStatus& session) {
  Json json = {{"id", session.name},
               {"object", "session"},
               {"tokens", session.tokens},
               {"bytes", session.bytes},
               {"bits", session.in_memory ? Json(session.bits) : Json(nullptr)},
               {"in_memory", session.in_memory},
               {"on_disk", session.on_disk},
               {"saved", session.is_saved},
               {"running", session.is_running},
               {"file_bytes", session.file_bytes},
               {"last_use", session.last_use}};
  if (!session.problem.empty()) json["problem"] = session.problem;
  return json;
}

Reply session_reply(SessionStore& sessions, const std::string& name) {
  const auto status = sessions.status(name);
  return status ? Reply(session_json(*status)) : Reply(api_error(unknown_session(name)));
}

class SessionRoutes {
 public:
  explicit SessionRoutes(ServeLoop& loop) : loop_(loop) {}

  void list(Response& response) const {
    ask(response, [](Scheduler& scheduler) -> Reply {
      Json data = Json::array();
      for (const SessionStatus& session : scheduler.sessions()->list()) data.push_back(session_json(session));
      return Json{{"object", "list"}, {"data", std::move(data)}};
    });
  }

  void get(const std::string& name, Response& response) const {
    ask(response, [&](Scheduler& scheduler) { return session_reply(*scheduler.sessions(), name); });
  }

  void restore(const std::string& name, Response& response) const {
    await(name, response, [&](Scheduler& scheduler, SessionDone done) {
      scheduler.sessions()->restore(name, std::move(done));
    });
  }

  void fork(const std::string& name, const std::string& body, Response& response) const {
    const auto json = parse_json(body);
    if (!json.ok()) return send(response, ApiError{.message = json.error().message});
    JsonFields fields(*json);
    const auto given = fields.text("to");
    const std::string to = given.value_or("");
    if (!given) fields.fail_missing("to", "the name of the new session");
    if (!is_session_name(to)) fields.fail("to", kSessionNameRule);
    fields.leave_others();
    if (fields.error()) return send(response, *fields.error());
    await(to, response,
          [&](Scheduler& scheduler, SessionDone done) { scheduler.fork_session(name, to, std::move(done)); });
  }

  void remove(const std::string& name, Response& response) const {
    ask(response, [&](Scheduler& scheduler) -> Reply {
      if (const auto failure = scheduler.sessions()->remove(name)) return api_error(*failure);
      return Json{{"id", name}, {"object", "session.deleted"}, {"deleted", true}};
    });
  }

  void save(const std::string& name, Response& response) const {
    await(name, response,
          [&](Scheduler& scheduler, SessionDone done) { scheduler.sessions()->save(name, std::move(done)); });
  }

 private:
  void ask(Response& response, const std::function<Reply(Scheduler&)>& question) const {
    Reply reply;
    if (!reach(response, [&](Scheduler& scheduler) { reply = question(scheduler); })) return;
    if (const auto* failure = std::get_if<ApiError>(&reply)) return send(response, *failure);
    send(response, std::get<Json>(reply));
  }

  // Calls `action` between two steps of the scheduler. If that is impossible, sends an error and returns
  // false.
  bool reach(Response& response, const std::function<void(Scheduler&)>& action) const {
    ApiError failure{.status = 503, .message = "the server is shutting down", .retry_seconds = 1};
    bool reached = false;
    loop_.ask([&](Scheduler& scheduler) {
      reached = scheduler.sessions() != nullptr;
      if (reached) return action(scheduler);
      failure = {.status = 404, .message = "this server keeps no sessions: start it with --sessions DIR"};
    });
    if (!reached) send(response, failure);
    return reached;
  }

  // Starts a task and waits until it is done, without delaying other requests. The function then sends the
  // state of session `name`, or the error.
  void await(const std::string& name, Response& response,
             const std::function<void(Scheduler&, SessionDone)>& start) const {
    std::promise<std::optional<SessionError>> promise;
    const bool started = reach(response, [&](Scheduler& scheduler) {
      start(scheduler, [&](const std::optional<SessionError>& failure) { promise.set_value(failure); });
    });
    if (!started) return;
    if (const auto failure = promise.get_future().get()) return send(response, api_error(*failure));
    ask(response, [&](Scheduler& scheduler) { return session_reply(*scheduler.sessions(), name); });
  }

  ServeLoop& loop_;
};

}  // namespace

void add_session_routes(httplib::Server& server, ServeLoop& loop) {
  const SessionRoutes routes(loop);
  const auto named = [](const auto& answer) {
    return [answer](const Request& request, Response& response) {
      const std::string name = request.matches[1];
      if (is_session_name(name)) return answer(name, request, response);
      send(response, ApiError{.message = kSessionNameRule});
    };
  };
  using Name = const std::string&;
  add_get_route(server, "/v1/sessions",
                [routes](const Request&, Response& response) { routes.list(response); });
  server.Get(R"(/v1/sessions/([^/]+))",
             named([routes](Name name, const Request&, Response& response) { routes.get(name, response); }));
  server.Delete(R"(/v1/sessions/([^/]+))", named([routes](Name name, const Request&, Response& response) {
                  routes.remove(name, response);
                }));
  refuse_other_methods(server, R"(/v1/sessions/([^/]+))", "GET, HEAD, DELETE");
  add_post_route(
      server, R"(/v1/sessions/([^/]+)/save)",
      named([routes](Name name, const Request&, Response& response) { routes.save(name, response); }));
  add_post_route(
      server, R"(/v1/sessions/([^/]+)/restore)",
      named([routes](Name name, const Request&, Response& response) { routes.restore(name, response); }));
  add_post_route(server, R"(/v1/sessions/([^/]+)/fork)",
                 named([routes](Name name, const Request& request, Response& response) {
                   routes.fork(name, request.body, response);
                 }));
}

}  // namespace kvant
