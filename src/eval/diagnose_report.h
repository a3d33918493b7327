// What `diagnose` shows: markdown tables, and plots as SVG files.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "src/eval/diagnose.h"

namespace blockgtq {

/// Per row: means, stored bytes and layer wins; then the layers; then the mean share of blocks at each width.
std::string DiagnoseTables(const DiagnoseResult& result);

struct HeadName {
  int layer = 0, kv_head = 0;
};
/// The head whose block scores (Q + K) / 2 differ most: of the largest ratio of arithmetic to geometric mean.
HeadName HeadOfLargestSpread(const DiagnoseResult& result);

/// {file name, SVG document}: the fingerprint of every storage with a plan, the error of every layer for
/// every row, divergence against stored bytes, overlap against divergence, and the spectrum of one head.
std::vector<std::pair<std::string, std::string>> DiagnosePlots(const DiagnoseResult& result, HeadName head);

}  // namespace blockgtq
