// Work without Python's lock that Ctrl-C ends.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>

#include "base/result.h"

namespace kvant {

// A user's error on its way to Python: the exception kvant.Error.
struct PythonError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class T>
T value_or_raise(Result<T> result) {
  if (!result.ok()) throw PythonError{result.error().message};
  return std::move(result).value();
}
inline void value_or_raise(const Status& status) {
  if (!status.ok()) throw PythonError{status.error().message};
}

// Runs `work` on another thread and returns what it returns. Python's handlers of signals run in between;
// when one raises an exception (Ctrl-C), `stop` is set, and the exception goes on once the work has ended.
template <class Work>
auto interruptible(std::atomic<bool>& stop, Work work) {
  using namespace std::chrono_literals;
  bool raised = false;
  auto done = std::async(std::launch::async, std::move(work));
  {
    const nanobind::gil_scoped_release release;
    while (done.wait_for(20ms) != std::future_status::ready) {
      const nanobind::gil_scoped_acquire acquire;
      if (!raised && PyErr_CheckSignals() != 0) {
        raised = true;
        stop = true;
      }
    }
  }
  if (raised) {
    stop = false;
    throw nanobind::python_error();
  }
  return done.get();
}

}  // namespace kvant
