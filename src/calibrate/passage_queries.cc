#include "calibrate/passage_queries.h"

#include <algorithm>

#include "base/team.h"
#include "calibrate/principal_directions.h"
#include "calibrate/rope_turns.h"
#include "calibrate/turned_moments.h"

namespace kvant {
namespace {

std::vector<double> head_moments(const Capture& capture, const std::vector<ChannelTurn>& turns, int first,
                                 int layer, int kv_head) {
  const Geometry& g = capture.geometry();
  const int d = g.dim(layer), group = g.group(layer);
  std::vector<double> sums(static_cast<std::size_t>(d) * d);
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int p = 0; p < capture.size().passages; ++p) {
      std::vector<float> queries = capture.passage_queries(p, layer, head);
      const MatrixView<float> rows(queries.data(), static_cast<int>(queries.size()) / d, d);
      for (int r = first; r < rows.rows; ++r)
        turn_row(turns, -(r < kSinkTokens ? r : capture.passage_position(p) + r), rows.row(r));
      const std::vector<double> more =
          second_moments(MatrixView<float>(rows.row(first), rows.rows - first, d));
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
    }
  }
  return sums;
}

}  // namespace

QueryMoments passage_moments(const Capture& capture, const std::vector<std::vector<ChannelTurn>>& turns,
                             int first, int n_threads) {
  const Geometry& g = capture.geometry();
  QueryMoments all(g.n_all_kv_heads());
  run_team(n_threads, [&](Team& team) {
    for (int layer = 0; layer < g.n_layers; ++layer) {
      team.for_each(g.kv_heads(layer), [&](int kv_head) {
        all[g.head_index(layer, kv_head)] = head_moments(capture, turns[layer], first, layer, kv_head);
      });
    }
  });
  return all;
}

Result<QueryMoments> sampled_moments(const SampleReader& reader, const Sample& sample,
                                     const std::vector<std::vector<ChannelTurn>>& turns, int n_threads,
                                     const std::atomic<bool>* stop) {
  const auto length = static_cast<int>(sample.tokens.size());
  Capture capture(reader.engine->geometry(), CaptureSize{.length = length, .passages = 1});
  capture.place({sample.position_offset});
  const auto read = read_samples(
      *reader.engine, *reader.backend, {&sample, 1}, 0, capture, [](int) {}, stop);
  if (!read.ok()) return read.error();
  if (*read == 0) return error("interrupted");
  return passage_moments(capture, turns, std::min(kFirstSampledQuery, length / 2), n_threads);
}

}  // namespace kvant
