// How long ggml's threads spin at the end of an operation before they sleep.
#pragma once

namespace kvant {

// Keeps the start-up setting below in every program that links the engine.
void keep_openmp_wait_setting();

}  // namespace kvant
