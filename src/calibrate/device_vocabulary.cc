#include "calibrate/device_vocabulary.h"

#include <algorithm>
#include <numeric>

namespace kvant {
namespace {

constexpr int kGraphTensors = 16;

// Returns a view of the first n_rows rows of a matrix that is packed with n_columns columns.
ggml_tensor* packed(ggml_context* context, ggml_tensor* of, int n_columns, int n_rows) {
  return ggml_view_2d(context, of, n_columns, n_rows, n_columns * sizeof(float), 0);
}

}  // namespace

DeviceVocabulary::DeviceVocabulary(ggml_tensor* output, ggml_backend* backend)
    : output_(output),
      backend_(backend),
      runner_(backend, kGraphTensors),
      context_(nullptr, ggml_free),
      buffer_(nullptr, ggml_backend_buffer_free) {}

Status DeviceVocabulary::reserve(int n_rows, int n_words) {
  context_ = make_graph_context(kGraphTensors);
  ggml_context* c = context_.get();
  x_ = ggml_new_tensor_2d(c, GGML_TYPE_F32, output_->ne[0], n_rows);
  gradient_ = ggml_dup_tensor(c, x_);
  numbers_ = ggml_new_tensor_1d(c, GGML_TYPE_I32, n_words);
  products_ = ggml_new_tensor_2d(c, GGML_TYPE_F32, n_words, n_rows);
  auto buffer = allocate_tensors(c, backend_);
  if (!buffer.ok()) return buffer.error();
  buffer_ = std::move(buffer).value();
  n_rows_ = n_rows;
  n_words_ = n_words;
  ggml_tensor* result = nullptr;
  KVANT_RETURN_IF_ERROR(runner_.check([&](ggml_context* context) { return product(context, &result); }));
  return runner_.check([&](ggml_context* context) { return backward(context); });
}

ggml_tensor* DeviceVocabulary::words(ggml_context* context) {
  return ggml_get_rows(context, output_, ggml_view_1d(context, numbers_, n_words_, 0));
}

ggml_cgraph* DeviceVocabulary::product(ggml_context* context, ggml_tensor** result) {
  ggml_tensor* x = packed(context, x_, static_cast<int>(x_->ne[0]), n_rows_);
  *result = ggml_mul_mat(context, words(context), x);
  ggml_set_output(*result);
  ggml_cgraph* graph = ggml_new_graph_custom(context, kGraphTensors, /*grads=*/false);
  ggml_build_forward_expand(graph, *result);
  return graph;
}

ggml_cgraph* DeviceVocabulary::backward(ggml_context* context) {
  ggml_tensor* derivative = packed(context, products_, n_words_, n_rows_);
  ggml_tensor* gradient = packed(context, gradient_, static_cast<int>(gradient_->ne[0]), n_rows_);
  ggml_tensor* more = ggml_out_prod(context, words(context), ggml_transpose(context, derivative));
  ggml_cgraph* graph = ggml_new_graph_custom(context, kGraphTensors, /*grads=*/false);
  ggml_build_forward_expand(graph, ggml_add_inplace(context, gradient, more));
  return graph;
}

void DeviceVocabulary::note(const Status& status) {
  if (failure_.ok()) failure_ = status;
}

Status DeviceVocabulary::begin(MatrixView<const float> x) {
  KVANT_CHECK(x.rows <= x_->ne[1] && x.stride == x.cols, "rows that no memory was reserved for");
  failure_ = {};
  n_rows_ = x.rows;
  const std::size_t bytes = sizeof(float) * x.rows * x.cols;
  ggml_backend_tensor_set(x_, x.data, 0, bytes);
  ggml_backend_tensor_memset(gradient_, 0, 0, bytes);
  return {};
}

void DeviceVocabulary::begin_block(int first, int n, bool multiplies, bool /*multiplies_back*/, Team& team) {
  team.once([&] {
    n_words_ = n;
    std::vector<std::int32_t> numbers(n);
    std::iota(numbers.begin(), numbers.end(), first);
    ggml_backend_tensor_set(numbers_, numbers.data(), 0, sizeof(std::int32_t) * n);
    host_.assign(static_cast<std::size_t>(n_rows_) * n, 0.0F);
    if (!multiplies) return;
    ggml_tensor* result = nullptr;
    const Status done = runner_.run([&](ggml_context* context) { return product(context, &result); });
    if (done.ok()) ggml_backend_tensor_get(result, host_.data(), 0, sizeof(float) * host_.size());
    note(done);
  });
}

void DeviceVocabulary::multiply(int first, MatrixView<float> out) const {
  const MatrixView<const float> products(host_.data(), n_rows_, n_words_);
  for (int r = 0; r < out.rows; ++r) std::copy_n(products.row(first + r), n_words_, out.row(r));
}

void DeviceVocabulary::multiply_back(int first, MatrixView<const float> derivative) {
  const MatrixView<float> all(host_.data(), n_rows_, n_words_);
  for (int r = 0; r < derivative.rows; ++r) std::copy_n(derivative.row(r), n_words_, all.row(first + r));
}

void DeviceVocabulary::end_block(Team& team) {
  team.once([&] {
    ggml_backend_tensor_set(products_, host_.data(), 0, sizeof(float) * host_.size());
    note(runner_.run([&](ggml_context* context) { return backward(context); }));
  });
}

Status DeviceVocabulary::finish(MatrixView<float> gradient) {
  ggml_backend_tensor_get(gradient_, gradient.data, 0, sizeof(float) * gradient.rows * gradient.cols);
  return failure_;
}

}  // namespace kvant
