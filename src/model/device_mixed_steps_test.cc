// Tests steps on devices that read prompts while other sequences decode. Each slice must take the kernel for
// its kind, and get the result that it would get alone.
#include <gtest/gtest.h>

#include <string>

#include "model/device_machine.h"
#include "model/tiny_variants.h"

namespace kvant {
namespace {

using testing::device_at;
using testing::HostDevice;
using testing::kPlaces;
using testing::Machine;
using testing::Place;
using testing::relative_difference;
using testing::some_tokens;
using testing::with_whole_blocks;

// MixedSlice describes a sequence with n_before tokens, and the tokens that a step adds to it.
struct MixedSlice {
  int n_before, n_tokens;
  bool is_prompt;
};
constexpr MixedSlice kAnswer{300, 1, false}, kYoungAnswer{50, 1, false};
constexpr MixedSlice kGuess{254, 3, false};  // draft tokens that cross the end of a page
constexpr MixedSlice kPrompt{140, 200, true}, kFirstPrompt{0, 70, true}, kPromptEnd{256, 20, true};
// Each of the slices kSealing to kAnswerSeals seals the first page, which contains the sink, during the step
// or at its beginning.
constexpr MixedSlice kSealing{64, 136, true}, kWholePrompt{0, 290, true}, kSealsBefore{128, 72, true};
constexpr MixedSlice kAnswerSeals{128, 1, false};

// MixedStep is a step with the calls that a recipe with sealed pages should make. The numbers count runs
// whose rows form blocks, runs whose rows are sequences, and the sequences in these runs.
struct MixedStep {
  std::vector<MixedSlice> slices;
  int prompt_runs, row_runs, row_sequences;
};
const MixedStep kMixedSteps[] = {
    {{kAnswer, kYoungAnswer, kPrompt, kFirstPrompt}, 1, 1, 2},
    {{kPrompt, kAnswer, kYoungAnswer}, 1, 1, 2},
    {{kFirstPrompt, kAnswer, kPrompt, kPromptEnd, kYoungAnswer, kGuess}, 2, 4, 7},
    {{kAnswer, kFirstPrompt, kGuess, kPrompt, kPrompt, kYoungAnswer}, 2, 3, 4},
    {{kPromptEnd, kPrompt}, 1, 1, 3},
    {{kGuess, kPromptEnd, kAnswer}, 0, 2, 6},
    {{kAnswer, kSealing, kAnswerSeals, kWholePrompt, kSealsBefore, kYoungAnswer}, 2, 3, 3},
};

TinyModel plain_model() {
  return {};
}
TinyModel windowed_model() {
  TinyModel gpt_oss{
      .architecture = "gpt-oss", .ffn_norm_name = "post_attention_norm", .sinks = true, .n_experts = 4};
  gpt_oss.integers = {{"expert_used_count", 2}, {"attention.sliding_window", 128}};
  return gpt_oss;
}
TinyModel hybrid_model() {
  return with_whole_blocks(tiny_hybrid());
}

struct MixedCase {
  TinyModel (*model)();
  const char* recipe;
};
const MixedCase kMixedCases[] = {
    {plain_model, "bf16"},
    {plain_model, "kvant-4bit"},
    {plain_model, "k=hadamard:ch4g128,v=tok4g128,sink=20,prefill=256"},
    {plain_model, "vecinfer-2bit"},
    {plain_model, "kvlinc-2bit"},
    {plain_model, "vquant-k4v2"},
    {plain_model, "vquant-k4v2,prompt=flashq"},
    {plain_model, "bf16,prompt=flashq"},
    {plain_model, "kvant-4bit,prompt=flashq"},
    {plain_model,
     "k=hadamard+rhadamard:tok8g64,v=hadamard+rhadamard:tok4g64,v@1.0=tok2g64,window=256,prompt=flashq"},
    {windowed_model, "bf16"},
    {windowed_model, "k=ch4g128,v=tok4g128,sink=4"},
    {hybrid_model, "bf16,prompt=flashq"},
    {hybrid_model, "kvant-4bit"},
};

// MixedSequences holds two equal sequences for every slice of a step: one for a step of its own, and one for
// the common step.
class MixedSequences {
 public:
  MixedSequences(Machine& machine, const MixedStep& step) : machine_(machine), step_(step) {
    for (const MixedSlice& slice : step.slices) {
      const auto seed = static_cast<std::uint32_t>(tokens_.size());
      tokens_.push_back(some_tokens(slice.n_before + slice.n_tokens + 1, seed));
      alone_.push_back(machine.cache().add());
      if (slice.n_before > 0)
        machine.run(alone_.back(), std::span(tokens_.back()).first(slice.n_before), true, slice.n_before);
      together_.push_back(machine.cache().fork(alone_.back()).value());
    }
  }

