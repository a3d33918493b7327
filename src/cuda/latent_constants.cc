// See latent_constants.h.
#include "src/cuda/latent_constants.h"

#include <utility>

#include "src/cuda/layer_constants.h"

namespace blockgtq::cuda {

Result<LatentConstants> LatentConstants::Upload(LatentTable table) {
  const char* what = "a plan's constants";
  LatentConstants c;
  BGTQ_ASSIGN_OR_RETURN(c.units_, ToDevice(table.units, what));
  BGTQ_ASSIGN_OR_RETURN(c.groups_, ToDevice(table.groups, what));
  BGTQ_ASSIGN_OR_RETURN(c.key_fragments_, ToDevice(table.key_fragments, what));
  BGTQ_ASSIGN_OR_RETURN(c.key_low_fragments_, ToDevice(table.key_low_fragments, what));
  BGTQ_ASSIGN_OR_RETURN(c.mean_, ToDevice(table.key_mean, what));
  BGTQ_ASSIGN_OR_RETURN(c.mean_units_, ToDevice(table.mean_units, what));
  BGTQ_ASSIGN_OR_RETURN(c.query_fragments_, ToDevice(table.query_fragments, what));
  BGTQ_ASSIGN_OR_RETURN(c.unrotate_fragments_, ToDevice(table.unrotate_fragments, what));
  c.units_count_ = static_cast<int32_t>(table.units.size());
  c.groups_count_ = static_cast<int32_t>(table.groups.size());
  c.mean_units_count_ = static_cast<int32_t>(table.mean_units.size());
  table.key_fragments = table.key_low_fragments = table.query_fragments = table.unrotate_fragments = {};
  c.table_ = std::move(table);
  return c;
}

void LatentConstants::Bind(LatentParams& p) const {
  p.units = units_.As<LatentUnit>();
  p.unit_count = units_count_;
  p.record_bytes = table_.record_bytes;
  p.norm_begin = table_.norm_begin;
  p.norm_count = kPageTokens * groups_count_;
  p.columns = table_.columns;
  p.key_columns = table_.key_columns;
  p.code_scale = table_.code_scale;
  p.query_fragments = query_fragments_.As<uint16_t>();
  p.unrotate_fragments = unrotate_fragments_.As<uint16_t>();
  p.unrotate_scale = table_.unrotate_scale;
  p.key_mean = mean_.As<float>();
  p.has_latent_mean = table_.has_latent_mean;
  p.mean_units = mean_units_.As<int32_t>();
  p.mean_unit_count = mean_units_count_;
  p.mean_query = table_.mean_query;
  p.mean_key = table_.mean_key;
}

LatentCodec LatentConstants::Codec() const {
  LatentCodec codec;
  codec.groups = groups_.As<LatentGroup>();
  codec.fragments = key_fragments_.As<uint16_t>();
  codec.low_fragments = key_low_fragments_.As<uint16_t>();
  codec.mean = table_.has_mean ? mean_.As<float>() : nullptr;
  codec.group_count = groups_count_;
  codec.unit_count = units_count_;
  codec.searched = table_.searched ? 1 : 0;
  return codec;
}

}  // namespace blockgtq::cuda
