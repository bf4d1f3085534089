// kvant serve offers a model over HTTP. This file parses the options, divides the memory between caches, and
// handles signals; src/serve does the rest.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <set>
#include <thread>

#include "base/heap.h"
#include "base/progress.h"
#include "base/text_file.h"
#include "base/warn.h"
#include "calibrate/size_budget.h"
#include "cli/command.h"
#include "cli/draft_option.h"
#include "cli/model_options.h"
#include "cli/session_coding_option.h"
#include "eval/cache_size.h"
#include "generate/prompt_steps.h"
#include "recipe/recipe.h"
#include "serve/answer_guard.h"
#include "serve/http_server.h"
#include "serve/request_guard.h"
#include "serve/scheduler.h"
#include "serve/scheduler_memory.h"
#include "serve/serve_loop.h"
#include "serve/server_log.h"
#include "task/session.h"
#include "task/session_coding.h"

namespace kvant {
namespace {

// The server accepts kSpareRequests requests beyond the requests that run or wait. The spare requests ask for
// a status, or are refused until the server has room again.
constexpr int kSpareRequests = 64;
// The server opens at most kMostConnections connections, and fewer if the system allows too few open files.
// kOtherFiles of the allowed files are left for other uses.
constexpr rlim_t kMostConnections = 65536;
constexpr rlim_t kOtherFiles = 256;
// A request's body may have kBodyBytesPerToken bytes for each token of the context, which exceeds what texts
// and their JSON need.
constexpr std::size_t kBodyBytesPerToken = 256;
constexpr std::size_t kSmallestBodyLimit = 1 << 20;
// By default the cache may take kMemoryShare of the memory that is free when the server starts. The share is
// larger on a device, because other programs need less of its memory.
constexpr double kMemoryShare = 0.5, kDeviceMemoryShare = 0.8;
// By default the server reads kPromptStep tokens of prompts between two tokens of completions. On a device,
// the number is adjusted to fit into kAnswerPause.
constexpr int kPromptStep = 64, kFirstDevicePromptStep = 512;
constexpr double kAnswerPause = 0.1;  // seconds
// A step has kLonePromptStep tokens of prompts while no client waits for the tokens of a completion. Large
// steps are faster, particularly on a device.
constexpr int kLonePromptStep = 512, kDeviceLonePromptStep = 1024;

struct ServeOptions {
  ModelOptions common;
  HttpOptions http;
  // Lists the model's names; an empty list uses the name of the model's file.
  std::vector<std::string> aliases;
  bool any_model = false;
  std::string memory;
  // Names a second recipe; an empty name serves only one recipe.
  std::string compare;
  // Names the folder of sessions; an empty name keeps no sessions.
  std::string sessions;
  std::string session_coding = kPlainCoding;
  // Limits the bytes that prefixes of prompts take on the disk. With an empty string, no prefix is written.
  std::string prefix_disk;
  // Names the file of a chat template; an empty name selects the model's own template.
  std::string chat_template;
  // Lists the allowed origins; an empty string allows none.
  std::string cors;
  std::string log_format = "text";
  int context = 0;
  int parallel = 8;
  int queue = 64;
  // 0 selects a value that suits the device.
  int prompt_step = 0;
  bool guard = false;
  DraftOptions draft;
};

// Holds when Ctrl-C, SIGTERM or SIGHUP first asked the server to end, in milliseconds of the system's uptime;
// 0 means never. The time is global, because a signal handler can reach nothing but globals.
std::atomic<std::int64_t> end_wanted{0};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

// Signals within kSameWish count as one request to end. A supervisor or a shell may send SIGTERM to a program
// and to its group, or SIGHUP after SIGTERM.
constexpr std::int64_t kSameWish = 500;  // milliseconds

void watch_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    const std::int64_t milliseconds = std::int64_t{1000} * now.tv_sec + now.tv_nsec / 1000000;
    std::int64_t first = 0;
    if (end_wanted.compare_exchange_strong(first, milliseconds)) return;
    // A second request ends the server at once, whatever it is doing. Files stay intact, because a file gets
    // its name only when it is complete. SIGHUP never counts as a second request, because a closing terminal
    // sends it several times.
    if (signal != SIGHUP && milliseconds - first > kSameWish) _exit(128 + signal);
  };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  // nohup starts programs with SIGHUP ignored, which must stay so.
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  // The reader of the server's messages may go away without ending the server.
  sigaction(SIGPIPE, &ignore, nullptr);
}

