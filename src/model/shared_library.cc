#include "model/shared_library.h"

#include <dlfcn.h>

#include <filesystem>

namespace kvant {

namespace fs = std::filesystem;

std::string find_library(const std::string& name, const std::vector<std::string>& places) {
  std::error_code failure;
  for (const std::string& place : places) {
    const fs::path path = fs::path(place) / name;
    if (!place.empty() && fs::exists(path, failure)) return path.string();
  }
  return "";
}

std::vector<std::string> program_places() {
  std::vector<std::string> places;
  std::error_code failure;
  const fs::path program = fs::read_symlink("/proc/self/exe", failure).parent_path();
  if (!failure) places = {program.string(), (program.parent_path() / "lib").string()};
  const fs::path own = place_of(reinterpret_cast<const void*>(&program_places));
  if (!own.empty()) places.push_back((own / "lib").string());
  return places;
}

std::string place_of(const void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return "";
  return fs::path(info.dli_fname).parent_path().string();
}

Result<std::unique_ptr<SharedLibrary>> SharedLibrary::open(const std::string& name,
                                                           const std::vector<std::string>& places) {
  const std::string found = find_library(name, places);
  void* handle = dlopen(found.empty() ? name.c_str() : found.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Error{dlerror()};
  return std::unique_ptr<SharedLibrary>(new SharedLibrary(handle));
}

void* SharedLibrary::find(const char* name) const {
  return dlsym(handle_, name);
}

}  // namespace kvant
