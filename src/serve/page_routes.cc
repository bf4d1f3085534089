#include "serve/page_routes.h"

#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "base/embedded_file.h"
#include "serve/api_response.h"
#include "serve/cache_json.h"
#include "serve/http_reply.h"

namespace kvant {

// cmake/embedded_files.cmake generates this list from the files of page/.
extern const std::span<const EmbeddedFile> kServePageFiles;

namespace {

using httplib::Request;
using httplib::Response;
using Clock = std::chrono::steady_clock;

struct PageFile {
  std::string path;
  const char* type;
  const char* contents;
};

const char* type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  return "text/javascript; charset=utf-8";
}

std::span<const PageFile> page_files() {
  static const std::vector<PageFile> kFiles = [] {
    std::vector<PageFile> files;
    for (const EmbeddedFile& file : kServePageFiles) {
      const std::string name = file.name;
      files.push_back({name == "page.html" ? "/" : "/page/" + name, type_of(name), file.contents});
    }
    return files;
  }();
  return kFiles;
}

// The policy allows the page to run only its own files and to load nothing from elsewhere, whatever text a
// model generates. Other pages must not frame the page.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

void send_file(Response& response, const PageFile& file) {
  response.set_header("Content-Security-Policy", kPolicy);
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("Referrer-Policy", "no-referrer");
  response.set_header("Cache-Control", "no-cache");  // another version of the program may have other files
  response.set_content(file.contents, file.type);
}

// A response of GET /cache may be reused until this age. Many open pages therefore load the scheduler no more
// than a single page.
constexpr std::chrono::milliseconds kFresh{200};

// CacheAnswer keeps the newest response of GET /cache. The class is thread-safe.
class CacheAnswer {
 public:
  std::string text(ServeLoop& loop, const ServerInfo& info, int recipe) {
    const std::lock_guard lock(mutex_);
    if (text_.empty() || Clock::now() - made_ > kFresh) {
      text_ = response_text(cache_json(info, loop.options(recipe), loop.cache_view(recipe)));
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
    add_get_route(server, file.path,
                  [&file](const Request&, Response& response) { send_file(response, file); });
}

void add_cache_route(httplib::Server& server, ServeLoop& loop, std::span<const ServerInfo> served) {
  const auto answers = std::make_shared<std::vector<CacheAnswer>>(served.size());
  add_get_route(server, "/cache", [answers, &loop, served](const Request& request, Response& response) {
    const std::string model = request.get_param_value("model");
    const int recipe = recipe_of(served, model);
    if (recipe < 0) return send(response, unknown_model(model, served));
    response.set_content((*answers)[recipe].text(loop, served[recipe], recipe), "application/json");
  });
}

}  // namespace kvant
