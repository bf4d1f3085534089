#include "cache/head_image.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include "base/linear_correction.h"

namespace kvant {
namespace {

// In an image, z[f] follows row f of S. Calls move(number of an image, number of the sums).
template <class Move>
void for_each_sum(int head_dim, const Move& move) {
  for (int f = 0; f < kCorrectionFeatures; ++f) {
    for (int c = 0; c < head_dim; ++c) move(f * (head_dim + 1) + c, f * head_dim + c);
    move(f * (head_dim + 1) + head_dim, kCorrectionFeatures * head_dim + f);
  }
}

void save_sums(ByteWriter& to, const std::vector<float>& sums, int head_dim) {
  to.write<std::int32_t>(sums.empty() ? 0 : 1);
  if (sums.empty()) return;
  std::vector<float> image(sums.size());
  for_each_sum(head_dim, [&](int in_image, int in_sums) { image[in_image] = sums[in_sums]; });
  to.write_all(std::span<const float>(image));
}

std::vector<float> load_sums(ByteReader& from, int head_dim) {
  if (from.read_int(0, 1) == 0) return {};
  const auto image = from.read_all<float>(correction_sums(head_dim));
  std::vector<float> sums(image.size());
  if (from.ok()) for_each_sum(head_dim, [&](int in_image, int in_sums) { sums[in_sums] = image[in_image]; });
  return sums;
}

// An image has the tokens of observers, and their softmax as a maximum and a sum.
void save_observers(ByteWriter& to, const HeadImage& image, int n, int group, int head_dim) {
  if (n == 0) return;
  std::vector<int> tokens(n);
  for (int r = 0; r < n; ++r) tokens[r] = image.first_observer + r / group;
  const int row = observer_row(image.first_observer) * group;
  const auto rows_of = [&](const std::vector<float>& numbers, int size) {
    return std::span(numbers).subspan(std::size_t{1} * row * size, std::size_t{1} * n * size);
  };
  to.write_all(std::span<const int>(tokens));
  to.write_all(rows_of(image.observers.q, head_dim));
  to.write_all(rows_of(image.observers.offset, 1));
  to.write_all(rows_of(image.observers.lse, 1));
  to.write_all(std::span<const float>(std::vector<float>(n, 1.0F)));
}

void load_observers(ByteReader& from, int n, int n_tokens, int group, int head_dim, HeadImage& image) {
  const auto tokens = from.read_all<int>(n);
  const auto q = from.read_all<float>(static_cast<std::size_t>(n) * head_dim);
  const auto offset = from.read_all<float>(n), max = from.read_all<float>(n), sum = from.read_all<float>(n);
  if (n == 0 || !from.ok()) return;
  const int first = image.first_observer = tokens.front();
  from.require(first / kPageTokens == n_tokens / kPageTokens && observer_row(first) >= 0 &&
               n == (n_tokens - first) * group);
  if (!from.ok()) return;
  image.observers.resize(group, head_dim);
  const int row = observer_row(first) * group;
  std::ranges::copy(q, image.observers.q.begin() + std::ptrdiff_t{row} * head_dim);
  std::ranges::copy(offset, image.observers.offset.begin() + row);
  for (int r = 0; r < n; ++r) {
    from.require(tokens[r] == first + r / group);
    image.observers.lse[row + r] = max[r] + std::log(sum[r]);
  }
}

}  // namespace

void HeadImage::save(ByteWriter& to, const Plan& plan, const ImagedHead& head) const {
  to.write(static_cast<std::int32_t>(chosen.tokens.size()));
  to.write_all(std::span<const int>(chosen.tokens));
  for (const auto& of_side : rows) to.write_all(std::span<const std::byte>(of_side));
  to.write(static_cast<std::int32_t>(chosen.masks.size()));
  for (const PageMask& mask : chosen.masks) {
    to.write(static_cast<std::int32_t>(mask.page));
    to.write(mask.mask.words);
  }
  const int d = plan.geometry.dim(head.layer);
  if (plan.layers[head.layer].needs_scores()) {
    const int group = plan.geometry.group(head.layer);
    const int n_observers = first_observer < 0 ? 0 : (head.n_tokens - first_observer) * group;
    to.write(static_cast<std::int32_t>(chosen.scores.size()));
    to.write(static_cast<std::int32_t>(n_observers));
    chosen.scores.save(to);
    save_observers(to, *this, n_observers, group, d);
  }
  if (!plan.head(head.layer, head.kv_head).corrected) return;
  save_sums(to, sums, d);
  save_sums(to, checkpoint_sums, d);
}

HeadImage HeadImage::load(ByteReader& from, const Plan& plan, const ImagedHead& head) {
  const LayerPlan& rules = plan.layers[head.layer];
  const int d = plan.geometry.dim(head.layer), n_sealed = head.n_sealed;
  HeadImage image;
  std::vector<int>& tokens = image.chosen.tokens;
  tokens = from.read_all<int>(from.read_int(0, max_protected_tokens(rules, n_sealed)));
  const bool ascend = std::ranges::adjacent_find(tokens, std::greater_equal<>()) == tokens.end();
  from.require(tokens.empty() || (ascend && tokens.front() >= 0 && tokens.back() < n_sealed * kPageTokens));
  for (auto& of_side : image.rows)
    of_side = from.read_all<std::byte>(plan.tail->short_page_bytes(d, static_cast<int>(tokens.size())));
  const int n_masks = from.read_int(0, n_sealed);
  for (int i = 0, next = 0; i < n_masks && from.ok(); ++i) {
    PageMask mask{.page = from.read_int(next, n_sealed - 1)};
    next = mask.page + 1;
    mask.mask.words = from.read<decltype(mask.mask.words)>();
    image.chosen.masks.push_back(mask);
  }
  from.require(rules.evict == 0 || n_masks == n_sealed);
  if (rules.needs_scores()) {
    const int group = plan.geometry.group(head.layer);
    const int n_scores = from.read_int(0, head.n_tokens);
    const int n_observers = from.read_int(0, group * open_observers(head.n_tokens));
    image.chosen.scores.load(from, n_scores);
    load_observers(from, n_observers, head.n_tokens, group, d, image);
  }
  if (!plan.head(head.layer, head.kv_head).corrected) return image;
  image.sums = load_sums(from, d);
  image.checkpoint_sums = load_sums(from, d);
  return image;
}

}  // namespace kvant
