// Result<T> holds a value, or an error that a user caused and can fix. Functions return errors this way
// because no exception may cross a library's boundary.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace kvant {

// Holds one sentence that says what is wrong, where, and what to do about it.
struct Error {
  std::string message;
  bool is_shortage = false;  // memory is too short, so a retry can succeed once memory is freed
};

// Makes an Error from a format string: error("unknown format '{}'", name).
template <class... Args>
[[nodiscard]] Error error(fmt::format_string<Args...> text, Args&&... args) {
  return Error{fmt::format(text, std::forward<Args>(args)...)};
}

// Makes an Error for too little memory, after which a retry can succeed.
template <class... Args>
[[nodiscard]] Error shortage(fmt::format_string<Args...> text, Args&&... args) {
  return Error{fmt::format(text, std::forward<Args>(args)...), /*is_shortage=*/true};
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}          // NOLINT: implicit on purpose
  Result(Error failure) : state_(std::move(failure)) {}  // NOLINT: implicit on purpose

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // Returns the value. Calling value() on an error is a bug.
  T& value() & {
    KVANT_CHECK(ok(), "value of a failed Result");
    return std::get<0>(state_);
  }
  const T& value() const& {
    KVANT_CHECK(ok(), "value of a failed Result");
    return std::get<0>(state_);
  }
  T&& value() && {
    KVANT_CHECK(ok(), "value of a failed Result");
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Returns the error. Calling error() on a value is a bug.
  const Error& error() const {
    KVANT_CHECK(!ok(), "error of a successful Result");
    return std::get<1>(state_);
  }

 private:
  std::variant<T, Error> state_;
};

// Result<void>, also called Status, is success or an error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error failure) : failed_(true), failure_(std::move(failure)) {}  // NOLINT: implicit on purpose

  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    KVANT_CHECK(failed_, "error of a successful Status");
    return failure_;
  }

 private:
  bool failed_ = false;
  Error failure_;
};
using Status = Result<void>;

}  // namespace kvant

// Evaluates a Status and returns its error, if it has one, from the calling function.
#define KVANT_RETURN_IF_ERROR(expression)                                   \
  do {                                                                      \
    if (auto status_ = (expression); !status_.ok()) return status_.error(); \
  } while (false)
