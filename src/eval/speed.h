// Prompt and decode speed at a depth of context, as llama.cpp's bench measures it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "src/engine/context.h"

namespace blockgtq {

struct SpeedOptions {
  int64_t prompt = 512;               // tokens of the prompt test; 0: none
  int64_t generate = 128;             // tokens of the decode test, a sequence; 0: none
  int64_t sequences = 1;              // decoded together, each with its own copy of the depth's tokens
  std::vector<int64_t> depths = {0};  // tokens already in the cache
  int64_t fill = 0;     // tokens of a depth that the model runs, the rest repeats their pages; 0: all
  int64_t context = 0;  // the model's: a test that ends past it is left out, and said so through progress
  int repetitions = 3;
  std::function<void(const std::string& what)> progress;
  const std::atomic<bool>* stop = nullptr;
};

struct SpeedRow {
  std::string test;                              // "pp512", "tg128"
  int64_t depth = 0, tokens = 0, sequences = 1;  // tokens: a sequence
  double tokens_per_second = 0, sd = 0;  // of all sequences: mean and standard deviation over repetitions
  double median = 0;
  int64_t kv_bytes = 0;      // of the sequences at the test's end
  int64_t device_bytes = 0;  // Backend::device_bytes then
};

/// text: tokens to run, repeated as needed. The context needs room for the deepest test of every sequence, in
/// whole pages. Errors: those of
/// Context::Run; kInvalidArgument when no test fits; kCancelled when stopped.
Result<std::vector<SpeedRow>> MeasureSpeed(Context& context, std::span<const Token> text,
                                           const SpeedOptions& options);

}  // namespace blockgtq
