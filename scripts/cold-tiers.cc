// Caches as they are stored, beside each other: what kvant's compact coding makes of a recipe's bytes,
// without loss, and KVTC (arXiv 2511.01815), which is lossy. Mean KLD and bits on a text, as `kvant eval` has
// them.
//
//   cmake --build --preset default --target cold_tiers
//   build/default/cold_tiers rows MODEL FILE                      FILE.k and FILE.v: K (before RoPE) and V of
//   the
//                                                                 text that ships with kvant, in bf16;
//                                                                 FILE.width
//   .venv/bin/python scripts/learn-kvtc.py FILE BITS...           FILE.directions, FILE-BITS.groups
//   build/default/cold_tiers eval MODEL TEXT CONTEXT CHUNKS JSON ROW...
//
// ROW: compact:RECIPE, or kvtc:FILE:BITS. Weights are expanded to F32, the reference backend computes.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "base/float16.h"
#include "base/text_file.h"
#include "calibrate/default_text.h"
#include "calibrate/rope_turns.h"
#include "eval/engine_source.h"
#include "eval/quality_eval.h"
#include "eval/report_json.h"
#include "recipe/recipe.h"
#include "task/kvtc/kvtc_source.h"
#include "task/kvtc/token_rows.h"
#include "task/prompt.h"
#include "task/session.h"
#include "task/session_coding.h"

namespace {

using namespace kvant;

constexpr int kStep = 512;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "cold_tiers: %s\n", why.c_str());
  std::exit(1);
}

template <class T>
T take(Result<T> result) {
  if (!result.ok()) fail(result.error().message);
  return std::move(result).value();
}

int number(const char* text) {
  int value = 0;
  const std::string_view digits = text;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ptr !=
      digits.data() + digits.size())
    fail(fmt::format("'{}' is no number", text));
  return value;
}

// A cache of a recipe, whose bytes are those of its sequences' compact coding.
class CompactSource : public LogitSource {
 public:
  CompactSource(std::string name, const Session& session, std::shared_ptr<const Plan> plan,
                std::shared_ptr<const SequenceCoder> coder)
      : name_(std::move(name)),
        session_(session),
        cache_(plan, /*byte_limit=*/0),
        coder_(std::move(coder)),
        sequence_(cache_.add()) {}

  const std::string& name() const override { return name_; }
  PlanReport plan() const override { return report_plan(cache_.plan(), session_.backend()); }
  Status mark() override { return error("{} keeps no text to return to", name_); }
  Status rewind() override { return mark(); }
  Status begin() override {
    cache_.free(sequence_);
    sequence_ = cache_.add();
    return {};
  }

  Status step(std::span<const std::int32_t> tokens, bool is_prompt, MatrixView<float> logits) override {
    const int n = static_cast<int>(tokens.size()), first_wanted = n - logits.rows;
    for (int start = 0; start < n; start += kStep) {
      const int count = std::min(kStep, n - start), skipped = std::clamp(first_wanted - start, 0, count);
      const EngineInput input{sequence_, tokens.subspan(start, count), is_prompt, skipped};
      KVANT_RETURN_IF_ERROR(
          session_.engine().step(cache_, session_.backend(), {&input, 1},
                                 logits.slice(std::max(start - first_wanted, 0), count - skipped)));
    }
    return {};
  }

