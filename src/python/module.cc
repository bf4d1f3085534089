// The Python module kvant._engine gives python/kvant/engine.py the engine. The module returns documents as
// JSON texts.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/machine_limits.h"
#include "eval/report_json.h"
#include "python/calibration.h"
#include "python/interruptible.h"
#include "python/model.h"
#include "recipe/recipe.h"
#include "task/evaluation.h"

namespace kvant {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using Tokens = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<std::int32_t> to_vector(const Tokens& tokens) {
  return {tokens.data(), tokens.data() + tokens.size()};
}

// Makes a NumPy array that owns `numbers`.
template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_array(std::vector<T> numbers) {
  auto* kept = new std::vector<T>(std::move(numbers));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner);
}

const char* name_of(AnswerEnd end) {
  switch (end) {
    case AnswerEnd::finished:
      return "finished";
    case AnswerEnd::length:
      return "length";
    case AnswerEnd::context_full:
      return "context_full";
    case AnswerEnd::interrupted:
      return "interrupted";
  }
  return "";
}

SessionOptions session_options(const std::string& model, const std::string& calibration,
                               const std::string& device, const std::string& backend, int threads,
                               bool strict) {
  return {.model = model,
          .calibration = calibration,
          .backend = backend,
          .device = device,
          .n_threads = threads,
          .strict = strict};
}

void bind_model(nb::module_& m) {
  nb::class_<PythonModel>(m, "Model")
      .def_static(
          "open",
          [](const std::string& model, const std::string& kv, int context, const std::string& calibration,
             const std::string& device, const std::string& backend, int threads, bool strict,
             const std::string& chat_template, int draft_max) {
            return PythonModel::open(session_options(model, calibration, device, backend, threads, strict),
                                     kv, context, chat_template, draft_max);
          },
          "model"_a, "kv"_a, "context"_a, "calibration"_a, "device"_a, "backend"_a, "threads"_a, "strict"_a,
          "chat_template"_a, "draft_max"_a)
      .def_prop_ro("description", [](const PythonModel& model) { return model.engine().description(); })
      .def_prop_ro("fingerprint", [](const PythonModel& model) { return model.engine().fingerprint(); })
      .def_prop_ro("n_vocab", [](const PythonModel& model) { return model.engine().n_vocab(); })
      .def_prop_ro("trained_context",
                   [](const PythonModel& model) { return model.engine().geometry().trained_context; })
      .def_prop_ro("recipe", [](const PythonModel& model) { return model.plan()->name; })
      .def(
          "encode",
          [](const PythonModel& model, const std::string& text, bool add_special, bool parse_special) {
            return to_array(value_or_raise(model.tokenizer().encode(text, add_special, parse_special)));
          },
          "text"_a, "add_special"_a, "parse_special"_a)
      .def(
          "decode",
          [](const PythonModel& model, const Tokens& tokens) {
            std::string text;
            for (const std::int32_t token : to_vector(tokens)) text += model.tokenizer().piece(token);
            return nb::bytes(text.data(), text.size());
          },
          "tokens"_a)
      .def("ends_generation",
           [](const PythonModel& model, std::int32_t token) {
             return token >= 0 && token < model.engine().n_vocab() &&
                    model.tokenizer().ends_generation(token);
           })
      .def(
          "chat_prompt",
          [](PythonModel& model, const std::vector<std::pair<std::string, std::string>>& messages) {
            ChatHistory history;
            for (const auto& [role, text] : messages) history.add(role, text);
            const auto chat_template = value_or_raise(model.chat_template());
            return to_array(value_or_raise(chat_prompt(*chat_template, history)).tokens);
          },
          "messages"_a)
      .def(
          "score",
          [](PythonModel& model, const Tokens& tokens) { return to_array(model.score(to_vector(tokens))); },
          "tokens"_a)
      .def(
          "info",
          [](PythonModel& model, int context, int batch) { return json_text(model.info(context, batch)); },
          "context"_a, "batch"_a);
}

