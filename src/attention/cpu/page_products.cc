#include "attention/cpu/page_products.h"

#include <algorithm>
#include <numeric>

#include "attention/integer_rounding.h"
#include "attention/softmax.h"
#include "format/code_order.h"

namespace kvant::cpu {
namespace {

bool has_lanes(const PageSide& side) {
  return side.format->code_order() != CodeOrder::rows;
}

float dot(const float* a, const float* b, int n) {
  return std::inner_product(a, a + n, b, 0.0F);
}

// Heads [first, first + n) of `rows` that a kernel serves at once: as even as can be.
template <class Serve>
void by_heads(int rows, const Serve& serve) {
  const int n_calls = (rows + kMostHeads - 1) / kMostHeads;
  for (int i = 0, first = 0; i < n_calls; ++i) {
    const int n = (rows - first) / (n_calls - i);
    serve(first, n);
    first += n;
  }
}

}  // namespace

void PageProducts::begin(MatrixView<const float> q, const std::vector<float>& q_scale, Products products) {
  q_ = q;
  q_scale_ = &q_scale;
  products_ = products;
  queries_.resize(q.rows);
  weights_.resize(q.rows);
  prepared_channels_ = 0;
  ordered_channels_ = 0;
  const std::size_t d = q.cols;
  scaled_query_.resize(d);
  ordered_scale_.resize(d);
  ordered_.resize(q.rows * d);
  sums_.resize(static_cast<std::size_t>(q.rows) * kPageTokens);
  scaled_weights_.resize(kPageTokens);
  rows_.resize(kPageTokens * d);
}

void PageProducts::score(const PageSide& k, int n_tokens, MatrixView<float> scores) {
  if (has_lanes(k) && n_tokens == kPageTokens) {
    score_codes(k, scores);
  } else {
    score_rows(k, n_tokens, scores);
  }
  for (int r = 0; r < q_.rows && products_ == Products::integer; ++r)
    scale_row(scores.row(r), n_tokens, (*q_scale_)[r]);
}

void PageProducts::mix(const PageSide& v, int n_tokens, MatrixView<float> weights, MatrixView<float> out) {
  if (has_lanes(v) && n_tokens == kPageTokens) {
    mix_codes(v, weights, out);
  } else {
    mix_rows(v, n_tokens, weights, out);
  }
}

// The page at hand: its scheme and parameters.
CodePage PageProducts::code_page(const PageSide& side) {
  const PageContext& context = *side.context;
  scheme_ = *side.format->code_scheme(context.head_dim);
  for (auto* parameters : {&parameters_.token_scale, &parameters_.token_zero, &parameters_.channel_scale,
                           &parameters_.channel_zero}) {
    parameters->clear();
  }
  side.format->read_parameters(side.bytes, context, context.table, parameters_);
  return {reinterpret_cast<const std::uint8_t*>(side.bytes),
          scheme_.meaning,
          scheme_.bits,
          scheme_.group_channels,
          context.head_dim / scheme_.group_channels,
          context.table.biased.data()};
}

// Whole numbers for the page's codes, times the channels' scales, if any. Without them, pages share them.
void PageProducts::prepare_queries(const float* channel_scale) {
  const int d = q_.cols, channels = scheme_.group_channels;
  if (channel_scale == nullptr && prepared_channels_ == channels) return;
  const bool whole = products_ == Products::integer;
  for (int r = 0; r < q_.rows; ++r) {
    const float* q = q_.row(r);
    if (channel_scale != nullptr) {
      std::transform(q, q + d, channel_scale, scaled_query_.begin(), std::multiplies<>());
      q = scaled_query_.data();
    }
    kernels_->prepare_query(q, channels, d / (kLaneGroups * channels), whole, queries_[r]);
  }
  prepared_channels_ = channel_scale == nullptr ? channels : 0;
}

void PageProducts::score_codes(const PageSide& k, MatrixView<float> scores) {
  const CodePage page = code_page(k);
  const int d = q_.cols;
  const int n_blocks = std::max(1, scheme_.channel_blocks), block_tokens = kPageTokens / n_blocks;
  const int n_groups = std::max(1, scheme_.token_groups);
  const int group_blocks = page.groups / kLaneGroups / n_groups, group_channels = d / n_groups;
  for (int block = 0; block < n_blocks; ++block) {
    const int first = block * block_tokens, end = first + block_tokens;
    const auto of_block = [&](const std::vector<float>& channels) {
      return channels.empty() ? nullptr : channels.data() + static_cast<std::ptrdiff_t>(block) * d;
    };
    prepare_queries(of_block(parameters_.channel_scale));
    const float* zero = of_block(parameters_.channel_zero);
    for (int r = 0; r < q_.rows; ++r) {
      std::fill(scores.row(r) + first, scores.row(r) + end, zero == nullptr ? 0.0F : dot(q_.row(r), zero, d));
    }
    for (int group = 0; group < n_groups; ++group) {
      ScoreTask task{.page = page,
                     .first_block = group * group_blocks,
                     .end_block = (group + 1) * group_blocks,
                     .first_token = first,
                     .end_token = end};
      by_heads(q_.rows, [&](int first_row, int n) {
        task.n_heads = n;
        for (int h = 0; h < n; ++h) {
          task.queries[h] = &queries_[first_row + h];
          task.sums[h] = sums_.data() + static_cast<std::ptrdiff_t>(first_row + h) * kPageTokens;
        }
        kernels_->score(task);
      });
      for (int r = 0; r < q_.rows; ++r) {
        const std::int32_t* sums = sums_.data() + static_cast<std::ptrdiff_t>(r) * kPageTokens;
        const float unit = queries_[r].unit;
        float* row = scores.row(r);
        if (scheme_.token_groups == 0) {
          for (int t = first; t < end; ++t) row[t] += unit * static_cast<float>(sums[t]);
          continue;
        }
        const float* scale =
            parameters_.token_scale.data() + static_cast<std::ptrdiff_t>(group) * kPageTokens;
        for (int t = first; t < end; ++t) row[t] += unit * static_cast<float>(sums[t]) * scale[t];
        if (parameters_.token_zero.empty()) continue;
        const float* token_zero =
            parameters_.token_zero.data() + static_cast<std::ptrdiff_t>(group) * kPageTokens;
        const float* q = q_.row(r) + group * group_channels;
        const float sum = std::accumulate(q, q + group_channels, 0.0F);
        for (int t = first; t < end; ++t) row[t] += sum * token_zero[t];
      }
    }
  }
}

void PageProducts::decode(const PageSide& side, int n_tokens) {
  if (products_ == Products::integer) {
    side.format->decode_integers(side.bytes, n_tokens, *side.context, rows_.data(), block_scales_);
  } else {
    side.format->decode(side.bytes, n_tokens, *side.context, rows_.data());
  }
}

void PageProducts::score_rows(const PageSide& k, int n_tokens, MatrixView<float> scores) {
  decode(k, n_tokens);
  kernels_->score_rows(rows_.data(), n_tokens, q_.cols, q_.data, q_.rows, scores.data, scores.stride);
  for (int r = 0; r < q_.rows && products_ == Products::integer; ++r) {
    for (int t = 0; t < n_tokens; ++t) scores.row(r)[t] *= block_scales_[t / kIntegerBlock];
  }
}

// Outputs in the order of another family's codes are put in order first.
void PageProducts::keep_order(const CodeScheme& scheme, MatrixView<float> out) {
  if (ordered_channels_ == scheme.group_channels) return;
  end(out);
  std::fill(ordered_.begin(), ordered_.end(), 0.0F);
  ordered_channels_ = scheme.group_channels;
}

void PageProducts::end(MatrixView<float> out) {
  if (ordered_channels_ == 0) return;
  const int d = out.cols, groups = d / ordered_channels_;
  for (int r = 0; r < out.rows; ++r) {
    const float* ordered = ordered_.data() + static_cast<std::ptrdiff_t>(r) * d;
    for (int c = 0; c < d; ++c)
      out.row(r)[c] += ordered[c % ordered_channels_ * groups + c / ordered_channels_];
  }
  ordered_channels_ = 0;
}

void PageProducts::mix_codes(const PageSide& v, MatrixView<float> weights, MatrixView<float> out) {
  const CodePage page = code_page(v);
  keep_order(scheme_, out);
  const int d = out.cols;
  const int n_blocks = std::max(1, scheme_.channel_blocks), block_tokens = kPageTokens / n_blocks;
  for (int block = 0; block < n_blocks; ++block) {
    const float* scale = nullptr;
    if (!parameters_.channel_scale.empty()) {
      const float* of_block = parameters_.channel_scale.data() + static_cast<std::ptrdiff_t>(block) * d;
      for (int c = 0; c < d; ++c)
        ordered_scale_[c % page.group_channels * page.groups + c / page.group_channels] = of_block[c];
      scale = ordered_scale_.data();
    }
    const float* zero = parameters_.channel_zero.empty()
                            ? nullptr
                            : parameters_.channel_zero.data() + static_cast<std::ptrdiff_t>(block) * d;
    mix_block(page, block * block_tokens, (block + 1) * block_tokens, weights, out, scale, zero);
  }
}

// Tokens that share their channels' parameters.
void PageProducts::mix_block(const CodePage& page, int first_token, int end_token, MatrixView<float> weights,
                             MatrixView<float> out, const float* channel_scale, const float* channel_zero) {
  const int d = out.cols, n_tokens = end_token - first_token;
  const bool whole = products_ == Products::integer;
  const int n_groups = std::max(1, scheme_.token_groups), group_channels = d / n_groups;
  std::vector<float> factors(out.rows, 1.0F);
  for (int r = 0; r < out.rows; ++r) {
    float* row = weights.row(r) + first_token;
    if (whole) factors[r] = round_to_integers(row, n_tokens);
    if (channel_zero == nullptr) continue;
    const float sum = std::accumulate(row, row + n_tokens, 0.0F);
    if (sum != 0) add_scaled_row(out.row(r), channel_zero, d, sum * factors[r]);
  }
  for (int group = 0; group < n_groups; ++group) {
    const auto of_group = [&](const std::vector<float>& tokens) {
      return tokens.empty() ? nullptr : tokens.data() + static_cast<std::ptrdiff_t>(group) * kPageTokens;
    };
    const float* scale = of_group(parameters_.token_scale);
    const float* zero = of_group(parameters_.token_zero);
    for (int r = 0; r < out.rows; ++r) {
      const float* row = weights.row(r);
      if (zero != nullptr) {
        const float sum = dot(row + first_token, zero + first_token, n_tokens);
        float* to = out.row(r) + group * group_channels;
        for (int c = 0; c < group_channels; ++c) to[c] += sum;
      }
      // Whole weights are of one scale, and so are their tokens.
      if (whole || scale == nullptr) {
        kernels_->prepare_weights(row, first_token, end_token, whole, weights_[r]);
        if (scale != nullptr) weights_[r].unit *= scale[first_token];
      } else {
        for (int t = first_token; t < end_token; ++t) scaled_weights_[t] = row[t] * scale[t];
        kernels_->prepare_weights(scaled_weights_.data(), first_token, end_token, false, weights_[r]);
      }
    }
    std::uint8_t octets[kTokens / kOctet];
    MixTask task{.page = page,
                 .first_group = group * page.groups / n_groups,
                 .end_group = (group + 1) * page.groups / n_groups,
                 .octets = octets,
                 .channel_scale = channel_scale};
    for (int octet = first_token / kOctet; octet < end_token / kOctet; ++octet) {
      std::uint64_t any = 0;
      for (const ByteWeights& w : weights_) any |= w.octets[octet][0] | w.octets[octet][1];
      if (any != 0) octets[task.n_octets++] = static_cast<std::uint8_t>(octet);
    }
    if (task.n_octets == 0) continue;
    by_heads(out.rows, [&](int first_row, int n) {
      task.n_heads = n;
      for (int h = 0; h < n; ++h) {
        const int r = first_row + h;
        task.weights[h] = &weights_[r];
        task.factors[h] = weights_[r].unit * factors[r];
        task.out[h] = ordered_.data() + static_cast<std::ptrdiff_t>(r) * d;
      }
      kernels_->mix(task);
    });
  }
}

void PageProducts::mix_rows(const PageSide& v, int n_tokens, MatrixView<float> weights,
                            MatrixView<float> out) {
  decode(v, n_tokens);
  for (int first = 0; first < n_tokens && products_ == Products::integer; first += kIntegerBlock) {
    const int n = std::min(kIntegerBlock, n_tokens - first);
    for (int r = 0; r < out.rows; ++r) {
      float* block = weights.row(r) + first;
      const float scale = round_to_integers(block, n);
      scale_row(block, n, scale * block_scales_[first / kIntegerBlock]);
    }
  }
  kernels_->mix_rows(rows_.data(), n_tokens, out.cols, weights.data, weights.stride, out.rows, out.data);
}

}  // namespace kvant::cpu
