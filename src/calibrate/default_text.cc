#include "calibrate/default_text.h"

#include <span>

namespace kvant {

// CMake generates these texts (kvant_embed_folder).
extern const std::span<const char* const> kCalibrationTexts;
extern const char* const kHeldOutText;

std::string default_calibration_text() {
  std::string all;
  for (const char* text : kCalibrationTexts) all.append(text).append("\n");
  return all;
}

std::string held_out_text() {
  return kHeldOutText;
}

}  // namespace kvant
