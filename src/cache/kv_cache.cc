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
namespace {

constexpr int kMaxSinks = 64;
constexpr int kSinkUnit = 16;

int64_t PagesOf(int64_t tokens) { return tokens / kPageTokens + (tokens % kPageTokens != 0); }

Status Invalid(std::string message) { return Status(ErrorCode::kInvalidArgument, std::move(message)); }

Status CheckOptions(const CacheGeometry& geometry, const CacheOptions& options) {
  if (geometry.layers < 1 || geometry.kv_heads < 1 || geometry.head_dim < 1) {
    return Invalid(fmt::format("KV cache: {} layers, {} KV heads and head dim {}: each must be at least 1",
                               geometry.layers, geometry.kv_heads, geometry.head_dim));
  }
  if (geometry.latent_dims < 0 || geometry.latent_dims > geometry.head_dim) {
    return Invalid(fmt::format("KV cache: {} latent dims do not fit head dim {}", geometry.latent_dims,
                               geometry.head_dim));
  }
  if (options.max_tokens < 1 || options.max_tokens > std::numeric_limits<int64_t>::max() - kPageTokens) {
    return Invalid(
        fmt::format("KV cache: capacity of {} tokens: give a number from 1 up", options.max_tokens));
  }
  if (options.kind != CacheKind::kPacked && options.kind != CacheKind::kSimulated) return Status::Ok();
  if (options.sinks < 0 || options.sinks > kMaxSinks) {
    return Invalid(fmt::format("KV cache: {} sinks: give 0 to {}", options.sinks, kMaxSinks));
  }
  if (options.recent < 0 || options.recent > std::numeric_limits<int>::max() - 4 * kPageTokens) {
    return Invalid(fmt::format("KV cache: {} recent tokens: give 0 or more", options.recent));
  }
  return Status::Ok();
}

Status CheckPlan(const CacheGeometry& geometry, const Plan* plan) {
  if (plan == nullptr) return Invalid("KV cache: the packed kind needs a plan");
  const auto expect = [](const char* field, int64_t planned, int64_t wanted) {
    if (planned == wanted) return Status::Ok();
    return Status(ErrorCode::kMismatch,
                  fmt::format("KV cache: the plan has {} {}, the model {}: calibrate this model", field,
                              planned, wanted));
  };
  BGTQ_RETURN_IF_ERROR(expect("layers", plan->model.layers, geometry.layers));
  BGTQ_RETURN_IF_ERROR(expect("kv_heads", plan->model.kv_heads, geometry.kv_heads));
  BGTQ_RETURN_IF_ERROR(expect("head_dim", plan->model.head_dim, geometry.head_dim));
  BGTQ_RETURN_IF_ERROR(expect("head plans", static_cast<int64_t>(plan->heads.size()),
                              CheckedMultiply(geometry.layers, geometry.kv_heads)));
  for (const HeadPlan& head : plan->heads) {
    BGTQ_RETURN_IF_ERROR(expect("a head whose head_dim is", head.head_dim, geometry.head_dim));
    BGTQ_RETURN_IF_ERROR(expect("a head whose latent_dims is", head.latent_dims, geometry.latent_dims));
  }
  return Status::Ok();
}

Status CheckSimulated(const CacheGeometry& geometry, const CacheOptions& options) {
  const SimulatedHeads* simulated = options.simulated.get();
  if (simulated == nullptr) return Invalid("KV cache: the simulated kind needs simulated heads");
  if (simulated->layers != geometry.layers || simulated->kv_heads != geometry.kv_heads ||
      simulated->head_dim != geometry.head_dim ||
      simulated->heads.size() != static_cast<size_t>(geometry.layers) * geometry.kv_heads) {
    return Status(
        ErrorCode::kMismatch,
        fmt::format(
            "KV cache: recipe {} is simulated for {} layers, {} KV heads and head dim {}, the model has "
            "{}, {} and {}",
            simulated->recipe, simulated->layers, simulated->kv_heads, simulated->head_dim, geometry.layers,
            geometry.kv_heads, geometry.head_dim));
  }
  const int unit = simulated->token_unit();
  if (unit < 1 || kPageTokens % unit != 0) {
    return Invalid(
        fmt::format("KV cache: recipe {} codes {} tokens together, which does not divide a page of {}",
                    simulated->recipe, unit, kPageTokens));
  }
  if (unit > 1 && options.recent < unit) {
    return Invalid(
        fmt::format("KV cache: recipe {} codes {} tokens together and keeps those of an unfinished group "
                    "exactly: give --recent {} or more",
                    simulated->recipe, unit, unit));
  }
  return Status::Ok();
}

// Bytes of an exact tile, or -1 when they do not fit.
int64_t TileBytes(bool half, const CacheGeometry& geometry, int tile_tokens) {
  return CheckedMultiply(ExactTileBytes(half, 1, tile_tokens, geometry.latent_dims > 0), geometry.head_dim);
}

}  // namespace

