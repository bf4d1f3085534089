// Gives tests tiny models that are loaded on one thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>

#include "attention/attention.h"
#include "model/engine.h"
#include "model/tiny_model.h"

namespace kvant::testing {

// Loads a tiny model for each test.
class TinyEngine : public ::testing::Test {
 protected:
  const std::unique_ptr<TinyFile> file_ = write_tiny_model({});
  const std::unique_ptr<Engine> engine_ = Engine::load(file_->path(), {.n_threads = 1}).value();
  const std::unique_ptr<AttentionBackend> backend_ = make_reference_backend();
};

// Runs tests with many recipes on a tiny model and on a tiny hybrid model, which are loaded once for all
// tests. The parameters are a recipe, and whether the model is a hybrid.
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
