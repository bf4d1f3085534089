#include "calibrate/size_budget.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/progress.h"
#include "eval/cache_size.h"
#include "format/format.h"
#include "recipe/bit_allocation.h"
#include "recipe/plan.h"
#include "recipe/stand_in_constants.h"

namespace kvant {
namespace {

constexpr double kKibi = 1024;

struct Unit {
  const char* name;
  double factor;
};
constexpr Unit kByteUnits[] = {{"TiB", kKibi* kKibi* kKibi* kKibi},
                               {"GiB", kKibi* kKibi* kKibi},
                               {"MiB", kKibi* kKibi},
                               {"KiB", kKibi},
                               {"TB", 1e12},
                               {"GB", 1e9},
                               {"MB", 1e6},
                               {"kB", 1e3},
                               {"B", 1}};

constexpr double kMostBits = 16;       // no cache has more bits per value
constexpr double kMostBytes = 0x1p62;  // a double of at most this size fits into an int64

// Parses the whole text as a positive number. Returns 0 if the text is anything else.
double positive_number(const std::string& text) {
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = failure == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(value) && value > 0 ? value : 0;
}

// Parses a number of tokens, such as "16k" or "16384".
Result<int> parse_context(const std::string& text) {
  const bool thousands = text.ends_with('k') || text.ends_with('K');
  const double number =
      positive_number(thousands ? text.substr(0, text.size() - 1) : text) * (thousands ? kKibi : 1);
  if (number < 1 || number > (1 << 30) || number != std::floor(number))
    return error("'{}' is not a number of tokens; write 16384 or 16k", text);
  return static_cast<int>(number);
}

Result<std::int64_t> size_of(const Recipe& recipe, const Geometry& geometry,
                             const std::shared_ptr<const Constants>& constants, int context) {
  const auto plan = resolve(recipe, geometry, constants);
  if (!plan.ok()) return plan.error();
  return mean_cache_bytes(**plan, context);
}

enum class Price { cheapest, dearest };

// Returns the recipe with the smallest or the largest format of its ladder, wherever the recipe's own
// overrides allow it.
Recipe with_all(Price price, const Recipe& recipe, int head_dim) {
  const Format* chosen = nullptr;
  for (const std::string& name : recipe.ladder) {
    const Format* format = find_format(name);
    const bool cheaper = chosen != nullptr && format->bits(head_dim) < chosen->bits(head_dim);
    if (chosen == nullptr || cheaper == (price == Price::cheapest)) chosen = format;
  }
  Recipe made = recipe;
  made.k.format = made.v.format = chosen->name();
  made.budget = 0;
  made.ladder.clear();
  return made;
}

}  // namespace

Status check_size_budget(const Recipe& recipe, const Geometry& geometry, std::int64_t max_bytes,
                         int context) {
  for (const Price price : {Price::cheapest, Price::dearest}) {
    const Recipe made = with_all(price, recipe, geometry.head_dim);
    const auto bytes = size_of(made, geometry, stand_in_constants(made, geometry), context);
    if (!bytes.ok()) return bytes.error();
    const std::string taken = readable_bytes(static_cast<double>(*bytes));
    const std::string budget = readable_bytes(static_cast<double>(max_bytes));
    if (price == Price::cheapest && *bytes > max_bytes) {
      return error(
          "the budget is {} at {} tokens, but the smallest formats of the ladder need {}: give more, or a "
          "ladder with fewer bits",
          budget, context, taken);
    }
    if (price == Price::dearest && *bytes <= max_bytes) {
      return error(
          "the budget is {} at {} tokens, but the largest formats of the ladder need only {}, so there is "
          "nothing to choose: give less, or a ladder with more bits",
          budget, context, taken);
    }
  }
  return {};
}

std::int64_t SizeBudget::bytes_at(const Geometry& geometry, int context) const {
  if (bits == 0) return bytes;
  const double elements = static_cast<double>(bf16_bytes(geometry, context)) / 2;
  return static_cast<std::int64_t>(bits * elements / 8);
}

Result<std::int64_t> parse_bytes(const std::string& text) {
  double bytes = positive_number(text);
  for (const Unit& unit : kByteUnits) {
    if (!text.ends_with(unit.name)) continue;
    bytes = positive_number(text.substr(0, text.size() - std::string(unit.name).size())) * unit.factor;
    break;
  }
  if (bytes >= 1 && bytes < kMostBytes) return static_cast<std::int64_t>(bytes);
  return error("'{}' is not an amount of memory; write 64MiB or 8GiB", text);
}

Result<SizeBudget> parse_size_budget(const std::string& text) {
  SizeBudget budget;
  const std::size_t at = text.find('@');
  std::string amount = text.substr(0, at);
  if (at != std::string::npos) {
    const auto context = parse_context(text.substr(at + 1));
    if (!context.ok()) return context.error();
    budget.context = *context;
  }
  if (amount.ends_with("bits")) amount.pop_back();
  if (amount.ends_with("bit")) {
    budget.bits = positive_number(amount.substr(0, amount.size() - 3));
    if (budget.bits == 0) return error("'{}' is not a number of bits; write 2.5bit", amount);
    return budget;
  }
  if (const double bits = positive_number(amount); bits > 0 && bits <= kMostBits)
    return error("'{}' has no unit: write {}bit, or bytes at a context such as 64MiB@16k", text, amount);
  const auto bytes = parse_bytes(amount);
  if (!bytes.ok())
    return error("'{}' is not a budget: write bits per value (2.5bit) or bytes at a context (64MiB@16k)",
                 text);
  if (budget.context == 0) return error("'{}': say at which context, {}@16k for example", text, amount);
  budget.bytes = *bytes;
  return budget;
}

Result<Recipe> allocate_bytes(const Recipe& recipe, const Geometry& geometry,
                              std::shared_ptr<const Constants> constants, std::int64_t max_bytes,
                              int context) {
  double low = 100, high = 0;  // the mean bits of sealed values
  for (const std::string& name : recipe.ladder) {
    low = std::min(low, find_format(name)->bits(geometry.head_dim));
    high = std::max(high, find_format(name)->bits(geometry.head_dim));
  }
  const auto allocated = [&](double bits) {
    Recipe wanted = recipe;
    wanted.budget = bits;
    auto found = allocate_bits(wanted, geometry, constants.get());
    if (found.ok()) {  // nothing is left to be allocated
      found->budget = 0;
      found->ladder.clear();
    }
    return found;
  };
  auto best = allocated(low);
  if (!best.ok()) return best;
  KVANT_RETURN_IF_ERROR(check_size_budget(recipe, geometry, max_bytes, context));
  constexpr int kHalvings = 14;
  for (int i = 0; i < kHalvings; ++i) {
    const double bits = i == 0 ? high : (low + high) / 2;
    auto found = allocated(bits);
    if (!found.ok()) return found;
    const auto size = size_of(*found, geometry, constants, context);
    if (!size.ok()) return size.error();
    (*size <= max_bytes ? low : high) = bits;
    if (*size <= max_bytes) best = std::move(found);
    if (low >= high) break;
  }
  return best;
}

}  // namespace kvant
