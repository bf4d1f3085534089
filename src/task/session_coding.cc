#include "task/session_coding.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/checksum.h"
#include "base/json_file.h"
#include "base/text_file.h"
#include "base/warn.h"
#include "calibrate/default_text.h"
#include "calibrate/rope_turns.h"
#include "compact/learn_predictor.h"
#include "task/calibration_files.h"
#include "task/prompt.h"

namespace kvant {
namespace {

// The predictor learns from kPieces pieces of kPieceTokens tokens, spread over the text.
constexpr int kPieces = 8, kPieceTokens = 2048;

bool is_predicted_anywhere(const Plan& plan) {
  const Geometry& g = plan.geometry;
  for (int layer = 0; layer < g.n_layers; ++layer)
    for (int h = 0; h < g.kv_heads(layer); ++h)
      for (const Side side : kSides)
        if (is_predicted(plan.head(layer, h).side(side), g.dim(layer))) return true;
  return false;
}

// Returns a piece of text in the form in which the plan's cache stores it.
Result<std::vector<std::byte>> read_piece(const Session& session, const PlacedPlan& plan,
                                          std::span<const std::int32_t> tokens,
                                          const std::atomic<bool>* stop) {
  constexpr int kStep = 512;
  Cache cache(plan, /*byte_limit=*/0);
  const SequenceId sequence = cache.add();
  for (std::size_t at = 0; at < tokens.size(); at += kStep) {
    if (stop != nullptr && *stop) return error("interrupted");
    const EngineInput input{
        .sequence = sequence,
        .tokens = tokens.subspan(at, std::min<std::size_t>(kStep, tokens.size() - at)),
        .is_prompt = true,
        .first_logits = static_cast<int>(std::min<std::size_t>(kStep, tokens.size() - at))};
    KVANT_RETURN_IF_ERROR(session.engine().step(cache, session.backend(), {&input, 1}, {}));
  }
  return cache.export_sequence(sequence);
}

Result<Predictor> learn(const Session& session, const PlacedPlan& plan, const std::atomic<bool>* stop) {
  const auto all = encode_text(session.engine().tokenizer(), default_calibration_text(), /*add_special=*/true,
                               /*parse_special=*/false);
  if (!all.ok()) return all.error();
  const std::span<const std::int32_t> tokens = all->tokens;
  const int trained = plan->geometry.trained_context;
  const std::size_t length =
      std::min<std::size_t>(tokens.size(), trained > 0 ? std::min(kPieceTokens, trained) : kPieceTokens);
  PredictorText text{.turns =
                         rope_turns(session.engine().parts(), plan->geometry, session.options().n_threads)};
  for (int i = 0; i < kPieces; ++i) {
    auto piece =
        read_piece(session, plan, tokens.subspan((tokens.size() - length) * i / (kPieces - 1), length), stop);
    if (!piece.ok()) return piece.error();
    text.sequences.push_back(std::move(*piece));
  }
  return learn_predictor(*plan, text, session.options().n_threads);
}

}  // namespace

std::string predictor_path(const SessionIdentity& identity) {
  if (calibration_folder().empty()) return "";
  const std::string what = identity.recipe + ";" + identity.constants;
  return (std::filesystem::path(calibration_folder()) /
          fmt::format("{}-{:016x}.predictor", identity.model, checksum(std::as_bytes(std::span(what)))))
      .string();
}

std::shared_ptr<const SequenceCoder> find_sequence_coder(const PlacedPlan& plan,
                                                         const SessionIdentity& identity) {
  const std::string path = predictor_path(identity);
  std::error_code failure;
  if (path.empty() || !std::filesystem::exists(path, failure)) return nullptr;
  auto predictor = [&]() -> Result<Predictor> {
    const auto bytes = read_text_file(path);
    if (!bytes.ok()) return bytes.error();
    return read_predictor(*plan, std::as_bytes(std::span(*bytes)));
  }();
  if (predictor.ok()) return std::make_shared<const SequenceCoder>(plan.plan(), std::move(*predictor));
  say("kvant: '{}': {}\n", path, predictor.error().message);
  return nullptr;
}

Result<std::shared_ptr<const SequenceCoder>> learned_sequence_coder(const Session& session,
                                                                    const PlacedPlan& plan,
                                                                    const SessionIdentity& identity) {
  if (!is_predicted_anywhere(*plan)) {
    say("kvant: {} has no pages that can be coded compactly: sessions are stored plain\n",
        label(plan->recipe));
    return std::shared_ptr<const SequenceCoder>();
  }
  if (auto found = find_sequence_coder(plan, identity)) return found;
  const std::string path = predictor_path(identity);
  std::error_code failure;
  if (!path.empty()) std::filesystem::create_directories(calibration_folder(), failure);
  const bool is_kept = !path.empty() && check_writable(path).ok();
  if (is_kept) {
    say("kvant: compact sessions of {} need a predictor: learning it once into '{}'\n", label(plan->recipe),
        path);
  } else {
    warn(fmt::format(
        "the predictor for compact sessions of {} can't be stored in '{}': every run has to learn it",
        label(plan->recipe), path));
  }
  std::optional<Interruption> interruption;
  if (session.options().stop == nullptr) interruption.emplace();
  auto predictor = learn(session, plan, interruption ? interruption->flag() : session.options().stop);
  if (!predictor.ok()) return predictor.error();
  const std::vector<std::byte> bytes = write_predictor(*plan, *predictor);
  if (is_kept) KVANT_RETURN_IF_ERROR(write_whole_file(path, {std::span(bytes)}));
  // Later runs read the predictor from the stored bytes, so this run reads it from these bytes too.
  auto read = read_predictor(*plan, bytes);
  if (!read.ok())
    return error("the predictor of {} can't be read back: {}", label(plan->recipe), read.error().message);
  return std::make_shared<const SequenceCoder>(plan.plan(), std::move(*read));
}

}  // namespace kvant
