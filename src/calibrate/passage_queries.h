// Finds moments of queries (query_metric.h) from texts that a model reads, without gradients.
#pragma once

#include <atomic>
#include <vector>

#include "base/channel_turn.h"
#include "calibrate/capture.h"
#include "calibrate/query_metric.h"
#include "calibrate/read_samples.h"

namespace kvant {

// encode=sampled reads this many tokens. The queries of the first tokens do not count, because these tokens
// have few others to attend to.
inline constexpr int kSampledTokens = 64, kFirstSampledQuery = 16;

// Returns the moments of the queries of all passages of a capture. In each passage, only queries from the
// token `first` on count. All counted queries have equal weight. `turns` are RoPE's rotations in each layer.
QueryMoments passage_moments(const Capture& capture, const std::vector<std::vector<ChannelTurn>>& turns,
                             int first, int n_threads);

// Lets the model read a sample, whose tokens are the only passage, and returns passage_moments(). Returns the
// errors of read_samples(), and "interrupted" once `stop` is true (null means never).
Result<QueryMoments> sampled_moments(const SampleReader& reader, const Sample& sample,
                                     const std::vector<std::vector<ChannelTurn>>& turns, int n_threads,
                                     const std::atomic<bool>* stop);

}  // namespace kvant
