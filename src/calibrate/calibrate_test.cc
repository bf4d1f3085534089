#include "calibrate/calibrate.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "calibrate/default_text.h"
#include "calibrate/first_use.h"
#include "calibrate/needs.h"
#include "calibrate/samples.h"
#include "model/tiny_model.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

std::string letters(int n) {
  std::mt19937 random(5);
  std::string text;
  for (int i = 0; i < n; ++i) text += static_cast<char>('a' + random() % 26);
  return text;
}

Recipe recipe(const std::string& text) {
  auto parsed = parse_recipe(text);
  EXPECT_TRUE(parsed.ok()) << text;
  return *parsed;
}

constexpr const char* kLearns = "k=smooth+hadamard:vq-d4b4,v=mean:nvq-d4b4,sink=4";
constexpr const char* kCorrects = "k=ch2g128,v=hadamard:tok2g128,correction=relative";

// Interrupting sets a flag when the backend begins its n-th layer.
class Interrupting final : public BackendDecorator {
 public:
  Interrupting(AttentionBackend& inner, int n, std::atomic<bool>& flag)
      : BackendDecorator(inner), left_(n), flag_(flag) {}
  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override {
    if (team.index() == 0 && --left_ == 0) flag_ = true;
    inner().run_layer(step, layer, rows, team);
  }

 private:
  int left_;
  std::atomic<bool>& flag_;
};

class Calibrating : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = (fs::temp_directory_path() / ("kvant_calibrating_" + std::to_string(getpid()))).string();
    fs::create_directories(folder_);
    TinyModelWriter(TinyModel{}).write(folder_ + "/model.gguf");
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }
  Calibrating() {
    auto loaded = Engine::load(folder_ + "/model.gguf", {.n_threads = 1});
    EXPECT_TRUE(loaded.ok());
    engine_ = std::move(*loaded);
  }

  CalibrationRequest request(const std::vector<std::string>& recipes) const {
    CalibrationRequest request;
    for (const std::string& text : recipes) request.recipes.push_back(recipe(text));
    request.text = letters(4000);
    request.settings = {.samples = 3,
                        .length = 150,
                        .rows = 200,
                        .passages = 1,
                        .contexts = 2,
                        .context_length = 300,
                        .adapter_steps = 2,
                        .seed = 7};
    request.n_threads = 1;
    return request;
  }
  Result<Calibration> calibrate_with(const CalibrationRequest& request) {
    return calibrate(*engine_, *backend_, request);
  }
  static std::map<std::string, std::vector<float>> constants_of(const Calibration& calibration) {
    std::map<std::string, std::vector<float>> all;
    calibration.constants.for_each(
        [&](int layer, int head, Side side, const std::string& name, const std::vector<float>& values) {
          all[fmt::format("{} {} {} {}", layer, head, side_name(side), name)] = values;
        });
    return all;
  }

  static std::string folder_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<AttentionBackend> backend_ = make_reference_backend();
};
std::string Calibrating::folder_;

TEST_F(Calibrating, GivesAPlanWhatItNeeds) {
  const auto made = calibrate_with(request({kLearns, kCorrects}));
  ASSERT_TRUE(made.ok()) << made.error().message;
  ASSERT_EQ(made->quality.size(), 2U);
  for (const RecipeQuality& q : made->quality) {
    EXPECT_GT(q.key_error, 0.001);
    EXPECT_LT(q.key_error, 0.9);
    EXPECT_LT(q.value_error, 0.9);
    EXPECT_GT(q.output_error, 0);
  }
  for (const char* text : {kLearns, kCorrects}) {
    const auto constants =
        constants_from(*made, recipe(text), engine_->geometry(), engine_->fingerprint(), "FILE");
    ASSERT_TRUE(constants.ok()) << constants.error().message;
    const auto plan = resolve(recipe(text), engine_->geometry(), *constants);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    Cache cache(*plan, 0);
    const auto tokens = engine_->tokenizer().encode(letters(300), true, false);
    const EngineInput input{cache.add(), *tokens, true, static_cast<int>(tokens->size())};
    EXPECT_TRUE(engine_->step(cache, *backend_, {&input, 1}, {}).ok());
  }
}

