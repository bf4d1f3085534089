// SharedLibrary is loaded only when it is needed, so the program also runs without it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

class SharedLibrary {
 public:
  // Loads the library from the first of `places` that has a file of this name, else from where the system
  // looks. Errors: it does not exist, or cannot be loaded.
  static Result<std::unique_ptr<SharedLibrary>> open(const std::string& name,
                                                     const std::vector<std::string>& places);
  // It stays loaded, because what it registered, and handles that it gave, outlive any owner.
  ~SharedLibrary() = default;

  // Returns the function called `name`, or null.
  void* find(const char* name) const;
  // Puts the function into `function`. Returns false if it does not exist.
  template <class Function>
  bool find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(find(name));
    return function != nullptr;
  }

 private:
  explicit SharedLibrary(void* handle) : handle_(handle) {}
  void* handle_;
};

// Returns the path of the first file of this name in `places`; empty: there is none.
std::string find_library(const std::string& name, const std::vector<std::string>& places);
// Returns the folders where the program's own libraries lie: its folder, ../lib, and lib next to a module of
// another program such as Python.
std::vector<std::string> program_places();
// Returns the folder of the library or program that contains this function.
std::string place_of(const void* function);

}  // namespace kvant
