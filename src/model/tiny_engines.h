// Runs tests with many recipes on a tiny model and on a tiny hybrid model. Both models are loaded once for
// all tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>

#include "attention/attention.h"
#include "model/engine.h"
#include "model/tiny_model.h"

namespace kvant::testing {

// The parameters are a recipe, and whether the model is a hybrid.
class TinyEngines : public ::testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  static void SetUpTestSuite() {
    for (const bool hybrid : {false, true}) {
      TinyModel model = hybrid ? tiny_hybrid() : TinyModel{.n_layers = 2};
      model.matrix_type = GGML_TYPE_Q8_0;
      files_[hybrid] = write_tiny_model(model).release();
      engines_[hybrid] = Engine::load(files_[hybrid]->path(), {.n_threads = 1}).value().release();
    }
  }
  static void TearDownTestSuite() {
    for (const bool hybrid : {false, true}) {
      delete engines_[hybrid];
      delete files_[hybrid];
    }
  }
  static const std::string& recipe() { return std::get<0>(GetParam()); }

 private:
  static inline Engine* engines_[2];
  static inline TinyFile* files_[2];

 protected:
  Engine* engine_ = engines_[std::get<1>(GetParam())];
  std::unique_ptr<AttentionBackend> backend_ = make_cpu_backend();
};

}  // namespace kvant::testing
