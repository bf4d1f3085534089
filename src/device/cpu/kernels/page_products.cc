#include "device/cpu/kernels/page_products.h"

#include <algorithm>
#include <utility>

#include "base/softmax.h"
#include "device/cpu/kernels/integer_products.h"
#include "device/cpu/kernels/parameter_part.h"
#include "format/code_order.h"

namespace kvant::cpu {
namespace {

static_assert(kWholeMax == kIntegerMax);

constexpr std::ptrdiff_t kLine = 64;

bool multiplies_codes(const PageSide& side, int n_tokens) {
  return n_tokens == kPageTokens && cpu::multiplies_codes(*side.format, side.context->head_dim);
}

NextBytes bytes_of(const PageSide* side) {
  if (side == nullptr) return {};
  const PageContext& context = *side->context;
  return {reinterpret_cast<const std::uint8_t*>(side->bytes),
          static_cast<std::ptrdiff_t>(side->format->page_bytes(context.head_dim)) * context.page_tokens /
              kPageTokens};
}

// Calls serve(first, n) for each group of rows that a kernel serves at once.
template <class Serve>
void by_heads(int rows, const Serve& serve) {
  for (int first = 0, n = 0; first < rows; first += n) {
    n = head_group(rows - first);
    serve(first, n);
  }
}

}  // namespace

bool multiplies_codes(const Format& format, int head_dim) {
  if (format.code_order() != CodeOrder::rows) return true;
  const auto scheme = format.code_scheme(head_dim);
  return scheme && scheme->meaning == CodeMeaning::wide_vector;
}

// No code of `bits` bits loses less than 2^(-2 * bits) of the variance of a normal distribution (Shannon's
// rate-distortion function).
float small_share(const CodeScheme& scheme) {
  const bool is_centered = scheme.meaning == CodeMeaning::state || scheme.meaning == CodeMeaning::level;
  return is_centered ? kRoundingShare / static_cast<float>(1 << (2 * scheme.bits)) : 0;
}

void PageProducts::begin(MatrixView<const float> q, const std::vector<float>& q_scale, Products products) {
  q_ = q;
  q_scale_ = &q_scale;
  products_ = products;
  queries_.resize(q.rows);
  weight_sums_.resize(q.rows);
  weight_roundings_.assign(q.rows, {});
  prepared_channels_ = 0;
  summed_groups_ = 0;
  ordered_channels_ = 0;
  codebook_table_ = nullptr;
  const std::size_t d = q.cols;
  ordered_scale_.resize(d);
  ordered_.resize(q.rows * d);
  sums_.resize(static_cast<std::size_t>(q.rows) * kPageTokens);
  rows_.resize(kPageTokens * d);
}

void PageProducts::score(const PageSide& k, int n_tokens, const PageSide* next, MatrixView<float> scores) {
  next_ = bytes_of(next);
  if (multiplies_codes(k, n_tokens)) {
    score_codes(k, scores);
  } else {
    score_rows(k, n_tokens, scores);
  }
}

// Returns the factor that turns a query's numbers into units of the scores.
float PageProducts::query_scale(int r) const {
  return products_ == Products::integer ? (*q_scale_)[r] : 1.0F;
}

void PageProducts::mix(const PageSide& v, int n_tokens, const PageSide* next, MatrixView<float> weights,
                       MatrixView<float> out) {
  next_ = bytes_of(next);
  if (multiplies_codes(v, n_tokens)) {
    mix_codes(v, weights, out);
  } else {
    mix_rows(v, n_tokens, weights, out);
  }
}

// With fast products, the memory must not be idle between two kernels. The small steps between kernels
// therefore prefetch two fifths of the next page. Slower kernels prefetch the page alone, because prefetches
// of a small step would wait for each other.
void PageProducts::divide_next(int n_parts) {
  if (!kernels_->small_numbers) return;
  const std::ptrdiff_t size = next_.size * 2 / 5 / kLine * kLine;
  next_.size -= size;
  rest_ = {next_.bytes + next_.size, size};
  part_size_ = (size / kLine + n_parts - 1) / n_parts * kLine;
}

void PageProducts::prefetch_part() {
  const std::ptrdiff_t size = std::min(rest_.size, part_size_);
  for (std::ptrdiff_t at = 0; at < size; at += kLine) __builtin_prefetch(rest_.bytes + at);
  rest_.bytes += size;
  rest_.size -= size;
}

void PageProducts::clear_parameters() {
  for (auto* parameters : {&parameters_.token_scale, &parameters_.token_offset, &parameters_.channel_scale,
                           &parameters_.channel_offset}) {
    parameters->clear();
  }
  parameters_of_ = nullptr;
}

// Clearing vectors costs as much as reading parameters, so vectors that the next page sets again keep their
// size.
void PageProducts::clear_parameters_of_others(const Format& format) {
  if (&format == parameters_of_) return;
  clear_parameters();
  parameters_of_ = &format;
}

// Makes the page the current one: sets scheme_ and parameters_ and returns its codes.
CodePage PageProducts::code_page(const PageSide& side) {
  const PageContext& context = *side.context;
  scheme_ = *side.format->code_scheme(context.head_dim);
  clear_parameters_of_others(*side.format);
  side.format->read_parameters(side.bytes, context, context.table, parameters_);
  return {reinterpret_cast<const std::uint8_t*>(side.bytes),
          scheme_.meaning,
          scheme_.bits,
          scheme_.group_channels,
          context.head_dim / scheme_.group_channels,
          context.table.biased.data()};
}

bool PageProducts::needs_lookup(const CodePage& page) const {
  if (page.meaning == CodeMeaning::wide_vector) return true;
  return page.meaning == CodeMeaning::vector && !kernels_->large_tables;
}

// Sets codebook[code * entry + i] to channel i. With fewer than 4 channels, the channels repeat.
template <int Channels>
void put_side_by_side(const std::uint8_t* channels, std::uint8_t* codebook) {
  constexpr int kEntry = std::max(Channels, 4);
  for (int code = 0; code < 256; ++code) {
    for (int i = 0; i < kEntry; ++i) codebook[code * kEntry + i] = channels[i % Channels * 256 + code];
  }
}

// Returns the page's centroids in the order of codebook_lookup.h. All pages of a run share one table, so the
// order is made once.
const std::uint8_t* PageProducts::codebook_of(const CodePage& page) {
  if (codebook_table_ == page.table) return codebook_.data();
  codebook_table_ = page.table;
  codebook_.resize(256 * static_cast<std::size_t>(std::max(page.group_channels, 4)));
  switch (page.group_channels) {
    case 2:
      put_side_by_side<2>(page.table, codebook_.data());
      break;
    case 4:
      put_side_by_side<4>(page.table, codebook_.data());
      break;
    default:
      put_side_by_side<8>(page.table, codebook_.data());
  }
  return codebook_.data();
}

// Returns the page as bytes: 1 position with the channels in order for scores, 4 positions for a mix.
CodePage PageProducts::looked_up_page(const CodePage& page, int n_positions) {
  const int d = q_.cols;
  bytes_.resize(static_cast<std::size_t>(kPageTokens) * d);
  const CodebookLookup& lookup = kernels_->lookup;
  if (page.meaning == CodeMeaning::vector) {
    const ByteCodes codes{page.codes, page.table, codebook_of(page), page.group_channels, d};
    (n_positions == 1 ? lookup.bytes_for_scores : lookup.bytes_for_mix)(codes, bytes_.data());
  } else {
    const WideCodes codes{page.codes, page.table, page.bits, scheme_.vector_channels(), d};
    (n_positions == 1 ? lookup.wide_for_scores : lookup.wide_for_mix)(codes, bytes_.data());
  }
  scheme_.group_channels = 1;
  return {bytes_.data(), CodeMeaning::wide_vector, 8, n_positions, d / n_positions, nullptr};
}

// Turns the queries, times the channels' scales if there are any, into integers for the page's codes. Without
// scales all pages share the integers.
void PageProducts::prepare_queries(const float* channel_scale) {
  const int channels = scheme_.group_channels;
  const float share = small_share(scheme_);
  if (channel_scale == nullptr && prepared_channels_ == channels && prepared_share_ == share) return;
  const QueryRounding rounding{.whole = products_ == Products::integer,
                               .sums = channel_scale == nullptr || scheme_.meaning != CodeMeaning::number,
                               .small_share = share};
  for (int r = 0; r < q_.rows; ++r) {
    kernels_->prepare_query(q_.row(r), channel_scale, channels, q_.cols / (kLaneGroups * channels), rounding,
                            queries_[r]);
  }
  prepared_channels_ = channel_scale == nullptr ? channels : 0;
  prepared_share_ = share;
}

void PageProducts::score_codes(const PageSide& k, MatrixView<float> scores) {
  divide_next(q_.rows);
  CodePage page = code_page(k);
  if (needs_lookup(page)) page = looked_up_page(page, 1);
  const int d = q_.cols;
  const int n_blocks = std::max(1, scheme_.channel_blocks), block_tokens = kPageTokens / n_blocks;
  for (int block = 0; block < n_blocks; ++block) {
    const int first = block * block_tokens, end = first + block_tokens;
    prepare_queries(part(parameters_.channel_scale, block, d));
    const float* offset = part(parameters_.channel_offset, block, d);
    for (int group = 0; group < std::max(1, scheme_.token_groups); ++group)
      score_group(page, group, first, end, offset, scores);
  }
}

// Sums the queries over n_groups equal groups of channels. All pages of a format share these sums.
void PageProducts::sum_queries(int n_groups) {
  if (summed_groups_ == n_groups) return;
  const int channels = q_.cols / n_groups;
  query_sums_.resize(static_cast<std::size_t>(q_.rows) * n_groups);
  for (int r = 0; r < q_.rows; ++r) {
    for (int group = 0; group < n_groups; ++group)
      query_sums_[r * n_groups + group] = kernels_->sum(q_.row(r) + group * channels, channels);
  }
  summed_groups_ = n_groups;
}

// Adds the channels of one group to the scores of tokens [first, end). The first group also adds the
// channels' offsets; null means that there are none.
void PageProducts::score_group(const CodePage& page, int group, int first, int end, const float* offset,
                               MatrixView<float> scores) {
  const int n_groups = std::max(1, scheme_.token_groups);
  const int group_blocks = page.groups / kLaneGroups / n_groups;
  ScoreTask task{.page = page,
                 .first_block = group * group_blocks,
                 .end_block = (group + 1) * group_blocks,
                 .first_token = first,
                 .end_token = end};
  by_heads(q_.rows, [&](int first_row, int n) {
    task.n_heads = n;
    task.next = std::exchange(next_, {});
    task.small_queries = true;
    for (int h = 0; h < n; ++h) {
      task.queries[h] = &queries_[first_row + h];
      task.small_queries = task.small_queries && queries_[first_row + h].small;
      task.sums[h] = sums_.data() + static_cast<std::ptrdiff_t>(first_row + h) * kPageTokens;
    }
    kernels_->score(task);
  });
  const TokenParameters tokens = token_parameters(group);
  if (tokens.offset != nullptr) sum_queries(n_groups);
  for (int r = 0; r < q_.rows; ++r) {
    prefetch_part();
    const float scale = query_scale(r);
    const ScoreFactors factors{
        .before = group > 0,
        .unit = scale * queries_[r].unit,
        .q_sum = tokens.offset == nullptr
                     ? 0
                     : scale * query_sums_[static_cast<std::size_t>(r) * n_groups + group],
        .constant = offset == nullptr || group > 0 ? 0 : scale * kernels_->dot(q_.row(r), offset, q_.cols)};
    kernels_->add_scores(sums_.data() + static_cast<std::ptrdiff_t>(r) * kPageTokens, factors, tokens, first,
                         end, scores.row(r));
  }
}

TokenParameters PageProducts::token_parameters(int group) const {
  return {part(parameters_.token_scale, group, kPageTokens),
          part(parameters_.token_offset, group, kPageTokens)};
}

// Returns the page's stored numbers if the format stores numbers, else the decoded page. The scales of the
// tokens remain in parameters_.
Rows PageProducts::rows_of(const PageSide& side, int n_tokens) {
  const Format& format = *side.format;
  const PageContext& context = *side.context;
  clear_parameters();
  if (products_ == Products::integer) {
    format.decode_integers(side.bytes, n_tokens, context, rows_.data(), block_scales_);
  } else if (format.number_type() != NumberType::none) {
    if (!format.plain()) format.read_parameters(side.bytes, context, context.table, parameters_);
    return {side.bytes, format.number_type(), n_tokens, context.head_dim, next_};
  } else {
    format.decode(side.bytes, n_tokens, context, rows_.data());
  }
  return {rows_.data(), NumberType::f32, n_tokens, context.head_dim, next_};
}

// Multiplies the values of each token with the token's scale.
void PageProducts::scale_tokens(int n_tokens, MatrixView<float> values) const {
  if (parameters_.token_scale.empty()) return;
  for (int r = 0; r < values.rows; ++r) {
    for (int t = 0; t < n_tokens; ++t) values.row(r)[t] *= parameters_.token_scale[t];
  }
}

void PageProducts::score_rows(const PageSide& k, int n_tokens, MatrixView<float> scores) {
  kernels_->score_rows(rows_of(k, n_tokens), q_.data, q_.rows, scores.data, scores.stride);
  scale_tokens(n_tokens, scores);
  for (int r = 0; r < q_.rows && products_ == Products::integer; ++r) {
    for (int t = 0; t < n_tokens; ++t) scores.row(r)[t] *= query_scale(r) * block_scales_[t / kIntegerBlock];
  }
}

// If outputs are pending in the order of another code scheme, adds them to `out` first.
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
    for (int g = 0; g < groups; ++g) {
      float* to = out.row(r) + static_cast<std::ptrdiff_t>(g) * ordered_channels_;
      for (int i = 0; i < ordered_channels_; ++i) to[i] += ordered[i * groups + g];
    }
  }
  ordered_channels_ = 0;
}

