// Turns transforms.def into the list of kinds that recipes and the help read.
#include "transform/kinds.h"

namespace kvant {

std::span<const TransformKind* const> transform_kinds() {
  static const TransformKind* const kinds[] = {
#define KVANT_TRANSFORM(name) &name##_transform,
#include "transform/transforms.def"
#undef KVANT_TRANSFORM
  };
  return kinds;
}

const TransformKind* find_transform_kind(const std::string& name) {
  for (const TransformKind* kind : transform_kinds()) {
    if (name == kind->name) return kind;
  }
  return nullptr;
}

std::vector<std::string> transform_names() {
  std::vector<std::string> names;
  for (const TransformKind* kind : transform_kinds()) names.emplace_back(kind->name);
  return names;
}

}  // namespace kvant
