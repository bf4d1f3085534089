// SharedLibrary: a library that is loaded when it is needed, so that the program also runs where it isn't
// there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

class SharedLibrary {
 public:
  // From the first of `places` that has a file of this name, else from where the system looks. An error:
  // there is none, or it can't be loaded.
  static Result<std::unique_ptr<SharedLibrary>> open(const std::string& name,
                                                     const std::vector<std::string>& places);
  // Stays loaded: what it has registered, and handles that it gave, outlive any owner.
  ~SharedLibrary() = default;

  // The function called `name`, or null.
  void* find(const char* name) const;
  // The same into `function`; false if there is none.
  template <class Function>
  bool find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(find(name));
    return function != nullptr;
  }

 private:
  explicit SharedLibrary(void* handle) : handle_(handle) {}
  void* handle_;
};

// The first of `places` that has a file of this name, with it; empty: none has.
std::string find_library(const std::string& name, const std::vector<std::string>& places);
// The folders where libraries that belong to the program lie: its own, ../lib beside it, and, for a module of
// another program such as Python's, lib in the folder of the module.
std::vector<std::string> program_places();
// The folder of the library or program that has this function.
std::string place_of(const void* function);

}  // namespace kvant
