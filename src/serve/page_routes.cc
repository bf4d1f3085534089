#include "serve/page_routes.h"

#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "serve/api_response.h"
#include "serve/cache_json.h"
#include "serve/page_files.h"

namespace kvant {
namespace {

using httplib::Request;
using httplib::Response;
using Clock = std::chrono::steady_clock;

struct PageFile {
  const char* path;
  const char* type;
  const char* contents;
};

constexpr const char* kHtml = "text/html; charset=utf-8";
constexpr const char* kCss = "text/css; charset=utf-8";
constexpr const char* kScript = "text/javascript; charset=utf-8";

std::span<const PageFile> page_files() {
  static const PageFile kFiles[] = {
      {"/", kHtml, kServePageHtml},
      {"/page/style.css", kCss, kServePageStyle},
      {"/page/main.js", kScript, kServePageMain},
      {"/page/api.js", kScript, kServePageApi},
      {"/page/conversations.js", kScript, kServePageConversations},
      {"/page/chat.js", kScript, kServePageChat},
      {"/page/turn.js", kScript, kServePageTurn},
      {"/page/markdown.js", kScript, kServePageMarkdown},
      {"/page/probabilities.js", kScript, kServePageProbabilities},
      {"/page/cache.js", kScript, kServePageCache},
      {"/page/cache_grid.js", kScript, kServePageCacheGrid},
      {"/page/clipboard.js", kScript, kServePageClipboard},
      {"/page/settings.js", kScript, kServePageSettings},
  };
  return kFiles;
}

// The page loads nothing from elsewhere and runs nothing but its own files, whatever a model says; nobody may
// frame it.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

void send_file(Response& response, const PageFile& file) {
  response.set_header("Content-Security-Policy", kPolicy);
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("Referrer-Policy", "no-referrer");
  response.set_header("Cache-Control", "no-cache");  // another version of the program may have others
  response.set_content(file.contents, file.type);
}

// How old an answer of GET /cache may be, so that many pages ask the scheduler no more often than one.
constexpr std::chrono::milliseconds kFresh{200};

// The newest answer. Thread-safe.
class CacheAnswer {
 public:
  std::string text(ServeLoop& loop, const ServerInfo& info) {
    const std::lock_guard lock(mutex_);
    if (text_.empty() || Clock::now() - made_ > kFresh) {
      text_ = response_text(cache_json(info, loop.options(), loop.cache_view()));
      made_ = Clock::now();
    }
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
  Clock::time_point made_;
};

}  // namespace

bool is_page_path(const std::string& path) {
  return std::ranges::any_of(page_files(), [&](const PageFile& file) { return path == file.path; });
}

void add_page_routes(httplib::Server& server) {
  for (const PageFile& file : page_files())
    server.Get(file.path, [&file](const Request&, Response& response) { send_file(response, file); });
}

void add_cache_route(httplib::Server& server, ServeLoop& loop, const ServerInfo& info) {
  const auto answer = std::make_shared<CacheAnswer>();
  server.Get("/cache", [answer, &loop, &info](const Request&, Response& response) {
    response.set_content(answer->text(loop, info), "application/json");
  });
}

}  // namespace kvant
