// Measures caches in their stored form. kvant's compact coding shortens a recipe's bytes without loss, and
// KVTC (arXiv 2511.01815) is lossy. The figures are bits over the chunks of a text, and for KVTC also the
// mean KLD, as `kvant eval` defines both.
//
//   cmake --preset default -DKVANT_LAB=ON && cmake --build --preset default --target cold_tiers
//   build/default/cold_tiers sizes MODEL TEXT CONTEXT CHUNKS JSON RECIPE...
//   build/default/cold_tiers rows MODEL FILE
//   .venv/bin/python lab/kvtc/learn-kvtc.py FILE BITS...
//   build/default/cold_tiers eval MODEL TEXT CONTEXT CHUNKS JSON kvtc:FILE:BITS...
//
// `sizes` measures compact coding with the model's weights as they are stored. `rows` writes K before RoPE
// and V of kvant's own text in bf16 to FILE.k and FILE.v, and the channels of a row to FILE.width.
// learn-kvtc.py writes FILE.directions and FILE-BITS.groups. `eval` measures KVTC with F32 weights on the
// reference backend.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/float16.h"
#include "base/machine_limits.h"
#include "base/text_file.h"
#include "calibrate/default_text.h"
#include "calibrate/rope_turns.h"
#include "eval/engine_source.h"
#include "eval/quality_eval.h"
#include "eval/report_json.h"
#include "kvtc/kvtc_rows.h"
#include "kvtc/kvtc_source.h"
#include "recipe/recipe.h"
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

Session open_session(const char* model, const char* backend, WeightMode weights) {
  SessionOptions options;
  options.model = model;
  options.backend = backend;
  options.n_threads = usable_threads();
  return take(Session::open(options, weights, 0));
}

void read(const Session& session, Cache& cache, SequenceId sequence, std::span<const std::int32_t> tokens) {
  for (std::size_t at = 0; at < tokens.size(); at += kStep) {
    const auto step = tokens.subspan(at, std::min<std::size_t>(kStep, tokens.size() - at));
    const EngineInput input{sequence, step, /*is_prompt=*/true, static_cast<int>(step.size())};
    const Status done = session.engine().step(cache, session.backend(), {&input, 1}, {});
    if (!done.ok()) fail(done.error().message);
  }
}

