#include "serve/schema_holder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

namespace kvant::schema {
namespace {

constexpr std::int64_t kLargestInteger = 999'999'999'999'999'999;
constexpr long double kLargestBound = 9e17L;
constexpr long double kUnbounded = std::numeric_limits<long double>::infinity();
constexpr std::int64_t kMaxMultiples = 256;  // the grammar lists at most this many multiples one by one

// A long double represents every 64-bit integer exactly.
long double exact_number(const Json& number) {
  if (number.is_number_unsigned()) return static_cast<long double>(number.get<std::uint64_t>());
  if (number.is_number_integer()) return static_cast<long double>(number.get<std::int64_t>());
  return number.get<double>();
}

}  // namespace

unsigned SchemaHolder::stated_types(const Json& part, const std::string& where, bool reports) {
  const Json* type = member_of(part, "type");
  if (type == nullptr) return kAnyType;
  unsigned types = 0;
  const Json list = type->is_array() ? *type : Json::array({*type});
  for (const Json& one : list) {
    const unsigned named = one.is_string() ? type_named(one.get<std::string>()) : 0;
    if (named == 0 && reports)
      drop(where, "has the type " + one.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 40) +
                      ", which JSON doesn't have");
    types |= named == 0 ? unsigned{kAnyType} : named;
  }
  return types;
}

std::optional<Json> SchemaHolder::write_types(const Parts& flat, const std::string& where, int depth) {
  unsigned types = kAnyType, implied = 0;
  bool has_type = false;
  for (const Json* part : flat) {
    has_type = has_type || part->contains("type");
    types &= stated_types(*part, where);
    for (const auto& [key, said] : part->items()) implied |= types_of_keyword(key);
    types &= ~denied_types(*part, where);
    for (const char* key : {"if", "$dynamicRef", "$recursiveRef"}) {
      if (part->contains(key)) drop_keyword(where, key);
    }
  }
  if (is_stopped()) return Json::object();
  if (!has_type && implied != 0) types &= implied;
  if (types == kAnyType && implied == 0) return Json::object();
  if ((types & kNumber) == kFraction) {
    drop_keyword(where, "not");
    types |= kInteger;
  }
  Json held = Json::array();
  const auto add = [&held](std::optional<Json> one) {
    if (one) held.push_back(*std::move(one));
  };
  if ((types & kObject) != 0) add(write_object(flat, where, depth));
  if ((types & kArray) != 0) add(write_array(flat, where, depth));
  if ((types & kString) != 0) add(write_string(flat, where));
  if ((types & kNumber) != 0) add(write_number(flat, (types & kFraction) != 0, where));
  if ((types & kBoolean) != 0) add(Json{{"type", "boolean"}});
  if ((types & kNull) != 0) add(Json{{"type", "null"}});
  if (held.empty()) return std::nullopt;
  if (held.size() == 1) return held.front();
  return Json{{"anyOf", std::move(held)}};
}

unsigned SchemaHolder::denied_types(const Json& part, const std::string& where) {
  const Json* denied = member_of(part, "not");
  if (denied == nullptr || *denied == false) return 0;
  if (denied->is_object() && denied->size() == 1 && denied->contains("type"))
    return stated_types(*denied, where);
  drop_keyword(where, "not");
  return 0;
}

std::optional<Json> SchemaHolder::write_number(const Parts& flat, bool may_be_fraction,
                                               const std::string& where) {
  long double low = -kUnbounded, high = kUnbounded;
  std::vector<double> multiples;
  for (const Json* part : flat) {
    for (const char* key : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
      const Json* said = member_of(*part, key);
      if (said == nullptr || said->is_boolean())
        continue;  // older schemas have a boolean here, which changes the meaning of another bound
      const bool is_multiple = key == std::string_view("multipleOf");
      if (!said->is_number() || (is_multiple && said->get<double>() <= 0)) {
        drop(where, fmt::format("has a '{}' that is not a number", key));
      } else if (is_multiple && *said == 1) {
        may_be_fraction = false;
      } else if (is_multiple) {
        multiples.push_back(said->get<double>());
      }
    }
  }
  for (const Json* part : flat) {
    bound_number(*part, may_be_fraction, where, low, high);
  }
  if (is_stopped()) return Json::object();
  if (may_be_fraction) {
    if (!multiples.empty()) drop_keyword(where, "multipleOf");
    return Json{{"type", "number"}};
  }
  return write_integer(low, high, multiples, where);
}

void SchemaHolder::bound_number(const Json& part, bool may_be_fraction, const std::string& where,
                                long double& low, long double& high) {
  for (const bool is_least : {true, false}) {
    const char* inclusive = is_least ? "minimum" : "maximum";
    const char* exclusive = is_least ? "exclusiveMinimum" : "exclusiveMaximum";
    const Json* outer = member_of(part, exclusive);
    for (const char* key : {inclusive, exclusive}) {
      const Json* said = member_of(part, key);
      if (said == nullptr || !said->is_number()) continue;
      if (may_be_fraction) {
        drop_keyword(where, fmt::format("{}' of a 'number", key));
        continue;
      }
      const bool excludes = key == exclusive || (outer != nullptr && *outer == true);
      const long double bound = exact_number(*said);
      if (is_least) {
        low = std::max(low, excludes ? std::floor(bound) + 1 : std::ceil(bound));
      } else {
        high = std::min(high, excludes ? std::ceil(bound) - 1 : std::floor(bound));
      }
    }
  }
}

