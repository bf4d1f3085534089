#include "calibrate/moments_state.h"

#include <ggml.h>

#include <cstring>
#include <span>

#include "calibrate/sealed_gguf.h"

namespace kvant {
namespace {

constexpr const char* kContextsRead = "kvant.state.contexts_read";

}  // namespace

Status write_moments(const ReadContexts& read, std::uint64_t identity, const std::string& path) {
  SealedGguf file;
  set_state(file, "kvant-moments", identity);
  file.set(kContextsRead, std::int64_t{read.n});
  for (std::size_t head = 0; head < read.sums.size(); ++head)
    file.add_bytes(std::to_string(head), std::as_bytes(std::span(read.sums[head])));
  return file.write(path);
}

Result<ReadContexts> read_moments(const std::string& path, std::uint64_t identity, const Geometry& geometry) {
  const auto file = open_state(path, identity);
  if (!file.ok()) return file.error();
  ReadContexts read;
  if (*file == nullptr) return read;
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    const std::size_t size = static_cast<std::size_t>(geometry.dim(layer)) * geometry.dim(layer);
    for (int head = 0; head < geometry.kv_heads(layer); ++head) {
      const ggml_tensor* tensor = (*file)->tensor(std::to_string(geometry.head_index(layer, head)));
      if (tensor == nullptr || ggml_nbytes(tensor) != size * sizeof(double)) return error("it lacks heads");
      std::vector<double>& sums = read.sums.emplace_back(size);
      std::memcpy(sums.data(), (*file)->tensor_data(tensor), size * sizeof(double));
    }
  }
  read.n = static_cast<int>((*file)->integer(kContextsRead).value_or(0));
  return read;
}

}  // namespace kvant
