// What a calibration with a budget finds out about every head before bytes are split: statistics, what its
// sides can be stored as, and what probes say each side matters.
#pragma once

#include <memory>
#include <vector>

#include "src/engine/calibration.h"
#include "src/eval/joint_allocation.h"
#include "src/eval/joint_options.h"
#include "src/eval/joint_rotations.h"
#include "src/eval/joint_text.h"
#include "src/eval/tasks/results_file.h"

namespace blockgtq {

/// The share of a whole calibration with a budget (JointOptions::progress) after which it is made.
inline constexpr double kMeasurementShare = 0.8;

/// By head, [layers * kv_heads], unless said otherwise. Stays where it was made: rotations refer to it.
struct JointMeasurement {
  JointMeasurement() = default;
  JointMeasurement(const JointMeasurement&) = delete;
  JointMeasurement& operator=(const JointMeasurement&) = delete;

  std::vector<HeadCalibration> calibrations;
  std::vector<std::shared_ptr<const RopeTable>> ropes;  // by layer
  std::vector<HeadChoices> choices;
  std::vector<HeadProbe> probes;
  std::unique_ptr<JointRotations> rotations;
  int64_t probes_found = 0;  // in the results
  double probe_seconds = 0;  // of those that ran
};

/// options: checked. Probes are taken from results and added to it. Errors: kCorruptFile (results
/// that are no probes), kCancelled; those of Measure, MakeHeadChoices, ChooseRotation, KldProbe and
/// ResultsFile.
Result<std::unique_ptr<JointMeasurement>> MeasureJointly(LoadedModel& model, const Recipe& recipe,
                                                         const JointText& text, const JointOptions& options,
                                                         ResultsFile& results);

}  // namespace blockgtq
