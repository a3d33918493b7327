// The books of kv_cache.h: which blocks and exact tiles belong to which sequence.
#include "src/cache/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "src/cache/kv_cache_impl.h"

namespace blockgtq {

KvCache::Impl::Sequence& KvCache::Impl::At(SequenceId id) const {
  assert(id >= 0 && static_cast<size_t>(id) < sequences.size() && sequences[id] != nullptr);
  return *sequences[id];
}

KvCache::Impl::TileRange KvCache::Impl::WindowRange(const SequenceState& state) const {
  if (window_tiles == 0 || state.coded_end == state.length) return {};
  return {state.coded_end / kPageTokens, PagesOf(state.length)};
}

Status KvCache::Impl::EraseCodes(const PageGroup& group, int32_t block, int first_slot) {
  if (!packed()) return Status::Ok();  // simulated: tokens past coded_end are never read
  const int64_t size = group.pool.block_bytes();
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  BGTQ_RETURN_IF_ERROR(memory().Read(bytes.data(), group.pool.Page(0, block), size));
  for (size_t i = 0; i < group.layers.size(); ++i) {
    for (int head = 0; head < geometry.kv_heads; ++head) {
      const size_t index = HeadIndex(group.layers[i], head);
      EraseTokens(layouts[index], plan->heads[index], first_slot,
                  {bytes.data() + group.pool.layer_offset(static_cast<int>(i)) + head_offset[index],
                   static_cast<size_t>(head_bytes[index])});
    }
  }
  return memory().Write(group.pool.Page(0, block), bytes.data(), size);
}

int64_t KvCache::Impl::FreeBlocks() const {
  int64_t free = std::numeric_limits<int64_t>::max();
  for (const PageGroup& group : groups) free = std::min(free, group.pool.free_blocks());
  return free;
}

Status KvCache::Impl::CheckRewind(const Sequence& sequence, const SequenceState& to) const {
  for (size_t g = 0; to.length > 0 && g < groups.size(); ++g) {
    if (FirstNeeded(groups[g], to) >= sequence.tables[g].first) continue;
    return Invalid(fmt::format(
        "KV cache: the first {} tokens of a sequence of {}: layers with a window of {} have given "
        "back what they see; begin it anew",
        to.length, sequence.state.length, groups[g].window));
  }
  return Status::Ok();
}

void KvCache::Impl::StartAt(const SequenceState& state, Sequence& sequence) const {
  for (size_t g = 0; g < groups.size(); ++g) {
    sequence.tables[g].first = FirstNeeded(groups[g], state);
    sequence.tables[g].blocks.assign(static_cast<size_t>(sequence.tables[g].first), -1);
  }
}

Status KvCache::Impl::CopyExact(const Sequence& from, Sequence& to) {
  const TileRange window = WindowRange(to.state);
  for (int layer = 0; layer < geometry.layers; ++layer) {
    for (int head = 0; head < geometry.kv_heads; ++head) {
      for (int64_t tile = window.first; tile < window.end; ++tile) {
        BGTQ_RETURN_IF_ERROR(memory().Copy(WindowTile(to, layer, head, tile),
                                           WindowTile(from, layer, head, tile), window_tile_bytes));
      }
      if (sink_tile_bytes > 0) {
        BGTQ_RETURN_IF_ERROR(
            memory().Copy(SinkTile(to, layer, head), SinkTile(from, layer, head), sink_tile_bytes));
      }
    }
  }
  return Status::Ok();
}

Result<SequenceId> KvCache::Impl::Add() {
  auto sequence = std::make_unique<Sequence>();
  BGTQ_ASSIGN_OR_RETURN(
      sequence->exact,
      CacheRegion::Allocate(memory(), exact_bytes, "KV cache: sinks and recent window of a sequence"));
  sequence->tables.resize(groups.size());
  size_t id = 0;
  while (id < sequences.size() && sequences[id] != nullptr) ++id;
  if (id == sequences.size()) sequences.emplace_back();
  sequences[id] = std::move(sequence);
  return static_cast<SequenceId>(id);
}

KvCache::KvCache() : impl_(std::make_unique<Impl>()) {}
KvCache::~KvCache() = default;

const CacheGeometry& KvCache::geometry() const { return impl_->geometry; }
const CacheOptions& KvCache::options() const { return impl_->options; }
const Plan* KvCache::plan() const { return impl_->plan; }

Result<SequenceId> KvCache::AddSequence() { return impl_->Add(); }

void KvCache::RemoveSequence(SequenceId sequence) {
  for (size_t g = 0; g < impl_->groups.size(); ++g) impl_->groups[g].Release(impl_->At(sequence).tables[g]);
  impl_->sequences[sequence] = nullptr;
}

SequenceState KvCache::state(SequenceId sequence) const { return impl_->At(sequence).state; }
bool KvCache::has_windows() const { return impl_->groups.back().window > 0; }

Status KvCache::Impl::ForkPages(const Sequence& from, int64_t tokens, bool share, Sequence& to) {
  const int64_t final_tokens = FinalTokens(to.state), pages = PagesOf(tokens);
  const int64_t shared = share ? final_tokens / kPageTokens : 0;
  for (size_t g = 0; tokens > 0 && g < groups.size(); ++g) {
    PageGroup& group = groups[g];
    PageTable& table = to.tables[g];
    table.first = std::min(from.tables[g].first, pages);
    table.blocks.assign(static_cast<size_t>(table.first), -1);
    for (int64_t page = table.first; page < pages; ++page) {
      const int32_t source = from.tables[g].blocks[static_cast<size_t>(page)];
      if (page < shared) {
        group.pool.Retain(source);
        table.blocks.push_back(source);
        continue;
      }
      table.blocks.push_back(group.pool.Allocate());
      if (page * kPageTokens >= final_tokens) continue;  // nothing stored in it yet
      BGTQ_RETURN_IF_ERROR(group.pool.Copy(source, table.blocks.back()));
      if (coded() && final_tokens < (page + 1) * kPageTokens) {
        BGTQ_RETURN_IF_ERROR(
            EraseCodes(group, table.blocks.back(), static_cast<int>(final_tokens % kPageTokens)));
      }
    }
  }
  return CopyExact(from, to);
}

Result<SequenceId> KvCache::ForkSequence(SequenceId source, int64_t tokens, bool share) {
  Impl& impl = *impl_;
  const Impl::Sequence& from = impl.At(source);
  if (tokens < 0 || tokens > from.state.length) {
    return Invalid(
        fmt::format("KV cache: fork of {} tokens from a sequence of {}", tokens, from.state.length));
  }
  const SequenceState state{tokens, std::min(from.state.coded_end, tokens)};
  BGTQ_RETURN_IF_ERROR(impl.CheckRewind(from, state));
  // Codes that may still be narrowed are a sequence's own.
  share = share && (impl.options.simulated == nullptr ||
                    impl.options.simulated->ChangesAfter(0) == SimulatedHead::kNever);
  const int64_t shared = share ? impl.FinalTokens(state) / kPageTokens : 0;
  for (size_t g = 0; g < impl.groups.size(); ++g) {
    const int64_t own = PagesOf(tokens) - std::max(shared, from.tables[g].first);
    if (own <= impl.groups[g].pool.free_blocks()) continue;
    return Status(ErrorCode::kOutOfMemory,
                  fmt::format("KV cache: a fork needs {} tokens of its own, {} of {} are free: remove a "
                              "sequence or make the cache larger",
                              own * kPageTokens, free_tokens(), impl.options.max_tokens));
  }
  BGTQ_ASSIGN_OR_RETURN(const SequenceId id, impl.Add());
  Impl::Sequence& to = impl.At(id);
  to.state = state;
  Status filled = impl.ForkPages(impl.At(source), tokens, share, to);
  if (filled.ok()) return id;
  RemoveSequence(id);
  return filled;
}

/// Inserts `pages` copies of the pages before page `whole`; pages before `needed` are given back.
Status KvCache::Impl::InsertPages(PageGroup& group, int64_t whole, int64_t pages, int64_t needed,
                                  PageTable& table) {
  std::vector<int32_t> copies;
  for (int64_t page = 0; page < pages; ++page) {
    if (whole + page < needed) {
      copies.push_back(-1);
      continue;
    }
    copies.push_back(group.pool.Allocate());
    const auto source = static_cast<size_t>(table.first + page % (whole - table.first));
    Status copied = group.pool.Copy(table.blocks[source], copies.back());
    if (copied.ok()) continue;
    std::erase(copies, -1);
    group.pool.Release(copies);
    return copied;
  }
  group.Drop(table, std::min(needed, whole));
  table.blocks.insert(table.blocks.begin() + whole, copies.begin(), copies.end());
  if (needed > whole) table.first = std::min(needed, whole + pages);
  return Status::Ok();
}

Status KvCache::InsertCopies(SequenceId id, int64_t pages) {
  Impl& impl = *impl_;
  Impl::Sequence& sequence = impl.At(id);
  SequenceState& state = sequence.state;
  const int64_t whole = (impl.coded() ? state.coded_end : state.length) / kPageTokens;
  const bool ends_inside = impl.coded() && state.coded_end % kPageTokens != 0;
  if (pages < 0 || whole == 0 || ends_inside || pages % std::max(impl.window_tiles, 1) != 0) {
    return Invalid(
        fmt::format("KV cache: {} copies of a sequence's {} whole coded pages{}: the number must be a "
                    "multiple of {}, the pages of its window",
                    pages, whole, ends_inside ? " and a part of one" : "", std::max(impl.window_tiles, 1)));
  }
  const SequenceState after{state.length + pages * kPageTokens,
                            impl.coded() ? state.coded_end + pages * kPageTokens : state.coded_end};
  for (size_t g = 0; g < impl.groups.size(); ++g) {
    const int64_t copies =
        pages - std::clamp<int64_t>(impl.FirstNeeded(impl.groups[g], after, kRewindTokens) - whole, 0, pages);
    if (copies > 0 && sequence.tables[g].first == whole)
      return Invalid("KV cache: no page of a window to copy");
    if (copies <= impl.groups[g].pool.free_blocks()) continue;
    return Status(ErrorCode::kOutOfMemory,
                  fmt::format("KV cache: {} tokens wanted, {} of {} are free", pages * kPageTokens,
                              free_tokens(), impl.options.max_tokens));
  }
  for (size_t g = 0; g < impl.groups.size(); ++g) {
    BGTQ_RETURN_IF_ERROR(impl.InsertPages(impl.groups[g], whole, pages,
                                          impl.FirstNeeded(impl.groups[g], after, kRewindTokens),
                                          sequence.tables[g]));
  }
  state = after;
  return Status::Ok();
}

Status KvCache::Reserve(SequenceId id, int64_t tokens) {
  Impl& impl = *impl_;
  Impl::Sequence& sequence = impl.At(id);
  if (tokens < 0) return Invalid(fmt::format("KV cache: room for {} tokens asked", tokens));
  const int64_t first_written = impl.FinalTokens(sequence.state) / kPageTokens;
  const bool within = tokens <= impl.options.max_tokens - sequence.state.length;
  const int64_t pages = within ? PagesOf(sequence.state.length + tokens) : 0;
  int64_t room = impl.options.max_tokens - sequence.state.length;
  bool fits = within;
  for (size_t g = 0; g < impl.groups.size(); ++g) {
    const PageTable& table = sequence.tables[g];
    const int64_t free = impl.groups[g].pool.free_blocks();
    fits = fits && impl.groups[g].Wanted(table, first_written, pages) <= free;
    const int64_t copies = impl.groups[g].Wanted(table, first_written, 0);
    room = std::min(room, (free - copies + table.pages()) * kPageTokens - sequence.state.length);
  }
  if (!fits) {
    return Status(
        ErrorCode::kOutOfMemory,
        fmt::format("KV cache: {} tokens wanted, {} of {} are free: remove or shorten a sequence, or "
                    "make the cache larger",
                    tokens, std::max<int64_t>(room, 0), impl.options.max_tokens));
  }
  for (size_t g = 0; g < impl.groups.size(); ++g) {
    BGTQ_RETURN_IF_ERROR(impl.groups[g].Extend(sequence.tables[g], first_written, pages));
  }
  return Status::Ok();
}

void KvCache::Commit(SequenceId id, int64_t tokens, int64_t coded_end) {
  Impl::Sequence& sequence = impl_->At(id);
  SequenceState& state = sequence.state;
  assert(tokens >= 0 && PagesOf(state.length + tokens) <= sequence.tables[0].pages());
  assert(coded_end >= state.coded_end && coded_end <= state.length + tokens);
  assert(impl_->coded() || coded_end == 0);
  state.length += tokens;
  state.coded_end = coded_end;
  for (size_t g = 0; g < impl_->groups.size(); ++g) {
    PageGroup& group = impl_->groups[g];
    group.Drop(sequence.tables[g], impl_->FirstNeeded(group, state, kRewindTokens));
  }
}

Status KvCache::Truncate(SequenceId id, int64_t length) {
  Impl& impl = *impl_;
  Impl::Sequence& sequence = impl.At(id);
  if (length < 0 || length > sequence.state.length) {
    return Invalid(
        fmt::format("KV cache: truncation to {} tokens of a sequence of {}", length, sequence.state.length));
  }
  const SequenceState state{length, std::min(sequence.state.coded_end, length)};
  BGTQ_RETURN_IF_ERROR(impl.CheckRewind(sequence, state));
  const int64_t pages = PagesOf(length);
  const bool erase = length < sequence.state.coded_end && length % kPageTokens != 0;
  for (size_t g = 0; erase && g < impl.groups.size(); ++g) {
    const PageGroup& group = impl.groups[g];
    const PageTable& table = sequence.tables[g];
    bool room = group.pool.free_blocks() > 0 || !group.IsShared(table, pages - 1);
    for (int64_t page = std::max(pages, table.first); page < table.pages() && !room; ++page)
      room = !group.IsShared(table, page);
    if (room) continue;
    return Status(ErrorCode::kOutOfMemory,
                  fmt::format("KV cache: truncation to {} tokens must copy a shared page, 0 tokens of {} are "
                              "free: remove a sequence or make the cache larger",
                              length, impl.options.max_tokens));
  }
  for (size_t g = 0; g < impl.groups.size(); ++g) {
    PageGroup& group = impl.groups[g];
    PageTable& table = sequence.tables[g];
    group.Shorten(table, pages);
    if (!erase) continue;
    if (group.IsShared(table, pages - 1)) BGTQ_RETURN_IF_ERROR(group.MakeOwn(table, pages - 1));
    BGTQ_RETURN_IF_ERROR(impl.EraseCodes(group, table.blocks.back(), static_cast<int>(length % kPageTokens)));
  }
  sequence.state = state;
  return Status::Ok();
}

int64_t KvCache::CodedEndBefore(int64_t position) const { return impl_->CodedEndBefore(position); }

std::byte* KvCache::PageHead(SequenceId sequence, int layer, int kv_head, int64_t tile) {
  return impl_->PageHead(impl_->At(sequence), layer, kv_head, tile);
}

std::byte* KvCache::WindowTile(SequenceId sequence, int layer, int kv_head, int64_t tile) {
  assert(impl_->window_tiles > 0);
  return impl_->WindowTile(impl_->At(sequence), layer, kv_head, tile);
}

std::byte* KvCache::SinkTile(SequenceId sequence, int layer, int kv_head) {
  assert(impl_->sink_tile_tokens > 0);
  return impl_->SinkTile(impl_->At(sequence), layer, kv_head);
}

int KvCache::window_tiles() const { return impl_->window_tiles; }
int KvCache::sink_tile_tokens() const { return impl_->sink_tile_tokens; }

int KvCache::groups() const { return static_cast<int>(impl_->groups.size()); }
int KvCache::group_of(int layer) const { return impl_->group_of_layer[static_cast<size_t>(layer)]; }
std::byte* KvCache::pool_base(int group) const {
  return impl_->groups[static_cast<size_t>(group)].pool.Page(0, 0);
}
int64_t KvCache::block_bytes(int group) const {
  return impl_->groups[static_cast<size_t>(group)].pool.block_bytes();
}
int64_t KvCache::layer_offset(int layer) const {
  return impl_->GroupOf(layer).pool.layer_offset(impl_->layer_in_group[static_cast<size_t>(layer)]);
}
int64_t KvCache::head_offset(int layer, int kv_head) const {
  return impl_->head_offset[impl_->HeadIndex(layer, kv_head)];
}
std::span<const int32_t> KvCache::blocks(SequenceId sequence, int group) const {
  return impl_->At(sequence).tables[static_cast<size_t>(group)].blocks;
}
std::byte* KvCache::exact_base(SequenceId sequence) const { return impl_->At(sequence).exact.data(); }

int64_t KvCache::SequenceBytes(SequenceId sequence) const {
  int64_t bytes = impl_->exact_bytes;
  const int64_t coded = impl_->At(sequence).state.coded_end;
  for (size_t g = 0; g < impl_->groups.size(); ++g) {
    const PageGroup& group = impl_->groups[g];
    const PageTable& table = impl_->At(sequence).tables[g];
    if (impl_->options.simulated == nullptr) {
      bytes += group.Bytes(table);
      continue;
    }
    double token = 0;
    for (const int layer : group.layers) {
      for (int head = 0; head < impl_->geometry.kv_heads; ++head) {
        token += impl_->options.simulated->head(layer, head).At(coded).bytes_per_token();
      }
    }
    bytes += std::llround(static_cast<double>((table.pages() - table.first) * kPageTokens) * token);
  }
  return bytes;
}

int64_t KvCache::HalfBytes(int64_t tokens) const {
  int64_t held = 0;  // tokens, over layers
  for (const PageGroup& group : impl_->groups) {
    held += static_cast<int64_t>(group.layers.size()) *
            (group.window > 0 ? std::min(tokens, group.window) : tokens);
  }
  return held * impl_->geometry.kv_heads *
         ExactTileBytes(true, impl_->geometry.head_dim, 1, impl_->geometry.latent_dims > 0);
}

int64_t KvCache::free_tokens() const { return impl_->FreeBlocks() * kPageTokens; }

}  // namespace blockgtq