  // alone() and together() return the logits of each slice's tokens. alone() runs a step for each slice, and
  // together() runs one step for all slices.
  std::vector<std::vector<float>> alone() {
    std::vector<std::vector<float>> logits;
    for (std::size_t i = 0; i < alone_.size(); ++i) logits.push_back(machine_.step({input(alone_, i)}));
    return logits;
  }
  std::vector<std::vector<float>> together() {
    std::vector<EngineInput> all;
    std::vector<int> n_tokens;
    for (std::size_t i = 0; i < together_.size(); ++i) {
      all.push_back(input(together_, i));
      n_tokens.push_back(step_.slices[i].n_tokens);
    }
    return split(machine_.step(all), n_tokens);
  }
  // Decodes one more token of each sequence. The logits show what the step left in the cache.
  std::vector<std::vector<float>> next(bool together) {
    std::vector<EngineInput> all;
    for (std::size_t i = 0; i < alone_.size(); ++i)
      all.push_back({(together ? together_ : alone_)[i], std::span(tokens_[i]).last(1)});
    return split(machine_.step(all), std::vector<int>(all.size(), 1));
  }

 private:
  EngineInput input(const std::vector<SequenceId>& sequences, std::size_t i) const {
    const MixedSlice& slice = step_.slices[i];
    return {sequences[i], std::span(tokens_[i]).subspan(slice.n_before, slice.n_tokens), slice.is_prompt};
  }
  std::vector<std::vector<float>> split(const std::vector<float>& logits, const std::vector<int>& n) const {
    std::vector<std::vector<float>> parts;
    auto from = logits.begin();
    for (const int n_rows : n) {
      const auto end = from + static_cast<std::ptrdiff_t>(n_rows * machine_.n_vocab());
      parts.emplace_back(from, end);
      from = end;
    }
    return parts;
  }

  Machine& machine_;
  const MixedStep& step_;
  std::vector<std::vector<std::int32_t>> tokens_;
  std::vector<SequenceId> alone_, together_;
};

class DeviceMixedSteps : public ::testing::TestWithParam<std::tuple<MixedCase, Place>> {
 protected:
  void SetUp() override {
    device_ = device_at(std::get<1>(GetParam()));
    if (device_ == nullptr) GTEST_SKIP() << "no such device";
    TinyModelWriter(std::get<0>(GetParam()).model()).write(file_.path());
    machine_ = std::make_unique<Machine>(file_.path(), std::get<0>(GetParam()).recipe, device_);
  }

