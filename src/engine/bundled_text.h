// The texts that come inside the program: what a model is calibrated on by default, what it is scored on, and
// what needles are hidden in.
#pragma once

#include <string_view>

namespace blockgtq {

/// The start of WikiText-2's train split (data/wikitext2_train.txt), UTF-8. For calibration only.
std::string_view BundledCalibrationText();
/// The start of WikiText-2's test split (data/wikitext2_test.txt), UTF-8. For scoring only.
std::string_view BundledScoringText();
/// The start of Jane Austen's "Northanger Abbey" (data/northanger_abbey.txt), ASCII. For needle tests.
std::string_view BundledHaystackText();

}  // namespace blockgtq