// Raises the limit of open files and returns how many connections may be open.
std::size_t raise_file_limit() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return kOtherFiles;
  files.rlim_cur = std::max(files.rlim_cur, std::min(files.rlim_max, kMostConnections + kOtherFiles));
  setrlimit(RLIMIT_NOFILE, &files);
  getrlimit(RLIMIT_NOFILE, &files);
  return std::min(kMostConnections, std::max(files.rlim_cur, 2 * kOtherFiles) - kOtherFiles);
}

Result<std::int64_t> memory_for_cache(const Session& session, const std::string& given) {
  if (given.empty()) {
    const double share = session.caches_on_device() ? kDeviceMemoryShare : kMemoryShare;
    return static_cast<std::int64_t>(share * static_cast<double>(session.free_cache_bytes()));
  }
  auto bytes = parse_bytes(given);
  if (!bytes.ok()) return error("--memory: {}", bytes.error().message);
  if (!session.check_cache_memory("a KV cache of " + given, *bytes).ok())
    return error("--memory {} exceeds the {} that are free: give a smaller --memory, or leave it out", given,
                 readable_bytes(static_cast<double>(session.free_cache_bytes())));
  return bytes;
}

// Returns the description of the server for clients. If `compared` is true, clients choose the recipe by a
// suffix of the model's name.
ServerInfo info_of(const Session& session, const PlacedPlan& placed, const ServeOptions& options, int context,
                   bool compared) {
  const Plan& plan = *placed;
  const Engine& engine = session.engine();
  const std::set<std::string> kernels = [&] {
    std::set<std::string> names;
    for (const PlanRow& row : session.report(plan).rows) names.insert(row.kernel);
    return names;
  }();
  std::vector<std::string> names = options.aliases;
  if (names.empty()) names.push_back(std::filesystem::path(options.common.model).stem().string());
  if (compared) {
    for (std::string& name : names) name += ":" + plan.name;
  }
  return {.model = names.front(),
          .aliases = {names.begin() + 1, names.end()},
          .any_model = options.any_model,
          .model_path = options.common.model,
          .description = engine.description(),
          .fingerprint = engine.fingerprint(),
          .recipe = plan.name,
          .bits = mean_bits(plan, context).all,
          .device = placed.on_device() ? placed.device()->name() : "",
          .kernels = {kernels.begin(), kernels.end()},
          .grid = cache_grid(plan, session.backend()),
          .weight_bytes = engine.weight_bytes(),
          .n_vocab = engine.n_vocab(),
          .n_embd = engine.n_embd()};
}

// Sets memory aside in which a request can compare its completion with an unquantized cache. The memory holds
// one completion of the full context, or several shorter completions.
Status set_memory_aside_for_guard(const Session& session, const Plan& served, SchedulerOptions& scheduling) {
  auto plan = session.plan(guard_recipe(served));
  // A device may lack kernels for unquantized pages with transforms.
  if (!plan.ok()) plan = session.plan(parse_recipe("bf16").value());
  if (!plan.ok()) return plan.error();
  scheduling.shadow_plan = *plan;
  scheduling.shadow_bytes = [plan = *plan, step = largest_step(scheduling)](int n_tokens) {
    return largest_cache_bytes(plan, n_tokens, step);
  };
  scheduling.shadow_memory = Scheduler::memory_for(scheduling.shadow_bytes(scheduling.context));
  scheduling.memory -= scheduling.shadow_memory;
  if (scheduling.memory > 0) return {};
  return error(
      "--guard keeps up to {} tokens unquantized, which takes {}: give more --memory or a smaller -c",
      scheduling.context, readable_bytes(static_cast<double>(scheduling.shadow_memory)));
}

