#include "serve/metrics_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace kvant {
namespace {

class Text {
 public:
  void counter(const char* name, const char* help, std::int64_t value) {
    single(name, "counter", help, value);
  }
  void gauge(const char* name, const char* help, std::int64_t value) { single(name, "gauge", help, value); }
  void gauge(const char* name, const char* help, double value) {
    head(name, "gauge", help);
    add("kvant_{} {}\n", name, value);
  }
  // Values of one name that a label tells apart.
  void head(const char* name, const char* type, const char* help) {
    add("# HELP kvant_{0} {2}\n# TYPE kvant_{0} {1}\n", name, type, help);
  }
  void labelled(const char* name, const char* label, const std::string& is, std::int64_t value) {
    add("kvant_{}{{{}=\"{}\"}} {}\n", name, label, escaped(is), value);
  }
  void histogram(const char* name, const char* help, const Histogram& h) {
    head(name, "histogram", help);
    for (std::size_t i = 0; i < Histogram::kBounds.size(); ++i)
      add("kvant_{}_bucket{{le=\"{}\"}} {}\n", name, Histogram::kBounds[i], h.at_most(i));
    add("kvant_{0}_bucket{{le=\"+Inf\"}} {1}\nkvant_{0}_sum {2}\nkvant_{0}_count {1}\n", name, h.count(),
        h.sum());
  }
  static std::string escaped(const std::string& text) {
    std::string result;
    for (const char c : text) {
      if (c == '\\' || c == '"') result += '\\';
      result += c == '\n' ? ' ' : c;
    }
    return result;
  }
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  std::string take() { return std::move(text_); }

 private:
  void single(const char* name, const char* type, const char* help, std::int64_t value) {
    head(name, type, help);
    add("kvant_{} {}\n", name, value);
  }

  std::string text_;
};

std::int64_t requests_in(const SchedulerStatus& status, JobState state) {
  return std::ranges::count(status.requests, state, &RequestStatus::state);
}

void add_requests(const SchedulerStatus& status, Text& text) {
  const SchedulerCounters& c = status.counters;
  text.head("requests_total", "counter", "Requests that have ended, by how");
  text.labelled("requests_total", "end", "finished", c.finished);
  text.labelled("requests_total", "end", "cancelled", c.cancelled);
  text.labelled("requests_total", "end", "failed", c.failed);
  text.labelled("requests_total", "end", "refused", c.refused);
  text.head("requests", "gauge", "Requests that have not, by what they are at");
  text.labelled("requests", "state", "waiting", requests_in(status, JobState::waiting));
  text.labelled("requests", "state", "reading", requests_in(status, JobState::reading));
  text.labelled("requests", "state", "generating", requests_in(status, JobState::generating));
  text.histogram("first_token_seconds", "From a request to its first token", c.first_token);
  text.histogram("next_token_seconds", "From a token to the next of the same answer", c.next_token);
  text.histogram("request_seconds", "From a request to its end", c.request);
}

void add_tokens(const SchedulerCounters& c, Text& text) {
  text.counter("prompt_tokens_total", "Tokens of prompts that were read", c.prompt_tokens);
  text.counter("cached_tokens_total", "Tokens of prompts that were cached", c.cached_tokens);
  text.counter("generated_tokens_total", "Tokens that were generated", c.generated_tokens);
  text.counter("prefix_hits_total", "Prompts whose beginning was cached", c.prefix_hits);
  text.counter("prefix_misses_total", "Prompts that were read from their start", c.prefix_misses);
  text.counter("steps_total", "Steps of the scheduler", c.steps);
}

void add_guard(const GuardTally& guard, Text& text) {
  text.counter("guard_tokens_total", "Tokens that were compared with an unquantized cache", guard.tokens);
  text.counter("guard_differing_tokens_total", "Of them, those for which it would have chosen another",
               guard.differing);
  text.head("guard_kld_nats_total", "counter", "Sum over these tokens of the divergence of the predictions");
  text.add("kvant_guard_kld_nats_total {}\n", guard.kld_sum);
}

void add_cache(const SchedulerOptions& options, const SchedulerStatus& status, Text& text) {
  text.gauge("cache_bytes", "Bytes of the KV cache, taken from the operating system", status.cache_bytes);
  text.gauge("cache_limit_bytes", "Bytes that it may take", options.memory);
  text.gauge("cache_promised_bytes", "Bytes that admitted requests take at most", status.promised_bytes);
  text.gauge("prefix_bytes", "Bytes of cached beginnings of prompts", status.prefix_bytes);
  text.gauge("prefixes", "Cached beginnings of prompts", std::int64_t{status.prefixes});
  text.gauge("session_bytes", "Bytes of sessions in memory; shared pages count in each",
             status.session_bytes);
  text.gauge("sessions", "Sessions in memory", std::int64_t{status.sessions});
  text.counter("prefixes_dropped_total", "Cached beginnings that had to make room", status.prefixes_dropped);
}

}  // namespace

std::string metrics_text(const ServerInfo& info, const SchedulerOptions& options,
                         const SchedulerStatus& status) {
  Text text;
  text.head("info", "gauge", "What is served");
  text.add("kvant_info{{model=\"{}\",recipe=\"{}\",kernels=\"{}\"}} 1\n", Text::escaped(info.model),
           Text::escaped(info.recipe), Text::escaped(fmt::format("{}", fmt::join(info.kernels, " "))));
  text.gauge("cache_bits", "Bits of an element of the KV cache at the full context", info.bits);
  text.gauge("weight_bytes", "Bytes of the weights", info.weight_bytes);
  text.gauge("context_tokens", "Tokens that a prompt and its answer may have", std::int64_t{options.context});
  add_requests(status, text);
  add_tokens(status.counters, text);
  if (options.shadow_plan != nullptr) add_guard(status.counters.guard, text);
  add_cache(options, status, text);
  return text.take();
}

}  // namespace kvant