  // What coding saves of each sealed page, measured at this length, is taken off the recipe's own bits.
  CacheBits bits() const override {
    const Plan& plan = cache_.plan();
    const int length = cache_.length(sequence_);
    const std::vector<std::byte> hot = take(cache_.export_sequence(sequence_));
    const std::vector<std::byte> coded = coder_->encode(hot, session_.options().n_threads);
    const HugeBuffer back = take(coder_->decode(coded, session_.options().n_threads));
    if (!std::ranges::equal(back.bytes(), hot)) fail(name_ + " decodes to something else");
    const double token_elements = static_cast<double>(bf16_bytes(plan.geometry, 1)) / 2;
    const auto saved_bits = 8.0 * (static_cast<double>(hot.size()) - static_cast<double>(coded.size()));
    const double of_sealed = saved_bits / (length / kPageTokens * kPageTokens * token_elements);
    double share = 0;  // of tokens that are sealed, over the positions of a page
    for (int n = length - kPageTokens + 1; n <= length; ++n)
      share += static_cast<double>(n / kPageTokens * kPageTokens) / n / kPageTokens;
    const CacheBits bits = mean_bits(plan, length, cache_.bytes(sequence_));
    fmt::print(stderr, "{}: {} bytes -> {} ({:.4f})\n", name_, hot.size(), coded.size(),
               static_cast<double>(coded.size()) / static_cast<double>(hot.size()));
    return {bits.sealed - of_sealed, bits.all - share * of_sealed};
  }

  ConstantSize constants() const override {
    const int length = std::max(1, cache_.length(sequence_));
    ConstantSize size = constant_size(cache_.plan(), length);
    size.bytes += predictor_bytes_;
    size.bits = 16.0 * static_cast<double>(size.bytes) /
                static_cast<double>(bf16_bytes(cache_.plan().geometry, length));
    return size;
  }
  void set_predictor_bytes(std::int64_t bytes) { predictor_bytes_ = bytes; }

 private:
  std::string name_;
  const Session& session_;
  Cache cache_;
  std::shared_ptr<const SequenceCoder> coder_;
  SequenceId sequence_;
  std::int64_t predictor_bytes_ = 0;
};

Session open_session(const char* model) {
  const int n_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  SessionOptions options;
  options.model = model;
  options.backend = "reference";
  options.n_threads = n_threads;
  return take(Session::open(options, WeightMode::f32, 0));
}

// Rows of K and V for scripts/learn-kvtc.py, contexts of 2048 tokens without their first four.
int write_rows(const char* model, const std::string& path) {
  constexpr int kContext = 2048, kSink = 4;
  const Session session = open_session(model);
  const Engine& engine = session.engine();
  const auto plan = take(session.plan(take(parse_recipe("k=bf16,v=bf16,sink=4,tail=bf16"))));
  const auto rows =
      take(TokenRows::make(plan, rope_turns(engine.parts(), engine.geometry(), session.options().n_threads)));
  const auto text = take(encode_text(engine.tokenizer(), default_calibration_text(), /*add_special=*/true,
                                     /*parse_special=*/false));
  const std::span<const std::int32_t> tokens = text.tokens;
  std::ofstream files[] = {std::ofstream(path + ".k", std::ios::binary),
                           std::ofstream(path + ".v", std::ios::binary)};
  Cache cache(plan, /*byte_limit=*/0);
  std::vector<float> values(static_cast<std::size_t>(kPageTokens) * rows.width());
  std::vector<std::uint16_t> stored(values.size());
  for (std::size_t first = 0; first + kPageTokens <= tokens.size(); first += kContext) {
    const SequenceId sequence = cache.add();
    const auto context = tokens.subspan(first, std::min<std::size_t>(kContext, tokens.size() - first));
    for (std::size_t at = 0; at < context.size(); at += kStep) {
      const auto step = context.subspan(at, std::min<std::size_t>(kStep, context.size() - at));
      const EngineInput input{sequence, step, /*is_prompt=*/true, static_cast<int>(step.size())};
      if (const Status done = session.engine().step(cache, session.backend(), {&input, 1}, {}); !done.ok())
        fail(done.error().message);
    }
    const auto bytes = take(cache.export_sequence(sequence));
    for (const Side side : kSides) {
      for (int page = 0; page < rows.sealed_pages(bytes); ++page) {
        rows.read(bytes, page, side, values.data());
        bf16_row_from_float(values.data(), stored.data(), stored.size());
        const std::size_t left_out = page == 0 ? static_cast<std::size_t>(kSink) * rows.width() : 0;
        files[static_cast<int>(side)].write(reinterpret_cast<const char*>(stored.data() + left_out),
                                            static_cast<std::streamsize>(2 * (stored.size() - left_out)));
      }
    }
    cache.free(sequence);
    fmt::print(stderr, "{} of {} tokens\n", first + context.size(), tokens.size());
  }
  std::ofstream(path + ".width") << rows.width() << "\n";
  if (!files[0].flush() || !files[1].flush()) fail(fmt::format("'{}.k' and '.v' can't be written", path));
  return 0;
}