KvCache::Impl::Sequence& KvCache::Impl::At(SequenceId id) const {
  assert(id >= 0 && static_cast<size_t>(id) < sequences.size() && sequences[id] != nullptr);
  return *sequences[id];
}

KvCache::Impl::TileRange KvCache::Impl::WindowRange(const SequenceState& state) const {
  if (window_tiles == 0 || state.coded_end == state.length) return {};
  return {state.coded_end / kPageTokens, PagesOf(state.length)};
}

Status KvCache::Impl::EraseCodes(int32_t block, int first_slot) {
  if (!packed()) return Status::Ok();  // simulated: tokens past coded_end are never read
  std::vector<std::byte> bytes(static_cast<size_t>(pool.block_bytes()));
  BGTQ_RETURN_IF_ERROR(memory().Read(bytes.data(), pool.Page(0, block), pool.block_bytes()));
  for (int layer = 0; layer < geometry.layers; ++layer) {
    for (int head = 0; head < geometry.kv_heads; ++head) {
      const size_t index = HeadIndex(layer, head);
      EraseTokens(layouts[index], plan->heads[index], first_slot,
                  {bytes.data() + pool.layer_offset(layer) + head_offset[index],
                   static_cast<size_t>(head_bytes[index])});
    }
  }
  return memory().Write(pool.Page(0, block), bytes.data(), pool.block_bytes());
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
  size_t id = 0;
  while (id < sequences.size() && sequences[id] != nullptr) ++id;
  if (id == sequences.size()) sequences.emplace_back();
  sequences[id] = std::move(sequence);
  return static_cast<SequenceId>(id);
}

KvCache::KvCache() : impl_(std::make_unique<Impl>()) {}
KvCache::~KvCache() = default;