void PageProducts::mix_codes(const PageSide& v, MatrixView<float> weights, MatrixView<float> out) {
  divide_next(out.rows);
  CodePage page = code_page(v);
  if (needs_lookup(page)) page = looked_up_page(page, 4);
  keep_order(scheme_, out);
  const int d = out.cols;
  const int n_blocks = std::max(1, scheme_.channel_blocks), block_tokens = kPageTokens / n_blocks;
  for (int block = 0; block < n_blocks; ++block) {
    const int first = block * block_tokens, end = first + block_tokens;
    const float* scale = part(parameters_.channel_scale, block, d);
    if (scale != nullptr) put_in_order(scale, page);
    mix_block(page, first, end, scale != nullptr, weights, out);
    add_channel_offsets(part(parameters_.channel_offset, block, d), out);
  }
}

// Stores the channels' scales as [group_channels][groups].
void PageProducts::put_in_order(const float* scale, const CodePage& page) {
  for (int r = 0; r < page.group_channels; ++r) {
    float* to = ordered_scale_.data() + static_cast<std::ptrdiff_t>(r) * page.groups;
    for (int g = 0; g < page.groups; ++g) to[g] = scale[g * page.group_channels + r];
  }
}

// Adds the channels' offsets for the block whose weights were summed last. Null means that there are no
// offsets.
void PageProducts::add_channel_offsets(const float* offset, MatrixView<float> out) const {
  for (int r = 0; r < out.rows && offset != nullptr; ++r) {
    if (weight_sums_[r] != 0) add_scaled_row(out.row(r), offset, out.cols, weight_sums_[r]);
  }
}

