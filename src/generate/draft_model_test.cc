// Tests draft models. A draft must be what the draft model itself would generate, whatever was rolled back
// before.
#include "generate/draft_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cache/cache_fixture.h"
#include "generate/speculation_pace.h"
#include "model/random_tokens.h"
#include "model/tiny_model.h"

namespace kvant {
namespace {

using Tokens = std::vector<std::int32_t>;

using testing::random_tokens;

// Returns a pace with which every draft pays, because rows cost nothing and a step takes an hour.
SpeculationPace patient_pace() {
  SpeculationPace pace;
  for (int i = 0; i < 4; ++i) {
    for (const int rows : {1, 16}) pace.add(rows, 3600);
  }
  return pace;
}

class DraftModels : public ::testing::Test {
 protected:
  DraftModels() {
    file_ = write_tiny_model(model_);
    engine_ = Engine::load(file_->path(), {.n_threads = 1}).value();
    plan_ = testing::plan_for("bf16", engine_->geometry(), nullptr, backend_->page_order());
  }

  std::shared_ptr<DraftModel> draft_model(std::int64_t byte_limit = 0) {
    return DraftModel::make(*engine_, *backend_, plan_, *engine_, byte_limit).value();
  }

  // Returns the likeliest next token and its probability. A new sequence reads all tokens, so no rollback is
  // involved.
  std::pair<std::int32_t, double> likeliest_after(const Tokens& tokens) {
    Cache cache(plan_, 0);
    std::vector<float> logits(engine_->n_vocab());
    const EngineInput input{cache.add(), tokens, /*is_prompt=*/true, static_cast<int>(tokens.size()) - 1};
    EXPECT_TRUE(engine_->step(cache, *backend_, {&input, 1}, {logits.data(), 1, engine_->n_vocab()}).ok());
    const auto best = std::ranges::max_element(logits);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - *best);
    return {static_cast<std::int32_t>(best - logits.begin()), 1 / sum};
  }

  void expect_drafts_of_its_own(const Draft& draft, Tokens sequence) {
    ASSERT_EQ(draft.tokens.size(), draft.odds.size());
    for (std::size_t i = 0; i < draft.tokens.size(); ++i) {
      const auto [token, probability] = likeliest_after(sequence);
      EXPECT_EQ(draft.tokens[i], token) << i;
      EXPECT_NEAR(draft.odds[i], probability, 0.1) << i;
      sequence.push_back(draft.tokens[i]);
    }
  }

  // Granite divides its logits by logit_scale. A small scale makes the model sure of most tokens, so it
  // drafts several.
  TinyModel model_{.architecture = "granite", .n_layers = 2, .numbers = {{"logit_scale", 0.05F}}};
  std::unique_ptr<TinyFile> file_;
  std::unique_ptr<AttentionBackend> backend_ = make_cpu_backend();
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<const Plan> plan_;
};

TEST_F(DraftModels, ProposeWhatTheyWouldGenerate) {
  const auto source = DraftModel::source(draft_model());
  const SpeculationPace pace = patient_pace();
  Tokens sequence = random_tokens(300, 1);
  source->read(sequence);
  int longest = 0;
  for (int turn = 0; turn < 40; ++turn) {
    const Draft draft = source->propose(6, pace);
    ASSERT_FALSE(draft.tokens.empty());
    expect_drafts_of_its_own(draft, sequence);
    longest = std::max(longest, static_cast<int>(draft.tokens.size()));
    // The sequence accepts a part of the draft. In every second turn, a token that was not drafted follows.
    Tokens next(draft.tokens.begin(), draft.tokens.begin() + (turn % draft.tokens.size()));
    next.push_back(turn % 2 == 0 ? draft.tokens[next.size()] : random_tokens(1, turn).front());
    for (const std::int32_t token : next) source->generate(token);
    sequence.insert(sequence.end(), next.begin(), next.end());
  }
  EXPECT_EQ(longest, 6);
}

TEST_F(DraftModels, GoOnWithASequenceThatBeginsAlike) {
  const auto model = draft_model();
  const SpeculationPace pace = patient_pace();
  const Tokens first = random_tokens(200, 2);
  for (const int n : {200, 150, 260}) {
    Tokens sequence(first.begin(), first.begin() + std::min<int>(n, 200));
    const Tokens more = random_tokens(n - static_cast<int>(sequence.size()), 3);
    sequence.insert(sequence.end(), more.begin(), more.end());
    const auto source = DraftModel::source(model);
    source->read(sequence);
    expect_drafts_of_its_own(source->propose(4, pace), sequence);
  }
}

TEST_F(DraftModels, ProposeNothingWhereDraftingTakesLongerThanSteps) {
  const auto source = DraftModel::source(draft_model());
  SpeculationPace pace;
  for (int i = 0; i < 4; ++i) {
    for (const int rows : {1, 16}) pace.add(rows, 1e-9);
  }
  const Tokens sequence = random_tokens(20, 4);
  source->read(sequence);
  EXPECT_FALSE(source->propose(4, pace).tokens.empty());  // the time to draft a token is not known yet
  int n_drafts = 0;
  for (const std::int32_t token : random_tokens(60, 5)) {
    source->generate(token);
    n_drafts += source->propose(4, pace).tokens.empty() ? 0 : 1;
  }
  EXPECT_EQ(n_drafts, 0);
  for (const std::int32_t token : random_tokens(10, 6)) {
    source->generate(token);
    n_drafts += source->propose(4, pace).tokens.empty() ? 0 : 1;
  }
  EXPECT_EQ(n_drafts, 1);  // one trial draft, because the text may have changed
}

TEST_F(DraftModels, ProposeNothingWithoutMemory) {
  const auto model = draft_model(/*byte_limit=*/1);
  for (int i = 0; i < 2; ++i) {
    const auto source = DraftModel::source(model);
    source->read(random_tokens(20, 7));
    EXPECT_TRUE(source->propose(4, patient_pace()).tokens.empty());
    EXPECT_TRUE(source->propose(4, patient_pace()).tokens.empty());
  }
}

TEST_F(DraftModels, MakeRoomByDroppingSequencesThatHaveEnded) {
  const auto model = draft_model(/*byte_limit=*/8 << 20);
  const SpeculationPace pace = patient_pace();
  for (int i = 0; i < 40; ++i) {
    const auto source = DraftModel::source(model);
    const Tokens sequence = random_tokens(900, 100 + i);
    source->read(sequence);
    expect_drafts_of_its_own(source->propose(1, pace), sequence);
  }
}

TEST_F(DraftModels, AreRefusedWithARecurrentStateOrAnotherTokenizer) {
  const auto hybrid_file = write_tiny_model(tiny_hybrid());
  const auto hybrid = Engine::load(hybrid_file->path(), {.n_threads = 1}).value();
  const auto plan = testing::plan_for("bf16", hybrid->geometry(), nullptr, backend_->page_order());
  const auto refused = DraftModel::make(*hybrid, *backend_, plan, *engine_, 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("recurrent"), std::string::npos) << refused.error().message;

  TinyModel other = model_;
  other.pre_tokenizer = "default";  // the same tokens stand for other texts in this byte-pair vocabulary
  const auto other_file = write_tiny_model(other);
  const auto target = Engine::load(other_file->path(), {.n_threads = 1}).value();
  const auto foreign = DraftModel::make(*engine_, *backend_, plan_, *target, 0);
  ASSERT_FALSE(foreign.ok());
  EXPECT_NE(foreign.error().message.find("tokenizer"), std::string::npos) << foreign.error().message;
}

}  // namespace
}  // namespace kvant
