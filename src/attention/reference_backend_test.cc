// Compares the reference backend with plain attention in double precision, written from the rule of
// visibility. A query sees page j sealed if and only if the query's block begins at token 128 (j + 1) +
// window or later. Protected tokens and all other tokens are seen unquantized.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "attention/attention.h"
#include "base/float16.h"
#include "cache/cache_fixture.h"

namespace kvant::reference_backend_test {
namespace {

using testing::plan_for;
using testing::small_geometry;
using testing::token_values;

// kQuerySide seeds token_values() for queries; K and V have other seeds.
constexpr int kQuerySide = 7;

std::vector<float> query_values(int layer, int head, int token, int d) {
  return token_values(layer, head, kQuerySide, token, d);
}

// Holds rows [first, first + n) of one layer, as a model would pass them.
struct Rows {
  std::vector<float> q, k, v, out;
  Rows(const Geometry& g, int layer, int first, int n)
      : out(static_cast<std::size_t>(n) * g.n_heads * g.head_dim) {
    for (int t = first; t < first + n; ++t) {
      for (int h = 0; h < g.n_heads; ++h) add(q, query_values(layer, h, t, g.head_dim));
      for (int h = 0; h < g.n_kv_heads; ++h) add(k, token_values(layer, h, 0, t, g.head_dim));
      for (int h = 0; h < g.n_kv_heads; ++h) add(v, token_values(layer, h, 1, t, g.head_dim));
    }
  }
  LayerRows view(const Geometry& g, int n) {
    return {{q.data(), n, g.n_heads * g.head_dim},
            {k.data(), n, g.n_kv_heads * g.head_dim},
            {v.data(), n, g.n_kv_heads * g.head_dim},
            {out.data(), n, g.n_heads * g.head_dim}};
  }

 private:
  static void add(std::vector<float>& to, const std::vector<float>& row) {
    to.insert(to.end(), row.begin(), row.end());
  }
};

// Appends n tokens with attention on all layers. Returns the outputs of the last layer, [n, n_heads * d].
std::vector<float> attend(Cache& cache, SequenceId s, int n, bool is_prompt, int n_threads) {
  const Geometry& g = cache.plan().geometry;
  const auto backend = make_reference_backend();
  auto step = cache.reserve({{s, n, is_prompt}});
  EXPECT_TRUE(step.ok());
  std::vector<float> out;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    Rows rows(g, layer, (*step)->first_token(0), n);
    const LayerRows view = rows.view(g, n);
    run_team(n_threads, [&](Team& team) { backend->run_layer(**step, layer, view, team); });
    out = rows.out;
  }
  const Status status = (*step)->commit();
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  return out;
}

float rounded(const Format& tail, float x) {
  return tail.name() == "f16" ? float_from_f16(f16_from_float(x)) : float_from_bf16(bf16_from_float(x));
}

// Holds the keys and values of one head as query t sees them, mapped back to the model's space.
class Oracle {
 public:
  Oracle(const Plan& plan, int layer, int kv_head, int n_tokens) : plan_(plan), layer_(layer) {
    const int d = plan.geometry.head_dim;
    for (Side side : kSides) {
      const SidePlan& s = plan.head(layer, kv_head).side(side);
      std::vector<float> all;
      for (int t = 0; t < n_tokens; ++t) {
        const std::vector<float> row = token_values(layer, kv_head, static_cast<int>(side), t, d);
        all.insert(all.end(), row.begin(), row.end());
      }
      s.transform.forward({all.data(), n_tokens, d});
      for (float& x : all) x = rounded(*plan.tail, x);
      std::vector<float> sealed = all;
      for (int page = 0; (page + 1) * kPageTokens <= n_tokens; ++page) {
        TokenMask mask;
        for (int t = 0; page == 0 && t < plan.layers[layer].sink; ++t) mask.set(t);
        std::vector<std::byte> bytes(s.sealed->page_bytes(d));
        float* values = sealed.data() + static_cast<std::ptrdiff_t>(page) * kPageTokens * d;
        s.sealed->encode(values, mask, s.context, bytes.data());
        s.sealed->decode(bytes.data(), kPageTokens, s.context, values);
      }
      s.transform.inverse({all.data(), n_tokens, d});
      s.transform.inverse({sealed.data(), n_tokens, d});
      exact_[static_cast<int>(side)] = std::move(all);
      sealed_[static_cast<int>(side)] = std::move(sealed);
    }
  }

