#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "base/float16.h"
#include "base/gemm.h"
#include "base/linear_correction.h"
#include "device/cpu/calls.h"
#include "device/cpu/rows.h"
#include "device/cpu/workers.h"
#include "format/bit_packing.h"
#include "format/page_metric.h"

namespace kvant::device::cpu {
namespace {

// Returns the metric of a head's keys in a page, or nothing if the head has no metric.
std::optional<ErrorMetric> metric_of(const kvant_page_metrics& all, int d, int layer, int head, int page) {
  const std::size_t n = std::size_t{1} * d * kMetricRank;
  const float* directions = all.directions + layer * all.direction_layer_stride + head * n;
  if (std::isnan(directions[0])) return std::nullopt;
  const auto* turns = reinterpret_cast<const ChannelFrame*>(all.turns + layer * all.turn_layer_stride);
  const std::vector<float> turned =
      turned_rows({{directions, n}, {turns, std::size_t{1} * d}}, middle_of_page(page * kPageTokens));
  if (all.basis == nullptr) return metric_of_rows(turned);
  std::vector<float> stored(n);
  gemm(kMetricRank, d, d, row_major(turned.data(), d), row_major(all.basis + head * all.basis_head_stride, d),
       /*accumulate=*/false, stored.data(), d);
  return metric_of_rows(stored);
}

// Reads kvant_decode_layer.key_metrics of a head. Only the directions among its numbers are used.
std::optional<ErrorMetric> fixed_metric(const float* all, int d, int head) {
  constexpr int kNumbers = 1 + 2 * kMetricRank;
  const float* of_head = all + std::ptrdiff_t{1} * head * d * kNumbers;
  if (of_head[0] == 0) return std::nullopt;
  std::vector<float> directions;
  for (int i = 0; i < d; ++i)
    directions.insert(directions.end(), of_head + i * kNumbers + 1 + kMetricRank,
                      of_head + (i + 1) * kNumbers);
  return ErrorMetric(directions);
}

// Adds the nth page of a sequence, which was just sealed, to the state of a correction. Rows are
// [kPageTokens][d].
void add_to_state(const kvant_correction& c, std::int64_t seq, int head, int nth, int d,
                  const TokenMask& left_out, const std::vector<float>& keys,
                  const std::vector<float>& sealed_keys, const std::vector<float>& sealed_values) {
  float* const to = correction_state(c, seq, head) + (nth + 1) * c.state_page_stride;
  if (c.state_page_stride != 0) std::copy_n(to - c.state_page_stride, correction_sums(d), to);
  std::vector<float> lost(keys.size());
  for (std::size_t i = 0; i < lost.size(); ++i) lost[i] = keys[i] - sealed_keys[i];
  add_to_sums(c.key_maps + head * feature_map_weights(d), {lost.data(), kPageTokens, d},
              {sealed_values.data(), kPageTokens, d}, left_out, to);
}

// Describes a page that is due: the nth of a sequence, in the ith layer of the call.
struct DuePage {
  int layer, seq, nth, sealed;
};

class Sealing {
 public:
  explicit Sealing(const kvant_seal_range& range) : range_(range) {}

  void add(const kvant_decode_shape& shape, const kvant_decode_layer& layer) {
    layers_.push_back({&shape, layer});
  }

  // Seals the due pages of all layers. With a correction, there is only one layer.
  void run() const {
    const std::vector<DuePage> due = due_pages();
    const kvant_decode_shape& first = *layers_[0].shape;
    const int n_heads = first.n_kv_heads;
    constexpr std::int64_t kWorkOfNumber = 200;
    const std::int64_t work =
        static_cast<std::int64_t>(due.size()) * n_heads * first.head_dim * kPageTokens * kWorkOfNumber;
    if (layers_[0].layer.correction != nullptr) {
      // The sums of a page follow from the sums of the page before.
      for_each_task(n_heads, work, [&](int head) {
        for (const DuePage& page : due) seal(page, head);
      });
      return;
    }
    for_each_task(static_cast<int>(due.size()) * n_heads, work,
                  [&](int i) { seal(due[i / n_heads], i % n_heads); });
  }

