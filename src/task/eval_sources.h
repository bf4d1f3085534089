// Makes the caches for the rows of `kvant eval`, and checks that they fit into memory together.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "eval/llama_reference.h"
#include "eval/logit_source.h"
#include "task/eval_rows.h"
#include "task/session.h"

namespace kvant {

// Returns make(n_texts). While memory is short, n_texts is halved, because fewer texts side by side need less
// memory.
template <class Make>
auto make_what_fits(int& n_texts, const Make& make) {
  auto made = make(n_texts);
  while (!made.ok() && made.error().is_shortage && n_texts > 1) {
    n_texts = (n_texts + 1) / 2;
    made = make(n_texts);
  }
  return made;
}

class EvalSources {
 public:
  // `context` is the number of tokens that a sequence will reach. n_texts texts run side by side.
  EvalSources(const Session& session, std::string model, int context, int n_threads, int n_texts = 1)
      : session_(session),
        model_(std::move(model)),
        context_(context),
        n_threads_(n_threads),
        n_texts_(n_texts) {}

  // Makes the sources of the rows, and loads llama.cpp's model if a row needs it. Returns an error if the
  // caches together do not fit into their memory, or if they and extra_bytes do not fit into host memory.
  Result<std::vector<std::unique_ptr<LogitSource>>> make(const std::vector<EvalRow>& rows,
                                                         std::int64_t extra_bytes);

 private:
  Result<std::unique_ptr<LogitSource>> make(const EvalRow& row);
  Result<std::unique_ptr<LogitSource>> make_llama(const EvalRow& row);

  const Session& session_;
  std::string model_;
  int context_, n_threads_, n_texts_;
  std::unique_ptr<LlamaReference> llama_;
  // Holds the bytes of the caches of kvant's rows.
  std::int64_t cache_bytes_ = 0;
};

}  // namespace kvant