  // `block_start` is the first token of t's block. A page counts as sealed if it was sealed when the block
  // began.
  std::vector<double> attend(const std::vector<float>& q, int t, int block_start) const {
    const int d = plan_.geometry.head_dim;
    const LayerPlan& rules = plan_.layers[layer_];
    std::vector<double> weights, out(d, 0.0);
    double sum = 0;
    const int first = rules.sliding_window > 0 ? std::max(0, t + 1 - rules.sliding_window) : 0;
    for (int j = first; j <= t; ++j) {
      const std::vector<float>& keys = source(j, block_start, 0);
      double score = 0;
      for (int c = 0; c < d; ++c) score += static_cast<double>(q[c]) * keys[j * d + c];
      score *= plan_.geometry.softmax_scale;
      const double cap = plan_.geometry.score_softcap;
      if (cap > 0) score = cap * std::tanh(score / cap);
      weights.push_back(score);
    }
    const double top = *std::max_element(weights.begin(), weights.end());
    for (double& w : weights) sum += w = std::exp(w - top);
    for (int j = first; j <= t; ++j) {
      const std::vector<float>& values = source(j, block_start, 1);
      for (int c = 0; c < d; ++c) out[c] += weights[j - first] / sum * values[j * d + c];
    }
    return out;
  }

 private:
  const std::vector<float>& source(int token, int block_start, int side) const {
    const LayerPlan& rules = plan_.layers[layer_];
    const bool sealed = block_start >= kPageTokens * (token / kPageTokens + 1) + rules.window;
    return sealed && token >= rules.sink ? sealed_[side] : exact_[side];
  }

  const Plan& plan_;
  int layer_;
  std::vector<float> exact_[2], sealed_[2];
};

struct Case {
  const char* recipe;
  Geometry geometry;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.recipe << ", d = " << c.geometry.head_dim;
}

Geometry with(Geometry g, std::vector<int> sliding_window, float softcap) {
  g.sliding_window = std::move(sliding_window);
  g.score_softcap = softcap;
  return g;
}

std::vector<Case> cases() {
  return {
      {"bf16", small_geometry()},
      {"f16", small_geometry(96, 4, 4)},
      {"k=ch4g128,v=tok4g128", small_geometry()},
      {"k=ch2g32,v=tok2g32,sink=4,window=128", small_geometry(80, 2, 1)},
      {"k=hadamard:tok4g32s,v=hadamard:tok4g32s,sink=4", small_geometry(128, 4, 1)},
      {"k=rhadamard:ch4g64,v=hadamard:tok3g64,prefill=256", small_geometry(256, 2, 2)},
      {"k=ch4g128,v=tok4g128,prefill=all,sink=128", small_geometry()},
      {"k=ch4g128,v=tok4g128,k@1=tok8g32s,v@1.1=fp8,window=256", small_geometry()},
      {"k=ch4g128,v=tok4g128,sink=4", with(small_geometry(), {0, 150}, 0)},
      {"k=hadamard:ch4g128,v=tok4g128", with(small_geometry(), {0, 0}, 20)},
  };
}

class ReferenceBackend : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Cases, ReferenceBackend, ::testing::ValuesIn(cases()));