std::unique_ptr<LogitSource> compact_source(const Session& session, const std::string& name) {
  const auto plan = take(session.plan(take(parse_recipe(name))));
  const Engine& engine = session.engine();
  const SessionIdentity identity = session_identity(*plan, engine.fingerprint(), engine.description());
  auto coder = take(learned_sequence_coder(session, plan, identity));
  if (coder == nullptr) fail(name + " has no pages that can be coded");
  auto source = std::make_unique<CompactSource>("compact:" + name, session, plan, std::move(coder));
  source->set_predictor_bytes(
      static_cast<std::int64_t>(std::filesystem::file_size(predictor_path(identity))));
  return source;
}

std::array<std::vector<ComponentGroup>, 2> read_groups(const std::string& path) {
  const std::string text = take(read_text_file(path));
  const std::size_t line = text.find('\n');
  if (line == std::string::npos) fail(fmt::format("'{}' has no line for V", path));
  return {take(parse_component_groups(text.substr(0, line))),
          take(parse_component_groups(text.substr(line)))};
}

int evaluate(int argc, char** argv) {
  const Session session = open_session(argv[0]);
  const Engine& engine = session.engine();
  const auto text = take(tokenize_for_eval(engine.tokenizer(), take(read_text_file(argv[1]))));
  const QualityOptions options{
      .context = number(argv[2]), .chunks = number(argv[3]), .n_threads = session.options().n_threads};
  const auto reference = make_engine_source("bf16", session.engine(), session.backend(),
                                            take(session.plan(take(parse_recipe("bf16")))), kStep);
  const Geometry& g = engine.geometry();
  int width = 0;
  for (int layer = 0; layer < g.n_layers; ++layer) width += g.kv_heads(layer) * g.dim(layer);
  std::map<std::string, std::array<PrincipalDirections, 2>> learned;
  std::vector<std::unique_ptr<LogitSource>> rows;
  for (int i = 5; i < argc; ++i) {
    const std::string row = argv[i];
    const std::size_t kind = row.find(':'), bits = row.rfind(':');
    if (row.starts_with("compact:")) {
      rows.push_back(compact_source(session, row.substr(kind + 1)));
    } else if (row.starts_with("kvtc:") && bits > kind) {
      const std::string file = row.substr(kind + 1, bits - kind - 1), target = row.substr(bits + 1);
      if (!learned.contains(file))
        learned.emplace(file, take(read_principal_directions(file + ".directions", width)));
      rows.push_back(take(make_kvtc_source("kvtc:" + target, session, learned.at(file),
                                           read_groups(fmt::format("{}-{}.groups", file, target)))));
    } else {
      fail(fmt::format("'{}' is no row: write compact:RECIPE or kvtc:FILE:BITS", row));
    }
  }
  const auto result =
      take(evaluate_quality(text, engine.n_vocab(), *reference, rows, options, [](std::int64_t) {}));
  fmt::print("{}", eval_table(result));
  std::ofstream(argv[4]) << json_text(eval_to_json(result, engine.description()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "rows" && argc == 4) return write_rows(argv[2], argv[3]);
  if (command == "eval" && argc > 7) return evaluate(argc - 2, argv + 2);
  std::fprintf(stderr, "usage: cold_tiers rows MODEL FILE | eval MODEL TEXT CONTEXT CHUNKS JSON ROW...\n");
  return 2;
}