void announce(const ServerInfo& info, const ServeOptions& options, int port) {
  say("kvant: {} ({}) at http://{}:{}{}\n", info.model, info.description, url_host(options.http.host), port,
      options.http.api_key.empty() ? "" : ", with an API key");
  if (options.http.api_key.empty() && !is_loopback(url_host(options.http.host)))
    warn("without --api-key, everybody who reaches this address can send requests and continue sessions");
}

void announce_recipe(const ServerInfo& info, const SchedulerOptions& scheduler) {
  say("kvant: {}, {:.2f} bits per value: {} of KV cache{} hold {} sequences of {} tokens at {} each; "
      "up to {} requests run at a time\n",
      info.recipe, info.bits, readable_bytes(static_cast<double>(scheduler.memory)),
      info.device.empty() ? "" : " on " + info.device, Scheduler::sequences_that_fit(scheduler),
      scheduler.context, readable_bytes(static_cast<double>(scheduler.sequence_bytes(scheduler.context))),
      scheduler.parallel);
  if (scheduler.shadow_plan != nullptr)
    say("kvant: {} more are reserved for requests with a guard\n",
        readable_bytes(static_cast<double>(scheduler.shadow_memory)));
}

// Holds one of the served recipes with its part of the memory.
struct Served {
  PlacedPlan plan;
  SchedulerOptions scheduling;
};

// With --compare, two recipes take turns, so each gets half of the pause.
void set_prompt_steps(const Session& session, const ServeOptions& options, SchedulerOptions& scheduling) {
  const bool on_device = session.caches_on_device();
  scheduling.prompt_step = on_device ? kFirstDevicePromptStep : kPromptStep;
  scheduling.lone_prompt_step = on_device ? kDeviceLonePromptStep : kLonePromptStep;
  if (options.prompt_step > 0) {
    scheduling.prompt_step = options.prompt_step;
    scheduling.lone_prompt_step = std::max(scheduling.lone_prompt_step, options.prompt_step);
  } else if (on_device) {
    scheduling.answer_pause = options.compare.empty() ? kAnswerPause : kAnswerPause / 2;
  }
}

Result<Served> serve_recipe(const Session& session, const Recipe& recipe, const ServeOptions& options,
                            std::int64_t memory, const std::shared_ptr<DraftModel>& draft_model) {
  const auto plan = session.plan(recipe);
  if (!plan.ok()) return plan.error();
  const int trained = session.engine().geometry().trained_context;
  Served served{*plan,
                {.context = options.context > 0 ? options.context : trained,
                 .parallel = options.parallel,
                 .queue = options.queue,
                 .most_drafted = options.draft.most_drafted(),
                 .draft_model = draft_model,
                 .memory = memory}};
  set_prompt_steps(session, options, served.scheduling);
  set_sequence_bytes(*plan, served.scheduling);
  if (options.guard) KVANT_RETURN_IF_ERROR(set_memory_aside_for_guard(session, **plan, served.scheduling));
  return served;
}

// Returns an error if the memory of one recipe, half of the total under --compare, has no room for a
// conversation.
Status check_halves(const Served& served, std::int64_t memory) {
  if (Scheduler::sequences_that_fit(served.scheduling) > 0) return {};
  const SchedulerOptions& scheduling = served.scheduling;
  return error(
      "--compare divides {} of memory between two caches, and half of it is too small for one sequence of {} "
      "tokens with {}, which needs {}: give more --memory or a smaller -c",
      readable_bytes(static_cast<double>(memory)), scheduling.context, served.plan->name,
      readable_bytes(static_cast<double>(
          Scheduler::memory_for(scheduling, 1, scheduling.sequence_bytes(scheduling.context)) +
          scheduling.shadow_memory)));
}

