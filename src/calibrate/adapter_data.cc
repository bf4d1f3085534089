#include "calibrate/adapter_data.h"

#include <algorithm>
#include <cmath>

#include "attention/softmax.h"

namespace kvant {
namespace {

struct Keys {
  std::vector<float> exact;   // [n, d]: transformed
  std::vector<float> stored;  // [n, d]: the same after encoding and decoding; exact where never sealed
};

Keys store_keys(const CorrectedKeys& how, std::vector<float> k, int n) {
  const int d = how.context.head_dim;
  how.transform.forward({k.data(), n, d});
  Keys keys{k, k};
  std::vector<std::byte> page(how.format->page_bytes(d));
  for (int p = 0; p < n / kPageTokens; ++p) {
    TokenMask left_out;
    for (int token = 0; p == 0 && token < how.protected_tokens; ++token) left_out.set(token);
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(p) * kPageTokens * d;
    how.format->encode(k.data() + at, left_out, how.context, page.data());
    how.format->decode(page.data(), kPageTokens, how.context, keys.stored.data() + at);
  }
  std::copy_n(keys.exact.begin(), static_cast<std::ptrdiff_t>(how.protected_tokens) * d, keys.stored.begin());
  return keys;
}

float dot(const float* a, const float* b, int d) {
  float sum = 0;
  for (int i = 0; i < d; ++i) sum += a[i] * b[i];
  return sum;
}

// Scores of one query with keys [0, token]; the sealed ones as they are stored.
struct Scores {
  std::vector<float> exact, stored;
};

Scores scores_of(const Geometry& g, const float* q, const Keys& keys, int token, int n_sealed) {
  Scores scores;
  for (int t = 0; t <= token; ++t) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(t) * g.head_dim;
    for (auto [k, out] : {std::pair{&keys.exact, &scores.exact},
                          {t < n_sealed ? &keys.stored : &keys.exact, &scores.stored}}) {
      float score = g.score_scale * dot(q, k->data() + at, g.head_dim);
      if (g.score_softcap > 0) score = g.score_softcap * std::tanh(score / g.score_softcap);
      out->push_back(score);
    }
  }
  return scores;
}

int sealed_tokens(int token) {
  return std::max(0, (token - kAdapterWindow) / kPageTokens * kPageTokens);
}

// Appends one query's row to the context.
void add_query(const Geometry& g, const CorrectedKeys& how, const Keys& keys, const float* q, int token,
               AdapterContext& context) {
  Scores scores = scores_of(g, q, keys, token, sealed_tokens(token));
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

}  // namespace

std::vector<AdapterContext> adapter_contexts(const Capture& capture, const CorrectedKeys& how) {
  const Geometry& g = capture.geometry();
  std::vector<AdapterContext> contexts;
  for (int c = 0; c < capture.size().contexts; ++c) {
    AdapterContext context;
    context.head_dim = g.head_dim;
    context.n = capture.size().context_length;
    context.m = capture.size().context_queries;
    const Keys keys = store_keys(how, capture.context_keys(c, how.layer, how.kv_head), context.n);
    context.errors = keys.exact;
    for (std::size_t i = 0; i < keys.stored.size(); ++i) context.errors[i] -= keys.stored[i];
    const auto tokens = capture.context_query_tokens(c);
    for (const std::int32_t token : tokens) {
      context.first.push_back(how.protected_tokens);
      context.end.push_back(sealed_tokens(token));
    }
    for (int h = how.kv_head * g.group(); h < (how.kv_head + 1) * g.group(); ++h) {
      std::vector<float> q = capture.context_queries(c, how.layer, h);
      how.transform.query({q.data(), context.m, g.head_dim}, nullptr);
      for (int i = 0; i < context.m; ++i) {
        add_query(g, how, keys, q.data() + static_cast<std::ptrdiff_t>(i) * g.head_dim, tokens[i], context);
      }
      context.queries.insert(context.queries.end(), q.begin(), q.end());
    }
    contexts.push_back(std::move(context));
  }
  return contexts;
}

}  // namespace kvant