 private:
  struct OfLayer {
    const kvant_decode_shape* shape;
    kvant_decode_layer layer;
  };

  std::vector<DuePage> due_pages() const {
    std::vector<DuePage> pages;
    for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
      for (int seq = 0; seq < layers_[layer].shape->n_seqs; ++seq) {
        if (!is_of_rows(seq) && (range_.tail_page == nullptr || range_.tail_page[seq] < 0)) continue;
        const int n =
            range_.n_pages == nullptr ? range_.max_pages : std::min(range_.n_pages[seq], range_.max_pages);
        for (int nth = 0; nth < n; ++nth) pages.push_back({layer, seq, nth, range_.sealed_page[seq] + nth});
      }
    }
    return pages;
  }

  void seal(const DuePage& page, int head) const {
    const auto& [of_shape, layer] = layers_[page.layer];
    const kvant_decode_shape& shape = *of_shape;
    const int d = shape.head_dim;
    const TokenMask left_out = masked_tokens(layer, page.seq, head, page.sealed);
    std::vector<float> keys, values(std::size_t{kPageTokens} * d), decoded[2];
    for (int side = 0; side < 2; ++side) {
      read(layer, page, head, side, d, values.data());
      const SideContext sealed(shape, layer, head, side);
      const Format& format = sealed.format();
      PageContext of_page = sealed.context();
      const auto metric =
          side == KVANT_KEY && format.shapes_errors() ? metric_of_keys(layer, page, head, d) : std::nullopt;
      if (metric) of_page.metric = &*metric;
      std::byte* const to = sealed_address(layer, page.seq, head, side, page.sealed);
      format.encode(values.data(), left_out, of_page, to);
      count_out_of_range(layer, format, left_out, d, to);
      if (range_.keep_sink != 0 && page.sealed == 0) keep_sink(layer, page.seq, head, side, d, values.data());
      if (layer.correction == nullptr || layer.correction->key_maps == nullptr) continue;
      if (side == KVANT_KEY) keys = values;
      decoded[side].resize(values.size());
      sealed.decode(to, decoded[side].data());
    }
    if (layer.correction != nullptr && layer.correction->key_maps != nullptr)
      add_to_state(*layer.correction, page.seq, head, page.nth, d, left_out, keys, decoded[0], decoded[1]);
  }

  bool is_of_rows(int seq) const { return range_.rows != nullptr && range_.first_rows[seq] >= 0; }

  // Reads the rows of a page as the tail holds them, or as the tail would hold them.
  void read(const kvant_decode_layer& layer, const DuePage& page, int head, int side, int d,
            float* values) const {
    if (!is_of_rows(page.seq)) {
      const std::byte* tail =
          page_address(layer.tail, page.seq, layer.layer, head, side, range_.tail_page[page.seq] + page.nth);
      for (int t = 0; t < kPageTokens; ++t) read_row(tail, d, t, values + std::ptrdiff_t{t} * d);
      return;
    }
    std::vector<std::uint16_t> kept(d);
    const int first = range_.first_rows[page.seq] + page.nth * kPageTokens;
    for (int t = 0; t < kPageTokens; ++t, values += d) {
      stored_row(*range_.rows, d, first + t, head, side, values);
      bf16_row_from_float(values, kept.data(), d);
      float_row_from_bf16(kept.data(), values, d);
    }
  }

  std::optional<ErrorMetric> metric_of_keys(const kvant_decode_layer& layer, const DuePage& page, int head,
                                            int d) const {
    const kvant_page_metrics* metrics = range_.page_metrics;
    if (metrics == nullptr)
      return layer.key_metrics == nullptr ? std::nullopt : fixed_metric(layer.key_metrics, d, head);
    const int place =
        metrics->first_pages == nullptr ? page.sealed : metrics->first_pages[page.seq] + page.nth;
    return metric_of(*metrics, d, page.layer, head, place);
  }