// Writes rows of K and V for lab/kvtc/learn-kvtc.py: contexts of 2048 tokens without their first four tokens.
int write_rows(const char* model, const std::string& path) {
  constexpr int kContext = 2048, kSink = 4;
  const Session session = open_session(model, "reference", WeightMode::f32);
  const Engine& engine = session.engine();
  const auto plan = take(session.plan(take(parse_recipe("k=bf16,v=bf16,sink=4,tail=bf16"))));
  const auto rows = take(KvtcRows::make(
      plan.plan(), rope_turns(engine.parts(), engine.geometry(), session.options().n_threads)));
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
    read(session, cache, sequence, context);
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

// Computes the mean bits of a recipe's caches in compact coding over the chunks of a text. The bits that
// coding saves in each quantized page are subtracted from the recipe's own bits.
class CompactBits {
 public:
  CompactBits(const Session& session, const std::string& recipe)
      : session_(session), plan_(take(session.plan(take(parse_recipe(recipe))))) {
    const Engine& engine = session.engine();
    const SessionIdentity identity = session_identity(*plan_, engine.fingerprint(), engine.description());
    coder_ = take(learned_sequence_coder(session, plan_, identity));
    if (coder_ == nullptr) fail(recipe + " has no pages that can be coded");
    predictor_bytes_ = static_cast<std::int64_t>(std::filesystem::file_size(predictor_path(identity)));
  }

  void add(std::span<const std::int32_t> tokens) {
    Cache cache(plan_, /*byte_limit=*/0);
    const SequenceId sequence = cache.add();
    read(session_, cache, sequence, tokens);
    const std::vector<std::byte> hot = take(cache.export_sequence(sequence));
    const std::vector<std::byte> coded = coder_->encode(hot, session_.options().n_threads);
    const HugeBuffer back = take(coder_->decode(coded, session_.options().n_threads));
    if (!std::ranges::equal(back.bytes(), hot)) fail("a sequence decodes to something else");
    hot_bytes_ += static_cast<double>(hot.size());
    saved_bytes_ += static_cast<double>(hot.size()) - static_cast<double>(coded.size());
    hot_bits_ = mean_bits(*plan_, static_cast<int>(tokens.size()), cache.bytes(sequence));
    n_sealed_ += static_cast<double>(tokens.size() / kPageTokens * kPageTokens);
  }

  nlohmann::ordered_json row(const std::string& recipe, int context) const {
    const double token_elements = static_cast<double>(bf16_bytes(plan_->geometry, 1)) / 2;
    const double of_sealed = 8 * saved_bytes_ / (n_sealed_ * token_elements);
    // `share` is the mean share of quantized tokens over the positions of a page.
    double share = 0;
    for (int n = context - kPageTokens + 1; n <= context; ++n)
      share += static_cast<double>(n / kPageTokens * kPageTokens) / n / kPageTokens;
    const std::int64_t constants = constant_size(*plan_, context).bytes + predictor_bytes_;
    return {{"recipe", "compact:" + recipe},
            {"bits_sealed", hot_bits_.sealed - of_sealed},
            {"bits_all", hot_bits_.all - share * of_sealed},
            {"constant_bytes", constants},
            {"constant_bits", 8.0 * static_cast<double>(constants) / (context * token_elements)},
            {"of_hot_bytes", 1 - saved_bytes_ / hot_bytes_}};
  }

 private:
  const Session& session_;
  PlacedPlan plan_;
  std::shared_ptr<const SequenceCoder> coder_;
  std::int64_t predictor_bytes_ = 0;
  CacheBits hot_bits_;
  // n_sealed_ counts tokens, and the other members count bytes.
  double hot_bytes_ = 0, saved_bytes_ = 0, n_sealed_ = 0;
};

int write_sizes(int argc, char** argv) {
  const Session session = open_session(argv[0], "cpu", WeightMode::as_stored);
  const auto text = take(tokenize_for_eval(session.engine().tokenizer(), take(read_text_file(argv[1]))));
  const QualityOptions options{.context = number(argv[2]), .chunks = number(argv[3])};
  nlohmann::ordered_json document = {{"schema", "kvant.eval/2"},
                                     {"context", options.context},
                                     {"chunks", chunks_available(text, options)},
                                     {"results", nlohmann::ordered_json::array()}};
  for (int i = 5; i < argc; ++i) {
    CompactBits bits(session, argv[i]);
    const Status done = for_each_chunk(text, options, [&](std::span<const std::int32_t> tokens) -> Status {
      bits.add(tokens);
      return {};
    });
    if (!done.ok()) fail(done.error().message);
    document["results"].push_back(bits.row(argv[i], options.context));
    fmt::print("{}\n", document["results"].back().dump());
  }
  std::ofstream(argv[4]) << json_text(document);
  return 0;
}

std::array<std::vector<ComponentGroup>, 2> read_groups(const std::string& path) {
  const std::string text = take(read_text_file(path));
  const std::size_t line = text.find('\n');
  if (line == std::string::npos) fail(fmt::format("'{}' has no line for V", path));
  return {take(parse_component_groups(text.substr(0, line))),
          take(parse_component_groups(text.substr(line)))};
}

int evaluate(int argc, char** argv) {
  const Session session = open_session(argv[0], "reference", WeightMode::f32);
  const Engine& engine = session.engine();
  const auto text = take(tokenize_for_eval(engine.tokenizer(), take(read_text_file(argv[1]))));
  const QualityOptions options{
      .context = number(argv[2]), .chunks = number(argv[3]), .n_threads = session.options().n_threads};
  const auto reference = make_engine_source("bf16", session.engine(), session.backend(),
                                            take(session.plan(take(parse_recipe("bf16")))), kStep);
  // K and V take two bytes per channel each.
  const int width = static_cast<int>(bf16_bytes(engine.geometry(), 1) / 4);
  std::map<std::string, std::array<PrincipalDirections, 2>> learned;
  std::vector<std::unique_ptr<LogitSource>> rows;
  for (int i = 5; i < argc; ++i) {
    const std::string row = argv[i];
    const std::size_t kind = row.find(':'), bits = row.rfind(':');
    if (!row.starts_with("kvtc:") || bits == kind)
      fail(fmt::format("'{}' is no row: write kvtc:FILE:BITS", row));
    const std::string file = row.substr(kind + 1, bits - kind - 1), target = row.substr(bits + 1);
    if (!learned.contains(file))
      learned.emplace(file, take(read_principal_directions(file + ".directions", width)));
    rows.push_back(take(make_kvtc_source("kvtc:" + target, session, learned.at(file),
                                         read_groups(fmt::format("{}-{}.groups", file, target)))));
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
  if (command == "sizes" && argc > 7) return write_sizes(argc - 2, argv + 2);
  std::fprintf(stderr,
               "usage: cold_tiers rows MODEL FILE | eval MODEL TEXT CONTEXT CHUNKS JSON kvtc:FILE:BITS... |\n"
               "       sizes MODEL TEXT CONTEXT CHUNKS JSON RECIPE...\n");
  return 2;
}