// Turns the weights of one group of channels into integers, and adds the tokens' offsets to `out`.
void PageProducts::weigh_group(int group, int first, int end, MatrixView<float> weights,
                               MatrixView<float> out) {
  const int n_groups = std::max(1, scheme_.token_groups), group_channels = out.cols / n_groups;
  const bool whole = products_ == Products::integer;
  const TokenParameters tokens = token_parameters(group);
  for (int r = 0; r < out.rows; ++r) {
    prefetch_part();
    ByteWeights& numbers = weights_[static_cast<std::size_t>(r) * n_groups + group];
    WeightRounding& rounding = weight_roundings_[r];
    rounding.share = small_share(scheme_);
    const WeightSums sums =
        whole ? kernels_->prepare_whole_weights(weights.row(r), tokens, first, end, numbers)
              : kernels_->prepare_weights(weights.row(r), tokens, first, end,
                                          rounding.share > 0 ? &rounding : nullptr, numbers);
    weight_sums_[r] = sums.weights;
    // Weights for integer products do not contain the tokens' scale, which is equal for all tokens from
    // `first` to `end`.
    if (whole && tokens.scale != nullptr) numbers.unit *= tokens.scale[first];
    float* to = out.row(r) + group * group_channels;
    if (tokens.offset == nullptr) continue;
    for (int c = 0; c < group_channels; ++c) to[c] += sums.offsets;
  }
}

