// Holds the models and completions that kvant.Model wraps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "task/cache_info.h"
#include "task/conversation.h"
#include "task/prompt.h"

namespace kvant {

// Holds a model and the plan of its cache. The model runs one step at a time, and other threads wait.
class PythonModel {
 public:
  // Loads the model and resolves the recipe `kv`. chat_template names a file that replaces the model's own
  // template; an empty name keeps the model's own. most_drafted has the meaning of Conversation's argument.
  // Throws the errors of parse_recipe(), Session::open() and Session::plan().
  static std::shared_ptr<PythonModel> open(const SessionOptions& options, const std::string& kv, int context,
                                           const std::string& chat_template, int most_drafted);

  const Engine& engine() const { return session_->engine(); }
  const Tokenizer& tokenizer() const { return session_->engine().tokenizer(); }
  const Session& session() const { return *session_; }
  const PlacedPlan& plan() const { return plan_; }
  const SessionOptions& options() const { return options_; }
  int context() const { return context_; }  // the number given to open(); 0 means the trained context
  int most_drafted() const { return most_drafted_; }
  // Opens the chat template on the first call. Returns an error if ChatTemplate::open() does.
  Result<std::shared_ptr<const ChatTemplate>> chat_template();

  std::vector<double> score(const std::vector<std::int32_t>& tokens);
  nlohmann::ordered_json info(int context, int batch);

  // Waits until no other thread uses the model and runs `work`, which Ctrl-C ends. Throws the error of
  // `work`.
  template <class Work>
  auto run(Work work);
  // Returns a lock that keeps other threads from using the model. The caller must not hold Python's lock.
  std::unique_lock<std::mutex> turn() { return std::unique_lock(busy_); }

 private:
  SessionOptions options_;
  std::optional<Session> session_;
  PlacedPlan plan_;
  int context_ = 0, most_drafted_ = 0;
  std::string chat_template_file_;
  std::atomic<bool> stop_{false};
  std::mutex busy_;
  std::shared_ptr<const ChatTemplate> chat_template_;
};

struct AnswerOptions {
  GenerationOptions generation;
  SamplerOptions sampling;
};

// Produces one completion.
class PythonAnswer {
 public:
  // Reads the prompt. Throws an error if the prompt is empty, if context or memory is too short for it, or if
  // sampling options are out of range.
  PythonAnswer(std::shared_ptr<PythonModel> model, const Prompt& prompt, const AnswerOptions& options);

  // Generates one more token. Returns nothing if the completion has ended.
  std::optional<GeneratedText> next();
  const std::vector<std::int32_t>& tokens() const { return tokens_; }  // tokens of the completion
  std::optional<AnswerEnd> end() const { return conversation_->answer_end(); }
  const std::string& stop() const { return conversation_->answer().stop(); }
  int prompt_tokens() const { return conversation_->figures().prompt_tokens; }
  std::int64_t cache_bytes() const { return conversation_->bytes().with_states(); }

 private:
  std::shared_ptr<PythonModel> model_;
  std::unique_ptr<Conversation> conversation_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace kvant
