// Adam is the optimizer of Kingma and Ba 2015 (algorithm 1). Adam trains KVLinC's correction adapters.
#pragma once

#include <cstddef>
#include <vector>

namespace kvant {

class Adam {
 public:
  Adam(std::size_t n_weights, float learning_rate)
      : rate_(learning_rate), first_(n_weights), second_(n_weights) {}

  // Updates the weights by one step. Both arguments are [n_weights].
  void step(const std::vector<float>& gradient, std::vector<float>& weights);

 private:
  float rate_;
  std::vector<float> first_, second_;  // moving averages of the gradient and of its square
  int steps_ = 0;
};

}  // namespace kvant
