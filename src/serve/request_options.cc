#include "serve/request_options.h"

#include "serve/sampling_fields.h"

namespace kvant {

GenerationRequest read_request_options(JsonFields& fields, const char* stops, const Tokenizer& tokenizer,
                                       const ApiLimits& limits, ApiRequest& request) {
  GenerationRequest options;
  request.model = fields.text("model").value_or("");
  request.stream = fields.boolean("stream").value_or(false);
  options.sampling = read_sampling(fields, tokenizer, limits.n_vocab);
  options.generation.stops = fields.texts(stops, kMaxStops);
  options.generation.hides_control_tokens = fields.boolean("skip_special_tokens").value_or(true);
  options.guard = fields.boolean("guard").value_or(false);
  return options;
}

std::string read_user(JsonFields& fields) {
  const auto user = fields.text("user"), user_now = fields.text("safety_identifier");
  return user.value_or(user_now.value_or(""));
}

}  // namespace kvant
