// ModelParts gives access to an engine's model, for code that computes with the weights in another way.
// Calibration uses the parts to differentiate the model.
#pragma once

namespace kvant {

class GgufFile;
class Weights;
struct Hparams;

struct ModelParts {
  const GgufFile& file;
  const Hparams& hparams;
  const Weights& weights;  // each tensor has the name that it has in the file
};

}  // namespace kvant
