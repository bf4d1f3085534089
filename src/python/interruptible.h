// Runs work without Python's lock, and lets Ctrl-C end the work.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>

#include "base/result.h"

namespace kvant {

// Takes a user's error to Python, where it becomes kvant.Error.
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

// Runs `work` on another thread and returns its result. Python's signal handlers run while the work runs. If
// a handler raises an exception, as for Ctrl-C, the function sets `stop` and rethrows the exception after the
// work has ended.
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
