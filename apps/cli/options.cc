// See options.h.
#include "apps/cli/options.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "apps/cli/terminal.h"
#include "src/engine/bundled_text.h"
#include "src/formats/atomic_file.h"
#include "src/formats/plan_file.h"

namespace blockgtq::cli {
namespace {

std::vector<std::string>& Inputs() {
  static std::vector<std::string> inputs;
  return inputs;
}

}  // namespace

CLI::Validator NotEmpty() {
  return CLI::Validator(
      [](std::string& value) { return value.empty() ? "must not be empty" : std::string(); }, "FILE");
}

void ModelOptions::Add(CLI::App& app, const char* default_activations) {
  activations = default_activations;
  app.add_option("-m,--model", path, "model: a GGUF file, or a folder with safetensors and config.json")
      ->required()
      ->check(NotEmpty())
      ->type_name("MODEL");
  backend.device.clear();
  app.add_option("--device", backend.device, "cpu, cuda or cuda:N (default: cuda where it works)");
  app.add_option("-t,--threads", backend.threads, "threads (0: one a core)")->capture_default_str();
  app.add_option("--activations", activations,
                 "how activations enter matrix products: float (exact), or fast (int8 on CPUs, fp16 on GPUs)")
      ->check(CLI::IsMember({"fast", "float", "int8", "fp16"}))
      ->capture_default_str();
  app.add_option("--rope-context", rope_context,
                 "longest sequence, for models whose RoPE depends on it (dynamic, longrope)")
      ->check(CLI::PositiveNumber)
      ->type_name("TOKENS");
}

Result<std::unique_ptr<LoadedModel>> ModelOptions::Open(TokenizerUse use) {
  NoteInput(path);
  BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> model,
                        LoadedModel::Open(path, backend, use, rope_context));
  const std::string fast(model->backend().fast_activations());
  if (activations != "float" && activations != "fast" && activations != fast) {
    return Status(ErrorCode::kUnsupported, fmt::format("--activations {}: {} has {} and float", activations,
                                                       model->backend().name(), fast));
  }
  if (activations == "fast") activations = fast;
  model->backend().SetPrecision(activations == "float" ? Precision::kFloat : Precision::kFast);
  Log(fmt::format("device: {}, {} activations", model->backend().Description(), activations));
  return model;
}

void CacheFlags::Add(CLI::App& app) {
  std::string recipes;
  for (const Recipe& recipe : Recipes())
    recipes += fmt::format("{}{}", recipes.empty() ? "" : ", ", recipe.name);
  k_ =
      app.add_option("-K", choice.k_bits, "code bits a dimension of keys, on average")->capture_default_str();
  v_ = app.add_option("-V", choice.v_bits, "code bits a dimension of values")->capture_default_str();
  recipe_ = app.add_option("--recipe", choice.recipe, "cache recipe: " + recipes)->capture_default_str();
  plan_ = app.add_option("--plan", choice.plan_file, "plan file (default: beside the model, or made now)");
  plan_->excludes(k_)->excludes(v_)->excludes(recipe_)->check(NotEmpty());
  sinks_ = app.add_option("--sinks", choice.sinks, "first tokens kept in fp16")
               ->check(CLI::Range(0, 64))
               ->capture_default_str();
  recent_ = app.add_option("--recent", choice.recent, "last tokens kept in fp16, at least")
                ->check(CLI::Range(0, 1 << 20))
                ->capture_default_str();
  app.add_option(
         "--memory-tokens", choice.memory_tokens,
         "pmkvq: coded tokens that fill its memory; codes are narrowed as it fills (default: it is full "
         "from the start)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->excludes(plan_);
  no_buffer_ =
      app.add_flag("--no-buffer", no_buffer, "--sinks 0 --recent 0")->excludes(sinks_)->excludes(recent_);
}

void CacheFlags::AddSeed(CLI::App& app) {
  app.add_option("-s,--seed", choice.plan_seed, "seed of the rotations, when a plan is made")
      ->excludes(plan_)
      ->capture_default_str();
}

/// An uncompressed cache has none of these: refuse them rather than ignore them.
Status CacheFlags::CheckUncompressed() const {
  BGTQ_ASSIGN_OR_RETURN(const Recipe* recipe, FindRecipe(choice.recipe));
  if (recipe->kind == CacheKind::kPacked || recipe->kind == CacheKind::kSimulated) return Status::Ok();
  for (const CLI::Option* option : {k_, v_, sinks_, recent_, no_buffer_}) {
    if (option->count() > 0) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("--recipe {} keeps every token exactly: {} means nothing there",
                                choice.recipe, option->get_name()));
    }
  }
  return Status::Ok();
}

