// Declares the function that silences llama.cpp and ggml. The whole process shares one log.
#pragma once

namespace kvant {

// Drops what llama.cpp and ggml print, because kvant itself reports what users need to know.
void quiet_library_log();

}  // namespace kvant
