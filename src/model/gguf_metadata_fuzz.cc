// Fuzzes the reading of GGUF metadata with libFuzzer. Any bytes must give a model's sizes or an error, never
// a crash. cmake/fuzz.cmake builds the program; the seeds in fuzz/seeds/gguf are tiny models without tensor
// data.
#include <cstdint>
#include <cstdio>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "model/gguf_file.h"
#include "model/hparams.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int memory = memfd_create("fuzz.gguf", 0);
  if (memory < 0 || write(memory, data, size) != static_cast<ssize_t>(size)) return 0;
  const auto file = kvant::GgufFile::open("/proc/self/fd/" + std::to_string(memory));
  if (file.ok()) {
    for (const std::string& name : (*file)->tensor_names()) (*file)->tensor_data((*file)->tensor(name));
    for (const char* key : {"general.architecture", "llama.block_count", "tokenizer.ggml.tokens"}) {
      (*file)->text(key);
      (*file)->integer(key);
      (*file)->number(key);
      (*file)->integers(key);
      (*file)->texts_count(key);
    }
    (*file)->content_hash();
    const auto hparams = kvant::read_hparams(**file, 0);
    if (!hparams.ok() && hparams.error().message.empty()) __builtin_trap();
  }
  close(memory);
  return 0;
}
