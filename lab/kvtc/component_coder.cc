#include "kvtc/component_coder.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/float16.h"

namespace kvant {
namespace {

constexpr int kFloatBits = 8;
// A group's shift and scale together take kParameterBits.
constexpr int kParameterBits = 32;
constexpr float kE4m3Max = 448;

// Holds an E4M3 number as a whole number of units 2^unit. E4M3 has 4 bits of exponent, the smallest being
// 2^-6, and 3 bits of mantissa.
struct E4m3 {
  int number, unit;
  float value() const { return std::ldexp(static_cast<float>(number), unit); }
  // Returns a symbol that is unique for each value.
  unsigned symbol() const { return static_cast<unsigned>((unit + 9) * 32 + number + 16); }
};
constexpr int kE4m3Symbols = 15 * 32;

// Returns the E4M3 number that is nearest to x. |x| must not exceed 448.
E4m3 nearest_e4m3(float x) {
  int exponent = 0;
  std::frexp(x, &exponent);
  E4m3 nearest{0, std::max(exponent - 4, -9)};
  nearest.number = static_cast<int>(std::nearbyint(std::ldexp(x, -nearest.unit)));
  if (std::abs(nearest.number) == 16) nearest = {nearest.number / 2, nearest.unit + 1};
  return nearest;
}

// Removes an integer from the front of `text`, and returns the integer. Returns -1 if `text` does not begin
// with an integer.
int take_whole(std::string_view& text) {
  int value = 0;
  std::size_t digits = 0;
  for (; digits < text.size() && digits < 6 && text[digits] >= '0' && text[digits] <= '9'; ++digits)
    value = value * 10 + (text[digits] - '0');
  text.remove_prefix(digits);
  return digits == 0 ? -1 : value;
}

}  // namespace

Result<std::vector<ComponentGroup>> parse_component_groups(const std::string& text) {
  std::vector<ComponentGroup> groups;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    std::string_view rest = word;
    ComponentGroup group;
    group.size = take_whole(rest);
    const bool has_bits = rest.starts_with('x');
    if (has_bits) rest.remove_prefix(1);
    group.bits = has_bits ? take_whole(rest) : -1;
    const bool known = group.bits == 0 || group.bits == 2 || group.bits == 4 || group.bits == kFloatBits;
    if (group.size < 1 || !known || !rest.empty())
      return error("'{}' is no group of components: write SIZExBITS, such as 64x4, with 0, 2, 4 or 8 bits",
                   word);
    groups.push_back(group);
  }
  return groups;
}

double SymbolCounts::ideal_bits() const {
  double total = 0, bits = 0;
  for (const std::int64_t n : counts_) total += static_cast<double>(n);
  for (const std::int64_t n : counts_)
    if (n > 0) bits += static_cast<double>(n) * std::log2(total / static_cast<double>(n));
  return bits;
}

ComponentCoder::ComponentCoder(std::vector<ComponentGroup> groups) : groups_(std::move(groups)) {
  for (const ComponentGroup& group : groups_) {
    n_components_ += group.size;
    if (group.bits > 0) plain_bits_ += group.size * group.bits + kParameterBits;
    values_.insert(values_.end(), group.size,
                   SymbolCounts(group.bits == kFloatBits ? kE4m3Symbols : 1 << group.bits));
  }
  const SymbolCounts byte(256);
  parameters_.assign(groups_.size(), {byte, byte, byte, byte});
}

double ComponentCoder::ideal_bits() const {
  double bits = 0;
  for (const SymbolCounts& counts : values_) bits += counts.ideal_bits();
  for (const auto& bytes : parameters_)
    for (const SymbolCounts& counts : bytes) bits += counts.ideal_bits();
  return bits;
}

ComponentCoder::Parameters ComponentCoder::parameters_of(const float* x, const ComponentGroup& group) const {
  const auto [least, most] = std::minmax_element(x, x + group.size);
  const auto as_stored = [](float value) { return float_from_f16(f16_from_float_saturated(value)); };
  if (group.bits == kFloatBits)
    return {as_stored((*least + *most) / 2), as_stored((*most - *least) / 2 / kE4m3Max)};
  return {as_stored(*least), as_stored((*most - *least) / static_cast<float>((1 << group.bits) - 1))};
}

void ComponentCoder::count_parameter(int group, int which, std::uint16_t value) {
  parameters_[group][2 * which].add(value & 0xffU);
  parameters_[group][2 * which + 1].add(value >> 8);
}

void ComponentCoder::code(float* x) {
  int first = 0;
  for (int g = 0; g < static_cast<int>(groups_.size()); first += groups_[g++].size) {
    const ComponentGroup& group = groups_[g];
    float* values = x + first;
    if (group.bits == 0) {
      std::fill_n(values, group.size, 0.0F);
      continue;
    }
    const Parameters p = parameters_of(values, group);
    count_parameter(g, 0, f16_from_float(p.shift));
    count_parameter(g, 1, f16_from_float(p.scale));
    const auto largest = static_cast<float>((1 << group.bits) - 1);
    for (int i = 0; i < group.size; ++i) {
      const float scaled = p.scale > 0 ? (values[i] - p.shift) / p.scale : 0;
      if (group.bits == kFloatBits) {
        const E4m3 code = nearest_e4m3(std::clamp(scaled, -kE4m3Max, kE4m3Max));
        values_[first + i].add(code.symbol());
        values[i] = p.shift + p.scale * code.value();
      } else {
        const float code = std::clamp(std::nearbyint(scaled), 0.0F, largest);
        values_[first + i].add(static_cast<unsigned>(code));
        values[i] = p.shift + p.scale * code;
      }
    }
  }
}

}  // namespace kvant