Result<std::unique_ptr<KvCache>> KvCache::Create(const CacheGeometry& geometry, const CacheOptions& options,
                                                 const Plan* plan) {
  BGTQ_RETURN_IF_ERROR(CheckOptions(geometry, options));
  std::unique_ptr<KvCache> cache(new KvCache);
  Impl& impl = *cache->impl_;
  impl.geometry = geometry;
  impl.options = options;
  if (options.memory == nullptr) impl.options.memory = &HostMemory();
  const int64_t pages = PagesOf(options.max_tokens);
  const Status too_large(ErrorCode::kOutOfMemory,
                         fmt::format("KV cache of {} tokens, {} recent: its size does not fit 64 bits",
                                     options.max_tokens, options.recent));
  const int64_t capacity = CheckedMultiply(pages, kPageTokens);
  const int64_t heads = CheckedMultiply(geometry.layers, geometry.kv_heads);
  if (capacity < 0 || heads > std::numeric_limits<int32_t>::max()) return too_large;
  impl.options.max_tokens = capacity;

  if (impl.coded()) {
    if (impl.packed()) {
      BGTQ_RETURN_IF_ERROR(CheckPlan(geometry, plan));
      impl.plan = plan;
    } else {
      BGTQ_RETURN_IF_ERROR(CheckSimulated(geometry, options));
    }
    impl.sink_tile_tokens = (options.sinks + kSinkUnit - 1) / kSinkUnit * kSinkUnit;
    if (options.recent > 0) {
      // At most recent + 64 tokens are exact, from the start of a page (or later in it) on.
      // No sequence is longer than the cache.
      impl.window_tiles = static_cast<int>(std::min<int64_t>(
          (options.recent + kPageTokens - 1) / kPageTokens + 1, (options.max_tokens - 1) / kPageTokens + 1));
    }
    impl.window_tile_bytes = TileBytes(true, geometry, kPageTokens);
    impl.sink_tile_bytes = TileBytes(true, geometry, impl.sink_tile_tokens);
    const int64_t window = CheckedMultiply(impl.window_tile_bytes, impl.window_tiles);
    if (window < 0 || window > std::numeric_limits<int64_t>::max() - impl.sink_tile_bytes) return too_large;
    impl.exact_bytes = CheckedMultiply(window + impl.sink_tile_bytes, heads);
    if (impl.exact_bytes < 0) return too_large;
  } else {
    impl.options.sinks = impl.options.recent = 0;  // every token is exact anyway
  }
  if (options.kind != CacheKind::kSimulated) impl.options.simulated = nullptr;

  std::vector<int64_t> page_bytes(geometry.layers, 0);
  for (int layer = 0; layer < geometry.layers; ++layer) {
    for (int head = 0; head < geometry.kv_heads; ++head) {
      int64_t bytes;
      if (impl.packed()) {
        impl.layouts.push_back(RecordLayout::For(plan->head(layer, head)));
        bytes = impl.layouts.back().bytes;
        if (bytes <= 0) {
          return Invalid(
              fmt::format("KV cache: the plan stores nothing for layer {}, KV head {}", layer, head));
        }
      } else if (impl.coded()) {
        bytes = CheckedMultiply(2, TileBytes(false, geometry, kPageTokens));
      } else {
        bytes = TileBytes(options.kind == CacheKind::kHalf, geometry, kPageTokens);
      }
      impl.head_bytes.push_back(bytes);
      impl.head_offset.push_back(page_bytes[layer]);
      if (__builtin_add_overflow(page_bytes[layer], bytes, &page_bytes[layer])) return too_large;
    }
  }
  BGTQ_ASSIGN_OR_RETURN(impl.pool, PagePool::Create(impl.memory(), std::move(page_bytes), pages,
                                                    fmt::format("KV cache of {} tokens", capacity)));
  return cache;
}

const CacheGeometry& KvCache::geometry() const { return impl_->geometry; }
const CacheOptions& KvCache::options() const { return impl_->options; }
const Plan* KvCache::plan() const { return impl_->plan; }

Result<SequenceId> KvCache::AddSequence() { return impl_->Add(); }

void KvCache::RemoveSequence(SequenceId sequence) {
  impl_->pool.Release(impl_->At(sequence).blocks);
  impl_->sequences[sequence] = nullptr;
}

SequenceState KvCache::state(SequenceId sequence) const { return impl_->At(sequence).state; }

