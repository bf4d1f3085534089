#include "cache/head_image.h"

#include <algorithm>
#include <functional>
#include <span>

#include "base/linear_correction.h"

namespace kvant {
namespace {

// In an image, P[f] follows row f of S. Calls move(number of an image, number of the sums).
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

}  // namespace

void HeadImage::save(ByteWriter& to, const Plan& plan, int layer, int kv_head) const {
  to.write(static_cast<std::int32_t>(chosen.tokens.size()));
  to.write_all(std::span<const int>(chosen.tokens));
  for (const auto& of_side : rows) to.write_all(std::span<const std::byte>(of_side));
  to.write(static_cast<std::int32_t>(chosen.masks.size()));
  for (const PageMask& mask : chosen.masks) {
    to.write(static_cast<std::int32_t>(mask.page));
    to.write(mask.mask.words);
  }
  if (plan.layers[layer].needs_scores()) {
    to.write(static_cast<std::int32_t>(chosen.scores.size()));
    to.write(static_cast<std::int32_t>(observers.tokens().size()));
    chosen.scores.save(to);
    observers.save(to);
  }
  if (!plan.head(layer, kv_head).corrected) return;
  const int d = plan.geometry.dim(layer);
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
    image.observers.load(from, n_observers, head.n_tokens, group, d);
  }
  if (!plan.head(head.layer, head.kv_head).corrected) return image;
  image.sums = load_sums(from, d);
  image.checkpoint_sums = load_sums(from, d);
  return image;
}

}  // namespace kvant
