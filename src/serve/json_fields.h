// JsonFields: the members of a JSON object that a client sent, read one by one. The first that is wrong is
// the answer to the client; so is one that nobody has read: nothing is ignored.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "serve/api_error.h"

namespace kvant {

class JsonFields {
 public:
  using Json = nlohmann::ordered_json;

  // where: what the object is called in messages, as a prefix of its members' names ("messages[2]."). `json`
  // outlives it.
  explicit JsonFields(const Json& json, std::string where = "");

  // The value of a member; nothing where it is missing, null, or wrong.
  std::optional<double> number(const char* key, double low, double high);
  std::optional<std::int64_t> integer(const char* key, std::int64_t low, std::int64_t high);
  std::optional<bool> boolean(const char* key);
  std::optional<std::string> text(const char* key);
  // A text, or an array of at most that many; none may be empty.
  std::vector<std::string> texts(const char* key, std::size_t max_count);
  // Any value; null where it is missing or null.
  const Json* value(const char* key);

  // A parameter that kvant doesn't have, or not yet: only values that change nothing are taken.
  void accept_only(const char* key, const std::vector<Json>& harmless, const char* why);
  // Refuses members that were not read.
  void refuse_others();

  void fail(const std::string& key, std::string message);
  void fail(const std::optional<ApiError>& error);  // of a part of it
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const Json& json_;
  std::string where_;
  std::set<std::string> read_;
  std::optional<ApiError> error_;
};

}  // namespace kvant
