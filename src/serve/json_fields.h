// JsonFields reads the members of a client's JSON object one by one. The first wrong member becomes the error
// of the request. A member that nobody reads is a hint, and the request goes on without it.
#pragma once

#include <cstdint>
#include <map>
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

  // `where` is the object's name in messages, such as "messages[2]", and prefixes the names of its members.
  // `json` must outlive the object.
  explicit JsonFields(const Json& json, std::string where = "");
  explicit JsonFields(Json&& json, std::string where = "") = delete;

  // Each of the functions number(), integer(), boolean() and text() returns the value of a member, or nothing
  // if the member is missing, null or wrong.
  std::optional<double> number(const char* key, double low, double high);
  std::optional<std::int64_t> integer(const char* key, std::int64_t low, std::int64_t high);
  std::optional<bool> boolean(const char* key);
  std::optional<std::string> text(const char* key);
  // Reads a text, or an array of at most max_count texts. Empty strings are left out, because they have no
  // effect.
  std::vector<std::string> texts(const char* key, std::size_t max_count);
  // Returns the member's value of any type, or a null pointer if the member is missing or null.
  const Json* value(const char* key);
  // Reads a member that must be one of `words`. With is_first, a missing member means the first word.
  enum class Missing : std::uint8_t { is_first, is_wrong };
  std::string word(const char* key, const std::vector<const char*>& words, Missing missing);
  // Returns a list, or a null pointer if the member is missing, null or wrong. `of` names the elements in
  // messages.
  const Json* list(const char* key, const char* of);
  // Returns a list like list(). A missing or empty list is an error.
  const Json* filled_list(const char* key, const char* of);

  // Declares values that mean the same as leaving the member out. Call means_default() before the member is
  // read.
  void means_default(const char* key, const std::vector<Json>& values);
  // Reads a parameter that kvant does not have. Values in `harmless` are accepted, and `why` ends the error
  // for any other value.
  void accept_only(const char* key, const std::vector<Json>& harmless, const char* why);
  bool was_read(const char* key) const { return read_.contains(key); }
  // Treats all unread members as hints.
  void leave_others();
  // Returns the names of hints with their place, such as "metadata" or "tools[].defer_loading". The list has
  // at most kMaxHints names.
  const std::vector<std::string>& hints() const { return hints_; }

  void fail(const std::string& key, std::string message, const char* code = kInvalidValue);
  void fail(const std::optional<ApiError>& error);  // takes over the error of a part, if there is one
  // Reports that a required member is missing. `give` says what the client should send.
  void fail_missing(const char* key, std::string_view give);
  // Takes over the error and the hints of an object inside this object.
  void take(const JsonFields& part);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  void add_hint(std::string name);

  const Json& json_;
  std::string where_;
  std::set<std::string> read_, default_;
  // Holds the integers that means_default() has declared, for messages.
  std::map<std::string, std::vector<std::int64_t>> also_valid_;
  std::vector<std::string> hints_;
  std::optional<ApiError> error_;
};

}  // namespace kvant
