// Hparams: the sizes and constants of one model, read and checked from its GGUF metadata.
#pragma once

#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "model/architecture.h"
#include "model/gguf_file.h"

namespace kvant {

// Rotary position embedding of one kind of layers (Su et al. 2021) with YaRN's scaling (Peng et al. 2023,
// section 3): angles are position * frequency_scale * base^(-2i/n_rot), mixed with the unscaled angle by
// `extension`, and q and k are multiplied by `magnitude` (and by YaRN's own factor when extension > 0).
struct Rope {
  float base = 10000;
  float frequency_scale = 1;  // 1 / factor
  float extension = 0;        // 1: YaRN's interpolation by parts; 0: plain linear scaling
  float magnitude = 1;
  float beta_fast = 32;  // rotations over the original context above which a channel pair is left as it is
  float beta_slow = 1;   // and below which it is fully interpolated
  int original_context = 0;
};

// Which of a file's frequency factors apply (Phi-3's LongRoPE, Ding et al. 2024).
enum class LongRope : std::uint8_t { none, short_factors, long_factors };

struct Hparams {
  const Architecture* architecture = nullptr;
  int n_layers = 0;
  int n_embd = 0;
  int n_ff = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int n_rot = 0;  // channels that RoPE turns: the first ones of a head
  int n_vocab = 0;
  int trained_context = 0;
  float rms_epsilon = 0;
  Rope rope;          // of layers with full attention
  Rope sliding_rope;  // of sliding layers
  LongRope long_rope = LongRope::none;
  float softmax_scale = 0;
  float score_softcap = 0;          // 0: none
  float logit_softcap = 0;          // 0: none
  std::vector<int> sliding_window;  // [n_layers], tokens; 0: full attention
  std::string size_label;           // "135M", may be empty

  Geometry geometry() const;
};

// context: the tokens that a sequence may reach (0: the trained context); it decides between LongRoPE's
// factors. Errors: an architecture or attention kind that is not supported (with the list of those that are),
// a missing or implausible value.
Result<Hparams> read_hparams(const GgufFile& file, int context);

}  // namespace kvant