  void keep_sink(const kvant_decode_layer& layer, int seq, int head, int side, int d,
                 const float* values) const {
    if (layer.sink == 0) return;
    std::byte* const to = page_address(layer.protected_pages, seq, layer.layer, head, side, 0);
    for (int t = 0; t < layer.sink; ++t) write_row(values + std::ptrdiff_t{t} * d, d, t, to);
  }

  // Counts the page if a half-precision parameter, or a value of its grid, reaches the end of half precision,
  // as the GPU library does. Encoders clip parameters there. Tokens that are left out do not matter.
  void count_out_of_range(const kvant_decode_layer& layer, const Format& format, const TokenMask& left_out,
                          int d, const std::byte* page) const {
    if (layer.pages_out_of_range == nullptr) return;
    const auto described = find_format(format.name())->describe();
    if (!described) return;
    const PageDescription& of = described->page;
    const int n = of.half_parameters(d);
    if (n == 0) return;
    std::vector<float> numbers(n);
    const std::byte* const parameters = page + packed_bytes(kPageTokens * d / of.channels, of.bits);
    float_row_from_f16(parameters, numbers.data(), n);
    const bool has_zeros = of.grid != GridAxis::none && !of.symmetric;
    const int of_token = of.grid == GridAxis::of_tokens ? of.groups(d) : 1;
    for (int i = 0; i < n; ++i) {
      if (of.grid != GridAxis::of_channels && left_out.test(i / of_token % kPageTokens)) continue;
      float largest = numbers[i];
      if (of.symmetric) largest *= static_cast<float>(1 << (of.bits - 1));
      if (has_zeros && i < n / 2)
        largest = numbers[i + n / 2] + largest * static_cast<float>((1 << of.bits) - 1);
      if (std::abs(largest) < kF16Max) continue;
      std::atomic_ref<std::uint32_t>(*layer.pages_out_of_range).fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }

  const kvant_seal_range& range_;
  std::vector<OfLayer> layers_;
};

}  // namespace

void seal_pages(const kvant_decode_shape& shape, const kvant_decode_layer& layer,
                const kvant_seal_range& range) {
  Sealing sealing(range);
  for (int i = 0; i < std::max(range.n_layers, 1); ++i) {
    kvant_decode_layer at = layer;
    at.layer += i;
    const std::int64_t offset = range.layer_offsets == nullptr ? 0 : range.layer_offsets[i];
    for (kvant_pages* pages : {&at.sealed, &at.tail, &at.protected_pages})
      if (pages->pool != nullptr) pages->pool = static_cast<const char*>(pages->pool) + offset;
    sealing.add(shape, at);
  }
  sealing.run();
}

void seal_layers(int n_layers, const kvant_decode_shape* const* shapes,
                 const kvant_decode_layer* const* layers, const kvant_seal_range& range) {
  Sealing sealing(range);
  for (int i = 0; i < n_layers; ++i) sealing.add(*shapes[i], *layers[i]);
  sealing.run();
}

void protect(const kvant_decode_shape& shape, const kvant_decode_layer& layer,
             const kvant_protected_rows& rows) {
  const std::size_t row_bytes = std::size_t{2} * shape.head_dim;
  for (int i = 0; i < rows.n_rows; ++i) {
    for (int side = 0; side < 2; ++side) {
      const auto at = [&](const kvant_pages& pages, int token) {
        return page_address(pages, rows.seq[i], layer.layer, rows.head[i], side, token / kPageTokens) +
               token % kPageTokens * row_bytes;
      };
      std::memcpy(at(layer.protected_pages, rows.protected_token[i]), at(layer.tail, rows.tail_token[i]),
                  row_bytes);
    }
  }
}

}  // namespace kvant::device::cpu
