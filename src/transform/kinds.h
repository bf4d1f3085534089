// Declares the kinds of transforms.def. Each kind is defined in its own file.
#pragma once

#include "transform/transform.h"

namespace kvant {

#define KVANT_TRANSFORM(name) extern const TransformKind name##_transform;
#include "transform/transforms.def"
#undef KVANT_TRANSFORM

}  // namespace kvant
