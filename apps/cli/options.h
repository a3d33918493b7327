// Options that several commands share, so that they look and behave alike everywhere.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "src/engine/loaded_model.h"
#include "src/engine/moments_watch.h"
#include "src/engine/plan_source.h"
#include "src/formats/plan_budget.h"

namespace blockgtq::cli {

/// -m, --device, -t, --activations, --rope-context.
struct ModelOptions {
  std::string path;
  BackendOptions backend;
  int64_t rope_context = 0;
  std::string activations;  // as asked for; after Open, what they are: "int8", "fp16" or "float"
  void Add(CLI::App& app, const char* default_activations);
  /// Opens the model; the first log line says the device.
  Result<std::unique_ptr<LoadedModel>> Open(TokenizerUse use = TokenizerUse::kNeeded);
};

/// -K, -V, --recipe, --plan, --sinks, --recent, --no-buffer, --memory-tokens.
struct CacheFlags {
  CacheChoice choice;
  bool no_buffer = false;
  void Add(CLI::App& app);
  /// -s: of the rotations, for commands that draw nothing else.
  void AddSeed(CLI::App& app);
  /// The plan (nullopt for uncompressed and simulated recipes), with what was found or made logged; then
  /// choice names what is used, and holds a simulated recipe's heads.
  Result<std::optional<Plan>> ObtainPlan(LoadedModel& model);
  /// "aligned K3V3", "fp16": once the plan is known.
  std::string Name() const;

 private:
  Status CheckUncompressed() const;
  Status TakeRecipeSettings();
  CLI::Option *k_ = nullptr, *v_ = nullptr, *recipe_ = nullptr, *plan_ = nullptr, *sinks_ = nullptr,
              *recent_ = nullptr, *no_buffer_ = nullptr;
};

/// --moments: a file that keeps running moments of what the model is asked.
struct MomentsOption {
  std::string file;
  void Add(CLI::App& app);
  /// Null without the option. plan: that `cache` names, or none; it outlives the watch. Errors: those of
  /// MomentsWatch::Open and LoadPlanBitsByHead.
  Result<std::unique_ptr<MomentsWatch>> Open(const LoadedModel& model, const CacheFlags& cache,
                                             const std::optional<Plan>& plan) const;
  /// Writes the file and logs what it holds. Nothing for null.
  Status Finish(MomentsWatch* watch) const;
};

/// -p or -f, exactly one of them.
struct TextOptions {
  std::string text, file;
  void Add(CLI::App& app, const char* what);
  /// Errors: kNotFound, kIo.
  Result<std::string> Read() const;

 private:
  CLI::Option* text_option = nullptr;
};

/// Refuses an empty value: an unset shell variable must not mean the default.
CLI::Validator NotEmpty();

/// Remembers a file that the command reads, so that no output may replace it.
void NoteInput(const std::string& path);
/// kInvalidArgument when `path` is a file that the command reads.
Status CheckOutput(const std::string& path);
/// Writes a whole text file: atomically, or straight to a device or pipe. Errors: those of CheckOutput; kIo.
Status WriteFile(const std::string& path, const std::string& content);

/// The whole of a file. Errors: kNotFound, kIo, naming it.
Result<std::string> ReadFile(const std::string& path);

/// --json: writes `value` there when the option was given. Errors: kIo.
struct JsonOption {
  std::string path;
  void Add(CLI::App& app);
  Status Write(const nlohmann::json& value) const;
};

/// A list of token ids from a JSON file. Errors: kNotFound, kCorruptFile.
Result<std::vector<Token>> ReadTokenFile(const std::string& path);

/// Mean stored bytes a token a head of a cache, K + V: the plan's, or 4 or 8 bytes a dim for fp16 and fp32.
double BytesPerTokenPerHead(const LoadedModel& model, const std::optional<Plan>& plan, CacheKind kind);

/// "budget" of calibrate's and inspect's results.
nlohmann::json BudgetJson(const PlanBudget& budget);
/// "drift" of inspect's results.
nlohmann::json DriftJson(const Drift& drift);
/// "1.031, at most 1.42 (layer 3 KV head 0)".
std::string DriftText(const Drift& drift);

}  // namespace blockgtq::cli
