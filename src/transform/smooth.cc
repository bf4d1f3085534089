// smooth maps K to K diag(1/lambda) and q to q diag(lambda), with lambda_i = sqrt(max |K_i|) from calibration
// (VecInfer 3.2). The division makes the channels' ranges more alike before a codebook or a rotation.
#include "transform/channel_scaling.h"
#include "transform/kinds.h"

namespace kvant {

const TransformKind smooth_transform = {"smooth",
                                        "channels divided by the square root of their largest value", true,
                                        false, make_channel_scaling};

}  // namespace kvant