/// What is part of a recipe (its one width, its exact tokens) holds where the user asks for nothing else.
Status CacheFlags::TakeRecipeSettings() {
  BGTQ_ASSIGN_OR_RETURN(const Recipe* recipe, FindRecipe(choice.recipe));
  if (recipe->k_bits > 0 && k_->count() == 0) choice.k_bits = recipe->k_bits;
  if (recipe->v_bits > 0 && v_->count() == 0) choice.v_bits = recipe->v_bits;
  if (recipe->recent < 0 || no_buffer || sinks_->count() + recent_->count() > 0) return Status::Ok();
  choice.sinks = recipe->sinks;
  choice.recent = recipe->recent;
  Log(fmt::format("recipe {}: --sinks {} --recent {}, which are part of it", recipe->name, recipe->sinks,
                  recipe->recent));
  return Status::Ok();
}

Result<std::optional<Plan>> CacheFlags::ObtainPlan(LoadedModel& model) {
  if (no_buffer) choice.sinks = choice.recent = 0;
  if (plan_->count() == 0) {
    BGTQ_ASSIGN_OR_RETURN(const Recipe* recipe, FindRecipe(choice.recipe));
    BGTQ_RETURN_IF_ERROR(CheckMemoryTokens(*recipe, choice.memory_tokens));
    BGTQ_RETURN_IF_ERROR(CheckUncompressed());
    BGTQ_RETURN_IF_ERROR(TakeRecipeSettings());
  }
  Progress progress("calibrating");
  const auto update = [&](double done) { progress.Update(done); };
  BGTQ_ASSIGN_OR_RETURN(std::optional<Plan> plan,
                        blockgtq::ObtainPlan(model, choice, BundledCalibrationText(), Log, update));
  BGTQ_ASSIGN_OR_RETURN(choice.simulated,
                        ObtainSimulated(model, choice, BundledCalibrationText(), Log, update));
  if (plan.has_value()) {
    choice.recipe = plan->recipe;
    choice.k_bits = plan->k_bits;
    choice.v_bits = plan->v_bits;
  }
  return plan;
}

std::string CacheFlags::Name() const {
  const Result<const Recipe*> recipe = FindRecipe(choice.recipe);
  if (!recipe.ok() || (*recipe)->kind == CacheKind::kHalf || (*recipe)->kind == CacheKind::kFloat) {
    return choice.recipe;
  }
  return fmt::format("{} {}", choice.recipe, BitsName(choice.k_bits, choice.v_bits));
}

void TextOptions::Add(CLI::App& app, const char* what) {
  CLI::Option_group* group = app.add_option_group("text", "one of:");
  text_option = group->add_option("-p,--prompt", text, what)->type_name("TEXT");
  group->add_option("-f,--file", file, "the same, read from a file")->type_name("FILE");
  group->require_option(1);
}

Result<std::string> TextOptions::Read() const {
  if (text_option->count() > 0) return text;
  return ReadFile(file);
}

void NoteInput(const std::string& path) { Inputs().push_back(path); }

Status CheckOutput(const std::string& path) {
  for (const std::string& input : Inputs()) {
    std::error_code ignored;
    if (std::filesystem::equivalent(path, input, ignored)) {
      return Status(ErrorCode::kInvalidArgument,
                    path + ": is read by this command and would be overwritten; name another file");
    }
  }
  return Status::Ok();
}

Status WriteFile(const std::string& path, const std::string& content) {
  BGTQ_RETURN_IF_ERROR(CheckOutput(path));
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    errno = 0;
    std::ofstream stream(path, std::ios::binary);
    stream << content;
    stream.close();
    if (!stream)
      return Status(ErrorCode::kIo, fmt::format("{}: cannot write: {}", path, std::strerror(errno)));
    return Status::Ok();
  }
  BGTQ_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  BGTQ_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span<const char>(content))));
  return file.Commit();
}