// Only layers with attention need constants. Hybrids have no gradients here, so sensitivities are measured.
TEST_F(Calibrating, LearnsAHybridsLayersWithAttention) {
  TinyModelWriter(tiny_hybrid()).write(folder_ + "/hybrid.gguf");
  engine_ = Engine::load(folder_ + "/hybrid.gguf", {.n_threads = 1}).value();
  ASSERT_EQ(engine_->geometry().n_layers, 2);
  const std::string budget = "k=hadamard:tcq4,v=hadamard:tcq4,budget=3.5,ladder=tcq2+tcq4";
  const auto made = calibrate_with(request({kLearns, budget}));
  ASSERT_TRUE(made.ok()) << made.error().message;
  int last_layer = 0;
  made->constants.for_each([&](int layer, int, Side, const std::string&, const std::vector<float>&) {
    last_layer = std::max(last_layer, layer);
  });
  EXPECT_EQ(last_layer, 1);
  for (const std::string& text : {std::string(kLearns), budget}) {
    const auto constants =
        constants_from(*made, recipe(text), engine_->geometry(), engine_->fingerprint(), "FILE");
    ASSERT_TRUE(constants.ok()) << constants.error().message;
    const auto plan = resolve(recipe(text), engine_->geometry(), *constants);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    EXPECT_NE((*plan)->calibration, CalibrationState::missing);
  }
}

TEST_F(Calibrating, DependsOnTheSeedButNotOnThreadsOrOtherRecipes) {
  const auto alone = calibrate_with(request({kLearns}));
  CalibrationRequest together = request({kCorrects, kLearns, "k=hadamard:vq-d2b4,v=bf16"});
  together.n_threads = 3;
  const auto all = constants_of(*calibrate_with(together));
  for (const auto& [name, values] : constants_of(*alone)) EXPECT_EQ(all.at(name), values) << name;
  CalibrationRequest other = request({kLearns});
  other.settings.seed = 8;
  EXPECT_NE(constants_of(*calibrate_with(other)), constants_of(*alone));
}

TEST_F(Calibrating, GoesOnWhereItWasInterrupted) {
  CalibrationRequest asked = request({kLearns});
  asked.state_path = folder_ + "/out.gguf";
  const auto whole = calibrate_with(asked);
  std::atomic<bool> stop{false};
  asked.stop = &stop;
  // The interruption comes in the second sample.
  Interrupting interrupting(*backend_, 2 * engine_->geometry().n_layers + 1, stop);
  const auto first = calibrate(*engine_, interrupting, asked);
  ASSERT_FALSE(first.ok());
  EXPECT_NE(first.error().message.find("interrupted"), std::string::npos);
  EXPECT_TRUE(fs::exists(asked.state_path + ".capture"));
  // The next interruption comes after all samples are read and before anything is learned.
  stop = false;
  const int left = 2 * engine_->geometry().n_layers * 2;  // two samples of two steps
  Interrupting at_the_end(*backend_, left, stop);
  EXPECT_FALSE(calibrate(*engine_, at_the_end, asked).ok());
  stop = false;
  Interrupting never(*backend_, 1, stop);  // would stop if anything were read again
  const auto resumed = calibrate(*engine_, never, asked);
  ASSERT_TRUE(resumed.ok()) << resumed.error().message;
  EXPECT_EQ(constants_of(*resumed), constants_of(*whole));
  EXPECT_FALSE(fs::exists(asked.state_path + ".capture"));
  EXPECT_FALSE(fs::exists(asked.state_path + ".partial"));
}

// This recipe needs all kinds of work: reading samples, learning constants, and weighing contexts.
constexpr const char* kWeighs =
    "k=smooth+hadamard:tcq2,v=hadamard:tcq2,sink=4,encode=shaped,budget=2.6,ladder=tcq1+tcq2+tcq4";

