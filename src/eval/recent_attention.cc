#include "eval/recent_attention.h"

#include <algorithm>
#include <cmath>

#include "base/simd_clones.h"
#include "base/softmax.h"
#include "device/cpu/kernels/tile.h"

namespace kvant {
namespace {

KVANT_SIMD_CLONES void score_rows(const float* q, const float* k, int n, int d, float* scores) {
  for (int t = 0; t < n; ++t) {
    float sum = 0;
#pragma GCC ivdep
    for (int c = 0; c < d; ++c) sum += q[c] * k[static_cast<std::ptrdiff_t>(t) * d + c];
    scores[t] = sum;
  }
}

// Computes the attention weights of query q [d] on the rows of K. `sink` is the logit of the head's sink, or
// -inf if the head has no sink.
std::vector<float> weights_of(const Geometry& g, float sink, const float* q, const TokenRows& rows, int d) {
  const int n = static_cast<int>(rows.tokens.size());
  std::vector<float> weights(n);
  score_rows(q, rows.k.data(), n, d, weights.data());
  for (int t = 0; t < n; ++t) {
    float& score = weights[t];
    score *= g.softmax_scale;
    if (g.score_softcap > 0) score = g.score_softcap * std::tanh(score / g.score_softcap);
    if (rows.seen[t] == 0) score = kUnseen;
  }
  const float max = std::max(sink, max_row(weights.data(), n));
  const float sum = exp_row(weights.data(), n, max) + std::exp(sink - max);
  scale_row(weights.data(), n, 1.0F / sum);
  return weights;
}

std::vector<float> output_of(const std::vector<float>& weights, const std::vector<float>& v, int d) {
  std::vector<float> output(d, 0.0F);
  for (std::size_t t = 0; t < weights.size(); ++t)
    add_scaled_row(output.data(), v.data() + static_cast<std::ptrdiff_t>(t) * d, d, weights[t]);
  return output;
}

void compare(const std::vector<float>& exact, const std::vector<float>& got, OutputError& error) {
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double right = exact[i], difference = got[i] - right;
    error.difference += difference * difference;
    error.energy += right * right;
  }
  error.values += std::ssize(exact);
}

// Returns the index of `token` among the sorted tokens, or -1.
int row_of(const std::vector<int>& tokens, int token) {
  const auto at = std::lower_bound(tokens.begin(), tokens.end(), token);
  return at != tokens.end() && *at == token ? static_cast<int>(at - tokens.begin()) : -1;
}

std::vector<int> listed_tokens(const std::vector<PageView>& pages, int first, int end) {
  std::vector<int> tokens;
  for (const PageView& page : pages) {
    for (int i = 0; page.is_protected && i < page.n_tokens; ++i)
      if (page.protected_tokens[i] < first) tokens.push_back(page.protected_tokens[i]);
  }
  std::sort(tokens.begin(), tokens.end());
  for (int token = first; token < end; ++token) tokens.push_back(token);
  return tokens;
}

// Writes the keys and values that the cache returns for a page into the rows of the page's tokens.
void read_page(const HeadPlan& head, const PageView& page, TokenRows& rows) {
  const int d = head.k.context.head_dim;
  const std::vector<float> k = decoded_rows(page.k, head.k.transform, page.n_tokens);
  const std::vector<float> v = decoded_rows(page.v, head.v.transform, page.n_tokens);
  for (int i = 0; i < page.n_tokens; ++i) {
    if (!page.is_protected && page.masked.test(i)) continue;
    const int row = row_of(rows.tokens, page.is_protected ? page.protected_tokens[i] : page.first_token + i);
    if (row < 0) continue;
    rows.seen[row] = 1;
    std::copy_n(k.begin() + std::ptrdiff_t{i} * d, d, rows.k.begin() + std::ptrdiff_t{row} * d);
    std::copy_n(v.begin() + std::ptrdiff_t{i} * d, d, rows.v.begin() + std::ptrdiff_t{row} * d);
  }
}

}  // namespace

std::vector<float> decoded_rows(const PageSide& side, const Transform& transform, int n_tokens) {
  const int d = side.context->head_dim;
  std::vector<float> values(static_cast<std::size_t>(n_tokens) * d);
  side.format->decode(side.bytes, n_tokens, *side.context, values.data());
  transform.inverse({values.data(), n_tokens, d});
  return values;
}

RecentTokens recent_tokens(const Plan& plan, int layer, int kv_head, const std::vector<PageView>& pages,
                           int n_sealed, const RecentRows& recent, int first) {
  const auto d = static_cast<std::size_t>(plan.geometry.dim(layer));
  RecentTokens compared;
  TokenRows& cached = compared.cached;
  cached.tokens = listed_tokens(pages, first, recent.end());
  cached.seen.assign(cached.tokens.size(), 0);
  cached.k.resize(cached.tokens.size() * d);
  cached.v.resize(cached.tokens.size() * d);
  for (const PageView& page : pages) {
    read_page(plan.head(layer, kv_head), page, cached);
    if (!page.is_protected && page.first_token + page.n_tokens <= n_sealed * kPageTokens)
      compared.quantized += page.n_tokens;
  }
  compared.exact = cached;
  std::fill(compared.exact.seen.begin(), compared.exact.seen.end(), 1);
  const int n_recent = recent.end() - first;
  const std::size_t older = cached.tokens.size() - n_recent;
  recent.read(first, n_recent, compared.exact.k.data() + older * d, compared.exact.v.data() + older * d);
  return compared;
}

RecentError recent_error(const Plan& plan, int layer, int kv_head, const float* q,
                         const RecentTokens& tokens) {
  const Geometry& g = plan.geometry;
  const int d = g.dim(layer);
  RecentError error;
  for (int head = kv_head * g.group(layer); head < (kv_head + 1) * g.group(layer); ++head) {
    const float* query = q + static_cast<std::ptrdiff_t>(head) * d;
    const float sink = g.sink_logit(layer, head);
    const std::vector<float> weights = weights_of(g, sink, query, tokens.cached, d);
    const std::vector<float> right =
        output_of(weights_of(g, sink, query, tokens.exact, d), tokens.exact.v, d);
    compare(right, output_of(weights, tokens.cached.v, d), error.all);
    compare(right, output_of(weights, tokens.exact.v, d), error.keys);
  }
  return error;
}

}  // namespace kvant