TEST_P(ReferenceBackend, EqualsAttentionInDoublePrecision) {
  const auto plan = plan_for(GetParam().recipe, GetParam().geometry);
  const Geometry& g = plan->geometry;
  constexpr int kPrompt = 530, kDecoded = 3;
  const int layer = g.n_layers - 1;
  Cache cache(plan, 0);
  const SequenceId s = cache.add();
  std::vector<float> out = attend(cache, s, kPrompt, true, 2);
  for (int i = 0; i < kDecoded; ++i) {
    const std::vector<float> row = attend(cache, s, 1, false, 2);
    out.insert(out.end(), row.begin(), row.end());
  }
  const int block = plan->recipe.prefill;
  for (int kv = 0; kv < g.n_kv_heads; ++kv) {
    const Oracle oracle(*plan, layer, kv, kPrompt + kDecoded);
    for (int t = 0; t < kPrompt + kDecoded; t += t < kPrompt - 5 ? 37 : 1) {
      const int start = t >= kPrompt ? t : block == kPrefillAll ? 0 : t / block * block;
      for (int h = kv * g.group(0); h < (kv + 1) * g.group(0); ++h) {
        const std::vector<double> expected = oracle.attend(query_values(layer, h, t, g.head_dim), t, start);
        const float* actual = out.data() + (static_cast<std::ptrdiff_t>(t) * g.n_heads + h) * g.head_dim;
        for (int c = 0; c < g.head_dim; ++c) {
          ASSERT_NEAR(actual[c], expected[c], 2e-4) << "token " << t << " head " << h << " channel " << c;
        }
      }
    }
  }
}

TEST_P(ReferenceBackend, GivesTheSameBytesAndOutputsForAnyChunking) {
  const auto plan = plan_for(GetParam().recipe, GetParam().geometry);
  constexpr int kTokens = 400;
  const auto run = [&](int chunk, std::string& contents) {
    Cache cache(plan, 0);
    const SequenceId s = cache.add();
    std::vector<float> out;
    for (int done = 0; done < kTokens; done += chunk) {
      const std::vector<float> part = attend(cache, s, std::min(chunk, kTokens - done), true, 1);
      out.insert(out.end(), part.begin(), part.end());
    }
    contents = testing::contents(cache, s);
    return out;
  };
  std::string whole_contents, contents;
  const std::vector<float> whole = run(kTokens, whole_contents);
  for (const int chunk : {1, 128, 200}) {
    const std::vector<float> out = run(chunk, contents);
    // Within a larger block, tokens see each other unsealed. A prompt that is cut into steps must see each
    // token as one step does, sealed or not.
    if (!plan->geometry.slides(plan->geometry.n_layers - 1)) {
      EXPECT_EQ(contents, whole_contents) << chunk;
    }
    ASSERT_EQ(out.size(), whole.size());
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], whole[i], 1e-4) << "chunks of " << chunk;
  }
}

TEST_P(ReferenceBackend, DoesNotDependOnTheNumberOfThreads) {
  const auto plan = plan_for(GetParam().recipe, GetParam().geometry);
  Cache one(plan, 0), three(plan, 0);
  const SequenceId a = one.add(), b = three.add();
  EXPECT_EQ(attend(one, a, 700, true, 1), attend(three, b, 700, true, 3));
  EXPECT_EQ(testing::contents(one, a), testing::contents(three, b));
}

TEST(ReferenceBackendBatch, RunsSequencesOfDifferentLengthsAsIfAlone) {
  const auto plan = plan_for("k=ch4g128,v=tok4g128,sink=4,window=128", small_geometry());
  const Geometry& g = plan->geometry;
  Cache cache(plan, 0);
  const SequenceId a = cache.add(), b = cache.add(), c = cache.add();
  attend(cache, a, 130, true, 2);
  attend(cache, b, 600, true, 2);
  const auto fork_a = cache.fork(a), fork_b = cache.fork(b);
  const std::vector<float> alone_a = attend(cache, *fork_a, 1, false, 2);
  const std::vector<float> alone_b = attend(cache, *fork_b, 1, false, 2);
  const SequenceId alone = cache.add();
  const std::vector<float> alone_c = attend(cache, alone, 300, true, 2);

  auto step = cache.reserve({{a, 1, false}, {c, 300, true}, {b, 1, false}});
  ASSERT_TRUE(step.ok());
  const auto backend = make_reference_backend();
  std::vector<float> out;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    Rows first(g, layer, 130, 1), second(g, layer, 0, 300), third(g, layer, 600, 1);
    for (Rows* next : {&second, &third}) {
      first.q.insert(first.q.end(), next->q.begin(), next->q.end());
      first.k.insert(first.k.end(), next->k.begin(), next->k.end());
      first.v.insert(first.v.end(), next->v.begin(), next->v.end());
    }
    first.out.resize(first.q.size());
    const LayerRows view = first.view(g, 302);
    run_team(2, [&](Team& team) { backend->run_layer(**step, layer, view, team); });
    out = first.out;
  }
  ASSERT_TRUE((*step)->commit().ok());
  std::vector<float> expected = alone_a;
  expected.insert(expected.end(), alone_c.begin(), alone_c.end());
  expected.insert(expected.end(), alone_b.begin(), alone_b.end());
  EXPECT_EQ(out, expected);
}

