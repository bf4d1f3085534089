#include "model/gguf_file.h"

#include <fcntl.h>
#include <ggml.h>
#include <gguf.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "model/library_abort.h"
#include "model/library_log.h"
#include "model/tensor_types.h"

namespace kvant {
namespace {

// Mapping is a read-only mapping of a whole file.
class Mapping {
 public:
  static Result<Mapping> open(const std::string& path, const std::string& what);
  Mapping(Mapping&& other) noexcept : base_(other.base_), bytes_(other.bytes_) { other.base_ = nullptr; }
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (base_ != nullptr) munmap(base_, bytes_);
  }
  const std::uint8_t* base() const { return static_cast<const std::uint8_t*>(base_); }
  std::size_t bytes() const { return bytes_; }

 private:
  Mapping(void* base, std::size_t bytes) : base_(base), bytes_(bytes) {}
  void* base_;
  std::size_t bytes_;
};

Result<Mapping> Mapping::open(const std::string& path, const std::string& what) {
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return error("cannot open the {} '{}': {}", what, path, std::strerror(errno));
  struct stat status {};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(file);
    return error("'{}' is not a regular file: give the path of a {}", path, what);
  }
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes < 24) {  // magic, version and two counts
    close(file);
    return error("'{}' has {} bytes, which is too short for a {}", path, bytes, what);
  }
  void* base = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  const int failure = errno;
  close(file);
  if (base == MAP_FAILED) return error("cannot map the {} '{}': {}", what, path, std::strerror(failure));
  return Mapping(base, bytes);
}

bool is_integer(gguf_type type) {
  switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16:
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
      return true;
    default:
      return false;
  }
}

template <class T>
std::int64_t element(const void* data, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
  return static_cast<std::int64_t>(value);
}

// Returns element i of an array of integers or booleans. A scalar counts as an array of one element.
std::int64_t integer_element(gguf_type type, const void* data, std::size_t i) {
  switch (type) {
    case GGUF_TYPE_UINT8:
      return element<std::uint8_t>(data, i);
    case GGUF_TYPE_INT8:
      return element<std::int8_t>(data, i);
    case GGUF_TYPE_UINT16:
      return element<std::uint16_t>(data, i);
    case GGUF_TYPE_INT16:
      return element<std::int16_t>(data, i);
    case GGUF_TYPE_UINT32:
      return element<std::uint32_t>(data, i);
    case GGUF_TYPE_INT32:
      return element<std::int32_t>(data, i);
    case GGUF_TYPE_UINT64:
      return element<std::uint64_t>(data, i);
    case GGUF_TYPE_INT64:
      return element<std::int64_t>(data, i);
    case GGUF_TYPE_BOOL:
      return element<std::int8_t>(data, i) != 0;
    default:
      return 0;
  }
}

constexpr std::uint64_t kHashStart = 0xcbf29ce484222325ULL;

std::uint64_t hash_bytes(const std::uint8_t* bytes, std::size_t n, std::uint64_t hash) {
  for (std::size_t i = 0; i < n; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
  return hash;
}

// Hashes evenly spread runs of a tensor's bytes, with the first and the last bytes among them.
std::uint64_t hash_samples(const std::uint8_t* bytes, std::size_t n, std::uint64_t hash) {
  constexpr std::size_t kRuns = 16, kRunBytes = 256;  // longer than a block of any ggml type
  if (n <= kRuns * kRunBytes) return hash_bytes(bytes, n, hash);
  const std::size_t step = (n - kRunBytes) / (kRuns - 1), rest = (n - kRunBytes) % (kRuns - 1);
  for (std::size_t run = 0; run < kRuns; ++run)
    hash = hash_bytes(bytes + run * step + run * rest / (kRuns - 1), kRunBytes, hash);
  return hash;
}

}  // namespace

