// Measures how long a large session takes to the disk and back. The rows of the session are random, because
// reading 100,000 tokens with a model takes hours.
//
//   cmake --preset default -DKVANT_LAB=ON && cmake --build --preset default --target session_times
//   build/default/session_times MODEL [RECIPE [TOKENS]]      kvant-3bit, 100000
//
// The program prints the bytes, and the seconds of each part as the best of 3 runs. When the program reads
// the file, the system still holds the file in memory.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "attention/attention.h"
#include "cache/sequence_image.h"
#include "cache/synthetic_sequence.h"
#include "model/engine.h"
#include "recipe/recipe.h"
#include "session/session_file.h"

namespace {

using namespace kvant;

constexpr int kRounds = 3;
// A server handles kPiece bytes between two steps.
constexpr std::size_t kPiece = 4 << 20;

[[noreturn]] void fail(const Error& why) {
  std::fprintf(stderr, "session-times: %s\n", why.message.c_str());
  std::exit(1);
}
template <class T>
T take(Result<T> result) {
  if (!result.ok()) fail(result.error());
  return std::move(result).value();
}

class Stopwatch {
 public:
  double seconds() {
    const auto now = Clock::now(), before = std::exchange(start_, now);
    return std::chrono::duration<double>(now - before).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

struct Times {
  double out = 1e9, write = 1e9, read = 1e9, in = 1e9, longest_piece = 0;
};

void round(Cache& cache, SequenceId sequence, const std::string& path, const SessionIdentity& identity,
           Times& best) {
  Stopwatch watch;
  SessionContents contents{std::vector<std::int32_t>(cache.length(sequence)), "",
                           take(cache.export_sequence(sequence))};
  best.out = std::min(best.out, watch.seconds());
  if (const auto done = write_session(path, identity, contents); !done.ok()) fail(done.error());
  best.write = std::min(best.write, watch.seconds());
  contents = {};
  watch.seconds();
  const SessionFile file = take(SessionFile::open(path, identity));
  const auto tokens = take(file.tokens());
  const auto bytes = take(file.sequence());
  best.read = std::min(best.read, watch.seconds());
  SequenceImport import(cache, bytes.bytes());
  double all = 0;
  for (bool done = false; !done;) {
    done = take(import.advance(kPiece));
    const double piece = watch.seconds();
    best.longest_piece = std::max(best.longest_piece, piece);
    all += piece;
  }
  best.in = std::min(best.in, all);
  cache.free(import.take());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: session-times MODEL [RECIPE [TOKENS]]\n");
    return 2;
  }
  const std::string recipe = argc > 2 ? argv[2] : "kvant-3bit";
  const int n_tokens = argc > 3 ? std::atoi(argv[3]) : 100000;
  const auto engine = take(Engine::load(argv[1], {.n_threads = 1}));
  const auto backend = make_cpu_backend();
  const auto plan =
      take(resolve(take(parse_recipe(recipe)), engine->geometry(), nullptr, backend->page_order()));
  const SessionIdentity identity = session_identity(*plan, engine->fingerprint(), engine->description());
  const std::string path =
      std::filesystem::temp_directory_path() / ("session_times_" + std::to_string(getpid()) + ".kvsession");
  Cache cache(plan, 0);
  const SequenceId sequence = cache.add();
  if (const Status filled = fill_synthetic(cache, sequence, n_tokens, 1); !filled.ok()) fail(filled.error());
  Times best;
  for (int i = 0; i < kRounds; ++i) round(cache, sequence, path, identity, best);
  std::printf("%s, %d tokens: %.1f MB in the file\n", recipe.c_str(), n_tokens,
              static_cast<double>(std::filesystem::file_size(path)) / 1e6);
  std::printf("from the cache %.3f s, to the disk %.3f s\n", best.out, best.write);
  std::printf("from the file, checked %.3f s, into the cache %.3f s: %.3f s; its longest piece %.4f s\n",
              best.read, best.in, best.read + best.in, best.longest_piece);
  std::filesystem::remove(path);
}