Result<std::vector<Served>> serve_recipes(const Session& session, const Recipe& recipe,
                                          const ServeOptions& options, std::int64_t memory,
                                          const std::shared_ptr<DraftModel>& draft_model) {
  std::vector<Served> all;
  if (options.compare.empty()) {
    auto served = serve_recipe(session, recipe, options, memory, draft_model);
    if (!served.ok()) return served.error();
    all.push_back(std::move(*served));
    return all;
  }
  const auto compared = parse_recipe(options.compare);
  if (!compared.ok()) return error("--compare: {}", compared.error().message);
  for (const Recipe& each : {recipe, *compared}) {
    auto served = serve_recipe(session, each, options, memory / 2, draft_model);
    if (!served.ok()) return served.error();
    KVANT_RETURN_IF_ERROR(check_halves(*served, memory));
    all.push_back(std::move(*served));
  }
  const Recipe &first = all.front().plan->recipe, &second = all.back().plan->recipe;
  if (to_string(first) == to_string(second))
    return error("--compare: {} is the recipe of --kv: give another recipe", label(second));
  return all;
}

// Prints how many sessions there are, and why some of them cannot be continued.
void announce_sessions(const SessionFolder& folder, const std::string& path) {
  const std::vector<std::string> names = folder.names();
  say("kvant: {} sessions in '{}'\n", names.size(), path);
  std::size_t n_refused = 0;
  std::string reason;
  for (const std::string& name : names) {
    const auto file = folder.read(name);
    if (file.ok()) continue;
    if (n_refused++ == 0) reason = file.error().message;
  }
  if (n_refused > 0)
    warn(fmt::format("this server can't continue {} of {} sessions, for example: {}", n_refused, names.size(),
                     reason));
}

// Opens the folders of --sessions and --prefix-disk, which keep caches of the first recipe. Returns null
// without --sessions.
Result<std::shared_ptr<const SessionFolder>> open_folders(const Session& session, const ServeOptions& options,
                                                          Served& served) {
  if (options.sessions.empty()) {
    if (options.prefix_disk.empty()) return std::shared_ptr<const SessionFolder>();
    return error("--prefix-disk keeps its files in the folder of --sessions: give --sessions DIR");
  }
  const auto bytes = options.prefix_disk.empty() ? 0 : parse_bytes(options.prefix_disk);
  if (!bytes.ok()) return error("--prefix-disk: {}", bytes.error().message);
  const Engine& engine = session.engine();
  const SessionIdentity identity = session_identity(*served.plan, engine.fingerprint(), engine.description());
  const bool compact = options.session_coding == kCompactCoding;
  auto coder = compact ? learned_sequence_coder(session, served.plan, identity)
                       : find_sequence_coder(served.plan, identity);
  if (!coder.ok()) return coder.error();
  const FileCoding coding{std::move(*coder), compact};
  auto sessions = SessionFolder::open(options.sessions, identity, coding);
  if (!sessions.ok()) return sessions.error();
  announce_sessions(**sessions, options.sessions);
  std::shared_ptr<const SessionFolder> shared = std::move(*sessions);
  if (options.prefix_disk.empty()) return shared;
  auto prefixes =
      SessionFolder::open((std::filesystem::path(options.sessions) / "prefixes").string(), identity, coding);
  if (!prefixes.ok()) return prefixes.error();
  served.scheduling.prefix_folder = std::move(*prefixes);
  served.scheduling.prefix_disk = *bytes;
  return shared;
}

// Returns null if the model has no template or a template that cannot run. Completions of plain texts need no
// template.
Result<std::shared_ptr<const ChatTemplate>> open_chat_template(const std::string& file,
                                                               const Tokenizer& tokenizer) {
  auto opened = ChatTemplate::open(tokenizer, file);
  if (opened.ok() || !file.empty()) return opened;
  say("kvant: chat requests are not available: {}\n", opened.error().message);
  return std::shared_ptr<const ChatTemplate>();
}

// After kLooksBeforeTrim idle polls, the server returns free heap memory to the system.
constexpr int kLooksBeforeTrim = 20;

// Waits until a signal asks the server to end. From then on, new requests are refused and accepted requests
// are completed, unless a second signal ends the process.
void wait_for_end(ServeLoop& loop, ServerLog& log) {
  using namespace std::chrono_literals;
  int idle_looks = 0;
  while (end_wanted == 0) {
    std::this_thread::sleep_for(50ms);
    idle_looks = loop.idle() ? std::min(idle_looks + 1, kLooksBeforeTrim + 1) : 0;
    // Other programs may need the memory that a busy time has left free.
    if (idle_looks == kLooksBeforeTrim) trim_heap();
  }
  loop.refuse_requests();
  if (!loop.idle())
    log.message(
        "finishing the accepted requests; a second signal ends the server at once and loses what is not "
        "saved");
  while (!loop.idle()) std::this_thread::sleep_for(50ms);
}

