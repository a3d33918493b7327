// blockgtq tokenize / detokenize: text to token ids and back, without loading weights.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "apps/cli/command.h"
#include "apps/cli/options.h"
#include "src/text/tokenizer_folder.h"

namespace blockgtq::cli {
namespace {

/// A model's tokenizer alone.
struct TokenizerFile {
  std::string path;
  std::unique_ptr<Tokenizer> tokenizer;
  void Add(CLI::App& app) {
    app.add_option("-m,--model", path, "GGUF model file, or a folder with tokenizer.json")
        ->required()
        ->type_name("MODEL");
  }
  Status Open() {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
      BGTQ_ASSIGN_OR_RETURN(FolderTokenizer folder, LoadTokenizerFolder(path));
      tokenizer = std::move(folder.tokenizer);
      return Status::Ok();
    }
    BGTQ_ASSIGN_OR_RETURN(const auto file, GgufFile::Open(path));
    BGTQ_ASSIGN_OR_RETURN(tokenizer, Tokenizer::FromGguf(*file));
    return Status::Ok();
  }
};

class TokenizeCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    model_.Add(app);
    text_.Add(app, "text to tokenize");
    app.add_flag("--special", special_, "special tokens written in the text become their ids");
    json_.Add(app);
  }
  Status Run() override {
    BGTQ_ASSIGN_OR_RETURN(const std::string text, text_.Read());
    BGTQ_RETURN_IF_ERROR(model_.Open());
    const std::vector<Token> ids = model_.tokenizer->Encode(text, special_);
    fmt::print("{}\n", nlohmann::json(ids).dump());
    return json_.Write({{"ids", ids}});
  }

 private:
  TokenizerFile model_;
  TextOptions text_;
  bool special_ = false;
  JsonOption json_;
};

class DetokenizeCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    model_.Add(app);
    app.add_option("--tokens", ids_, "JSON file with a list of ids")->required()->type_name("IDS.json");
    json_.Add(app);
  }
  Status Run() override {
    BGTQ_ASSIGN_OR_RETURN(const std::vector<Token> ids, ReadTokenFile(ids_));
    BGTQ_RETURN_IF_ERROR(model_.Open());
    for (Token id : ids) {
      if (id >= model_.tokenizer->vocab_size()) {
        return Status(ErrorCode::kInvalidArgument, fmt::format("{}: token {} is not in the vocabulary of {}",
                                                               ids_, id, model_.tokenizer->vocab_size()));
      }
    }
    const std::string text = model_.tokenizer->Decode(ids);
    std::fwrite(text.data(), 1, text.size(), stdout);
    return json_.Write({{"text", text}});
  }

 private:
  TokenizerFile model_;
  std::string ids_;
  JsonOption json_;
};

}  // namespace

std::unique_ptr<Command> MakeTokenize() { return std::make_unique<TokenizeCommand>(); }
std::unique_ptr<Command> MakeDetokenize() { return std::make_unique<DetokenizeCommand>(); }

}  // namespace blockgtq::cli
