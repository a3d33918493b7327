// The tokens around a user's message: the model's chat template, or nothing but BOS.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "src/engine/loaded_model.h"

namespace blockgtq {

/// A prompt is before + message + after; the message is encoded without special tokens, so that no text of a
/// data set becomes one.
struct ChatFrame {
  std::vector<Token> before, after;
  int64_t tokens() const { return static_cast<int64_t>(before.size() + after.size()); }
  std::vector<Token> Wrap(std::span<const Token> message) const;
};

/// The frame of one user message with the assistant's turn opened. answer_start: text that the answer begins
/// with (may be empty). Errors: those of LoadedModel::chat_template.
Result<ChatFrame> MakeChatFrame(const LoadedModel& model, std::string_view answer_start = "");

/// BOS where the model wants it, and answer_start: for base models.
ChatFrame MakePlainFrame(const LoadedModel& model, std::string_view answer_start = "");

}  // namespace blockgtq
