// The constants of a layer's cache of latents (plan.h) for the GPU: where each unit of a record lies, which
// coordinate of a decoded key it becomes, and the transforms in tensor-core order. Host code.
//
// Coordinates of a decoded key, in the codes' space: units that do not reach the output (the rope key's),
// then R_t mu of the rope key's mean units, then the units that do, the *values*. An exact key has its own
// dims, rope key first, so there as well the last columns are the value.
//
// Decoded, a unit has (I + h) times its token's norm over the group's reference (record.h): numbers that fit
// fp16 whatever the norms are. What that lacks, reference / sqrt(dims) / codebook scale, is in the queries'
// factor and in the un-rotation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blockgtq/status.h"
#include "src/codec/plan.h"

namespace blockgtq::cuda {

struct alignas(16) LatentUnit {
  int32_t codes;          // byte offset in the record
  int32_t norms;          // of its group's norms, from the record's first on
  int16_t width, column;  // column: of its first dim among the coordinates
  float query_factor;     // turns products with query_fragments into coordinates of a query
};

struct alignas(16) LatentGroup {
  int32_t width, first_unit, units, dims;  // dims: true ones, <= 16 * units
  int32_t codes, norms;                    // byte offsets in the record
  float reference;                         // of norms
  float factor;                            // of products with key_fragments
};

struct LatentTable {
  int head_dim = 0, latent_dims = 0;
  int key_columns = 0, columns = 0;      // values are columns [key_columns, columns)
  int record_bytes = 0, norm_begin = 0;  // norms of group g: 64 bytes at norm_begin + 64 g
  bool searched = false;
  std::vector<LatentUnit> units;    // in the record's order
  std::vector<LatentGroup> groups;  // the same
  std::vector<float> key_mean;      // mu [head_dim]; zero where none is removed
  bool has_mean = false;

  // Mean units of the rope key: logits get q . R_t mu as further coordinates, (mean_query q) . (mean_key R_t
  // mu) in units of code_scale. Those of the latent, which does not turn, are a constant of each query.
  std::vector<int32_t> mean_units;  // ascending
  float mean_query = 0, mean_key = 0;
  bool has_latent_mean = false;

  /// Logits are code_scale times the products of coordinates.
  float code_scale = 1;
  /// B fragments of m16n8k16 of T, T^-T and T^-1's latent part, [16 columns of output][16 of input][32
  /// lanes][8]: a lane's four of 8 columns, then of the next 8. T in two halves (matmul_item.h).
  std::vector<uint16_t> key_fragments, key_low_fragments;  // dims to units
  std::vector<uint16_t> query_fragments;                   // dims to units
  std::vector<uint16_t> unrotate_fragments;                // values to latent dims
  float unrotate_scale = 1;                                // of products with them
};

/// Errors: kUnsupported naming what has no kernel (fp16 norms, codes of 6 or 7 bits, a mean that is too large
/// beside the codes). where: begins the error's text.
Result<LatentTable> BuildLatentTable(const HeadPlan& plan, const std::string& where);

}  // namespace blockgtq::cuda
