#include "calibrate/cost_estimate.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include "base/resident_memory.h"
#include "calibrate/differentiable_model.h"
#include "model/gguf_file.h"
#include "model/tiny_engines.h"

namespace kvant::cost_estimate_test {
namespace {

class CostEstimate : public testing::TinyEngine {
 protected:
  const Hparams& hparams_ = engine_->parts().hparams;
};

TEST_F(CostEstimate, CountsTheWeightsOfLayers) {
  double weights = 0;
  for (int layer = 0; layer < hparams_.n_layers; ++layer) {
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
      const ggml_tensor* tensor =
          engine_->parts().file.tensor("blk." + std::to_string(layer) + "." + name + ".weight");
      ASSERT_NE(tensor, nullptr) << name;
      weights += static_cast<double>(ggml_nelements(tensor));
    }
  }
  EXPECT_EQ(multiplications(hparams_, {.tokens = 3}), 3 * weights);
  // The work consists of a forward pass, a backward pass and attention, and the two passes alone take more
  // than two multiplications per token and weight.
  EXPECT_GT(multiplications(hparams_, {.contexts = 1, .context_tokens = 100}), 2 * 100 * weights);
}

TEST_F(CostEstimate, HasTimeAndMemoryForWhatIsLeft) {
  const auto cost = [&](const CalibrationWork& work) {
    return estimated_cost({engine_.get(), backend_.get()}, hparams_, work, 2).value();
  };
  EXPECT_EQ(cost({}).seconds, 0);
  EXPECT_GT(cost({.tokens = 100}).seconds, 0);
  const CalibrationCost gradients = cost({.contexts = 2, .context_tokens = 300, .formats = 3});
  EXPECT_GT(gradients.seconds, 0);
  EXPECT_GT(gradients.bytes, gradient_bytes(hparams_, 300));
  EXPECT_LT(gradients.bytes, gradient_bytes(hparams_, 300) + 2 * resident_bytes());
}

TEST_F(CostEstimate, IsRoundedUpForReading) {
  const std::int64_t bytes = std::int64_t{3} << 30;
  EXPECT_EQ(readable_cost({31, bytes}), "about 40 s and at most 3.0 GiB of memory");
  EXPECT_EQ(readable_cost({200, bytes}), "about 4 min and at most 3.0 GiB of memory");
}

}  // namespace
}  // namespace kvant::cost_estimate_test
