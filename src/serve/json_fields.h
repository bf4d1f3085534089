// JsonFields: the members of a JSON object that a client sent, read one by one. The first wrong member is the
// error of the request. A member that nobody reads is a hint: the request goes on without it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api_error.h"

namespace kvant {

class JsonFields {
 public:
  using Json = nlohmann::ordered_json;

  // where: what the object is called in messages, as a prefix of its members' names ("messages[2]."). `json`
  // outlives it.
  explicit JsonFields(const Json& json, std::string where = "");
  explicit JsonFields(Json&& json, std::string where = "") = delete;

  // The value of a member; nothing where it is missing, null, or wrong.
  std::optional<double> number(const char* key, double low, double high);
  std::optional<std::int64_t> integer(const char* key, std::int64_t low, std::int64_t high);
  std::optional<bool> boolean(const char* key);
  std::optional<std::string> text(const char* key);
  // A text, or an array of at most that many. Empty texts are left out: they say nothing.
  std::vector<std::string> texts(const char* key, std::size_t max_count);
  // Any value; null where it is missing or null.
  const Json* value(const char* key);
  // One of these words, the first of which may be left out where it is said to be the default.
  enum class Missing : std::uint8_t { is_first, is_wrong };
  std::string word(const char* key, const std::vector<const char*>& words, Missing missing);
  // A list; null where it is missing, null or wrong. of: what it has, for messages.
  const Json* list(const char* key, const char* of);
  // The same, which has to be there and has one element at least.
  const Json* filled_list(const char* key, const char* of);

  // Values of a member that mean the same as leaving it out. Call it before the member is read.
  void means_default(const char* key, const std::vector<Json>& values);
  // A parameter that kvant does not have: only these values are taken, for they change nothing.
  void accept_only(const char* key, const std::vector<Json>& harmless, const char* why);
  bool was_read(const char* key) const { return read_.contains(key); }
  // Takes the members that were not read as hints.
  void leave_others();
  // Their names, with where they were found: "metadata", "tools[].defer_loading". A bounded number.
  const std::vector<std::string>& hints() const { return hints_; }

  void fail(const std::string& key, std::string message, const char* code = kInvalidValue);
  void fail(const std::optional<ApiError>& error);  // of a part of it
  // The member is missing. give: what it should be.
  void fail_missing(const char* key, std::string_view give);
  // The error and the hints of an object within this one.
  void take(const JsonFields& part);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  void add_hint(std::string name);

  const Json& json_;
  std::string where_;
  std::set<std::string> read_, default_;
  std::vector<std::string> hints_;
  std::optional<ApiError> error_;
};

}  // namespace kvant