Status serve(const ServeOptions& options) {
  bound_free_heap();
  const auto recipe = one_recipe(options.common);
  if (!recipe.ok()) return recipe.error();
  auto cors = CorsPolicy::parse(options.cors);
  if (!cors.ok()) return error("--cors: {}", cors.error().message);
  // The address is checked first, because loading the model takes long.
  KVANT_RETURN_IF_ERROR(check_address(options.http.host, options.http.port));
  auto session = Session::open(options.common, WeightMode::as_stored, options.context);
  if (!session.ok()) return session.error();
  const auto memory = memory_for_cache(*session, options.memory);
  if (!memory.ok()) return memory.error();
  Engine& engine = session->engine();
  const int context = options.context > 0 ? options.context : engine.geometry().trained_context;
  if (context < 2) return error("the model file does not state the trained context: give -c");
  warn_beyond_training(engine.geometry(), context);
  auto draft_model = load_draft_model(options.draft, *session, context);
  if (!draft_model.ok()) return draft_model.error();
  if (draft_model->bytes >= *memory)
    return error(
        "the draft model's cache needs {}, but all caches together have {}: give more --memory or a "
        "smaller -c",
        readable_bytes(static_cast<double>(draft_model->bytes)),
        readable_bytes(static_cast<double>(*memory)));
  auto recipes = serve_recipes(*session, *recipe, options, *memory - draft_model->bytes, draft_model->model);
  if (!recipes.ok()) return recipes.error();
  auto folder = open_folders(*session, options, recipes->front());
  if (!folder.ok()) return folder.error();
  auto chat_template = open_chat_template(options.chat_template, engine.tokenizer());
  if (!chat_template.ok()) return chat_template.error();
  std::vector<std::unique_ptr<Scheduler>> schedulers;
  std::vector<ServerInfo> infos;
  for (const Served& served : *recipes) {
    const bool compared = !schedulers.empty();
    auto scheduler = Scheduler::make(engine, session->backend(), served.plan, served.scheduling,
                                     compared ? nullptr : *folder);
    if (!scheduler.ok()) return scheduler.error();
    schedulers.push_back(std::move(*scheduler));
    infos.push_back(info_of(*session, served.plan, options, context, compared));
  }

  ServeLoop loop(std::move(schedulers.front()),
                 schedulers.size() > 1 ? std::move(schedulers.back()) : nullptr);
  HttpOptions http = options.http;
  http.max_body = std::max(kSmallestBodyLimit, kBodyBytesPerToken * context);
  http.requests = static_cast<int>(infos.size()) * (options.parallel + options.queue) + kSpareRequests;
  http.connections = raise_file_limit();
  http.cors = std::move(*cors);
  ServerLog log(options.log_format == "json" ? LogFormat::json : LogFormat::text);
  http.log = &log;
  HttpServer server(loop, engine.tokenizer(), std::move(*chat_template), infos, http);
  const auto port = server.bind();
  if (!port.ok()) return port.error();
  watch_signals();
  std::thread listener([&] { server.serve(); });
  announce(infos.front(), options, *port);
  for (std::size_t i = 0; i < infos.size(); ++i) announce_recipe(infos[i], (*recipes)[i].scheduling);
  wait_for_end(loop, log);
  loop.end();
  server.stop();
  listener.join();
  if (const int lost = loop.lost_sessions(); lost > 0)
    return error("the server has ended, and {} {} lost, because {} could not be written", lost,
                 lost == 1 ? "session is" : "sessions are", lost == 1 ? "it" : "they");
  return {};
}

