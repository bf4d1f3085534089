// ModelParts: what an engine's model is made of, for what computes with its weights in another way.
#pragma once

namespace kvant {

class GgufFile;
class Weights;
struct Hparams;

struct ModelParts {
  const GgufFile& file;
  const Hparams& hparams;
  const Weights& weights;  // each tensor has its name in the file
};

}  // namespace kvant