  TinyFile file_{"mixed.gguf"};
  std::shared_ptr<ComputeDevice> device_;
  std::unique_ptr<Machine> machine_;
};

TEST_P(DeviceMixedSteps, GiveEachSliceWhatItGetsAlone) {
  const double same = std::get<1>(GetParam()).between_ways;
  for (const MixedStep& step : kMixedSteps) {
    MixedSequences sequences(*machine_, step);
    const auto expected = sequences.alone(), found = sequences.together();
    ASSERT_EQ(expected.size(), found.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_LT(relative_difference(expected[i], found[i]), same)
          << "slice " << i << " of step " << &step - kMixedSteps;
    const auto next = sequences.next(/*together=*/false), next_found = sequences.next(/*together=*/true);
    for (std::size_t i = 0; i < next.size(); ++i)
      EXPECT_LT(relative_difference(next[i], next_found[i]), same)
          << "after slice " << i << " of step " << &step - kMixedSteps;
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, DeviceMixedSteps,
                         ::testing::Combine(::testing::ValuesIn(kMixedCases), ::testing::ValuesIn(kPlaces)));

// CountedCalls counts the calls of the library and the rows that attend in these calls.
struct CountedCalls {
  int prompts = 0, prompt_rows = 0, decodes = 0, decode_rows = 0, decode_sequences = 0;
};
CountedCalls counted_calls;
PageLibrary uncounted;

void count_calls(PageLibrary& functions) {
  uncounted = functions;
  functions.prompt_attention = [](const kvant_prompt_shape* shape, const kvant_prompt* prompt, void* memory,
                                  std::size_t bytes, kvant_stream stream) {
    ++counted_calls.prompts;
    counted_calls.prompt_rows += shape->n_queries;
    return uncounted.prompt_attention(shape, prompt, memory, bytes, stream);
  };
  functions.decode_attention = [](const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                                  const kvant_decode_layer* layer, void* memory, std::size_t bytes,
                                  kvant_stream stream) {
    ++counted_calls.decodes;
    counted_calls.decode_rows +=
        lengths->query_begins != nullptr ? lengths->query_begins[shape->n_seqs] : shape->n_seqs;
    counted_calls.decode_sequences += shape->n_seqs;
    return uncounted.decode_attention(shape, lengths, layer, memory, bytes, stream);
  };
}

TEST(DeviceMixedStepCalls, AreThoseOfThePromptKernelForItsSlicesAlone) {
  const TinyFile file("mixed_calls.gguf");
  TinyModelWriter(TinyModel{}).write(file.path());
  for (const char* recipe : {"kvant-4bit", "bf16,prompt=flashq", "kvlinc-2bit", "vquant-k4v2"}) {
    const auto device = std::make_shared<HostDevice>();
    Machine machine(file.path(), recipe, device);
    count_calls(device->host_pages().functions());
    const int n_layers = machine.cache().plan().geometry.n_layers;
    for (const MixedStep& step : kMixedSteps) {
      MixedSequences sequences(machine, step);
      CountedCalls expected{n_layers * step.prompt_runs, 0, n_layers * step.row_runs, 0,
                            n_layers * step.row_sequences};
      for (const MixedSlice& slice : step.slices)
        (slice.is_prompt && slice.n_tokens >= 32 ? expected.prompt_rows : expected.decode_rows) +=
            n_layers * slice.n_tokens;
      // With a correction, or in a short cache without sealed pages, each row counts as a sequence.
      if (recipe != std::string("kvant-4bit")) expected.decode_sequences = expected.decode_rows;
      counted_calls = {};
      sequences.together();
      EXPECT_EQ(counted_calls.prompts, expected.prompts) << recipe;
      EXPECT_EQ(counted_calls.prompt_rows, expected.prompt_rows) << recipe;
      EXPECT_EQ(counted_calls.decode_rows, expected.decode_rows) << recipe;
      // This recipe's rows attend in rounds, each with calls of its own.
      if (recipe == std::string("vquant-k4v2")) continue;
      EXPECT_EQ(counted_calls.decode_sequences, expected.decode_sequences)
          << recipe << ", step " << &step - kMixedSteps;
      if (recipe == std::string("kvlinc-2bit"))
        continue;  // slices of one row and slices of several rows form one run
      EXPECT_EQ(counted_calls.decodes, expected.decodes) << recipe;
    }
  }
}

}  // namespace
}  // namespace kvant
