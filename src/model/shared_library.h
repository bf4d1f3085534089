// SharedLibrary is a library that is loaded only when it is needed, so the program also runs without it.
// kvant finds GPUs in this way, without requiring CUDA's libraries.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

class SharedLibrary {
 public:
  // Loads the library from the first of `places` that has a file of this name. If no place has such a file,
  // the system searches for the library. Returns an error if the library does not exist or cannot be loaded.
  static Result<std::unique_ptr<SharedLibrary>> open(const std::string& name,
                                                     const std::vector<std::string>& places);
  // Keeps the library loaded, because objects that it registered or returned may outlive any owner.
  ~SharedLibrary() = default;

  // Returns the function called `name`, or null.
  void* find(const char* name) const;
  // Stores the function in `function`. Returns false if the function does not exist.
  template <class Function>
  bool find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(find(name));
    return function != nullptr;
  }

 private:
  explicit SharedLibrary(void* handle) : handle_(handle) {}
  void* handle_;
};

// Returns the path of the first file of this name in `places`, or an empty string if there is none.
std::string find_library(const std::string& name, const std::vector<std::string>& places);
// Returns the folders of the program's own libraries: the program's folder, ../lib, and lib in the folder of
// a module in another program such as Python.
std::vector<std::string> program_places();
// Returns the folder of the library or program that contains this function.
std::string place_of(const void* function);

}  // namespace kvant
