// What kvant.Model holds.
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

// A model and the plan of its cache. One step at a time: threads wait for each other.
class PythonModel {
 public:
  // Loads it. Errors: see Session::open, one_recipe, Session::plan.
  // chat_template: a file with one, instead of the model's own; empty: none. most_drafted: of Conversation.
  static std::shared_ptr<PythonModel> open(const SessionOptions& options, const std::string& kv, int context,
                                           const std::string& chat_template, int most_drafted);

  const Engine& engine() const { return session_->engine(); }
  const Tokenizer& tokenizer() const { return session_->engine().tokenizer(); }
  const Session& session() const { return *session_; }
  const PlacedPlan& plan() const { return plan_; }
  const SessionOptions& options() const { return options_; }
  int context() const { return context_; }  // as asked for; 0: the trained one
  int most_drafted() const { return most_drafted_; }
  // Read when it is first asked for. Errors: see ChatTemplate::open.
  Result<std::shared_ptr<const ChatTemplate>> chat_template();

  std::vector<double> score(const std::vector<std::int32_t>& tokens);
  nlohmann::ordered_json info(int context, int batch);

  // Runs `work` while no other thread uses the model; Ctrl-C ends it.
  template <class Work>
  auto run(Work work);
  // While it lives, no other thread uses the model. To be asked for without Python's lock.
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

// One answer while it is made.
class PythonAnswer {
 public:
  // Reads the prompt. Errors: an empty prompt; no room or no memory for it; sampling options out of range.
  PythonAnswer(std::shared_ptr<PythonModel> model, const Prompt& prompt, const AnswerOptions& options);

  // One more token; nothing when the answer has ended.
  std::optional<GeneratedText> next();
  const std::vector<std::int32_t>& tokens() const { return tokens_; }  // of the answer
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
