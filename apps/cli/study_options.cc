// See study_options.h.
#include "apps/cli/study_options.h"

#include <fmt/format.h>

#include <filesystem>

#include "apps/cli/terminal.h"

namespace blockgtq::cli {

void StudyFlags::Add(CLI::App& app) {
  model.Add(app, "float");
  app.add_option("-K", k_bits, "code bits a dimension of keys, a list")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("-V", v_bits, "code bits a dimension of values, one for each of -K")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("-o,--results", results,
                 "file that keeps what is finished; a run that was stopped or killed continues from it")
      ->check(NotEmpty());
  app.add_option("--plot", plots, "write plots (SVG) into this folder")
      ->check(NotEmpty())
      ->type_name("FOLDER");
}

Result<ResultsFile> StudyFlags::OpenResults(const LoadedModel& opened, nlohmann::json settings,
                                            size_t samples) const {
  if (results.empty()) return ResultsFile::InMemory();
  settings.update({{"model", opened.fingerprint().Text()},
                   {"device", opened.backend().name()},
                   {"activations", model.activations}});
  BGTQ_RETURN_IF_ERROR(CheckOutput(results));
  BGTQ_ASSIGN_OR_RETURN(ResultsFile file, ResultsFile::Open(results, settings));
  if (file.dropped_bytes() > 0) {
    Log(fmt::format("{}: its last line was cut off by a kill and is dropped", results));
  }
  if (!file.samples().empty()) {
    Log(fmt::format("{}: continuing after {} of {} samples", results, file.samples().size(), samples));
  }
  return file;
}

Status StudyFlags::WritePlots(const std::vector<std::pair<std::string, std::string>>& files) const {
  if (plots.empty()) return Status::Ok();
  std::error_code error;
  std::filesystem::create_directories(plots, error);
  if (error) return {ErrorCode::kIo, fmt::format("{}: cannot make the folder: {}", plots, error.message())};
  for (const auto& [name, svg] : files) {
    const std::string path = (std::filesystem::path(plots) / name).string();
    BGTQ_RETURN_IF_ERROR(WriteFile(path, svg));
    Log("plot: " + path);
  }
  return Status::Ok();
}

}  // namespace blockgtq::cli
