#include "python/model.h"

#include <algorithm>

#include "python/interruptible.h"
#include "task/text_score.h"

namespace kvant {

template <class Work>
auto PythonModel::run(Work work) {
  return value_or_raise(interruptible(stop_, [&] {
    const std::lock_guard lock(busy_);
    return work();
  }));
}

std::shared_ptr<PythonModel> PythonModel::open(const SessionOptions& options, const std::string& kv,
                                               int context, const std::string& chat_template,
                                               int most_drafted) {
  auto model = std::make_shared<PythonModel>();
  model->chat_template_file_ = chat_template;
  model->most_drafted_ = most_drafted;
  model->options_ = options;
  model->options_.stop = &model->stop_;
  model->context_ = context;
  const Recipe recipe = value_or_raise(parse_recipe(kv));
  model->run([&]() -> Status {
    auto session = Session::open(model->options_, WeightMode::as_stored, context);
    if (!session.ok()) return session.error();
    model->session_.emplace(std::move(session).value());
    auto plan = model->session_->plan(recipe);
    if (!plan.ok()) return plan.error();
    model->plan_ = std::move(plan).value();
    return {};
  });
  return model;
}

// Callers hold Python's lock, so no other thread runs this function at the same time.
Result<std::shared_ptr<const ChatTemplate>> PythonModel::chat_template() {
  if (chat_template_ == nullptr) {
    auto opened = ChatTemplate::open(tokenizer(), chat_template_file_);
    if (!opened.ok()) return opened.error();
    chat_template_ = std::move(opened).value();
  }
  return chat_template_;
}

std::vector<double> PythonModel::score(const std::vector<std::int32_t>& tokens) {
  return run([&] { return score_tokens(session_->engine(), session_->backend(), plan_, tokens); });
}

nlohmann::ordered_json PythonModel::info(int context, int batch) {
  const auto found = run([&] { return cache_info(*session_, plan_->asked, context, batch); });
  return info_to_json(*session_, found, options_.model);
}

PythonAnswer::PythonAnswer(std::shared_ptr<PythonModel> model, const Prompt& prompt,
                           const AnswerOptions& options)
    : model_(std::move(model)) {
  if (prompt.tokens.empty()) throw PythonError{"the prompt is empty: give text"};
  const Session& session = model_->session();
  const std::int64_t wanted =
      std::ssize(prompt.tokens) + std::max(options.generation.max_tokens, 1) + std::int64_t{1};
  const int context = value_or_raise(context_for(session, model_->plan(), model_->context(), wanted));
  auto sampler = value_or_raise(Sampler::make(options.sampling));
  conversation_ = std::make_unique<Conversation>(session, session.backend(), model_->plan(),
                                                 std::move(sampler), context, model_->most_drafted());
  model_->run([&] {
    const std::atomic<bool> never{false};  // the engine's own flag ends steps
    return conversation_->read(prompt.tokens, prompt.text, never);
  });
  conversation_->begin_answer(options.generation);
}

std::optional<GeneratedText> PythonAnswer::next() {
  const auto step = [&]() -> Result<std::optional<GeneratedText>> {
    const nanobind::gil_scoped_release release;
    const auto turn = model_->turn();
    if (conversation_->answer_end()) return std::optional<GeneratedText>();
    const int before = conversation_->answer().n_tokens();
    auto shown = conversation_->next();
    if (!shown.ok()) return shown.error();
    if (conversation_->answer().n_tokens() > before) tokens_.push_back(conversation_->answer().token());
    return std::optional(std::move(shown).value());
  };
  return value_or_raise(step());
}

}  // namespace kvant
