// Rests before a contender is timed. OpenMP's threads, which llama.cpp and ggml use, spin for several
// milliseconds after a graph. They would take processors from the next contender.
#pragma once

#include <chrono>
#include <thread>

namespace kvant {

constexpr std::chrono::milliseconds kRest{30};

inline void rest() {
  std::this_thread::sleep_for(kRest);
}

}  // namespace kvant