// Splits the names of --alias, and refuses empty values. An empty value usually comes from an unset variable,
// and would open the server to more clients than intended.
Status check_access(const CLI::App& command, const HttpOptions& options, std::vector<std::string>& aliases) {
  if (options.host.empty())
    return error("--host is empty: give an address, such as 127.0.0.1, or leave it out");
  if (options.api_key.empty() && command.count("--api-key") > 0)
    return error("--api-key is empty, so everybody could send requests: give a key, or leave it out");
  // CLI11 would drop empty names between commas.
  std::vector<std::string> names;
  for (const std::string& list : aliases) {
    for (std::size_t at = 0, end = 0; end != std::string::npos; at = end + 1) {
      end = list.find(',', at);
      names.push_back(list.substr(at, end == std::string::npos ? end : end - at));
    }
  }
  aliases = std::move(names);
  if (std::ranges::find(aliases, "") != aliases.end() || (aliases.empty() && command.count("--alias") > 0))
    return error("--alias has an empty name: give one or several names separated by commas, or leave it out");
  return {};
}

}  // namespace

Command add_serve_command(CLI::App& program) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = program.add_subcommand("serve", "serve a model over an OpenAI-compatible HTTP API");
  add_model_options(*command, options->common, /*many_recipes=*/false);
  add_device_option(*command, options->common);
  command->remove_option(command->get_option("--json"));
  command
      ->add_option("--host", options->http.host,
                   "address to listen on; 0.0.0.0: all addresses of this machine")
      ->capture_default_str();
  command->add_option("--port", options->http.port, "port to listen on; 0: any free port")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command
      ->add_option("--api-key", options->http.api_key, "API key that clients must send (also KVANT_API_KEY)")
      ->envname("KVANT_API_KEY");
  command->add_option(
      "--cors", options->cors,
      "origins of web pages that may send requests from a browser, such as https://chat.example, separated "
      "by commas; *: all (default: only the server's own page)");
  command
      ->add_option("--log-format", options->log_format, "format of the request log on stderr: text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->add_option("-a,--alias", options->aliases,
                      "name of the model in requests and responses, or several names separated by commas "
                      "(default: the file's name)");
  command->add_flag("--any-model", options->any_model, "use this model for every model name in requests");
  command
      ->add_option("-c,--ctx-size", options->context,
                   "maximum tokens of a prompt and its completion (default: the trained context)")
      ->check(CLI::Range(2, 1 << 30));
  command
      ->add_option("--parallel,--np", options->parallel,
                   "maximum number of completions that run at the same time (also -np)")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--queue", options->queue,
                   "maximum number of waiting requests; further requests get status 503")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command
      ->add_option("--prompt-step", options->prompt_step,
                   "prompt tokens that are processed between two decode steps of running completions "
                   "(default: 64; on a GPU, as many as fit into 0.1 s)")
      ->check(CLI::Range(kMinPromptStep, 1 << 16));
  command->add_option(
      "--memory", options->memory,
      "memory for KV caches, such as 2GiB: running completions and the prefix cache (default: half of the "
      "free memory; with --device cuda, 80 % of the GPU memory that the model leaves free)");
  add_draft_options(*command, options->draft);
  command->add_flag("--guard", options->guard,
                    "let requests ask for a guard, which compares their completion with an unquantized "
                    "cache's; takes part of --memory");
  command->add_option(
      "--chat-template", options->chat_template,
      "file with a chat template (Jinja) that replaces the model's, for example one that supports tools");
  command->add_option("--sessions", options->sessions,
                      "folder for sessions: conversations that requests continue by name");
  command->add_option("--prefix-disk", options->prefix_disk,
                      "disk space in the folder of --sessions, such as 4GiB, for prefixes of prompts that do "
                      "not fit into memory");
  add_session_coding_option(*command, options->session_coding)->needs("--sessions");
  command->add_option("--compare", options->compare,
                      "second recipe, used by requests for the model MODEL:RECIPE; the web page shows both "
                      "completions next to each other; takes half of --memory");
  return {command, [options, command]() -> Status {
            KVANT_RETURN_IF_ERROR(check_backend(*command, options->common));
            KVANT_RETURN_IF_ERROR(check_access(*command, options->http, options->aliases));
            KVANT_RETURN_IF_ERROR(choose_model(options->common));
            return serve(*options);
          }};
}

}  // namespace kvant
