// Which tokens of the calibration text a budget's statistics, probes and checks of whole plans run.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "src/engine/loaded_model.h"
#include "src/eval/joint_options.h"

namespace blockgtq {

/// Windows begin as sequences in use do (LoadedModel::PromptStart), whatever the text has there.
struct JointText {
  std::vector<Token> measured;  // the first tokens, one sequence
  std::vector<Token> probed;    // those after them, windows of probe_window back to back
  // Whole windows of check_window back to back (or one shorter one), spread evenly over what follows.
  std::vector<Token> checked;
  int64_t probe_window = 0, check_window = 0;
  // Not one whole window of checks is left behind the tokens measured and probed: probed and checked are the
  // text's last tokens, which statistics may have seen, and at most half of it each. Where only fewer are
  // left than was asked for, fewer are checked.
  bool short_text = false;
};

/// The part of the text that decides it.
std::string_view JointTextHead(std::string_view text, const JointOptions& options);
/// Errors: kInvalidArgument (windows of probes or checks too short for any of their tokens to attend to
/// codes, past what options.protection keeps exact); those of CalibrationTokens.
Result<JointText> TakeJointText(LoadedModel& model, std::string_view text, const JointOptions& options);
/// The same of tokens: all those of the text's head, of which the first are measured. start: what a sequence
/// begins with (LoadedModel::PromptStart). context: tokens that a window has at most.
JointText SplitJointText(std::span<const Token> all, int64_t measured, std::span<const Token> start,
                         int64_t context, const JointOptions& options);

}  // namespace blockgtq
