#include "attention/uploaded_attention.h"

#include <algorithm>

#include "attention/head_transforms.h"

namespace kvant {
UploadedAttention::UploadedAttention(std::shared_ptr<PageDevice> device)
    : device_(device), attention_(device), rows_(std::move(device)) {}

Status UploadedAttention::begin(Step& step) {
  const Geometry& g = step.plan().geometry;
  const std::size_t values = std::size_t{2} * step.n_rows() * (g.n_heads + g.n_kv_heads) * g.head_dim;
  KVANT_RETURN_IF_ERROR(rows_.reserve(values * sizeof(float), "for the rows of its layers"));
  return attention_.begin(step);
}

void UploadedAttention::run_layer(Step& step, int layer, const LayerRows& rows) {
  if (step.failed()) return;
  const Plan& plan = step.plan();
  const int n_rows = step.n_rows();
  device_->enter();
  auto* at = reinterpret_cast<float*>(rows_.memory());
  const auto upload = [&](const MatrixView<const float>& from, Side side, const auto& transform) {
    transformed_.resize(static_cast<std::size_t>(n_rows) * from.cols);
    for (int r = 0; r < n_rows; ++r)
      std::copy_n(from.row(r), from.cols, transformed_.begin() + std::ptrdiff_t{r} * from.cols);
    for_each_head_transform(plan, layer, side, {transformed_.data(), n_rows, from.cols}, transform);
    float* to = at;
    device_->upload(to, transformed_.data(), transformed_.size() * sizeof(float));
    at += transformed_.size();
    return to;
  };
  const auto forward = [](const Transform& t, MatrixView<float> x) { t.forward(x); };
  // An offset of the scores is the same for all keys.
  float* q = upload(rows.q, Side::key, [](const Transform& t, MatrixView<float> x) { t.query(x, nullptr); });
  const float* k = rows.has_kv() ? upload(rows.k, Side::key, forward) : nullptr;
  const float* v = rows.has_kv() ? upload(rows.v, Side::value, forward) : nullptr;
  attention_.run_layer(step, layer, {q, k, v, /*out=*/at, {}, {}});
  if (step.failed()) return;
  transformed_.resize(static_cast<std::size_t>(n_rows) * rows.out.cols);
  device_->download(transformed_.data(), at, transformed_.size() * sizeof(float));
  if (const Status status = device_->finish(); !status.ok()) return step.fail(status.error());
  for_each_head_transform(plan, layer, Side::value, {transformed_.data(), n_rows, rows.out.cols},
                          [](const Transform& t, MatrixView<float> x) { t.inverse(x); });
  for (int r = 0; r < n_rows; ++r)
    std::copy_n(transformed_.begin() + std::ptrdiff_t{r} * rows.out.cols, rows.out.cols, rows.out.row(r));
}

}  // namespace kvant
