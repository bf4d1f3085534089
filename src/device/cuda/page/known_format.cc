#include "device/cuda/page/known_format.h"

#include <cstring>
#include <string>

#include "device/cuda/page/growing_list.h"

namespace kvant::cuda {

const KnownFormat* find_known_format(const char* name) {
  struct Entry {
    std::string name;
    KnownFormat known;
  };
  static constinit GrowingList<Entry> entries;
  if (name == nullptr) return nullptr;
  const Entry* entry = entries.find([&](const Entry& e) { return std::strcmp(e.name.c_str(), name) == 0; });
  if (entry != nullptr) return &entry->known;
  const Format* format = find_format(name);
  if (format == nullptr) return nullptr;
  return &entries.add({name, {format, format->describe(), !format->needed_constants().empty()}})->known;
}

}  // namespace kvant::cuda
