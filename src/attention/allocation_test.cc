// Checks that the attention of decode steps between seals allocates nothing, and that a step fails cleanly
// when an allocation fails. This test program counts every allocation and can refuse any of them.
#include "attention/attention.h"
#include "attention/attention_fixture.h"
#include "base/testing/counted_new.h"
#include "base/testing/emulation.h"
#include "device/cpu/kernels/byte_kernels.h"

namespace kvant {
namespace {

using testing::allocations;
using testing::allowed_allocations;
using testing::attend_tokens;
using testing::plan_for;
using testing::small_geometry;

// Runs all layers of a step of one token and returns how many allocations they made.
long allocations_of_layers(Step& step, AttentionBackend& backend) {
  const Geometry& g = step.plan().geometry;
  const int q_size = g.n_heads * g.head_dim, k_size = g.n_kv_heads * g.head_dim;
  std::vector<float> q(q_size, 0.25F), k(k_size, 0.5F), v(k_size, 1.0F), out(q_size);
  q[0] = k[1] = v[2] = static_cast<float>(step.first_token(0) % 7);
  const LayerRows rows{
      {q.data(), 1, q_size}, {k.data(), 1, k_size}, {v.data(), 1, k_size}, {out.data(), 1, q_size}};
  long n = 0;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    run_team(1, [&](Team& team) {
      const long before = allocations.load();
      backend.run_layer(step, layer, rows, team);
      n += allocations.load() - before;
    });
  }
  return n;
}

TEST(Allocation, LayersOfADecodeStepTakeNoMemoryBetweenSeals) {
  for (const char* recipe :
       {"bf16", "k=hadamard:tcq3,v=hadamard:tcq2,sink=4", "k=ch2g128,v=tok2g128,window=128",
        "k=vq-d4b8,v=vq-d4b12", "k=rhadamard:lm3,v=rhadamard:lm3,skip=1e-6",
        "k=prog4,v=prog4,products=integer,tail=int8,softmax=sas", "k=ch4g128,v=tok2g128,protect=0.05",
        "k=ch2g128,v=hadamard:tok2g128,window=128,correction=relative"}) {
    for (const char* kernels : cpu::kInstructionSets) {
      const auto backend = make_cpu_backend(kernels);
      if (backend == nullptr) continue;
      const Geometry geometry = small_geometry(64, 6, 2, 2);
      Cache cache(plan_for(recipe, geometry, nullptr, backend->page_order()), 0);
      const SequenceId s = cache.add();
      const auto source = [](int layer, int head, int kind, int token) {
        return testing::token_values(layer, head, kind, token, 64);
      };
      attend_tokens(cache, s, testing::kEmulated ? 300 : 1000, true, source, *backend);
      attend_tokens(cache, s, 1, false, source, *backend);  // This step sizes the buffers.
      for (int token = 0; token < 4; ++token) {
        auto step = cache.reserve({{s, 1, false}});
        ASSERT_TRUE(step.ok());
        EXPECT_EQ(allocations_of_layers(**step, *backend), 0) << recipe << ", " << kernels;
        ASSERT_TRUE((*step)->commit().ok());
      }
    }
  }
}

// Runs all layers of a step on two threads while only `n` allocations succeed.
void run_short_of_memory(Step& step, AttentionBackend& backend, long n) {
  const Geometry& g = step.plan().geometry;
  const int n_rows = step.n_rows(), q_size = g.n_heads * g.head_dim, k_size = g.n_kv_heads * g.head_dim;
  std::vector<float> q(static_cast<std::size_t>(n_rows) * q_size, 0.25F);
  std::vector<float> k(static_cast<std::size_t>(n_rows) * k_size, 0.5F), v(k), out(q);
  const LayerRows rows{{q.data(), n_rows, q_size},
                       {k.data(), n_rows, k_size},
                       {v.data(), n_rows, k_size},
                       {out.data(), n_rows, q_size}};
  run_team(2, [&](Team& team) {
    team.barrier();
    if (team.index() == 0) allowed_allocations = n;
    team.barrier();
    for (int layer = 0; layer < g.n_layers; ++layer) {
      backend.run_layer(step, layer, rows, team);
      team.barrier();
    }
    if (team.index() == 0) allowed_allocations = 1L << 60;
    team.barrier();
  });
}

// An exception in a thread that a library runs would end the program. A thread that skipped a barrier would
// let the other threads wait for ever. A failed allocation must therefore become the step's error.
TEST(Allocation, ThatFailsInAnyThreadIsTheStepsError) {
  for (const char* recipe :
       {"k=hadamard:tcq3,v=hadamard:tcq2,sink=4", "k=ch2g128,v=tok2g128,window=128,protect=0.05",
        "k=rhadamard:lm3,v=rhadamard:lm3,skip=1e-6",
        "k=ch2g128,v=hadamard:tok2g128,window=128,correction=relative"}) {
    for (const bool is_prompt : {true, false}) {
      const Geometry geometry = small_geometry(64, 6, 2, 2);
      Cache cache(plan_for(recipe, geometry, nullptr, make_cpu_backend()->page_order()), 0);
      const SequenceId s = cache.add();
      const auto source = [](int layer, int head, int kind, int token) {
        return testing::token_values(layer, head, kind, token, 64);
      };
      attend_tokens(cache, s, 300, true, source);
      const std::string before = testing::contents(cache, s);
      int failures = 0;
      for (long n = 0; n < 100000; n += 1 + n / 8) {
        const auto backend = make_cpu_backend();
        auto step = cache.reserve({{s, is_prompt ? 150 : 1, is_prompt}});
        ASSERT_TRUE(step.ok());
        run_short_of_memory(**step, *backend, n);
        const Status status = (*step)->commit();
        if (status.ok()) break;
        ++failures;
        EXPECT_NE(status.error().message.find("out of memory while attending"), std::string::npos)
            << status.error().message;
        ASSERT_EQ(testing::contents(cache, s), before) << recipe << ", allocation " << n;
      }
      EXPECT_GT(failures, 5) << recipe;
      EXPECT_EQ(cache.length(s), is_prompt ? 450 : 301) << recipe;
    }
  }
}

}  // namespace
}  // namespace kvant