// Mixes tokens [first, end), with the channels' scales in ordered_scale_ if `scales` is set.
void PageProducts::mix_block(const CodePage& page, int first, int end, bool scales, MatrixView<float> weights,
                             MatrixView<float> out) {
  const int n_groups = std::max(1, scheme_.token_groups);
  weights_.resize(static_cast<std::size_t>(out.rows) * n_groups);
  for (int group = 0; group < n_groups; ++group) weigh_group(group, first, end, weights, out);
  std::uint8_t octets[kPageTokens / kOctet];
  MixTask task{.page = page,
               .weight_groups = page.groups / n_groups,
               .octets = octets,
               .channel_scale = scales ? ordered_scale_.data() : nullptr};
  for (int octet = first / kOctet; octet < end / kOctet; ++octet) {
    const bool any = std::any_of(weights_.begin(), weights_.end(), [&](const ByteWeights& w) {
      return (w.octets[octet][0] | w.octets[octet][1]) != 0;
    });
    if (any) octets[task.n_octets++] = static_cast<std::uint8_t>(octet);
  }
  if (task.n_octets == 0) return;
  by_heads(out.rows, [&](int first_row, int n) {
    task.n_heads = n;
    task.next = std::exchange(next_, {});
    const auto of_heads = weights_.begin() + static_cast<std::ptrdiff_t>(first_row) * n_groups;
    task.small_weights =
        std::all_of(of_heads, of_heads + n * n_groups, [](const ByteWeights& w) { return w.small; });
    for (int h = 0; h < n; ++h) {
      const std::ptrdiff_t r = first_row + h;
      task.weights[h] = weights_.data() + r * n_groups;
      task.out[h] = ordered_.data() + r * out.cols;
    }
    kernels_->mix(task);
  });
}

void PageProducts::mix_rows(const PageSide& v, int n_tokens, MatrixView<float> weights,
                            MatrixView<float> out) {
  const Rows rows = rows_of(v, n_tokens);
  scale_tokens(n_tokens, weights);
  for (int first = 0; first < n_tokens && products_ == Products::integer; first += kIntegerBlock) {
    const int n = std::min(kIntegerBlock, n_tokens - first);
    for (int r = 0; r < out.rows; ++r) {
      float* block = weights.row(r) + first;
      const float scale = round_to_integers(block, n);
      scale_row(block, n, scale * block_scales_[first / kIntegerBlock]);
    }
  }
  kernels_->mix_rows(rows, weights.data, weights.stride, out.rows, out.data);
}

}  // namespace kvant::cpu
