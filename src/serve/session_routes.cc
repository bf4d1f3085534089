#include "serve/session_routes.h"

#include <httplib.h>

#include <functional>
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
  return status ? Reply(session_json(*status)) : Reply(unknown_session(name));
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
    ask(response, [&](Scheduler& scheduler) -> Reply {
      if (auto failure = scheduler.restore_session(name)) return std::move(*failure);
      return session_reply(*scheduler.sessions(), name);
    });
  }

  void fork(const std::string& name, const std::string& body, Response& response) const {
    const auto json = parse_json(body);
    if (!json.ok()) return send(response, ApiError{.message = json.error().message});
    JsonFields fields(*json);
    const std::string to = fields.text("to").value_or("");
    if (!is_session_name(to)) fields.fail("to", kSessionNameRule);
    fields.refuse_others();
    if (fields.error()) return send(response, *fields.error());
    ask(response, [&](Scheduler& scheduler) -> Reply {
      if (auto failure = scheduler.fork_session(name, to)) return std::move(*failure);
      return session_reply(*scheduler.sessions(), to);
    });
  }

  void remove(const std::string& name, Response& response) const {
    ask(response, [&](Scheduler& scheduler) -> Reply {
      if (auto failure = scheduler.sessions()->remove(name)) return std::move(*failure);
      return Json{{"id", name}, {"object", "session.deleted"}, {"deleted", true}};
    });
  }

  // The file is written by this thread: the others' answers go on.
  void save(const std::string& name, Response& response) const {
    SessionStore::Save save;
    const bool started = ask(response, [&](Scheduler& scheduler) -> Reply {
      if (auto failure = scheduler.sessions()->start_save(name, save)) return std::move(*failure);
      return Json();
    });
    if (!started) return;
    const Status written = save.write();
    ask(response, [&](Scheduler& scheduler) -> Reply {
      scheduler.sessions()->finish_save(save, written.ok());
      if (!written.ok()) return ApiError{.status = 507, .message = written.error().message};
      return session_reply(*scheduler.sessions(), name);
    });
  }

 private:
  // Sends what is answered. Returns whether that is not an error.
  bool ask(Response& response, const std::function<Reply(Scheduler&)>& question) const {
    Reply reply = ApiError{.status = 503, .message = "the server is ending", .retry_seconds = 1};
    loop_.ask([&](Scheduler& scheduler) {
      if (scheduler.sessions() == nullptr) {
        reply =
            ApiError{.status = 404, .message = "this server keeps no sessions: start it with --sessions DIR"};
      } else {
        reply = question(scheduler);
      }
    });
    if (const auto* failure = std::get_if<ApiError>(&reply)) {
      send(response, *failure);
      return false;
    }
    send(response, std::get<Json>(reply));
    return true;
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
  server.Get("/v1/sessions", [routes](const Request&, Response& response) { routes.list(response); });
  server.Get(R"(/v1/sessions/([^/]+))",
             named([routes](Name name, const Request&, Response& response) { routes.get(name, response); }));
  server.Delete(R"(/v1/sessions/([^/]+))", named([routes](Name name, const Request&, Response& response) {
                  routes.remove(name, response);
                }));
  server.Post(R"(/v1/sessions/([^/]+)/save)", named([routes](Name name, const Request&, Response& response) {
                routes.save(name, response);
              }));
  server.Post(
      R"(/v1/sessions/([^/]+)/restore)",
      named([routes](Name name, const Request&, Response& response) { routes.restore(name, response); }));
  server.Post(R"(/v1/sessions/([^/]+)/fork)",
              named([routes](Name name, const Request& request, Response& response) {
                routes.fork(name, request.body, response);
              }));
}

}  // namespace kvant
