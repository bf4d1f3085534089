// scale divides channels like `smooth`, but by factors from each channel's standard deviation. Single
// outliers affect the standard deviation less than the largest value.
#include "transform/channel_scaling.h"
#include "transform/kinds.h"

namespace kvant {

const TransformKind scale_transform = {"scale",
                                       "channels divided by a factor derived from their standard deviation",
                                       true, false, make_channel_scaling};

}  // namespace kvant
