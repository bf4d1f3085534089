#include "serve/metrics_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <functional>
#include <iterator>

#include "base/heap.h"

namespace kvant {
namespace {

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

std::string label(const char* name, const std::string& value) {
  return fmt::format("{}=\"{}\"", name, escaped(value));
}

// Text writes the metrics. In Prometheus's format, all values of one name are together, so each function
// takes a value from every recipe in turn.
class Text {
 public:
  explicit Text(std::span<const RecipeMetrics> recipes) : recipes_(recipes) {}

  template <class Value>
  void counter(const char* name, const char* help, Value value) {
    single(name, "counter", help, value);
  }
  template <class Value>
  void gauge(const char* name, const char* help, Value value) {
    single(name, "gauge", help, value);
  }
  // The values of one name may differ in a label. head() writes the lines that precede them.
  void head(const char* name, const char* type, const char* help) {
    add("# HELP kvant_{0} {2}\n# TYPE kvant_{0} {1}\n", name, type, help);
  }
  template <class Value>
  void labelled(const char* name, const char* label_name, const char* is, Value value) {
    for (const RecipeMetrics& r : recipes_) line(name, r, label(label_name, is), std::invoke(value, r));
  }
  void histogram(const char* name, const char* help, const Histogram SchedulerCounters::*which) {
    head(name, "histogram", help);
    for (const RecipeMetrics& r : recipes_) {
      const Histogram& h = r.status.counters.*which;
      const std::string bucket = fmt::format("{}_bucket", name);
      for (std::size_t i = 0; i < Histogram::kBounds.size(); ++i)
        line(bucket, r, label("le", fmt::format("{}", Histogram::kBounds[i])), h.at_most(i));
      line(bucket, r, label("le", "+Inf"), h.count());
      line(fmt::format("{}_sum", name), r, "", h.sum());
      line(fmt::format("{}_count", name), r, "", h.count());
    }
  }
  template <class Value>
  void line(const std::string& name, const RecipeMetrics& of, std::string labels, Value value) {
    if (recipes_.size() > 1)
      labels += fmt::format("{}{}", labels.empty() ? "" : ",", label("recipe", of.info.recipe));
    add("kvant_{}{} {}\n", name, labels.empty() ? "" : fmt::format("{{{}}}", labels), value);
  }
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  std::string take() { return std::move(text_); }

 private:
  template <class Value>
  void single(const char* name, const char* type, const char* help, Value value) {
    head(name, type, help);
    for (const RecipeMetrics& r : recipes_) line(name, r, "", std::invoke(value, r));
  }