Result<SequenceId> KvCache::ForkSequence(SequenceId source, int64_t tokens, bool share) {
  Impl& impl = *impl_;
  const Impl::Sequence& from = impl.At(source);
  if (tokens < 0 || tokens > from.state.length) {
    return Invalid(
        fmt::format("KV cache: fork of {} tokens from a sequence of {}", tokens, from.state.length));
  }
  const SequenceState state{tokens, std::min(from.state.coded_end, tokens)};
  const int64_t final_tokens = impl.coded() ? state.coded_end : tokens;  // those whose page bytes are final
  // Codes that may still be narrowed are a sequence's own.
  const bool narrows =
      impl.options.simulated != nullptr && impl.options.simulated->ChangesAfter(0) != SimulatedHead::kNever;
  const int64_t shared = share && !narrows ? final_tokens / kPageTokens : 0;
  const int64_t own = PagesOf(tokens) - shared;
  if (own > impl.pool.free_blocks()) {
    return Status(ErrorCode::kOutOfMemory,
                  fmt::format("KV cache: a fork needs {} tokens of its own, {} of {} are free: remove a "
                              "sequence or make the cache larger",
                              own * kPageTokens, free_tokens(), impl.options.max_tokens));
  }
  BGTQ_ASSIGN_OR_RETURN(const SequenceId id, impl.Add());
  Impl::Sequence& to = impl.At(id);
  to.state = state;
  const auto fill = [&]() -> Status {
    for (int64_t page = 0; page < PagesOf(tokens); ++page) {
      if (page < shared) {
        impl.pool.Retain(from.blocks[page]);
        to.blocks.push_back(from.blocks[page]);
        continue;
      }
      to.blocks.push_back(impl.pool.Allocate());
      if (page * kPageTokens >= final_tokens) continue;  // nothing stored in it yet
      BGTQ_RETURN_IF_ERROR(impl.pool.Copy(from.blocks[page], to.blocks.back()));
      if (impl.coded() && final_tokens < (page + 1) * kPageTokens) {
        BGTQ_RETURN_IF_ERROR(impl.EraseCodes(to.blocks.back(), static_cast<int>(final_tokens % kPageTokens)));
      }
    }
    return impl.CopyExact(from, to);
  };
  Status filled = fill();
  if (filled.ok()) return id;
  RemoveSequence(id);
  return filled;
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
  if (pages > impl.pool.free_blocks()) {
    return Status(ErrorCode::kOutOfMemory,
                  fmt::format("KV cache: {} tokens wanted, {} of {} are free", pages * kPageTokens,
                              free_tokens(), impl.options.max_tokens));
  }
  std::vector<int32_t> copies;
  for (int64_t page = 0; page < pages; ++page) {
    copies.push_back(impl.pool.Allocate());
    Status copied = impl.pool.Copy(sequence.blocks[static_cast<size_t>(page % whole)], copies.back());
    if (copied.ok()) continue;
    impl.pool.Release(copies);
    return copied;
  }
  sequence.blocks.insert(sequence.blocks.begin() + whole, copies.begin(), copies.end());
  state.length += pages * kPageTokens;
  if (impl.coded()) state.coded_end += pages * kPageTokens;
  return Status::Ok();
}

Status KvCache::Reserve(SequenceId id, int64_t tokens) {
  Impl& impl = *impl_;
  Impl::Sequence& sequence = impl.At(id);
  if (tokens < 0) return Invalid(fmt::format("KV cache: room for {} tokens asked", tokens));
  const int64_t pages = static_cast<int64_t>(sequence.blocks.size());
  const int64_t first_written =
      (impl.coded() ? sequence.state.coded_end : sequence.state.length) / kPageTokens;
  int64_t copies = 0;
  for (int64_t page = first_written; page < pages; ++page) {
    copies += impl.pool.references(sequence.blocks[page]) > 1;
  }
  const bool within = tokens <= impl.options.max_tokens - sequence.state.length;
  const int64_t wanted = within ? std::max(PagesOf(sequence.state.length + tokens), pages) : 0;
  if (!within || wanted - pages + copies > impl.pool.free_blocks()) {
    const int64_t room = (impl.pool.free_blocks() - copies + pages) * kPageTokens - sequence.state.length;
    return Status(
        ErrorCode::kOutOfMemory,
        fmt::format("KV cache: {} tokens wanted, {} of {} are free: remove or shorten a sequence, or "
                    "make the cache larger",
                    tokens, std::max<int64_t>(room, 0), impl.options.max_tokens));
  }
  for (int64_t page = first_written; page < pages; ++page) {
    int32_t& block = sequence.blocks[page];
    if (impl.pool.references(block) == 1) continue;
    const int32_t copy = impl.pool.Allocate();
    const Status copied = impl.pool.Copy(block, copy);
    impl.pool.Release({copied.ok() ? &block : &copy, 1});
    BGTQ_RETURN_IF_ERROR(copied);
    block = copy;
  }
  while (static_cast<int64_t>(sequence.blocks.size()) < wanted) {
    sequence.blocks.push_back(impl.pool.Allocate());
  }
  return Status::Ok();
}

