// blockgtq: the command line. One table of commands; exit status 0 done, 1 failed, 2 wrong usage.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "apps/cli/terminal.h"

namespace blockgtq::cli {
namespace {

struct CommandInfo {
  const char* name;
  const char* summary;
  std::unique_ptr<Command> (*make)();
};

constexpr std::array<CommandInfo, 16> kCommands = {{
    {"calibrate", "measure a model on text and write a plan of bit widths", MakeCalibrate},
    {"inspect", "show a model's metadata, or a plan's widths", MakeInspect},
    {"convert", "write a safetensors model as GGUF", MakeConvert},
    {"generate", "continue a prompt or answer a chat message", MakeGenerate},
    {"perplexity", "perplexity of a text, and the cache's distance from fp16", MakePerplexity},
    {"diagnose", "what recipes do to keys, layer by layer", MakeDiagnose},
    {"calibrate-study", "what the choice of calibration text does to a cache", MakeCalibrateStudy},
    {"depth-study", "how far caches move a model at increasing depth", MakeDepthStudy},
    {"logits", "run token ids and write their logits", MakeLogits},
    {"tokenize", "text to token ids", MakeTokenize},
    {"detokenize", "token ids to text", MakeDetokenize},
    {"bench", "prompt and decode speed at depth", MakeBench},
    {"needle", "facts hidden in long texts, over lengths and depths", MakeNeedle},
    {"longbench", "the English tasks of LongBench, from their JSONL files", MakeLongBench},
    {"aime", "competition problems, several samples each: pass@1", MakeAime},
    {"serve", "an HTTP server with OpenAI's API", MakeServe},
}};

int Main(int argc, char** argv) {
  CLI::App app("blockgtq: language models on a packed low-bit KV cache", "blockgtq");
  app.set_version_flag("--version", std::string("blockgtq ") + BGTQ_VERSION);
  app.require_subcommand(1);
  std::vector<std::unique_ptr<Command>> commands;
  std::vector<CLI::App*> apps;
  for (const CommandInfo& info : kCommands) {
    commands.push_back(info.make());
    apps.push_back(app.add_subcommand(info.name, info.summary));
    commands.back()->AddOptions(*apps.back());
  }
  if (argc > 1 && argv[1][0] != '-' &&
      std::none_of(kCommands.begin(), kCommands.end(),
                   [&](const CommandInfo& c) { return c.name == std::string(argv[1]); })) {
    Log(fmt::format("blockgtq: no command '{}'; blockgtq --help lists them", argv[1]));
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;  // --help and --version end with 0
  }
  for (size_t i = 0; i < apps.size(); ++i) {
    if (!apps[i]->parsed()) continue;
    const Status status = commands[i]->Run();
    if (status.ok()) return 0;
    Log(fmt::format("blockgtq {}: {}", kCommands[i].name, status.message()));
    return 1;
  }
  return 2;
}

}  // namespace
}  // namespace blockgtq::cli

int main(int argc, char** argv) {
  // The library reports through Status. What can still throw is the allocator and the standard library's
  // streams: one line instead of a crash.
  int code = 1;
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is then an error of write, like a full disk
  try {
    code = blockgtq::cli::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("blockgtq: out of memory; use less context, fewer tokens or a smaller batch\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "blockgtq: %s\n", error.what());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fputs("blockgtq: standard output: cannot write; the result is incomplete\n", stderr);
    return code == 0 ? 1 : code;
  }
  return code;
}