TEST(ReferenceBackendErrors, NameLayerHeadAndTokenOfAValueThatIsNotANumber) {
  const auto plan = plan_for("k=ch4g128,v=tok4g128", small_geometry());
  const Geometry& g = plan->geometry;
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    Cache cache(plan, 0);
    const SequenceId s = cache.add();
    attend(cache, s, 140, true, 2);
    const std::string before = testing::contents(cache, s);
    auto step = cache.reserve({{s, 150, true}});
    const auto backend = make_reference_backend();
    for (int layer = 0; layer < g.n_layers; ++layer) {
      Rows rows(g, layer, 140, 150);
      if (layer == 1) rows.v[(7 * g.n_kv_heads + 1) * g.head_dim + 5] = bad;
      const LayerRows view = rows.view(g, 150);
      run_team(2, [&](Team& team) { backend->run_layer(**step, layer, view, team); });
    }
    const Status status = (*step)->commit();
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("V of layer 1, KV head 1, token 147"), std::string::npos)
        << status.error().message;
    EXPECT_EQ(testing::contents(cache, s), before);
  }
}

TEST(ReferenceBackendErrors, NameAQueryThatIsNotANumberAndValuesBeyondF16) {
  const auto plan = plan_for("f16", small_geometry());
  const Geometry& g = plan->geometry;
  for (const bool broken_query : {true, false}) {
    Cache cache(plan, 0);
    const SequenceId s = cache.add();
    auto step = cache.reserve({{s, 10, true}});
    const auto backend = make_reference_backend();
    Rows rows(g, 0, 0, 10);
    if (broken_query) {
      rows.q[3 * g.n_heads * g.head_dim] = std::nanf("");
    } else {
      rows.v[3 * g.n_kv_heads * g.head_dim] = 1e6F;
    }
    const LayerRows view = rows.view(g, 10);
    run_team(1, [&](Team& team) { backend->run_layer(**step, 0, view, team); });
    EXPECT_TRUE((*step)->failed());
    const Status status = (*step)->commit();
    ASSERT_FALSE(status.ok());
    const std::string expected = broken_query ? "layer 0, query head 0, token 3 is not a finite number"
                                              : "V of layer 0, KV head 0, token 3 exceeds the range of f16";
    EXPECT_NE(status.error().message.find(expected), std::string::npos) << status.error().message;
  }
}

TEST(ReferenceBackendState, ServesCachesOfDifferentRecipesInTurn) {
  const Geometry g = small_geometry();
  Cache protecting(plan_for("k=ch4g128,v=tok4g128,protect=0.05", g), 0), plain(plan_for("bf16", g), 0);
  const SequenceId a = protecting.add(), b = plain.add();
  const auto backend = make_reference_backend();
  for (int first = 0; first < 512; first += 128) {
    for (const auto& [cache, sequence] : {std::pair(&protecting, a), std::pair(&plain, b)}) {
      auto step = cache->reserve({{sequence, 128, true}});
      for (int layer = 0; layer < g.n_layers; ++layer) {
        Rows rows(g, layer, first, 128);
        const LayerRows view = rows.view(g, 128);
        run_team(2, [&](Team& team) { backend->run_layer(**step, layer, view, team); });
      }
      ASSERT_TRUE((*step)->commit().ok());
    }
  }
  EXPECT_GT(head_of(protecting, a, 0, 0).chosen().tokens.size(), 0U);
  EXPECT_EQ(head_of(plain, b, 0, 0).chosen().tokens.size(), 0U);
}

}  // namespace
}  // namespace kvant::reference_backend_test
