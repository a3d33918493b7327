// Views of the texts that cmake/EmbedText.cmake puts into the program's read-only data.
#include "src/engine/bundled_text.h"

extern "C" {
extern const char bgtq_calibration_text_begin[];
extern const char bgtq_calibration_text_end[];
extern const char bgtq_scoring_text_begin[];
extern const char bgtq_scoring_text_end[];
extern const char bgtq_haystack_text_begin[];
extern const char bgtq_haystack_text_end[];
}

namespace blockgtq {

std::string_view BundledCalibrationText() { return {bgtq_calibration_text_begin, bgtq_calibration_text_end}; }

std::string_view BundledScoringText() { return {bgtq_scoring_text_begin, bgtq_scoring_text_end}; }

std::string_view BundledHaystackText() { return {bgtq_haystack_text_begin, bgtq_haystack_text_end}; }

}  // namespace blockgtq
