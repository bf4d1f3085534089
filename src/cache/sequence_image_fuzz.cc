// Is the libFuzzer target for the rows in a session file. Any bytes, even with correct checksums, must give
// an error or a sequence that can be exported again, cut and dropped. All memory must come back.
// cmake/fuzz.cmake builds the target, and fuzz/seeds/sequence holds the seeds.
#include <cstdint>
#include <memory>

#include "cache/cache.h"
#include "cache/sequence_image.h"
#include "recipe/plan.h"
#include "recipe/recipe.h"

namespace {

void check(bool condition) {
  if (!condition) __builtin_trap();
}

std::shared_ptr<const kvant::Plan> plan_of(const char* recipe, int recurrent_values = 0) {
  kvant::Geometry g;
  g.model = "fuzz";
  g.n_layers = 2;
  g.n_heads = 2;
  g.n_kv_heads = 1;
  g.head_dim = 16;
  g.softmax_scale = 0.25F;
  g.trained_context = 4096;
  g.sliding_window = {0, 256};
  g.recurrent_values = recurrent_values;
  return kvant::resolve(kvant::parse_recipe(recipe).value(), g, nullptr).value();
}

// Imports in pieces, as a server does.
kvant::Result<kvant::SequenceId> import(kvant::Cache& cache, std::span<const std::byte> bytes) {
  kvant::SequenceImport pieces(cache, bytes);
  while (true) {
    const auto done = pieces.advance(1);
    if (!done.ok()) return done.error();
    if (*done) return pieces.take();
  }
}

void check_import(kvant::Cache& cache, std::span<const std::byte> bytes) {
  const std::int64_t before = cache.page_bytes_in_use();
  const auto whole = cache.import_sequence(bytes);
  if (whole.ok()) cache.free(*whole);
  const auto sequence = import(cache, bytes);
  check(sequence.ok() == whole.ok());
  if (sequence.ok()) {
    check(cache.export_sequence(*sequence).ok());
    if (const auto fork = cache.fork(*sequence); fork.ok())
      (void)cache.truncate(*fork, cache.length(*fork) / 2).ok();
  } else {
    check(!sequence.error().message.empty());
  }
  for (const kvant::SequenceId held : cache.sequences()) cache.free(held);
  check(cache.page_bytes_in_use() == before);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // The plans cover a window and a tail in integers; scores, protected tokens and evictions; and recurrent
  // states.
  static kvant::Cache window(plan_of("k=tok4g16,v=tok2g16,window=128,sink=4"), 16 << 20);
  static kvant::Cache scores(plan_of("h2o-50"), 16 << 20);
  static kvant::Cache recurrent(plan_of("k=tok4g16,v=tok2g16", 5), 16 << 20);
  const auto bytes = std::as_bytes(std::span(data, size));
  check_import(window, bytes);
  check_import(scores, bytes);
  check_import(recurrent, bytes);
  return 0;
}
