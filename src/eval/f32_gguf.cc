#include "eval/f32_gguf.h"

#include <ggml.h>
#include <gguf.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "model/gguf_file.h"

namespace kvant {
namespace {

struct Free {
  void operator()(gguf_context* context) const { gguf_free(context); }
  void operator()(ggml_context* context) const { ggml_free(context); }
  void operator()(std::FILE* file) const { std::fclose(file); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

bool dequantizable(ggml_type type) {
  return type != GGML_TYPE_F32 && ggml_get_type_traits(type)->to_float != nullptr;
}

Error disk_error(const std::string& path) {
  return error("cannot write the temporary file '{}': {}; set TMPDIR to a folder with more room", path,
               std::strerror(errno));
}

// Writes a tensor's values to the file, dequantized if the tensor is quantized. One row is converted at a
// time to keep memory small.
bool write_tensor(const ggml_tensor* tensor, const void* data, std::FILE* out) {
  if (!dequantizable(tensor->type))
    return std::fwrite(data, 1, ggml_nbytes(tensor), out) == ggml_nbytes(tensor);
  const std::int64_t cols = tensor->ne[0];
  const std::size_t row_bytes = ggml_row_size(tensor->type, cols);
  std::vector<float> row(cols);
  for (std::int64_t r = 0; r < ggml_nrows(tensor); ++r) {
    ggml_get_type_traits(tensor->type)
        ->to_float(static_cast<const char*>(data) + static_cast<std::size_t>(r) * row_bytes, row.data(),
                   cols);
    if (std::fwrite(row.data(), sizeof(float), row.size(), out) != row.size()) return false;
  }
  return true;
}

bool write_padding(std::FILE* out, std::size_t written, std::size_t alignment) {
  const std::vector<char> zeros((alignment - written % alignment) % alignment);
  return zeros.empty() || std::fwrite(zeros.data(), 1, zeros.size(), out) == zeros.size();
}

// Makes the header of the dequantized file from the header of its source.
Owned<gguf_context> dequantized_header(const gguf_context* source, const ggml_context* directory) {
  Owned<gguf_context> header(gguf_init_empty());
  gguf_set_kv(header.get(), source);
  const std::int64_t n = gguf_get_n_tensors(source);
  Owned<ggml_context> shapes(
      ggml_init({(static_cast<std::size_t>(n) + 1) * ggml_tensor_overhead(), nullptr, true}));
  for (std::int64_t i = 0; i < n; ++i) {
    const ggml_tensor* from =
        ggml_get_tensor(const_cast<ggml_context*>(directory), gguf_get_tensor_name(source, i));
    const ggml_type type = dequantizable(from->type) ? GGML_TYPE_F32 : from->type;
    ggml_tensor* to = ggml_new_tensor(shapes.get(), type, ggml_n_dims(from), from->ne);
    ggml_set_name(to, from->name);
    gguf_add_tensor(header.get(), to);
  }
  gguf_set_val_u32(header.get(), "general.file_type", 0);  // 0 means that all tensors are F32
  return header;
}

}  // namespace

Result<TemporaryFile> TemporaryFile::make(const std::string& suffix) {
  std::error_code failure;
  const auto folder = std::filesystem::temp_directory_path(failure);
  std::string name = (failure ? std::filesystem::path("/tmp") : folder) / ("kvant-XXXXXX" + suffix);
  const int file = mkstemps(name.data(), static_cast<int>(suffix.size()));
  if (file < 0) return disk_error(name);
  close(file);
  return TemporaryFile(std::move(name));
}

TemporaryFile::~TemporaryFile() {
  if (!path_.empty()) unlink(path_.c_str());
}

Result<TemporaryFile> dequantize_to_f32(const std::string& path) {
  // open() also checks that all tensors lie inside the file.
  auto model = GgufFile::open(path);
  if (!model.ok()) return model.error();
  ggml_context* directory_pointer = nullptr;
  const Owned<gguf_context> source(gguf_init_from_file(path.c_str(), {true, &directory_pointer}));
  const Owned<ggml_context> directory(directory_pointer);
  if (source == nullptr) return error("cannot read the header of '{}'", path);
  const Owned<gguf_context> header = dequantized_header(source.get(), directory.get());

  auto file = TemporaryFile::make(".gguf");
  if (!file.ok()) return file.error();
  const Owned<std::FILE> out(std::fopen(file->path().c_str(), "wb"));
  if (out == nullptr) return disk_error(file->path());
  bool good = gguf_write_to_file_ptr(header.get(), out.get(), /*only_meta=*/true);
  const std::size_t alignment = gguf_get_alignment(header.get());
  for (std::int64_t i = 0; good && i < gguf_get_n_tensors(source.get()); ++i) {
    const ggml_tensor* tensor = (*model)->tensor(gguf_get_tensor_name(source.get(), i));
    good = write_tensor(tensor, (*model)->tensor_data(tensor), out.get()) &&
           write_padding(out.get(), gguf_get_tensor_size(header.get(), i), alignment);
  }
  if (!good || std::fflush(out.get()) != 0) return disk_error(file->path());
  return file;
}

}  // namespace kvant
