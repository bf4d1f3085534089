// DeviceVocabulary computes products with the vocabulary's weights on a device. The vocabulary is processed
// in blocks of words, so the products of all words never need memory at the same time.
#pragma once

#include <vector>

#include "calibrate/device_graph_runner.h"
#include "calibrate/vocabulary_products.h"

namespace kvant {

class DeviceVocabulary final : public VocabularyProducts {
 public:
  // `output` are the weights [n_embd, n_vocab], on the backend's device. Both arguments must outlive the
  // object.
  DeviceVocabulary(ggml_tensor* output, ggml_backend* backend);

  // Reserves memory for up to n_rows rows and n_words words. Returns an error if memory is short or the
  // backend cannot compute the products.
  Status reserve(int n_rows, int n_words);

  Status begin(MatrixView<const float> x) override;
  void begin_block(int first, int n, bool multiplies, bool multiplies_back, Team& team) override;
  void multiply(int first, MatrixView<float> out) const override;
  void multiply_back(int first, MatrixView<const float> derivative) override;
  void end_block(Team& team) override;
  Status finish(MatrixView<float> gradient) override;

 private:
  ggml_tensor* words(ggml_context* context);  // the weights of the block's words, [n_embd, n_words_]
  ggml_cgraph* product(ggml_context* context, ggml_tensor** result);
  ggml_cgraph* backward(ggml_context* context);
  void note(const Status& status);

  ggml_tensor* output_;
  ggml_backend* backend_;
  GraphRunner runner_;
  GgmlContext context_;
  GgmlBuffer buffer_;
  ggml_tensor *x_ = nullptr, *gradient_ = nullptr;  // [n_embd, most rows]
  ggml_tensor* numbers_ = nullptr;                  // I32 [most words]
  ggml_tensor* products_ = nullptr;                 // [most words, most rows], products, or derivatives by
                                                    // products
  int n_rows_ = 0, n_words_ = 0;
  std::vector<float> host_;  // [n_rows, n_words], products, or derivatives by products
  Status failure_;           // the first error since begin()
};

}  // namespace kvant