// A calibration whose process was killed must resume from its last save, whichever work that save contains.
TEST_F(Calibrating, GoesOnWhereItWasKilled) {
  CalibrationRequest asked = request({kLearns, kWeighs});
  const auto whole = constants_of(*calibrate_with(asked));
  const fs::path folder = folder_ + "/killed";
  fs::create_directories(folder / "work");
  asked.state_path = (folder / "work/out.gguf").string();
  asked.seconds_between_saves = 0;
  int n_kept = 0;
  asked.kept = [&] { fs::copy(folder / "work", folder / std::to_string(n_kept++)); };
  EXPECT_EQ(constants_of(*calibrate_with(asked)), whole);
  EXPECT_TRUE(fs::is_empty(folder / "work"));
  ASSERT_GT(n_kept, 12);  // there are saves for samples, heads and six contexts
  for (int i = 0; i < n_kept; i += 3) {
    for (const auto& file : fs::directory_iterator(folder / std::to_string(i)))
      fs::copy(file, folder / "work");
    int again = 0;
    asked.kept = [&] { ++again; };
    EXPECT_EQ(constants_of(*calibrate_with(asked)), whole) << i;
    EXPECT_EQ(again, n_kept - 1 - i);
    EXPECT_TRUE(fs::is_empty(folder / "work"));
  }
}

TEST_F(Calibrating, GoesOnWhereItWasInterruptedBetweenContexts) {
  CalibrationRequest asked = request({kWeighs});
  const auto whole = constants_of(*calibrate_with(asked));
  asked.state_path = folder_ + "/contexts.gguf";
  asked.seconds_between_saves = 0;
  std::atomic<bool> stop{false};
  asked.stop = &stop;
  for (int contexts = 0; contexts < 6; ++contexts) {
    asked.kept = [&] { stop = fs::exists(asked.state_path + ".moments"); };
    const auto interrupted = calibrate_with(asked);
    ASSERT_FALSE(interrupted.ok());
    EXPECT_NE(interrupted.error().message.find("to continue from here"), std::string::npos);
    stop = false;
    if (contexts == 4) break;  // after the last context, nothing checks the flag
  }
  asked.kept = [] {};
  EXPECT_EQ(constants_of(*calibrate_with(asked)), whole);
}

TEST_F(Calibrating, LeavesOutWorkThatIsDamagedOrOfAnotherText) {
  CalibrationRequest asked = request({kWeighs});
  const auto whole = constants_of(*calibrate_with(asked));
  asked.state_path = folder_ + "/left.gguf";
  asked.seconds_between_saves = 0;
  std::atomic<bool> stop{false};
  asked.stop = &stop;
  asked.kept = [&] { stop = fs::exists(asked.state_path + ".moments"); };
  const auto leave_work = [&](const CalibrationRequest& of) {
    stop = false;
    EXPECT_FALSE(calibrate_with(of).ok());
    stop = false;
  };
  const auto expect_left_out = [&](const std::string& reason) {
    CalibrationRequest again = asked;
    again.kept = [] {};
    ::testing::internal::CaptureStderr();
    const auto made = calibrate_with(again);
    const std::string said = ::testing::internal::GetCapturedStderr();
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ(constants_of(*made), whole);
    const auto first = said.find("is not continued, because it is " + reason);
    ASSERT_NE(first, std::string::npos) << said;
    EXPECT_EQ(said.find("is not continued", first + 1), std::string::npos) << said;
  };
  for (const char* ending : {".capture", ".partial", ".moments"}) {
    leave_work(asked);
    std::fstream file(asked.state_path + ending, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-100, std::ios::end);
    file << "damage";
    file.close();
    expect_left_out("damaged");
  }
  CalibrationRequest other = asked;
  other.text += " and more";
  leave_work(other);
  expect_left_out("of another model, text or setting");
}

