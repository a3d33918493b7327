// What goes to stderr: log lines and progress; and the stop request of Ctrl-C.
#pragma once

#include <atomic>
#include <chrono>
#include <string>

namespace blockgtq::cli {

/// A line on stderr.
void Log(const std::string& line);

/// A progress bar on a terminal, a line every tenth elsewhere.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  /// done in [0, 1]; `note` is shown behind the bar.
  void Update(double done, const std::string& note = "");

 private:
  void Finish();
  std::string what_;
  bool terminal_, open_ = false;
  int shown_tenth_ = 0;
  std::chrono::steady_clock::time_point start_, last_;
};

/// Set by the first Ctrl-C (SIGINT) or SIGTERM after InstallStopHandler; a second one ends the program at
/// once.
const std::atomic<bool>& StopRequested();
void InstallStopHandler();

}  // namespace blockgtq::cli