void KvCache::Commit(SequenceId id, int64_t tokens, int64_t coded_end) {
  Impl::Sequence& sequence = impl_->At(id);
  SequenceState& state = sequence.state;
  assert(tokens >= 0 && PagesOf(state.length + tokens) <= static_cast<int64_t>(sequence.blocks.size()));
  assert(coded_end >= state.coded_end && coded_end <= state.length + tokens);
  assert(impl_->coded() || coded_end == 0);
  state.length += tokens;
  state.coded_end = coded_end;
}

Status KvCache::Truncate(SequenceId id, int64_t length) {
  Impl& impl = *impl_;
  Impl::Sequence& sequence = impl.At(id);
  if (length < 0 || length > sequence.state.length) {
    return Invalid(
        fmt::format("KV cache: truncation to {} tokens of a sequence of {}", length, sequence.state.length));
  }
  const int64_t pages = PagesOf(length);
  const std::span<const int32_t> dropped = std::span(sequence.blocks).subspan(static_cast<size_t>(pages));
  const bool erase = length < sequence.state.coded_end && length % kPageTokens != 0;
  const bool copy = erase && impl.pool.references(sequence.blocks[pages - 1]) > 1;
  if (copy && impl.pool.free_blocks() == 0 &&
      std::none_of(dropped.begin(), dropped.end(),
                   [&](int32_t block) { return impl.pool.references(block) == 1; })) {
    return Status(ErrorCode::kOutOfMemory,
                  fmt::format("KV cache: truncation to {} tokens must copy a shared page, 0 tokens of {} are "
                              "free: remove a sequence or make the cache larger",
                              length, impl.options.max_tokens));
  }
  impl.pool.Release(dropped);
  sequence.blocks.resize(static_cast<size_t>(pages));
  if (copy) {
    int32_t& block = sequence.blocks.back();
    const int32_t own = impl.pool.Allocate();
    const Status copied = impl.pool.Copy(block, own);
    impl.pool.Release({copied.ok() ? &block : &own, 1});
    BGTQ_RETURN_IF_ERROR(copied);
    block = own;
  }
  if (erase) {
    BGTQ_RETURN_IF_ERROR(impl.EraseCodes(sequence.blocks.back(), static_cast<int>(length % kPageTokens)));
  }
  sequence.state = {length, std::min(sequence.state.coded_end, length)};
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

std::byte* KvCache::pool_base() const { return impl_->pool.Page(0, 0); }
int64_t KvCache::block_bytes() const { return impl_->pool.block_bytes(); }
int64_t KvCache::layer_offset(int layer) const { return impl_->pool.layer_offset(layer); }
int64_t KvCache::head_offset(int layer, int kv_head) const {
  return impl_->head_offset[impl_->HeadIndex(layer, kv_head)];
}
std::span<const int32_t> KvCache::blocks(SequenceId sequence) const { return impl_->At(sequence).blocks; }
std::byte* KvCache::exact_base(SequenceId sequence) const { return impl_->At(sequence).exact.data(); }

int64_t KvCache::SequenceBytes(SequenceId sequence) const {
  const int64_t pages = static_cast<int64_t>(impl_->At(sequence).blocks.size());
  if (impl_->options.simulated == nullptr) return pages * impl_->pool.block_bytes() + impl_->exact_bytes;
  const int64_t coded = impl_->At(sequence).state.coded_end;
  const double page = impl_->options.simulated->bytes_per_token_per_head(coded) * kPageTokens *
                      static_cast<double>(impl_->options.simulated->heads.size());
  return std::llround(static_cast<double>(pages) * page) + impl_->exact_bytes;
}

int64_t KvCache::HalfBytes(int64_t tokens) const {
  return tokens * impl_->geometry.layers * impl_->geometry.kv_heads *
         ExactTileBytes(true, impl_->geometry.head_dim, 1, impl_->geometry.latent_dims > 0);
}

int64_t KvCache::free_tokens() const { return impl_->pool.free_blocks() * kPageTokens; }

}  // namespace blockgtq
