// Writes a model with its weights in a different type, so speed can be compared with a rival's best type. The
// program converts the values that the file stores. The result has the right speed, but no better quality
// than the source.
//
//   requantize IN.gguf OUT.gguf f16|q4_0
//
// bench-cpu.sh compiles it against the llama.cpp in .venv.
#include <llama.h>

#include <cstdio>
#include <string>

int main(int argc, char** argv) {
  const std::string type = argc == 4 ? argv[3] : "";
  if (type != "f16" && type != "q4_0") {
    std::fprintf(stderr, "usage: requantize IN.gguf OUT.gguf f16|q4_0\n");
    return 2;
  }
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = type == "f16" ? LLAMA_FTYPE_MOSTLY_F16 : LLAMA_FTYPE_MOSTLY_Q4_0;
  params.allow_requantize = true;
  if (llama_model_quantize(argv[1], argv[2], &params) == 0) return 0;
  std::fprintf(stderr, "llama.cpp cannot write '%s' in %s\n", argv[1], type.c_str());
  return 1;
}
