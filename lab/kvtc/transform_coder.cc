#include "kvtc/transform_coder.h"

#include <cstring>
#include <functional>
#include <thread>

#include "base/check.h"
#include "base/gemm.h"
#include "base/text_file.h"

namespace kvant {
namespace {

// Calls work(first, n) for equal parts of [0, n_rows). Each part has its own thread.
void in_parts(int n_rows, int n_threads, const std::function<void(int, int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < n_threads; ++i) {
    const int first = n_rows * i / n_threads, n = n_rows * (i + 1) / n_threads - first;
    if (n > 0) threads.emplace_back(work, first, n);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

Result<std::array<PrincipalDirections, 2>> read_principal_directions(const std::string& path, int width) {
  const auto bytes = read_text_file(path);
  if (!bytes.ok()) return bytes.error();
  const std::size_t n_mean = width, n_directions = n_mean * n_mean;
  if (bytes->size() != 2 * (n_mean + n_directions) * sizeof(float))
    return error("'{}' has {} bytes, not the principal directions of {} channels: learn them for this model",
                 path, bytes->size(), width);
  std::array<PrincipalDirections, 2> sides;
  const char* from = bytes->data();
  for (PrincipalDirections& side : sides) {
    side.mean.resize(n_mean);
    side.directions.resize(n_directions);
    for (std::vector<float>* numbers : {&side.mean, &side.directions}) {
      std::memcpy(numbers->data(), from, numbers->size() * sizeof(float));
      from += numbers->size() * sizeof(float);
    }
  }
  return sides;
}

TransformCoder::TransformCoder(const PrincipalDirections& learned, std::vector<ComponentGroup> groups)
    : learned_(learned), components_(std::move(groups)) {
  KVANT_CHECK(components_.n_components() <= width(), "more components than directions");
}

void TransformCoder::code(MatrixView<float> rows, int n_threads) {
  const int p = width(), r = components_.n_components();
  KVANT_CHECK(rows.cols == p, "rows of another width");
  std::vector<float> components(static_cast<std::size_t>(rows.rows) * r);
  in_parts(rows.rows, n_threads, [&](int first, int n) {
    for (int t = first; t < first + n; ++t)
      for (int c = 0; c < p; ++c) rows.row(t)[c] -= learned_.mean[c];
    gemm(n, r, p, row_major(rows.row(first), p), transposed(learned_.directions.data(), p),
         /*accumulate=*/false, &components[static_cast<std::size_t>(first) * r], r);
  });
  for (int t = 0; t < rows.rows; ++t) components_.code(&components[static_cast<std::size_t>(t) * r]);
  in_parts(rows.rows, n_threads, [&](int first, int n) {
    gemm(n, p, r, row_major(&components[static_cast<std::size_t>(first) * r], r),
         row_major(learned_.directions.data(), p), /*accumulate=*/false, rows.row(first), p);
    for (int t = first; t < first + n; ++t)
      for (int c = 0; c < p; ++c) rows.row(t)[c] += learned_.mean[c];
  });
}

}  // namespace kvant
