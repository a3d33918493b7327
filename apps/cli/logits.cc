// blockgtq logits: runs a list of token ids and writes the logits of every position, to compare engines.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "apps/cli/command.h"
#include "apps/cli/options.h"
#include "src/engine/context.h"
#include "src/formats/safetensors.h"

namespace blockgtq::cli {
namespace {

class LogitsCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    model_.Add(app, "float");
    cache_.Add(app);
    cache_.AddSeed(app);
    app.add_option("-c,--context", context_, "tokens of context (default: what the ids need)")
        ->check(CLI::Range(1, 1 << 30));
    app.add_option("--tokens", ids_, "JSON file with one list of ids")->required()->type_name("IDS.json");
    app.add_option("-o,--output", output_, "safetensors file: `logits` [tokens, vocabulary] F32")->required();
    app.add_option("-b,--batch", batch_, "tokens a forward pass (default: the device's choice)")
        ->check(CLI::Range(1, 1 << 16));
    app.add_flag("--strict", strict_, "every position as if it had been decoded");
    json_.Add(app);
  }

  Status Run() override {
    BGTQ_ASSIGN_OR_RETURN(const std::vector<Token> ids, ReadTokenFile(ids_));
    if (ids.empty()) return Status(ErrorCode::kInvalidArgument, fmt::format("{}: the list is empty", ids_));
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, model_.Open(TokenizerUse::kIfThere));
    const int64_t longest = model->config().context_length, limit = context_ > 0 ? context_ : longest;
    if (limit > longest) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("-c {}: the model's context is {} tokens", context_, longest));
    }
    if (static_cast<int64_t>(ids.size()) > limit) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("{}: {} tokens, the context is {}", ids_, ids.size(), limit));
    }
    BGTQ_ASSIGN_OR_RETURN(const std::optional<Plan> plan, cache_.ObtainPlan(*model));
    BGTQ_ASSIGN_OR_RETURN(const CacheOptions cache,
                          CacheOptionsFor(cache_.choice, static_cast<int64_t>(ids.size())));
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context,
                          Context::Create(*model, cache, plan.has_value() ? &*plan : nullptr));
    BGTQ_ASSIGN_OR_RETURN(const SequenceId sequence, context->cache().AddSequence());
    const size_t vocabulary = static_cast<size_t>(model->config().vocabulary);
    std::vector<float> logits(ids.size() * vocabulary);
    const auto start = std::chrono::steady_clock::now();
    const auto on_batch = [&](int64_t first, int64_t count) -> Status {
      constexpr int64_t kRows = 64;  // of logits held twice
      for (int64_t begin = 0; begin < count; begin += kRows) {
        std::vector<int64_t> rows(static_cast<size_t>(std::min(kRows, count - begin)));
        std::iota(rows.begin(), rows.end(), begin);
        BGTQ_ASSIGN_OR_RETURN(const std::span<const float> part, context->Logits(rows));
        std::memcpy(&logits[static_cast<size_t>(first + begin) * vocabulary], part.data(), part.size_bytes());
      }
      return Status::Ok();
    };
    BGTQ_RETURN_IF_ERROR(context->Append(sequence, ids, {.strict = strict_}, on_batch, batch_));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const SafetensorsTensor tensor{"logits",
                                   "F32",
                                   {static_cast<int64_t>(ids.size()), model->config().vocabulary},
                                   std::as_bytes(std::span<const float>(logits))};
    BGTQ_RETURN_IF_ERROR(CheckOutput(output_));
    BGTQ_RETURN_IF_ERROR(WriteSafetensors(output_, {{"model", model->path()}}, {&tensor, 1}));
    fmt::print("{}: {} x {} logits, {:.2f} s\n", output_, ids.size(), vocabulary, seconds);
    return json_.Write({{"tokens", ids.size()}, {"seconds", seconds}});
  }

 private:
  ModelOptions model_;
  CacheFlags cache_;
  int64_t context_ = 0;
  std::string ids_, output_;
  int64_t batch_ = 0;
  bool strict_ = false;
  JsonOption json_;
};

}  // namespace

std::unique_ptr<Command> MakeLogits() { return std::make_unique<LogitsCommand>(); }

}  // namespace blockgtq::cli
