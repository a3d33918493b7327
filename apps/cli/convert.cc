// blockgtq convert: a safetensors model to GGUF.
#include <fmt/format.h>

#include <chrono>

#include "apps/cli/command.h"
#include "apps/cli/options.h"
#include "apps/cli/terminal.h"
#include "src/engine/gguf_export.h"

namespace blockgtq::cli {
namespace {

class ConvertCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.add_option("-m,--model", path_, "folder with safetensors and config.json")
        ->required()
        ->check(NotEmpty())
        ->type_name("MODEL");
    app.add_option("-o,--output", output_, "GGUF file")
        ->required()
        ->check(NotEmpty())
        ->type_name("FILE.gguf");
    app.add_option("--type", type_, "of the matrices: f16, q8_0, bf16, f32")
        ->check(CLI::IsMember({"f16", "q8_0", "bf16", "f32"}))
        ->capture_default_str();
    app.add_flag("--no-tokenizer", no_tokenizer_, "leave the tokenizer out: a file that runs on token ids");
    json_.Add(app);
  }

  Status Run() override {
    NoteInput(path_);
    BGTQ_RETURN_IF_ERROR(CheckOutput(output_));
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model,
                          LoadedModel::Open(path_, {.device = "cpu"}, TokenizerUse::kIfThere));
    const auto start = std::chrono::steady_clock::now();
    Progress progress("converting");
    const GgufExportOptions options = {
        .type = Type(), .tokenizer = !no_tokenizer_, .progress = [&](double done) { progress.Update(done); }};
    BGTQ_ASSIGN_OR_RETURN(const GgufExport written, ExportGguf(*model, options, output_));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (const std::string& difference : written.differences) Log("not in the file: " + difference);
    fmt::print("{}: {} tensors, {:.1f} MiB, {:.1f} s\n", output_, written.tensors,
               static_cast<double>(written.bytes) / 1048576, seconds);
    return json_.Write({{"tensors", written.tensors},
                        {"bytes", written.bytes},
                        {"type", type_},
                        {"tokenizer", !no_tokenizer_},
                        {"differences", written.differences},
                        {"architecture", model->config().architecture},
                        {"seconds", seconds}});
  }

 private:
  TensorType Type() const {
    if (type_ == "q8_0") return TensorType::kQ8_0;
    if (type_ == "bf16") return TensorType::kBF16;
    return type_ == "f32" ? TensorType::kF32 : TensorType::kF16;
  }

  std::string path_, output_, type_ = "f16";
  bool no_tokenizer_ = false;
  JsonOption json_;
};

}  // namespace

std::unique_ptr<Command> MakeConvert() { return std::make_unique<ConvertCommand>(); }

}  // namespace blockgtq::cli
