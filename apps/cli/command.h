// A sub-command of `blockgtq`: its options and what it does. The registry is the table in main.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "blockgtq/status.h"

namespace blockgtq::cli {

class Command {
 public:
  virtual ~Command() = default;
  virtual void AddOptions(CLI::App& app) = 0;
  virtual Status Run() = 0;
};

// One function a command, each in the file of its name.
std::unique_ptr<Command> MakeCalibrate();
std::unique_ptr<Command> MakeInspect();
std::unique_ptr<Command> MakeConvert();
std::unique_ptr<Command> MakeGenerate();
std::unique_ptr<Command> MakePerplexity();
std::unique_ptr<Command> MakeDiagnose();
std::unique_ptr<Command> MakeLogits();
std::unique_ptr<Command> MakeTokenize();
std::unique_ptr<Command> MakeDetokenize();
std::unique_ptr<Command> MakeBench();
std::unique_ptr<Command> MakeNeedle();
std::unique_ptr<Command> MakeLongBench();
std::unique_ptr<Command> MakeAime();
std::unique_ptr<Command> MakeServe();
std::unique_ptr<Command> MakeDepthStudy();
std::unique_ptr<Command> MakeCalibrateStudy();

}  // namespace blockgtq::cli
