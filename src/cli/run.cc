// kvant run generates one completion, or chats in a terminal. If --session is given, a file keeps the cache
// between runs.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "base/json_file.h"
#include "base/progress.h"
#include "base/text_file.h"
#include "base/warn.h"
#include "chat/chat_turn.h"
#include "cli/chat_terminal.h"
#include "cli/command.h"
#include "cli/draft_option.h"
#include "cli/guard_option.h"
#include "cli/model_options.h"
#include "cli/session_coding_option.h"
#include "eval/cache_size.h"
#include "eval/guard_report.h"
#include "eval/report_json.h"
#include "model/tokenizer.h"
#include "model/utf8.h"
#include "recipe/uncalibrated_recipe.h"
#include "session/session_place.h"
#include "task/conversation.h"
#include "task/prompt.h"
#include "task/session_coding.h"

namespace kvant {
namespace {

struct RunOptions {
  ModelOptions common;
  std::string prompt, file, system, guard;
  // Names the file of a chat template; an empty name selects the model's own template.
  std::string chat_template;
  // Names the session's file; an empty name keeps no session.
  std::string session;
  std::string session_coding = kPlainCoding;
  int n = -1;
  int context = 0;
  bool chat = false;
  bool raw = false;
  SamplerOptions sampling;
  std::int64_t seed = 0;
  DraftOptions draft;
};

// Ctrl-C sets `interrupted`. The flag is global, because a signal handler can reach nothing but globals.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void watch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  // Without SA_RESTART, the signal also interrupts a read of the terminal.
  sigaction(SIGINT, &action, nullptr);
}

void print_generated(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

class Run {
 public:
  // guard_every has the meaning of GuardSettings::every; 0 disables the guard.
  Run(const RunOptions& options, Session session, int guard_every)
      : options_(options), session_(std::move(session)), guard_every_(guard_every) {}

  Status start();
  Status finish();
  // Returns whether Ctrl-C ended the run.
  bool is_interrupted() const { return is_interrupted_; }

 private:
  Status check_context(int prompt_tokens);
  Status chat();
  Status chat_turn(const std::string& message, bool is_terminal);
  Status single();
  Result<std::string> prompt_text() const;
  Result<Prompt> prompt() const;
  Result<Prompt> next_prompt(const std::string& message) const;
  Status open_chat_template();
  void print_cache(const CacheBytes& bytes) const;
  Status interruption_status() const;
  Status read_and_generate(const Prompt& prompt);
  void warn_of_divergence();
  Result<Prompt> turn(bool& restart);
  Result<SessionFile> open_session_of_plan();
  Result<SessionFile> open_begun_session();
  Status open_session();
  Status learn_coding();
  Status restore_session();
  Status save_session();
  bool goes_on() const { return restored_tokens_ > 0; }

  const RunOptions& options_;
  Session session_;
  int guard_every_;
  PlacedPlan plan_;
  std::optional<QualityGuard> guard_;
  bool warned_of_divergence_ = false;
  int context_ = 0;
  LoadedDraftModel draft_model_;
  std::unique_ptr<Conversation> conversation_;
  // The pointer is null if --raw is given or if the model has no template.
  std::shared_ptr<const ChatTemplate> chat_template_;
  // Lists the control tokens whose text completions show.
  std::vector<std::int32_t> kept_tokens_;
  ChatHistory history_;
  // Holds the text of the chat that the cache has read. The text is empty if the chat began in an earlier
  // run.
  std::string seen_;
  // Holds the newest completion.
  std::string generated_;
  SessionPlace place_;
  SessionIdentity identity_;
  // Codes compact session files. The pointer is null if there is no predictor for the plan.
  std::shared_ptr<const SequenceCoder> coder_;
  // Holds the number of tokens that the session's file contained when it was opened.
  int restored_tokens_ = 0;
  // The flags say whether Ctrl-C ended the run, and whether the session's file holds the run's conversation.
  bool is_interrupted_ = false, is_saved_ = false;
};

Result<std::string> Run::prompt_text() const {
  if (!options_.file.empty()) return read_text_file(options_.file);
  if (options_.prompt.empty()) return error("the prompt is empty: give text with -p or a file with -f");
  return options_.prompt;
}

// Returns the prompt as the model expects it, inside its chat template if there is one. A restored session
// continues with the next turn of the chat. With --raw, the text is the prompt as it is.
Result<Prompt> Run::prompt() const {
  auto text = prompt_text();
  if (!text.ok()) return text.error();
  const Tokenizer& tokenizer = session_.engine().tokenizer();
  if (chat_template_ == nullptr)
    return encode_text(tokenizer, *text, /*add_special=*/!goes_on(), /*parse_special=*/false);
  return goes_on() ? next_prompt(*text) : message_prompt(*chat_template_, options_.system, *text);
}

// Returns the tokens of a user's message that follows the text of a restored session.
Result<Prompt> Run::next_prompt(const std::string& message) const {
  KVANT_RETURN_IF_ERROR(check_message_text("the text", message));
  auto turn = next_turn(*chat_template_, message);
  if (!turn.ok()) return turn.error();
  return Prompt{std::move(turn->text), std::move(turn->tokens)};
}

// Opens the chat template. Without a template, a single prompt is continued as it is, but a chat is an error.
Status Run::open_chat_template() {
  const Tokenizer& tokenizer = session_.engine().tokenizer();
  if (options_.raw) return {};
  if (options_.chat_template.empty() && !ChatTemplate::is_in(tokenizer)) {
    const std::string missing = fmt::format("'{}' has no chat template", options_.common.model);
    if (options_.chat)
      return error(
          "-cnv needs a chat template, and {}: continue a text with kvant run -p TEXT, as base models do, or "
          "give a template with --chat-template FILE",
          missing);
    if (!options_.system.empty()) return error("--system needs a chat template: {}", missing);
    warn(missing + ": the model continues the prompt as is, as with --raw");
    return {};
  }
  auto opened = ChatTemplate::open(tokenizer, options_.chat_template);
  if (!opened.ok()) return opened.error();
  chat_template_ = std::move(opened).value();
  // Completions must show the template's marks for thoughts, because without them nobody can tell a thought
  // from the completion. If the template refuses this chat of one message, no marks are shown.
  ChatHistory any;
  any.add("user", "Hello");
  if (auto chat = chat_template_->apply(any.json, {}, nlohmann::ordered_json::object()); chat.ok())
    kept_tokens_ = std::move(chat->kept_tokens);
  return {};
}

// --- the session's file ---

// Makes the identity of the plan's sessions, and opens the session's file for this plan.
Result<SessionFile> Run::open_session_of_plan() {
  const Engine& engine = session_.engine();
  identity_ = session_identity(*plan_, engine.fingerprint(), engine.description());
  coder_ = find_sequence_coder(plan_, identity_);
  return SessionFile::open(place_.path(), identity_, coder_);
}

// Opens the session's file. A session that began before its recipe was calibrated continues without the
// calibration.
Result<SessionFile> Run::open_begun_session() {
  auto file = open_session_of_plan();
  if (file.ok() || plan_->calibration != CalibrationState::calibrated) return file;
  const auto earlier = uncalibrated_recipe(plan_->asked, plan_->geometry);
  if (!earlier.ok() || to_string(*earlier) == to_string(plan_->asked)) return file;
  const PlacedPlan calibrated = plan_;
  auto plan = session_.plan(*earlier);
  if (!plan.ok()) return file;
  plan_ = *plan;
  if (auto begun = open_session_of_plan(); begun.ok()) {
    say("session '{}': it began before the calibration of {}, so it continues with {}\n", place_.path(),
        label(calibrated->asked), plan_->name);
    return begun;
  }
  plan_ = calibrated;
  return open_session_of_plan();
}

// Reads the session's file if there is one, and returns an error if the run cannot continue it.
Status Run::open_session() {
  auto place = SessionPlace::open(options_.session);
  if (!place.ok()) return place.error();
  place_ = std::move(*place);
  const auto file = open_begun_session();
  std::error_code failure;
  if (!std::filesystem::exists(options_.session, failure)) return check_writable(options_.session);
  if (!file.ok()) return file.error();
  restored_tokens_ = file->n_tokens();
  if (goes_on() && !options_.system.empty())
    return error("--system is for new sessions only: the session '{}' has already begun; leave out --system",
                 options_.session);
  return check_writable(options_.session);
}

// Learns the coder that --session-coding compact needs, unless there is one already.
Status Run::learn_coding() {
  if (options_.session_coding != kCompactCoding || coder_ != nullptr) return {};
  auto coder = learned_sequence_coder(session_, plan_, identity_);
  if (!coder.ok()) return coder.error();
  coder_ = std::move(*coder);
  return {};
}

Status Run::restore_session() {
  if (place_.is_changed())
    return error("another program has also written the session '{}': start this run again", place_.path());
  const auto start = std::chrono::steady_clock::now();
  const auto file = SessionFile::open(place_.path(), identity_, coder_);
  if (!file.ok()) return file.error();
  KVANT_RETURN_IF_ERROR(conversation_->restore(*file));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  say("session '{}': {} tokens restored without prefill; {} in {:.3f} s\n", place_.path(),
      conversation_->length(), readable_bytes(static_cast<double>(file->file_bytes())), seconds.count());
  return {};
}

Status Run::save_session() {
  if (options_.session.empty()) return {};
  const std::string wanted = place_.path();
  if (place_.move_if_changed())
    warn(fmt::format("another program has also written the session '{}': this conversation is saved as '{}'",
                     wanted, place_.path()));
  const bool compact = options_.session_coding == kCompactCoding;
  KVANT_RETURN_IF_ERROR(conversation_->save(place_.path(), identity_, compact ? coder_.get() : nullptr));
  place_.note_written();
  is_saved_ = true;
  return {};
}

// Sets context_, checks that its cache fits into memory, and makes or restores the conversation.
Status Run::check_context(int prompt_tokens) {
  const std::int64_t wanted = std::int64_t{restored_tokens_} + prompt_tokens + std::max(options_.n, 1) + 1;
  const auto context = context_for(session_, plan_, options_.context, wanted);
  if (!context.ok()) return context.error();
  context_ = *context;
  auto sampler = Sampler::make(options_.sampling);
  if (!sampler.ok()) return sampler.error();
  if (guard_every_ > 0) guard_.emplace(session_.backend(), *plan_, GuardSettings{.every = guard_every_});
  AttentionBackend& backend = guard_ ? *guard_ : session_.backend();
  // A guard keeps rows of every token that was ever in the cache, so rejected drafts would confuse it.
  const int most_drafted = guard_ ? 0 : options_.draft.most_drafted();
  auto draft_model = load_draft_model(options_.draft, session_, context_);
  if (!draft_model.ok()) return draft_model.error();
  draft_model_ = std::move(*draft_model);
  conversation_ = std::make_unique<Conversation>(session_, backend, plan_, std::move(sampler).value(),
                                                 context_, most_drafted, draft_model_.model);
  if (guard_ || !options_.session.empty()) conversation_->use_long_rope();
  return goes_on() ? restore_session() : Status();
}

Status Run::read_and_generate(const Prompt& prompt) {
  generated_.clear();
  KVANT_RETURN_IF_ERROR(conversation_->read(prompt.tokens, prompt.text, interrupted));
  if (interrupted) return {};
  GenerationOptions answer{
      .max_tokens = options_.n, .hides_control_tokens = true, .kept_tokens = kept_tokens_};
  const auto end = conversation_->generate(std::move(answer), interrupted, [&](const std::string& text) {
    generated_ += text;
    print_generated(text);
  });
  print_generated("\n");
  if (!end.ok()) return end.error();
  warn_of_divergence();
  if (*end == AnswerEnd::context_full)
    warn(fmt::format("the context of {} tokens is full: give a larger -c", context_));
  return {};
}

// Warns if the guard has found a divergence. A user needs this warning only once.
void Run::warn_of_divergence() {
  if (!guard_ || warned_of_divergence_) return;
  const auto warning = guard_warning(guard_->report(), plan_->name);
  if (!warning) return;
  warn(*warning);
  warned_of_divergence_ = true;
}

Status Run::single() {
  const auto asked = prompt();
  if (!asked.ok()) return asked.error();
  if (asked->tokens.empty()) return error("the prompt is empty: give text with -p or a file with -f");
  KVANT_RETURN_IF_ERROR(check_context(static_cast<int>(asked->tokens.size())));
  KVANT_RETURN_IF_ERROR(read_and_generate(*asked));
  is_interrupted_ = interrupted;
  // If the prompt was interrupted, the cache may hold only a part of it, which is not worth saving.
  if (is_interrupted_ && generated_.empty()) return {};
  return save_session();
}

// Returns the text and tokens that lead from what the cache has read to the start of the next completion.
// Sets `restart` if the template's new text does not continue the old text, so the cache must be filled anew.
Result<Prompt> Run::turn(bool& restart) {
  KVANT_RETURN_IF_ERROR(check_message_text("the text", std::string(history_.json.back()["content"])));
  if (goes_on()) return next_prompt(history_.json.back()["content"]);
  auto chat = chat_template_->write(history_.json);
  if (!chat.ok()) return chat.error();
  restart = seen_.empty() || !chat->text.starts_with(seen_);
  const std::size_t from = restart ? 0 : seen_.size();
  auto tokens = chat_template_->encode(*chat, from);
  if (!tokens.ok()) return tokens.error();
  seen_ = chat->text;
  return Prompt{chat->text.substr(from), std::move(*tokens)};
}

// Reads a user's message and generates the completion of the chat's next turn.
Status Run::chat_turn(const std::string& message, bool is_terminal) {
  history_.add("user", message);
  const std::string seen = seen_;
  bool restart = false;
  const auto asked = turn(restart);
  if (asked.ok() && restart) conversation_->restart();
  Status fits =
      asked.ok() ? conversation_->check_room(static_cast<int>(asked->tokens.size())) : Status(asked.error());
  if (!fits.ok()) {
    // A user at a terminal can try again with another message.
    if (!is_terminal) return fits;
    warn(fits.error().message + "; the chat continues without this message");
    history_.json.erase(history_.json.size() - 1);
    seen_ = restart ? "" : seen;
    return {};
  }
  KVANT_RETURN_IF_ERROR(read_and_generate(*asked));
  if (!interrupted || !generated_.empty()) {
    if (const Status saved = save_session(); !saved.ok()) warn(saved.error().message);
  } else if (goes_on()) {
    // The cache holds only a part of the interrupted prompt.
    KVANT_RETURN_IF_ERROR(restore_session());
  } else {
    seen_.clear();
  }
  interrupted = false;
  history_.add("assistant", generated_);
  if (!seen_.empty()) seen_ += generated_;
  return {};
}

Status Run::chat() {
  KVANT_RETURN_IF_ERROR(check_context(0));
  if (!options_.system.empty()) history_.add("system", options_.system);
  std::string message = options_.prompt;
  if (!options_.file.empty()) {
    auto text = prompt_text();
    if (!text.ok()) return text.error();
    message = std::move(text).value();
  }
  ChatTerminal terminal;
  say("Chat with {}. Ctrl-D ends the chat, Ctrl-C stops a completion.\n", session_.engine().description());
  while (true) {
    if (message.empty()) {
      if (terminal.is_terminal()) say("> ");
      if (!terminal.read_turn(message) || interrupted) break;
    }
    KVANT_RETURN_IF_ERROR(chat_turn(message, terminal.is_terminal()));
    message.clear();
  }
  say("\n");
  return {};
}

Status Run::start() {
  const auto recipe = one_recipe(options_.common);
  if (!recipe.ok()) return recipe.error();
  auto plan = session_.plan(*recipe);
  if (!plan.ok()) return plan.error();
  plan_ = *plan;
  if (!options_.session.empty()) {
    KVANT_RETURN_IF_ERROR(open_session());
    KVANT_RETURN_IF_ERROR(learn_coding());
  }
  KVANT_RETURN_IF_ERROR(open_chat_template());
  watch_interrupts();
  return options_.chat ? chat() : single();
}

// Prints the bytes of the cache as the cache is now. The JSON file has the mean bits over the fill of a page.
void Run::print_cache(const CacheBytes& bytes) const {
  const auto kv = static_cast<double>(bytes.all()), elements = static_cast<double>(bytes.elements);
  say("KV cache ({}): {} for {} tokens", plan_->name, readable_bytes(kv), conversation_->length());
  if (bytes.sealed_elements > 0) {
    const double bf16 = 2 * elements;
    say(", {:.2f} bits per value; bf16 would take {} ({:.2f}x)\n  {:.0f} % of the values are in sealed "
        "pages, at {:.2f} bits per value; a page is sealed when it is full\n",
        bytes.bits_all(), readable_bytes(bf16), bf16 / kv,
        100.0 * static_cast<double>(bytes.sealed_elements) / elements, bytes.bits_sealed());
  } else {
    say("; no page of {} tokens is sealed yet\n", kPageTokens);
  }
  if (bytes.recurrent > 0) {
    say("  state of layers without attention: {}\n", readable_bytes(static_cast<double>(bytes.recurrent)));
  }
}

// Returns an error that says whether the session is saved if Ctrl-C ended the run.
Status Run::interruption_status() const {
  if (!is_interrupted_) return {};
  if (options_.session.empty()) return error("interrupted");
  if (is_saved_) return error("interrupted; the session is saved with the text so far");
  return error("interrupted; the session is not saved");
}

// Prints the closing summary and writes the JSON file.
Status Run::finish() {
  const ConversationFigures& f = conversation_->figures();
  const CacheBytes bytes = conversation_->bytes();
  const int length = conversation_->length();
  const CacheBits bits = length > 0 ? mean_bits(*plan_, length, bytes) : CacheBits{};
  const ConstantSize constants = constant_size(*plan_, std::max(1, length));
  say("prompt: {} tokens, {:.1f} tokens/s   decode: {} tokens, {:.1f} tokens/s\n", f.prompt_tokens,
      f.prompt_tps(), f.generated_tokens, f.decode_tps());
  if (f.drafted_tokens > 0) {
    say("drafts: {} of {} tokens accepted ({:.0f} %)\n", f.accepted_tokens, f.drafted_tokens,
        100.0 * f.acceptance());
  }
  print_cache(bytes);
  if (constants.bytes > 0)
    say("  model constants: {}\n", readable_bytes(static_cast<double>(constants.bytes)));
  if (guard_) say("{}", guard_summary(guard_->report()));
  if (options_.common.json.empty()) return interruption_status();
  nlohmann::ordered_json json = {
      {"schema", "kvant.run/2"},
      {"model", options_.common.model},
      {"recipe", plan_->name},
      {"asked", label(plan_->asked)},
      {"context", context_},
      {"prompt_tokens", f.prompt_tokens},
      {"prompt_tps", f.prompt_tps()},
      {"generated_tokens", f.generated_tokens},
      {"decode_tps", f.decode_tps()},
      {"drafted_tokens", f.drafted_tokens},
      {"accepted_tokens", f.accepted_tokens},
      {"kv_bytes", bytes.all()},
      {"kv_bytes_bf16", bf16_bytes(session_.engine().geometry(), length)},
      {"recurrent_bytes", bytes.recurrent},
      {"bits_sealed",
       std::isfinite(bits.sealed) ? nlohmann::ordered_json(bits.sealed) : nlohmann::ordered_json(nullptr)},
      {"bits_all", bits.all},
      {"constant_bytes", constants.bytes},
      {"constant_bits", constants.bits},
      {"answer", generated_},
      {"interrupted", is_interrupted_},
      {"plan", plan_to_json(session_.report(*plan_))}};
  if (!options_.session.empty()) {
    json["session_tokens"] = restored_tokens_;
    json["session_saved"] = is_saved_;
  }
  if (guard_) json["guard"] = guard_to_json(guard_->report(), plan_->name);
  KVANT_RETURN_IF_ERROR(
      write_whole_file(options_.common.json,
                       json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n"));
  return interruption_status();
}

// Sets is_interrupted if Ctrl-C ended the run.
Status run(const RunOptions& options, bool& is_interrupted) {
  if (!options.chat && options.prompt.empty() && options.file.empty()) {
    return error("there is no prompt: give one with -p or -f, or chat with -cnv");
  }
  if (options.raw && (options.chat || !options.system.empty() || !options.chat_template.empty())) {
    return error("{} needs the chat template, which --raw disables: leave out one of them",
                 options.chat              ? "-cnv"
                 : !options.system.empty() ? "--system"
                                           : "--chat-template");
  }
  KVANT_RETURN_IF_ERROR(check_json(options.common));
  const auto guard_every = parse_guard(options.guard);
  if (!guard_every.ok()) return guard_every.error();
  if (*guard_every > 0 && !options.session.empty()) {
    return error(
        "--guard needs the unquantized K and V of all tokens, which a session file does not have: leave out "
        "--guard or --session");
  }
  auto session = Session::open(options.common, WeightMode::as_stored, options.context);
  if (!session.ok()) return session.error();
  Run run(options, std::move(session).value(), *guard_every);
  KVANT_RETURN_IF_ERROR(run.start());
  Status finished = run.finish();
  is_interrupted = run.is_interrupted();
  return finished;
}

}  // namespace

Command add_run_command(CLI::App& program) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = program.add_subcommand("run", "generate a completion of a prompt, or chat");
  add_model_options(*command, options->common, /*many_recipes=*/false);
  add_device_option(*command, options->common);
  auto* prompt = command->add_option("-p,--prompt", options->prompt, "prompt text");
  command->add_option("-f,--file", options->file, "file with the prompt; -: the standard input")
      ->excludes(prompt);
  command->add_option("--system", options->system, "system message for the chat template");
  command->add_option("--chat-template", options->chat_template,
                      "file with a chat template (Jinja) that replaces the model's");
  command->add_flag("--cnv,--conversation", options->chat,
                    "chat: read turns from the standard input (also -cnv)");
  command->add_flag("--raw", options->raw, "continue the prompt as is, without the model's chat template");
  command
      ->add_option("-n,--n-predict", options->n,
                   "maximum number of tokens to generate (default: until the model stops)")
      ->check(CLI::Range(-1, 1 << 30));
  command
      ->add_option(
          "-c,--ctx-size", options->context,
          "maximum tokens of prompt and completion (default: the trained context, or more if -n needs more)")
      ->check(CLI::Range(1, 1 << 30));
  add_draft_options(*command, options->draft);
  add_guard_option(*command, options->guard);
  command->add_option("--session", options->session,
                      "continue the conversation in this file without a new prefill, and save it there; the "
                      "file is created if it does not exist");
  add_session_coding_option(*command, options->session_coding)->needs("--session");
  command
      ->add_option("--temp", options->sampling.temperature,
                   "sampling temperature; 0: always the most likely token")
      ->capture_default_str();
  command->add_option("--top-k", options->sampling.top_k, "sample from the K most likely tokens; 0: from all")
      ->capture_default_str();
  command
      ->add_option("--top-p", options->sampling.top_p,
                   "sample from the smallest set of most likely tokens whose probabilities sum to this "
                   "value; 1: from all")
      ->capture_default_str();
  command
      ->add_option("--min-p", options->sampling.min_p,
                   "ignore tokens below this fraction of the most likely token's probability; 0: ignore none")
      ->capture_default_str();
  PenaltyOptions& penalties = options->sampling.penalties;
  command
      ->add_option("--repeat-penalty", penalties.repeat,
                   "make recent tokens of prompt and completion less likely; 1: no penalty")
      ->capture_default_str();
  command
      ->add_option("--repeat-last-n", penalties.repeat_last_n,
                   "number of recent tokens that --repeat-penalty covers; -1: all")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  command
      ->add_option("--presence-penalty", penalties.presence,
                   "value subtracted from the logits of tokens that were generated before")
      ->capture_default_str();
  command
      ->add_option("--frequency-penalty", penalties.frequency,
                   "value subtracted from a token's logit for each time that the token was generated")
      ->capture_default_str();
  command->add_option("-s,--seed", options->seed, "seed for sampling; -1: another seed in every run")
      ->check(CLI::Range(std::int64_t{-1}, std::int64_t{UINT32_MAX}))
      ->capture_default_str();
  const auto is_interrupted = std::make_shared<bool>(false);
  return {command,
          [options, command, is_interrupted]() -> Status {
            KVANT_RETURN_IF_ERROR(check_backend(*command, options->common));
            KVANT_RETURN_IF_ERROR(choose_model(options->common));
            options->sampling.seed =
                options->seed < 0 ? std::random_device{}() : static_cast<std::uint32_t>(options->seed);
            return run(*options, *is_interrupted);
          },
          [is_interrupted] { return *is_interrupted; }};
}

}  // namespace kvant
