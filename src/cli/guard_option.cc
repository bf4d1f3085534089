#include "cli/guard_option.h"

#include <charconv>

namespace kvant {

void add_guard_option(CLI::App& command, std::string& rate) {
  // A default value in the help would look as if the guard were on.
  command
      .add_option_function<std::string>(
          "--guard", [&rate](const std::string& given) { rate = given.empty() ? "1/64" : given; },
          "estimate the error of attention during the run; each layer is checked in this share of the steps "
          "(--guard alone: 1/64; default: no guard)")
      ->expected(0, 1);
}

Result<int> parse_guard(const std::string& rate) {
  if (rate.empty()) return 0;
  constexpr int kMaxSteps = 1 << 20;
  const std::string share = rate.starts_with("1/") ? rate.substr(2) : "";
  int every = rate == "1" ? 1 : 0;
  const auto [end, failure] = std::from_chars(share.data(), share.data() + share.size(), every);
  const bool whole = rate == "1" || (failure == std::errc() && end == share.data() + share.size());
  if (!whole || every < 1 || every > kMaxSteps)
    return error("--guard: '{}' is not a share of the steps: give 1 or 1/N, such as 1/64", rate);
  return every;
}

}  // namespace kvant