std::optional<Json> SchemaHolder::write_integer(long double low, long double high,
                                                const std::vector<double>& multiples,
                                                const std::string& where) {
  if (low > high) return std::nullopt;
  if (low > kLargestBound || high < -kLargestBound) {
    drop(where, "has a bound that is too large");
    return Json{{"type", "integer"}};
  }
  const bool has_low = low >= -kLargestBound, has_high = high <= kLargestBound;
  std::int64_t least = has_low ? static_cast<std::int64_t>(low) : 0,
               most = has_high ? static_cast<std::int64_t>(high) : 0;
  // The converter counts digits exactly up to this number.
  const std::int64_t many = 999'999'999'999'999;
  if (!has_low) least = has_high && most < -many / 10 ? -kLargestInteger : -many;
  if (!has_high) most = has_low && least > many / 10 ? kLargestInteger : many;
  const bool divides_all =
      std::ranges::all_of(multiples, [](double m) { return std::floor(1 / m) == 1 / m; });
  if (!divides_all) {
    Json values = Json::array();
    if (has_low && has_high && most - least <= kMaxMultiples * kMaxMultiples) {
      for (std::int64_t n = least; n <= most && std::ssize(values) <= kMaxMultiples; ++n) {
        if (std::ranges::all_of(multiples,
                                [n](double m) { return std::fmod(static_cast<double>(n), m) == 0; }))
          values.push_back(n);
      }
      charge(4 * std::ssize(values));
      if (values.empty()) return std::nullopt;
      if (std::ssize(values) <= kMaxMultiples) return Json{{"enum", std::move(values)}};
    }
    drop_keyword(where, "multipleOf");
  }
  if (!has_low && !has_high) return Json{{"type", "integer"}};
  charge(64);
  return Json{{"type", "integer"}, {"minimum", least}, {"maximum", most}};
}

SchemaHolder::Counts SchemaHolder::read_counts(const Parts& flat, const char* least_key, const char* most_key,
                                               const std::string& where, std::int64_t limit) {
  Counts counts;
  for (const Json* part : flat) {
    for (const char* key : {least_key, most_key}) {
      const Json* said = member_of(*part, key);
      if (said == nullptr) continue;
      const double count = said->is_number() ? said->get<double>() : -1;
      if (count < 0 || std::floor(count) != count || count > static_cast<double>(limit)) {
        drop(where, fmt::format("has '{}': {}, which must be an integer from 0 to {}", key,
                                said->dump().substr(0, 40), limit));
      } else if (key == least_key) {
        counts.least = std::max(counts.least, static_cast<std::int64_t>(count));
      } else {
        counts.most = counts.most < 0 ? static_cast<std::int64_t>(count)
                                      : std::min(counts.most, static_cast<std::int64_t>(count));
      }
    }
  }
  return counts;
}

std::optional<Json> SchemaHolder::write_string(const Parts& flat, const std::string& where) {
  const Counts counts = read_counts(flat, "minLength", "maxLength", where);
  if (counts.is_met_by_none()) return std::nullopt;
  std::optional<SchemaPattern> pattern;
  std::string source;
  for (const Json* part : flat) {
    const Json* said = member_of(*part, "pattern");
    if (said != nullptr && !said->is_string()) {
      drop(where, "has a 'pattern' that is not a text");
    } else if (said != nullptr && (!pattern || source != said->get<std::string>())) {
      add_pattern(said->get<std::string>(), "pattern", where, pattern, source);
    }
    const Json* format = member_of(*part, "format");
    const char* held =
        format != nullptr && format->is_string() ? pattern_of_format(format->get<std::string>()) : nullptr;
    if (held != nullptr && (!pattern || source != held)) add_pattern(held, "format", where, pattern, source);
  }
  if (is_stopped()) return Json::object();
  if (!pattern && counts.least == 0 && counts.most < 0) return Json{{"type", "string"}};
  if (!pattern) {
    pattern = SchemaPattern::any_string(counts.least, counts.most);
  } else if (SchemaPattern bounded = *pattern; counts.least > 0 || counts.most >= 0) {
    if (const Status fits = bounded.bound_length(counts.least, counts.most); !fits.ok()) {
      drop(where, fits.error().message);
    } else {
      pattern = std::move(bounded);
    }
  }
  if (pattern->is_empty()) return std::nullopt;
  if (!is_exact_ && pattern->size() > 500 && cost_.symbols + pattern->size() > kMaxSymbols / 2) {
    drop(where, "has a length or a pattern that is too large");
    return Json{{"type", "string"}};
  }
  charge(pattern->size());
  const std::string json = pattern->json_pattern();
  if (json == "^$") return Json{{"enum", Json::array({""})}};
  return Json{{"type", "string"}, {"pattern", json}};
}

void SchemaHolder::add_pattern(const std::string& text, const char* key, const std::string& where,
                               std::optional<SchemaPattern>& pattern, std::string& source) {
  if (pattern)
    return drop(
        where,
        fmt::format("has a '{}' together with another one or a 'pattern': leave out all but one", key));
  auto read = SchemaPattern::parse(text);
  if (!read.ok())
    return drop(where,
                fmt::format("has the pattern '{}', which {}", text.substr(0, 100), read.error().message));
  pattern = *std::move(read);
  source = text;
}

}  // namespace kvant::schema