void bind_answer(nb::module_& m) {
  nb::class_<PythonAnswer>(m, "Answer")
      .def(
          "__init__",
          [](PythonAnswer* answer, std::shared_ptr<PythonModel> model, const Tokens& prompt, int max_tokens,
             const std::vector<std::string>& stop, bool logprobs, float temperature, int top_k, float top_p,
             float min_p, float presence_penalty, float frequency_penalty, float repeat_penalty,
             std::uint32_t seed) {
            const AnswerOptions options{
                {.max_tokens = max_tokens, .stops = stop, .wants_probabilities = logprobs},
                {.temperature = temperature,
                 .top_k = top_k,
                 .top_p = top_p,
                 .min_p = min_p,
                 .seed = seed,
                 .penalties = {.presence = presence_penalty,
                               .frequency = frequency_penalty,
                               .repeat = repeat_penalty}}};
            new (answer) PythonAnswer(std::move(model), {"", to_vector(prompt)}, options);
          },
          "model"_a, "prompt"_a, "max_tokens"_a, "stop"_a, "logprobs"_a, "temperature"_a, "top_k"_a,
          "top_p"_a, "min_p"_a, "presence_penalty"_a, "frequency_penalty"_a, "repeat_penalty"_a, "seed"_a)
      .def("next",
           [](PythonAnswer& answer) -> nb::object {
             const auto shown = answer.next();
             if (!shown) return nb::none();
             std::vector<double> logprobs;
             for (const ReportedToken& token : shown->tokens)
               logprobs.push_back(token.chosen.log_probability);
             return nb::make_tuple(nb::bytes(shown->text.data(), shown->text.size()), logprobs);
           })
      .def("tokens", [](const PythonAnswer& answer) { return to_array(answer.tokens()); })
      .def_prop_ro("end",
                   [](const PythonAnswer& answer) -> nb::object {
                     const auto end = answer.end();
                     return end ? nb::str(name_of(*end)) : nb::object(nb::none());
                   })
      .def_prop_ro("stop", &PythonAnswer::stop)
      .def_prop_ro("prompt_tokens", &PythonAnswer::prompt_tokens)
      .def_prop_ro("cache_bytes", &PythonAnswer::cache_bytes);
}

// Returns the JSON document of `kvant info`.
std::string plan(const std::string& model, const std::string& kv, int context, int batch,
                 const std::string& calibration, const std::string& device, const std::string& backend,
                 int threads) {
  std::atomic<bool> stop{false};
  SessionOptions options = session_options(model, calibration, device, backend, threads, /*strict=*/false);
  options.stop = &stop;
  const Recipe recipe = value_or_raise(parse_recipe(kv));
  return value_or_raise(interruptible(stop, [&]() -> Result<std::string> {
    const auto session = Session::open(options, WeightMode::as_stored, context);
    if (!session.ok()) return session.error();
    const auto info = cache_info(*session, recipe, context, batch);
    if (!info.ok()) return info.error();
    return json_text(info_to_json(*session, *info, model));
  }));
}

// Returns the documents of `kvant eval` as one JSON array.
std::string evaluate(const EvaluationOptions& options, const std::string& text) {
  std::atomic<bool> stop{false};
  EvaluationOptions stoppable = options;
  stoppable.session.stop = &stop;
  const auto documents =
      value_or_raise(interruptible(stop, [&]() -> Result<std::vector<nlohmann::ordered_json>> {
        const auto evaluation = Evaluation::make(stoppable);
        if (!evaluation.ok()) return evaluation.error();
        return evaluation->run(text, [](const std::string&) {});
      }));
  return json_text(nlohmann::ordered_json(documents));
}

void bind_evaluation(nb::module_& m) {
  nb::class_<EvaluationOptions>(m, "EvaluationOptions")
      .def(
          "__init__",
          [](EvaluationOptions* options, const std::string& model, const std::string& calibration,
             const std::string& device, const std::string& backend, int threads, bool strict) {
            new (options) EvaluationOptions{
                .session = session_options(model, calibration, device, backend, threads, strict),
                .positions = true};
          },
          "model"_a, "calibration"_a, "device"_a, "backend"_a, "threads"_a, "strict"_a)
      .def_prop_rw(
          "stored_weights",
          [](const EvaluationOptions& options) { return options.weights == WeightMode::as_stored; },
          [](EvaluationOptions& options, bool stored) {
            options.weights = stored ? WeightMode::as_stored : WeightMode::f32;
          })
      .def_rw("recipes", &EvaluationOptions::recipes)
      .def_rw("suite", &EvaluationOptions::suite)
      .def_rw("reference", &EvaluationOptions::reference)
      .def_rw("contexts", &EvaluationOptions::contexts)
      .def_rw("chunks", &EvaluationOptions::chunks)
      .def_rw("calibrate_on", &EvaluationOptions::calibrate_on)
      .def_rw("layers", &EvaluationOptions::layers)
      .def_rw("retrieval", &EvaluationOptions::retrieval)
      .def_rw("greedy", &EvaluationOptions::greedy)
      .def_rw("generated_tokens", &EvaluationOptions::generated_tokens)
      .def_rw("seed", &EvaluationOptions::seed)
      .def_rw("compare_backend", &EvaluationOptions::compare_backend)
      .def_rw("control", &EvaluationOptions::control)
      .def_rw("all_prompt", &EvaluationOptions::all_prompt);
  m.def("plan", &plan, "model"_a, "kv"_a, "context"_a, "batch"_a, "calibration"_a, "device"_a, "backend"_a,
        "threads"_a);
  m.def("evaluate", &evaluate, "options"_a, "text"_a);
}

}  // namespace
}  // namespace kvant

NB_MODULE(_engine, m) {
  using namespace kvant;
  const nanobind::exception<PythonError> error_type(m, "Error", PyExc_RuntimeError);
  m.def("usable_threads", [] { return usable_threads(); });
  m.def("split_recipes", &split_recipe_list, "list"_a);
  bind_model(m);
  bind_answer(m);
  bind_evaluation(m);
  bind_calibration(m);
}