TEST_F(Calibrating, GoesOnWhereNoWorkCanBeKept) {
  CalibrationRequest asked = request({kWeighs});
  const auto whole = constants_of(*calibrate_with(asked));
  asked.state_path = "/dev/null/out.gguf";
  asked.seconds_between_saves = 0;
  ::testing::internal::CaptureStderr();
  const auto made = calibrate_with(asked);
  const std::string said = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(constants_of(*made), whole);
  const auto first = said.find("this calibration cannot be continued after an interruption: cannot write");
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.rfind("this calibration cannot be continued"), first) << said;
}

TEST_F(Calibrating, LearnsFromTextOfTheModelItself) {
  CalibrationRequest asked = request({kLearns});
  asked.text.clear();
  asked.settings.self = true;
  asked.settings.length = 130;
  const auto made = calibrate_with(asked);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made->text_hash, 0U);
  EXPECT_EQ(constants_of(*calibrate_with(asked)), constants_of(*made));
}

TEST_F(Calibrating, RefusesWhatCannotBe) {
  const auto message = [&](const CalibrationRequest& asked) {
    const auto made = calibrate_with(asked);
    return made.ok() ? "" : made.error().message;
  };
  CalibrationRequest asked = request({kLearns});
  asked.text = "short";
  EXPECT_NE(message(asked).find("a sample needs 150"), std::string::npos);
  EXPECT_NE(message(request({"k=vq-d4b4,k@7=bf16"})).find("names layer 7, but"), std::string::npos);
  asked = request({kCorrects});
  asked.settings.context_length = 200;
  EXPECT_NE(message(asked).find("adapters"), std::string::npos);
}

TEST_F(Calibrating, OnFirstUseKeepsTheFile) {
  const std::string folder = folder_ + "/cache";
  const Recipe used = recipe("k=vq-d8b8,v=bf16");
  const std::string path = first_use_path(folder, used, engine_->geometry(), engine_->fingerprint());
  EXPECT_EQ(path, first_use_path(folder, recipe("k=vq-d8b8,v=fp8,window=128"), engine_->geometry(),
                                 engine_->fingerprint()));
  EXPECT_NE(path, first_use_path(folder, recipe("k=vq-d8b8,v=bf16,sink=4"), engine_->geometry(),
                                 engine_->fingerprint()));
  EXPECT_NE(path, first_use_path(folder, used, engine_->geometry(), engine_->fingerprint(), "another text"));
  Calibration made;
  made.fingerprint = engine_->fingerprint();
  for (const HeadNeeds& head : needs_of({&used, 1}, engine_->geometry()))
    for (const ScopedNeed& need : head.constants)
      made.constants.set(head.layer, head.kv_head, head.side, need.stored,
                         std::vector<float>(need.need.size));
  fs::create_directories(folder);
  ASSERT_TRUE(write_calibration(made, path).ok());
  const auto constants = load_or_calibrate(*engine_, *backend_, used, {folder, 1, nullptr});
  ASSERT_TRUE(constants.ok());
  EXPECT_EQ((*constants)->find(0, 0, Side::key, "codebook/vq-d8b8").size(), 256U * 8);
  const auto none = load_or_calibrate(*engine_, *backend_, recipe("kivi-2bit"), {folder, 1, nullptr});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(*none, nullptr);
}

TEST_F(Calibrating, SpreadsSamplesOverTextAndContext) {
  const SampleSize size{
      .samples = 20, .passages = 2, .length = 100, .contexts = 2, .context_length = 300, .seed = 3};
  const std::string text = letters(6000);
  const auto samples = samples_of_text(engine_->tokenizer(), 1024, text, size);
  ASSERT_TRUE(samples.ok()) << samples.error().message;
  ASSERT_EQ(samples->size(), 24U);
  std::set<std::vector<std::int32_t>> different;
  int low = 1024;
  int high = 0;
  for (std::size_t i = 0; i < samples->size(); ++i) {
    const Sample& sample = (*samples)[i];
    EXPECT_EQ(sample.tokens.size(), i < 22 ? 100U : 300U);
    EXPECT_EQ(sample.tokens.front(), 1);  // BOS
    EXPECT_GE(sample.position_offset, 0);
    EXPECT_LE(sample.position_offset + static_cast<int>(sample.tokens.size()), 1024);
    different.insert(sample.tokens);
    if (i >= 20) continue;
    low = std::min(low, sample.position_offset);
    high = std::max(high, sample.position_offset);
  }
  EXPECT_EQ(different.size(), 24U);
  EXPECT_LT(low, 50);
  EXPECT_GT(high, 870);
}