  std::span<const RecipeMetrics> recipes_;
  std::string text_;
};

// counted() and now() return functions that read one member of a recipe's counters or status.
template <class Member>
auto counted(Member SchedulerCounters::*member) {
  return [member](const RecipeMetrics& r) { return r.status.counters.*member; };
}
template <class Member>
auto now(Member SchedulerStatus::*member) {
  return [member](const RecipeMetrics& r) { return r.status.*member; };
}

auto requests_in(JobState state) {
  return [state](const RecipeMetrics& r) {
    return std::ranges::count(r.status.requests, state, &RequestStatus::state);
  };
}

void add_requests(Text& text) {
  using C = SchedulerCounters;
  text.head("requests_total", "counter", "Requests that have ended, by outcome");
  text.labelled("requests_total", "end", "finished", counted(&C::finished));
  text.labelled("requests_total", "end", "cancelled", counted(&C::cancelled));
  text.labelled("requests_total", "end", "failed", counted(&C::failed));
  text.labelled("requests_total", "end", "refused", counted(&C::refused));
  text.head("requests", "gauge", "Requests that have not ended, by state");
  text.labelled("requests", "state", "waiting", requests_in(JobState::waiting));
  text.labelled("requests", "state", "reading", requests_in(JobState::reading));
  text.labelled("requests", "state", "generating", requests_in(JobState::generating));
  text.histogram("first_token_seconds", "Time from a request to its first token", &C::first_token);
  text.histogram("next_token_seconds", "Time between two tokens of a completion", &C::next_token);
  text.histogram("request_seconds", "Time from a request to its end", &C::request);
}

void add_tokens(Text& text) {
  using C = SchedulerCounters;
  text.counter("prompt_tokens_total", "Prompt tokens that were processed", counted(&C::prompt_tokens));
  text.counter("cached_tokens_total", "Prompt tokens that were in the prefix cache",
               counted(&C::cached_tokens));
  text.counter("generated_tokens_total", "Tokens that were generated", counted(&C::generated_tokens));
  text.counter("drafted_tokens_total", "Drafted tokens that were verified", counted(&C::drafted_tokens));
  text.counter("accepted_tokens_total", "Drafted tokens that were accepted", counted(&C::accepted_tokens));
  text.counter("prefix_hits_total", "Prompts with a prefix in the prefix cache", counted(&C::prefix_hits));
  text.counter("prefix_misses_total", "Prompts without a prefix in the prefix cache",
               counted(&C::prefix_misses));
  text.counter("steps_total", "Steps of the scheduler", counted(&C::steps));
}

void add_guard(Text& text) {
  const auto guard = [](auto GuardTally::*member) {
    return [member](const RecipeMetrics& r) { return r.status.counters.guard.*member; };
  };
  text.counter("guard_tokens_total", "Tokens that were compared with an unquantized cache",
               guard(&GuardTally::tokens));
  text.counter("guard_differing_tokens_total",
               "Compared tokens for which an unquantized cache would have chosen another token",
               guard(&GuardTally::differing));
  text.counter("guard_kld_nats_total", "Sum of the KL divergence over the compared tokens",
               guard(&GuardTally::kld_sum));
}

void add_cache(Text& text) {
  using S = SchedulerStatus;
  text.gauge("cache_bytes", "Bytes that the KV cache has allocated from the operating system",
             now(&S::cache_bytes));
  text.gauge("cache_limit_bytes", "Maximum bytes of the KV cache",
             [](const RecipeMetrics& r) { return r.options.memory; });
  text.gauge("cache_promised_bytes", "Maximum bytes that the admitted requests may need",
             now(&S::promised_bytes));
  text.gauge("prefix_bytes", "Bytes of prefixes in the prefix cache", now(&S::prefix_bytes));
  text.gauge("prefixes", "Prefixes in the prefix cache", now(&S::prefixes));
  text.gauge("session_bytes", "Bytes of sessions in memory; shared pages count in each",
             now(&S::session_bytes));
  text.gauge("sessions", "Sessions in memory", now(&S::sessions));
  text.counter("prefixes_dropped_total", "Prefixes that were evicted from the prefix cache",
               now(&S::prefixes_dropped));
}

// Adds the metrics of the prefix cache on disk, which at most one recipe has.
void add_prefix_disk(const RecipeMetrics& r, Text& text) {
  const PrefixDiskStatus& disk = *r.status.prefix_disk;
  const auto add = [&](const char* name, const char* type, const char* help, std::int64_t value) {
    text.head(name, type, help);
    text.line(name, r, "", value);
  };
  add("prefix_disk_bytes", "gauge", "Bytes of prefixes on disk", disk.bytes);
  add("prefix_disk_limit_bytes", "gauge", "Maximum bytes of prefixes on disk", disk.limit);
  add("prefix_disk_files", "gauge", "Files of prefixes on disk", disk.files);
  add("prefix_disk_hits_total", "counter", "Files of prefixes that were restored from disk", disk.hits);
  add("prefix_disk_written_total", "counter", "Files of prefixes that were written to disk", disk.written);
  add("prefix_disk_dropped_total", "counter", "Files of prefixes that were evicted from disk", disk.dropped);
  add("prefix_disk_failures_total", "counter", "Files of prefixes that could not be written or used",
      disk.failures);
}

}  // namespace

std::string metrics_text(std::span<const RecipeMetrics> recipes) {
  Text text(recipes);
  text.head("info", "gauge", "Served model and recipe");
  for (const RecipeMetrics& r : recipes) {
    text.add("kvant_info{{{},{},{}}} 1\n", label("model", r.info.model), label("recipe", r.info.recipe),
             label("kernels", fmt::format("{}", fmt::join(r.info.kernels, " "))));
  }
  text.gauge("cache_bits", "Bits per value of the KV cache at the full context",
             [](const RecipeMetrics& r) { return r.info.bits; });
  text.gauge("weight_bytes", "Bytes of the weights",
             [](const RecipeMetrics& r) { return r.info.weight_bytes; });
  text.gauge("context_tokens", "Maximum tokens of a prompt and its completion",
             [](const RecipeMetrics& r) { return r.options.context; });
  if (const auto bytes = heap_bytes()) {  // the heap belongs to the whole process, not to a recipe
    text.head("heap_bytes", "gauge",
              "Bytes of allocated memory that is in use; a KV cache on the CPU is among the large blocks");
    text.add("kvant_heap_bytes{{blocks=\"small\"}} {}\nkvant_heap_bytes{{blocks=\"large\"}} {}\n",
             bytes->small_blocks, bytes->large_blocks);
  }
  add_requests(text);
  add_tokens(text);
  if (recipes.front().options.shadow_plan != nullptr) add_guard(text);
  add_cache(text);
  if (recipes.front().status.prefix_disk) add_prefix_disk(recipes.front(), text);
  return text.take();
}

}  // namespace kvant
