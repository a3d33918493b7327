// See joint_text.h.
#include "src/eval/joint_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/engine/calibration.h"

namespace blockgtq {
namespace {

constexpr int64_t kProbeWindow = 256;
// As long as texts are scored in: in a shorter window more of the attention goes to the first tokens.
constexpr int64_t kCheckWindow = 512;
// Text that checks are spread over, in multiples of their tokens: neighbouring windows are of one subject,
// and what they say of a plan has more chance in it than its tokens tell.
constexpr int64_t kCheckSpread = 4;

/// Copies `count` tokens from `first` on.
void Take(std::span<const Token> from, int64_t first, int64_t count, std::vector<Token>& to) {
  const std::span<const Token> taken = from.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  to.insert(to.end(), taken.begin(), taken.end());
}

void StartWindows(std::vector<Token>& tokens, int64_t window, std::span<const Token> start) {
  for (size_t first = 0; first < tokens.size(); first += static_cast<size_t>(window)) {
    std::copy_n(start.begin(), std::min(start.size(), tokens.size() - first),
                tokens.begin() + static_cast<std::ptrdiff_t>(first));
  }
}

/// Whether any token of `tokens`, in such windows, attends to codes.
Status CheckSeesCodes(const char* what, const char* option, int64_t window, const std::vector<Token>& tokens,
                      const Protection& protection) {
  const int64_t sinks = protection.sinks, recent = protection.recent;
  const int64_t last = std::min(window, static_cast<int64_t>(tokens.size())) - 1;
  const int64_t coded = recent > 0 ? std::max<int64_t>(last - recent, 0) / kPageTokens * kPageTokens : last;
  if (coded > sinks) return Status::Ok();
  return {ErrorCode::kInvalidArgument,
          fmt::format("{} of {} tokens never leave the {} sinks and {} recent tokens that stay exact: give "
                      "more {} (windows of {} are used) or a smaller --recent",
                      what, last + 1, sinks, recent, option, window)};
}

}  // namespace

std::string_view JointTextHead(std::string_view text, const JointOptions& options) {
  return CalibrationTextHead(text,
                             options.tokens + options.probe_tokens + kCheckSpread * options.check_tokens);
}

JointText SplitJointText(std::span<const Token> all, int64_t measured, std::span<const Token> start,
                         int64_t context, const JointOptions& options) {
  JointText split;
  const int64_t count = static_cast<int64_t>(all.size());
  measured = std::min(measured, count);
  Take(all, 0, measured, split.measured);
  split.probe_window = std::min(kProbeWindow, context);
  split.check_window = std::min(kCheckWindow, context);
  int64_t probed = options.probe_tokens, checked = options.check_tokens, probe_first = measured;
  const int64_t unseen = count - measured - probed;  // by statistics and probes
  if (unseen >= std::min(checked, split.check_window)) {
    checked = std::min(checked, unseen);
  } else {
    split.short_text = true;
    probed = std::min(probed, count / 2);
    checked = std::min(checked, count / 2);
    probe_first = count - checked - probed;
  }
  // A shorter window is mostly what stays exact, and would lower the mean.
  if (checked > split.check_window) checked -= checked % split.check_window;
  Take(all, probe_first, probed, split.probed);
  const int64_t windows = (checked + split.check_window - 1) / split.check_window;
  const int64_t check_first = probe_first + probed, left_out = count - check_first - checked;
  for (int64_t w = 0; w < windows; ++w) {  // what is left out lies before them, in equal parts
    const int64_t done = w * split.check_window;
    Take(all, check_first + done + left_out * (w + 1) / windows, std::min(split.check_window, checked - done),
         split.checked);
  }
  StartWindows(split.probed, split.probe_window, start);
  StartWindows(split.checked, split.check_window, start);
  return split;
}

Result<JointText> TakeJointText(LoadedModel& model, std::string_view text, const JointOptions& options) {
  BGTQ_ASSIGN_OR_RETURN(const std::vector<Token> measured, CalibrationTokens(model, text, options.tokens));
  const std::vector<Token> start = model.PromptStart(nullptr);
  std::vector<Token> all = start;
  const std::vector<Token> ids = model.tokenizer().Encode(JointTextHead(text, options), false);
  all.insert(all.end(), ids.begin(), ids.end());
  JointText taken = SplitJointText(all, static_cast<int64_t>(measured.size()), start,
                                   model.config().context_length, options);
  BGTQ_RETURN_IF_ERROR(
      CheckSeesCodes("probes", "--probe-tokens", taken.probe_window, taken.probed, options.protection));
  BGTQ_RETURN_IF_ERROR(CheckSeesCodes("checks of plans", "--check-tokens", taken.check_window, taken.checked,
                                      options.protection));
  return taken;
}

}  // namespace blockgtq
