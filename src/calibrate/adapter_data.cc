#include "calibrate/adapter_data.h"

#include <algorithm>
#include <cmath>

#include "base/softmax.h"
#include "cache/page_counts.h"

namespace kvant {
namespace {

struct Keys {
  std::vector<float> exact;   // [n, d], transformed
  std::vector<float> stored;  // [n, d], values after encoding and decoding, or the values of `exact` for
                              // tokens that are never sealed
  // These arrays hold the same values as [d, n], because processors then compute the scores of several keys
  // at a time.
  std::vector<float> exact_by_channel, stored_by_channel;
};

std::vector<float> by_channel(const std::vector<float>& keys, int n, int d) {
  std::vector<float> turned(keys.size());
  for (int t = 0; t < n; ++t) {
    for (int i = 0; i < d; ++i)
      turned[static_cast<std::ptrdiff_t>(i) * n + t] = keys[static_cast<std::ptrdiff_t>(t) * d + i];
  }
  return turned;
}

Keys store_keys(const CorrectedKeys& how, std::vector<float> k, int n) {
  const int d = how.context.head_dim;
  how.transform.forward({k.data(), n, d});
  Keys keys{k, k, {}, {}};
  std::vector<std::byte> page(how.format->page_bytes(d));
  for (int p = 0; p < n / kPageTokens; ++p) {
    TokenMask left_out;
    for (int token = 0; p == 0 && token < how.protected_tokens; ++token) left_out.set(token);
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(p) * kPageTokens * d;
    how.format->encode(k.data() + at, left_out, how.context, page.data());
    how.format->decode(page.data(), kPageTokens, how.context, keys.stored.data() + at);
  }
  std::copy_n(keys.exact.begin(), static_cast<std::ptrdiff_t>(how.protected_tokens) * d, keys.stored.begin());
  keys.exact_by_channel = by_channel(keys.exact, n, d);
  keys.stored_by_channel = by_channel(keys.stored, n, d);
  return keys;
}

// Returns the products of q with the first `count` of n keys.
std::vector<float> products(const float* q, const std::vector<float>& keys_by_channel, int d, int count) {
  const std::ptrdiff_t n = std::ssize(keys_by_channel) / d;
  std::vector<float> sums(count);
  for (int i = 0; i < d; ++i) {
    const float* k = keys_by_channel.data() + i * n;
    for (int t = 0; t < count; ++t) sums[t] += q[i] * k[t];
  }
  return sums;
}

// Scores holds the scores of one query with keys [0, token]. In `stored`, scores of sealed tokens come from
// the encoded keys. In `exact`, all keys are unquantized.
struct Scores {
  std::vector<float> exact, stored;
};

// Computes the scores of query q. The transform has removed `offset` from q . k. The offset matters only
// under a soft cap; check_recipe() handles the absolute correction.
Scores scores_of(const Geometry& g, int d, const float* q, float offset, const Keys& keys, int token,
                 int n_sealed) {
  const auto score_all = [&](const std::vector<float>& keys_by_channel, int count) {
    std::vector<float> scores = products(q, keys_by_channel, d, count);
    for (float& score : scores) {
      score = g.softmax_scale * (score + offset);
      if (g.score_softcap > 0) score = g.score_softcap * std::tanh(score / g.score_softcap);
    }
    return scores;
  };
  Scores scores{score_all(keys.exact_by_channel, token + 1), score_all(keys.stored_by_channel, n_sealed)};
  scores.stored.insert(scores.stored.end(), scores.exact.begin() + n_sealed, scores.exact.end());
  return scores;
}

int sealed_tokens(int token) {
  return sealed_pages(token, kAdapterWindow) * kPageTokens;
}

// Appends one query's row to the context.
void add_query(const Geometry& g, const CorrectedKeys& how, const Keys& keys, const float* q, float offset,
               int token, AdapterContext& context) {
  Scores scores = scores_of(g, g.dim(how.layer), q, offset, keys, token, sealed_tokens(token));
  const int n = token + 1;
  const float sum = exp_row(scores.exact.data(), n, max_row(scores.exact.data(), n));
  scale_row(scores.exact.data(), n, 1 / sum);
  const bool absolute = how.correction == Correction::absolute;
  const float largest = max_row(scores.stored.data(), n);
  const float shift = absolute ? std::max(largest, 0.0F) : largest;
  exp_row(scores.stored.data(), n, shift);
  scores.exact.resize(context.n);
  scores.stored.resize(context.n);
  context.targets.insert(context.targets.end(), scores.exact.begin(), scores.exact.end());
  context.exponentials.insert(context.exponentials.end(), scores.stored.begin(), scores.stored.end());
  context.scale.push_back(absolute ? std::exp(-shift) : 1.0F);
}

// Queries holds the transformed queries of one head, with the offsets that the transform removed.
struct Queries {
  std::vector<float> q;       // [n, d]
  std::vector<float> offset;  // [n]
};

std::vector<Queries> queries_of(const Capture& capture, const CorrectedKeys& how, int c) {
  const Geometry& g = capture.geometry();
  const int n = capture.size().context_queries;
  std::vector<Queries> of_heads;
  for (int h = how.kv_head * g.group(how.layer); h < (how.kv_head + 1) * g.group(how.layer); ++h) {
    Queries queries{capture.context_queries(c, how.layer, h), std::vector<float>(n)};
    how.transform.query({queries.q.data(), n, g.dim(how.layer)}, queries.offset.data());
    of_heads.push_back(std::move(queries));
  }
  return of_heads;
}

}  // namespace

std::vector<AdapterContext> adapter_contexts(const Capture& capture, const CorrectedKeys& how, int c,
                                             int batch_queries) {
  const Geometry& g = capture.geometry();
  const int d = g.dim(how.layer);
  const Keys keys =
      store_keys(how, capture.context_keys(c, how.layer, how.kv_head), capture.size().context_length);
  const std::vector<Queries> of_heads = queries_of(capture, how, c);
  const auto tokens = capture.context_query_tokens(c);
  std::vector<AdapterContext> batches;
  for (std::size_t begin = 0; begin < tokens.size(); begin += batch_queries) {
    const std::size_t end = std::min(begin + batch_queries, tokens.size());
    AdapterContext batch;
    batch.head_dim = d;
    batch.n = tokens[end - 1] + 1;
    batch.m = static_cast<int>(end - begin);
    for (std::size_t i = begin; i < end; ++i) {
      batch.first.push_back(how.protected_tokens);
      batch.end.push_back(sealed_tokens(tokens[i]));
    }
    for (int i = 0; i < batch.end.back() * d; ++i) batch.errors.push_back(keys.exact[i] - keys.stored[i]);
    for (const Queries& head : of_heads) {
      for (std::size_t i = begin; i < end; ++i)
        add_query(g, how, keys, head.q.data() + i * d, head.offset[i], tokens[i], batch);
      const auto q = head.q.begin();
      batch.queries.insert(batch.queries.end(), q + static_cast<std::ptrdiff_t>(begin * d),
                           q + static_cast<std::ptrdiff_t>(end * d));
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

}  // namespace kvant
