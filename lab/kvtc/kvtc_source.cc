#include "kvtc/kvtc_source.h"

#include <algorithm>
#include <limits>

#include "calibrate/rope_turns.h"
#include "kvtc/kvtc_rows.h"

namespace kvant {
namespace {

constexpr int kSink = 4, kWindow = 128;
constexpr int kPlainBits = 16;

class KvtcSource : public LogitSource {
 public:
  KvtcSource(std::string name, const Session& session, PlacedPlan plan, KvtcRows rows,
             const std::array<PrincipalDirections, 2>& directions,
             const std::array<std::vector<ComponentGroup>, 2>& groups)
      : name_(std::move(name)),
        session_(session),
        cache_(std::move(plan), /*byte_limit=*/0),
        rows_(std::move(rows)),
        coders_{TransformCoder(directions[0], groups[0]), TransformCoder(directions[1], groups[1])},
        sequence_(cache_.add()) {}

  const std::string& name() const override { return name_; }
  PlanReport plan() const override { return report_plan(cache_.plan(), session_.backend()); }

  Status begin() override {
    cache_.free(sequence_);
    sequence_ = cache_.add();
    n_coded_pages_ = 0;
    return {};
  }
  Status mark() override { return error("{} keeps no text to return to", name_); }
  Status rewind() override { return mark(); }

  Status step(std::span<const std::int32_t> tokens, bool is_prompt, MatrixView<float> logits) override {
    const int n = static_cast<int>(tokens.size()), first_wanted = n - logits.rows;
    for (int start = 0; start < n;) {
      const int count = std::min(n - start, kPageTokens - cache_.length(sequence_) % kPageTokens);
      const int skipped = std::clamp(first_wanted - start, 0, count);
      const EngineInput input{sequence_, tokens.subspan(start, count), is_prompt, skipped};
      KVANT_RETURN_IF_ERROR(
          session_.engine().step(cache_, session_.backend(), {&input, 1},
                                 logits.slice(std::max(start - first_wanted, 0), count - skipped)));
      KVANT_RETURN_IF_ERROR(code_sealed_pages());
      start += count;
    }
    return {};
  }

  CacheBits bits() const override {
    if (n_coded_tokens_ == 0) return {std::numeric_limits<double>::quiet_NaN(), kPlainBits};
    const double elements = 2.0 * rows_.width() * static_cast<double>(n_coded_tokens_);
    const double of_coded =
        (coders_[0].components().ideal_bits() + coders_[1].components().ideal_bits()) / elements;
    double all = 0;
    const int length = cache_.length(sequence_);
    for (int n = length - kPageTokens + 1; n <= length; ++n) {
      const double share =
          std::max(0.0, static_cast<double>((n - kWindow) / kPageTokens * kPageTokens - kSink)) / n;
      all += (share * of_coded + (1 - share) * kPlainBits) / kPageTokens;
    }
    return {of_coded, all};
  }

  ConstantSize constants() const override {
    const auto bytes = static_cast<std::int64_t>(sizeof(std::uint16_t) *
                                                 (coders_[0].n_constants() + coders_[1].n_constants()));
    const double elements = 2.0 * rows_.width() * std::max(1, cache_.length(sequence_));
    return {bytes, 8.0 * static_cast<double>(bytes) / elements};
  }

 private:
  // The sink is not coded, because attention reads the sink from its own page.
  static int first_coded(int page) { return page == 0 ? kSink : 0; }

  // Codes the pages that were sealed since the last call. All layers have already sealed these pages.
  Status code_sealed_pages() {
    auto sequence = cache_.export_sequence(sequence_);
    if (!sequence.ok()) return sequence.error();
    const int n_pages = rows_.sealed_pages(*sequence);
    if (n_pages == n_coded_pages_) return {};
    for (; n_coded_pages_ < n_pages; ++n_coded_pages_) {
      for (const Side side : kSides) code_page(n_coded_pages_, side, *sequence);
      n_coded_tokens_ += kPageTokens - first_coded(n_coded_pages_);
    }
    const auto stored = cache_.import_sequence(*sequence);
    if (!stored.ok()) return stored.error();
    cache_.free(sequence_);
    sequence_ = *stored;
    return {};
  }

  void code_page(int page, Side side, std::span<std::byte> sequence) {
    std::vector<float> values(static_cast<std::size_t>(kPageTokens) * rows_.width());
    rows_.read(sequence, page, side, values.data());
    const int first = first_coded(page);
    const MatrixView<float> rows(values.data(), kPageTokens, rows_.width());
    coders_[static_cast<int>(side)].code(rows.slice(first, kPageTokens - first),
                                         session_.options().n_threads);
    rows_.write(values.data(), page, side, sequence);
  }

  std::string name_;
  const Session& session_;
  Cache cache_;
  KvtcRows rows_;
  std::array<TransformCoder, 2> coders_;
  SequenceId sequence_;
  int n_coded_pages_ = 0;            // pages of the sequence
  std::int64_t n_coded_tokens_ = 0;  // tokens of all sequences
};

}  // namespace

Result<std::unique_ptr<LogitSource>> make_kvtc_source(
    std::string name, const Session& session, const std::array<PrincipalDirections, 2>& directions,
    const std::array<std::vector<ComponentGroup>, 2>& groups) {
  auto recipe = parse_recipe(kKvtcRecipe);
  if (!recipe.ok()) return recipe.error();
  const auto plan = session.plan(*recipe);
  if (!plan.ok()) return plan.error();
  const Engine& engine = session.engine();
  auto rows = KvtcRows::make(plan->plan(),
                             rope_turns(engine.parts(), engine.geometry(), session.options().n_threads));
  if (!rows.ok()) return rows.error();
  for (const auto& of_side : groups) {
    int n = 0;
    for (const ComponentGroup& group : of_side) n += group.size;
    if (n > rows->width()) return error("{} components in groups, of only {} channels", n, rows->width());
  }
  return std::unique_ptr<LogitSource>(
      std::make_unique<KvtcSource>(std::move(name), session, *plan, std::move(*rows), directions, groups));
}

}  // namespace kvant