Result<std::string> ReadFile(const std::string& path) {
  NoteInput(path);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return Status(ErrorCode::kInvalidArgument, path + ": is a folder, not a file");
  }
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    return Status(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                  fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
  }
  std::string content((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (stream.bad())
    return Status(ErrorCode::kIo, fmt::format("{}: cannot read: {}", path, std::strerror(errno)));
  return content;
}

void JsonOption::Add(CLI::App& app) {
  app.add_option("--json", path, "write the result here, for machines")->check(NotEmpty());
}

Status JsonOption::Write(const nlohmann::json& value) const {
  if (path.empty()) return Status::Ok();
  // Bytes of text that are not UTF-8 become U+FFFD: JSON cannot hold them.
  return WriteFile(path, value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

Result<std::vector<Token>> ReadTokenFile(const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(const std::string content, ReadFile(path));
  nlohmann::json json = nlohmann::json::parse(content, nullptr, false);
  if (json.is_object() && json.contains("ids"))
    json = nlohmann::json(json["ids"]);  // what tokenize --json writes
  if (!json.is_array()) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{}: is not a JSON list of token ids, like [1, 2, 3]", path));
  }
  std::vector<Token> tokens;
  for (const nlohmann::json& id : json) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      return Status(ErrorCode::kCorruptFile,
                    fmt::format("{}: entry {} is not a token id", path, tokens.size()));
    }
    tokens.push_back(id.get<Token>());
  }
  return tokens;
}

double BytesPerTokenPerHead(const LoadedModel& model, const std::optional<Plan>& plan, CacheKind kind) {
  if (plan.has_value()) return plan->bytes_per_token_per_head();
  const ModelConfig& c = model.config();
  return static_cast<double>(ExactTileBytes(kind != CacheKind::kFloat, c.head_dim, 1, c.latent.rank > 0));
}

void MomentsOption::Add(CLI::App& app) {
  app.add_option("--moments", file,
                 "file of running moments of queries and keys, taken up where it is there: for 'inspect' and "
                 "'calibrate --adapt'")
      ->check(NotEmpty());
}

Result<std::unique_ptr<MomentsWatch>> MomentsOption::Open(const LoadedModel& model, const CacheFlags& cache,
                                                          const std::optional<Plan>& plan) const {
  if (file.empty()) return std::unique_ptr<MomentsWatch>();
  BGTQ_RETURN_IF_ERROR(CheckOutput(file));
  MomentsOptions options;
  options.file = file;
  options.plan = plan.has_value() ? &*plan : nullptr;
  if (plan.has_value() && !cache.choice.plan_file.empty()) {
    BGTQ_ASSIGN_OR_RETURN(options.by_head, LoadPlanBitsByHead(cache.choice.plan_file));
  }
  options.on_failure = [](const Status& status) { Log("warning: --moments: " + status.message()); };
  return MomentsWatch::Open(model, std::move(options));
}

Status MomentsOption::Finish(MomentsWatch* watch) const {
  if (watch == nullptr) return Status::Ok();
  BGTQ_RETURN_IF_ERROR(watch->Save());
  const MomentsWatch::State state = watch->state();
  Log(fmt::format("moments: {} tokens looked at, {}{}", state.seen, file,
                  state.drift.has_value() ? "; drift of the plan " + DriftText(*state.drift) : ""));
  return Status::Ok();
}

std::string DriftText(const Drift& drift) {
  return fmt::format("{:.3f}, at most {:.2f} (layer {} KV head {})", drift.mean, drift.worst,
                     drift.worst_layer, drift.worst_kv_head);
}

nlohmann::json DriftJson(const Drift& drift) {
  return {{"mean", drift.mean},
          {"worst", drift.worst},
          {"worst_layer", drift.worst_layer},
          {"worst_kv_head", drift.worst_kv_head},
          {"heads", drift.heads}};
}

nlohmann::json BudgetJson(const PlanBudget& b) {
  return {{"bytes", b.bytes},
          {"target_kld", b.target_kld},
          {"sinks", b.sinks},
          {"recent", b.recent},
          {"probe_bits", b.probe_bits},
          {"probe_tokens", b.probe_tokens},
          {"probes", b.probes},
          {"check_tokens", b.check_tokens},
          {"probe_seconds", b.probe_seconds},
          {"exponent", b.exponent},
          {"trust", b.trust},
          {"predicted_kld", b.predicted_kld},
          {"measured_kld", b.measured_kld}};
}

}  // namespace blockgtq::cli
