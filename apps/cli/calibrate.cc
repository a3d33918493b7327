// blockgtq calibrate: measures a model on text and writes a plan.
#include <fmt/format.h>

#include "apps/cli/command.h"
#include "apps/cli/options.h"
#include "apps/cli/terminal.h"
#include "src/engine/bundled_text.h"
#include "src/formats/plan_file.h"

namespace blockgtq::cli {
namespace {

class CalibrateCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    model_.Add(app, "float");
    app.add_option("-f,--file", file_, "calibration text (default: the bundled start of WikiText-2 train)")
        ->check(NotEmpty());
    app.add_option("--tokens", options_.tokens, "tokens measured")
        ->check(CLI::Range(64, 1 << 20))
        ->capture_default_str();
    app.add_option("-K", options_.bits.k_bits, "code bits a dimension of keys, on average")
        ->capture_default_str();
    app.add_option("-V", options_.bits.v_bits, "code bits a dimension of values")->capture_default_str();
    app.add_option("--recipe", options_.recipe, "allocator")->capture_default_str();
    app.add_option("-s,--seed", options_.bits.seed, "seed of the random rotations")->capture_default_str();
    app.add_option("-o,--output", output_,
                   "plan file (default: beside the model, where other commands find it)")
        ->check(NotEmpty());
    json_.Add(app);
  }

  Status Run() override {
    std::string text;
    if (!file_.empty()) {
      BGTQ_ASSIGN_OR_RETURN(text, ReadFile(file_));
    }
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, model_.Open());
    {
      Progress progress("calibrating");
      options_.progress = [&](double done) { progress.Update(done); };
      BGTQ_ASSIGN_OR_RETURN(plan_,
                            Calibrate(*model, file_.empty() ? BundledCalibrationText() : text, options_));
    }
    CacheChoice choice;
    choice.recipe = options_.recipe;
    choice.k_bits = options_.bits.k_bits;
    choice.v_bits = options_.bits.v_bits;
    choice.plan_seed = options_.bits.seed;
    const std::string path = output_.empty() ? PlanPathFor(model->path(), choice) : output_;
    BGTQ_RETURN_IF_ERROR(CheckOutput(path));
    if (plan_.calibration.tokens < options_.tokens) {
      Log(fmt::format("calibrated on {} of {} tokens: the text or the model's context ends there",
                      plan_.calibration.tokens, options_.tokens));
    }
    BGTQ_RETURN_IF_ERROR(SavePlan(plan_, path));
    const double bytes = plan_.bytes_per_token_per_head();
    const double compression = BytesPerTokenPerHead(*model, std::nullopt, CacheKind::kHalf) / bytes;
    fmt::print(
        "{}: {} {}, {:.1f} stored bytes a token a head (K + V), {:.2f}x below fp16; {} tokens, {:.1f} s\n",
        path, plan_.recipe, BitsName(plan_.k_bits, plan_.v_bits), bytes, compression,
        plan_.calibration.tokens, plan_.calibration.seconds);
    return json_.Write({{"plan", path},
                        {"recipe", plan_.recipe},
                        {"k_bits", plan_.k_bits},
                        {"v_bits", plan_.v_bits},
                        {"seed", plan_.seed},
                        {"bytes_per_token_per_head", bytes},
                        {"compression", compression},
                        {"calibration_tokens", plan_.calibration.tokens},
                        {"seconds", plan_.calibration.seconds}});
  }

 private:
  ModelOptions model_;
  CalibrationOptions options_;
  std::string file_, output_;
  JsonOption json_;
  Plan plan_;
};

}  // namespace

std::unique_ptr<Command> MakeCalibrate() { return std::make_unique<CalibrateCommand>(); }

}  // namespace blockgtq::cli