struct GgufFile::State {
  State(std::string file_path, Mapping file) : path(std::move(file_path)), mapping(std::move(file)) {}
  ~State() {
    if (directory != nullptr) ggml_free(directory);
    if (header != nullptr) gguf_free(header);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // find() and find_array() return the index of a key, or -1 if the header has no such key. find_array() also
  // requires an array with one of two element types.
  std::int64_t find(const std::string& key) const { return gguf_find_key(header, key.c_str()); }
  std::int64_t find_array(const std::string& key, gguf_type first, gguf_type second) const {
    const std::int64_t id = find(key);
    if (id < 0 || gguf_get_kv_type(header, id) != GGUF_TYPE_ARRAY) return -1;
    const gguf_type type = gguf_get_arr_type(header, id);
    return type == first || type == second ? id : -1;
  }
  std::optional<std::size_t> count(std::int64_t id) const {
    if (id < 0) return std::nullopt;
    return gguf_get_arr_n(header, id);
  }

  std::string path;
  Mapping mapping;
  gguf_context* header = nullptr;
  ggml_context* directory = nullptr;
};

GgufFile::GgufFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
GgufFile::~GgufFile() = default;

Result<std::shared_ptr<GgufFile>> GgufFile::open(const std::string& path, const Words& words) {
  quiet_library_log();
  auto mapping = Mapping::open(path, words.file);
  if (!mapping.ok()) return mapping.error();
  if (std::memcmp(mapping->base(), GGUF_MAGIC, 4) != 0) {
    return error("'{}' is not a {} (it does not start with \"GGUF\")", path, words.file);
  }
  auto state = std::make_unique<State>(path, std::move(mapping).value());
  const gguf_init_params params{/*no_alloc=*/true, &state->directory};
  const auto failure = catch_library_abort(
      [&] { state->header = gguf_init_from_buffer(state->mapping.base(), state->mapping.bytes(), params); });
  if (failure || state->header == nullptr || state->directory == nullptr) {
    if (const auto unknown = find_unknown_type(state->mapping.base(), state->mapping.bytes())) {
      return error(
          "the tensor '{:.100}' of '{}' has the type {}, which this version of ggml doesn't have: it is of "
          "another llama.cpp, or of a fork such as ik_llama.cpp; take a file in types that both have",
          unknown->tensor, path, unknown->type);
    }
    return error("the header of '{}' is damaged or cut short, or of an unknown GGUF version: {}", path,
                 words.remedy);
  }
  const std::size_t data = gguf_get_data_offset(state->header);
  const std::size_t bytes = state->mapping.bytes();
  for (std::int64_t i = 0; i < gguf_get_n_tensors(state->header); ++i) {
    const std::size_t offset = gguf_get_tensor_offset(state->header, i);
    const std::size_t size = gguf_get_tensor_size(state->header, i);
    if (data > bytes || offset > bytes - data || size > bytes - data - offset) {
      return error("'{}' is cut short: tensor '{}' lies beyond its end ({} bytes); {}", path,
                   gguf_get_tensor_name(state->header, i), bytes, words.remedy);
    }
  }
  return std::shared_ptr<GgufFile>(new GgufFile(std::move(state)));
}

const std::string& GgufFile::path() const {
  return state_->path;
}

bool GgufFile::has(const std::string& key) const {
  return state_->find(key) >= 0;
}

std::optional<std::string> GgufFile::text(const std::string& key) const {
  const std::int64_t id = state_->find(key);
  if (id < 0 || gguf_get_kv_type(state_->header, id) != GGUF_TYPE_STRING) return std::nullopt;
  return gguf_get_val_str(state_->header, id);
}

std::optional<std::int64_t> GgufFile::integer(const std::string& key) const {
  const std::int64_t id = state_->find(key);
  if (id < 0 || !is_integer(gguf_get_kv_type(state_->header, id))) return std::nullopt;
  return integer_element(gguf_get_kv_type(state_->header, id), gguf_get_val_data(state_->header, id), 0);
}

std::optional<double> GgufFile::number(const std::string& key) const {
  const std::int64_t id = state_->find(key);
  if (id < 0) return std::nullopt;
  switch (gguf_get_kv_type(state_->header, id)) {
    case GGUF_TYPE_FLOAT32:
      return gguf_get_val_f32(state_->header, id);
    case GGUF_TYPE_FLOAT64:
      return gguf_get_val_f64(state_->header, id);
    default:
      break;
  }
  const auto whole = integer(key);
  if (!whole) return std::nullopt;
  return static_cast<double>(*whole);
}

std::optional<bool> GgufFile::boolean(const std::string& key) const {
  const std::int64_t id = state_->find(key);
  if (id < 0 || gguf_get_kv_type(state_->header, id) != GGUF_TYPE_BOOL) return std::nullopt;
  return integer_element(GGUF_TYPE_BOOL, gguf_get_val_data(state_->header, id), 0) != 0;
}

std::vector<std::int64_t> GgufFile::integers(const std::string& key) const {
  if (const auto scalar = integer(key)) return {*scalar};
  if (const auto scalar = boolean(key)) return {*scalar ? 1 : 0};
  const std::int64_t id = state_->find(key);
  if (id < 0 || gguf_get_kv_type(state_->header, id) != GGUF_TYPE_ARRAY) return {};
  const gguf_type type = gguf_get_arr_type(state_->header, id);
  if (!is_integer(type) && type != GGUF_TYPE_BOOL) return {};
  std::vector<std::int64_t> values(gguf_get_arr_n(state_->header, id));
  const void* data = gguf_get_arr_data(state_->header, id);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = integer_element(type, data, i);
  return values;
}

std::optional<std::size_t> GgufFile::texts_count(const std::string& key) const {
  return state_->count(state_->find_array(key, GGUF_TYPE_STRING, GGUF_TYPE_STRING));
}
std::optional<std::size_t> GgufFile::numbers_count(const std::string& key) const {
  return state_->count(state_->find_array(key, GGUF_TYPE_FLOAT32, GGUF_TYPE_FLOAT32));
}
std::optional<std::size_t> GgufFile::integers_count(const std::string& key) const {
  return state_->count(state_->find_array(key, GGUF_TYPE_INT32, GGUF_TYPE_UINT32));
}

const ggml_tensor* GgufFile::tensor(const std::string& name) const {
  return ggml_get_tensor(state_->directory, name.c_str());
}

std::vector<std::string> GgufFile::tensor_names() const {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < gguf_get_n_tensors(state_->header); ++i) {
    names.emplace_back(gguf_get_tensor_name(state_->header, i));
  }
  return names;
}

const void* GgufFile::tensor_data(const ggml_tensor* tensor) const {
  const std::int64_t id = gguf_find_tensor(state_->header, tensor->name);
  KVANT_CHECK(id >= 0, "tensor of another file");
  return state_->mapping.base() + gguf_get_data_offset(state_->header) +
         gguf_get_tensor_offset(state_->header, id);
}

const void* GgufFile::mapping() const {
  return state_->mapping.base();
}
std::size_t GgufFile::mapping_bytes() const {
  return state_->mapping.bytes();
}

std::uint64_t GgufFile::content_hash() const {
  const std::uint8_t* base = state_->mapping.base();
  const std::size_t data = std::min(gguf_get_data_offset(state_->header), state_->mapping.bytes());
  std::uint64_t hash = hash_bytes(base, data, kHashStart);
  for (std::int64_t i = 0; i < gguf_get_n_tensors(state_->header); ++i) {
    const std::uint8_t* tensor = base + data + gguf_get_tensor_offset(state_->header, i);
    hash = hash_samples(tensor, gguf_get_tensor_size(state_->header, i), hash);
  }
  return hash;
}

}  // namespace kvant
