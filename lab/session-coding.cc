// Measures compact coding of session files. The results are the bytes, and the speed in MB of the decoded
// sequence per second. There are three speeds: with one thread, with one thread relative to its processor
// time, and with two threads. The processor time excludes other work. The program prints the best of 2 runs.
//
//   cmake --preset default -DKVANT_LAB=ON && cmake --build --preset default --target session_coding
//   build/default/session_coding MODEL RECIPE FILE...       (FILE from kvant run --session FILE)
//
// The program also checks that decoding returns the sequence byte by byte.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>

#include "recipe/recipe.h"
#include "session/session_file.h"
#include "task/session.h"
#include "task/session_coding.h"

namespace {

using namespace kvant;

constexpr int kRounds = 2;

template <class T>
T take(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "session_coding: %s\n", result.error().message.c_str());
  std::exit(1);
}

struct Seconds {
  double wall = 1e9, processor = 1e9;
};

Seconds best_seconds(const std::function<void()>& work) {
  Seconds best;
  for (int i = 0; i < kRounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t used = std::clock();
    work();
    best.processor = std::min(best.processor, static_cast<double>(std::clock() - used) / CLOCKS_PER_SEC);
    best.wall =
        std::min(best.wall, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

void measure(const SequenceCoder& coder, const SessionFile& file, const char* name) {
  const HugeBuffer hot = take(file.sequence());
  const double mb = static_cast<double>(hot.size()) / 1e6;
  std::vector<std::byte> coded;
  Seconds out[2], in[2];
  for (int n = 1; n <= 2; ++n) {
    out[n - 1] = best_seconds([&] { coded = coder.encode(hot.bytes(), n); });
    HugeBuffer back;
    in[n - 1] = best_seconds([&] { back = take(coder.decode(coded, n)); });
    if (!std::ranges::equal(back.bytes(), hot.bytes())) {
      std::fprintf(stderr, "session_coding: %s decodes to something else\n", name);
      std::exit(1);
    }
  }
  std::printf("%s: %d tokens, %zu bytes -> %zu (%.3f)\n", name, file.n_tokens(), hot.size(), coded.size(),
              static_cast<double>(coded.size()) / static_cast<double>(hot.size()));
  const auto print = [mb](const char* what, const Seconds* s) {
    std::printf("  %s: %.1f MB/s, of its processor's time %.1f; 2 threads %.1f\n", what, mb / s[0].wall,
                mb / s[0].processor, mb / s[1].wall);
  };
  print("coded", out);
  print("decoded", in);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: session_coding MODEL RECIPE FILE...\n");
    return 2;
  }
  const Session session = take(Session::open({.model = argv[1], .n_threads = 2}, WeightMode::as_stored, 0));
  const auto plan = take(session.plan(take(parse_recipe(argv[2]))));
  const Engine& engine = session.engine();
  const SessionIdentity identity = session_identity(*plan, engine.fingerprint(), engine.description());
  const auto coder = take(learned_sequence_coder(session, plan, identity));
  if (coder == nullptr) return 1;
  for (int i = 3; i < argc; ++i) measure(*coder, take(SessionFile::open(argv[i], identity)), argv[i]);
}
