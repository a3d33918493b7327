// See terminal.h.
#include "apps/cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

namespace blockgtq::cli {
namespace {

std::atomic<bool> stop_requested{false};

extern "C" void OnSignal(int signal) {
  if (stop_requested.exchange(true)) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

// fputs, not fmt::print: a closed stderr must not end the work.
void Log(const std::string& line) { std::fputs((line + "\n").c_str(), stderr); }

Progress::Progress(std::string what)
    : what_(std::move(what)),
      terminal_(isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() { Finish(); }

void Progress::Update(double done, const std::string& note) {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - start_).count();
  done = std::clamp(done, 0.0, 1.0);
  const std::string left =
      done > 0.02 && done < 1 ? fmt::format(" {:.0f} s left", seconds * (1 - done) / done) : "";
  if (terminal_) {
    if (open_ && done < 1 && now - last_ < std::chrono::milliseconds(100)) return;
    constexpr int kWidth = 30;
    const int filled = static_cast<int>(done * kWidth);
    const std::string bar =
        fmt::format("\r{} [{}{}] {:3.0f}%{}{}\x1b[K", what_, std::string(filled, '#'),
                    std::string(kWidth - filled, '.'), done * 100, left, note.empty() ? "" : "  " + note);
    std::fputs(bar.c_str(), stderr);
    std::fflush(stderr);
    open_ = true;
    last_ = now;
    if (done >= 1) Finish();
    return;
  }
  const int tenth = static_cast<int>(done * 10);
  if (tenth > shown_tenth_) {
    shown_tenth_ = tenth;
    Log(fmt::format("{}: {}%{}{}", what_, tenth * 10, left, note.empty() ? "" : "  " + note));
  }
}

void Progress::Finish() {
  if (open_) std::fputs("\n", stderr);
  open_ = false;
}

const std::atomic<bool>& StopRequested() { return stop_requested; }

void InstallStopHandler() {
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
}

}  // namespace blockgtq::cli