// The folders cannot be written, so nothing can be saved, but the calibration must succeed.
TEST_F(Calibrating, OnFirstUseGoesOnWhereNothingCanBeKept) {
  const Recipe used = recipe("k=mean:fp8,v=fp8");
  for (const char* folder : {"", "/dev/null/kvant"}) {
    ::testing::internal::CaptureStderr();
    const auto constants = load_or_calibrate(*engine_, *backend_, used, {folder, 1, nullptr, letters(20000)});
    const std::string said = ::testing::internal::GetCapturedStderr();
    ASSERT_TRUE(constants.ok()) << constants.error().message;
    EXPECT_NE(*constants, nullptr);
    EXPECT_NE(said.find("can't be stored"), std::string::npos) << said;
    EXPECT_EQ(find_calibration(used, engine_->geometry(), engine_->fingerprint(), folder, letters(20000)),
              nullptr);
  }
}

TEST_F(Calibrating, OnFirstUseLooksWithoutLearning) {
  const std::string folder = folder_ + "/looked";
  const Geometry& g = engine_->geometry();
  const std::string fingerprint = engine_->fingerprint();
  const Recipe used = recipe("k=vq-d8b8,v=bf16");
  EXPECT_EQ(find_calibration(used, g, fingerprint, folder), nullptr);
  EXPECT_FALSE(fs::exists(folder));
  fs::create_directories(folder);
  std::ofstream(first_use_path(folder, used, g, fingerprint)) << "GGUF, but no more than that, and damaged";
  EXPECT_EQ(find_calibration(used, g, fingerprint, folder), nullptr);
}

TEST_F(Calibrating, OnFirstUseHasAFileForEachMethod) {
  const Recipe used = recipe("k=vq-d8b8,v=bf16");
  const auto path = [&](const CalibrationMethod& method) {
    return first_use_path("cache", used, engine_->geometry(), engine_->fingerprint(), "text", method);
  };
  const std::set<std::string> paths = {path({}), path({.weights = "f32"}), path({.backend = "cpu"}),
                                       path({.algorithm = kCalibrationAlgorithm + 1})};
  EXPECT_EQ(paths.size(), 4U);
}

TEST(DefaultText, IsLongEnough) {
  EXPECT_GT(default_calibration_text().size(), 100000U);
  EXPECT_GT(held_out_text().size(), 10000U);
}

// Quality is measured on a text that calibration has not learned. The two texts must not share any run of 6
// words.
TEST(DefaultText, HoldsTextOut) {
  const auto runs_of_words = [](const std::string& text) {
    constexpr std::size_t kWords = 6;
    std::istringstream stream(text);
    const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
    std::set<std::string> runs;
    for (std::size_t i = 0; i + kWords <= words.size(); ++i)
      runs.insert(fmt::format("{}", fmt::join(words.begin() + static_cast<std::ptrdiff_t>(i),
                                              words.begin() + static_cast<std::ptrdiff_t>(i + kWords), " ")));
    return runs;
  };
  const std::set<std::string> held_out = runs_of_words(held_out_text());
  EXPECT_GT(held_out.size(), 1000U);
  for (const std::string& run : runs_of_words(default_calibration_text()))
    EXPECT_FALSE(held_out.contains(run)) << run;
}

}  // namespace
}  // namespace kvant
