// MatMul: prepares the activations once a call, splits the outputs' rows into tasks for the pool, and writes
// the row groups' results out. The arithmetic is in matmul_int8.cc and matmul_float.cc.
#include "src/cpu/matmul.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <type_traits>
#include <vector>

#include "src/cpu/aligned_buffer.h"
#include "src/cpu/matmul_kernels.h"

namespace blockgtq::cpu {
namespace {

// Bytes of weights a task: large enough to hide a task's hand-out, small enough to balance the threads.
constexpr int64_t kTaskBytes = 16 << 10;
// Row groups a task of several tokens: a core fetches the group after the one that it works on.
constexpr int64_t kTaskGroups = 3;
// Row groups up to this size are fetched into the L1 cache ahead of their use (7 -> 10 GB/s a core at 576
// columns of Q4_1); larger ones would push out what is in use, and their long rows suit the hardware's
// prefetch.
constexpr int64_t kPrefetchBytes = 24 << 10;
// Bytes of prepared activations that the row groups of a task share, so that they stay in a core's L2 cache.
constexpr int64_t kTokenBlockBytes = 1 << 20;
// Below this many activations, preparing them on the calling thread is faster than a parallel region.
constexpr int64_t kParallelActivations = 8 << 10;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct WorkerScratch {
  AlignedBuffer<float> sums;    // [tokens of a block, rows of a group]
  AlignedBuffer<float> panel;   // float kernels
  AlignedBuffer<uint8_t> rows;  // the rows of an incomplete group, zero-padded
};

bool IsFloat(TensorType type) {
  return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16;
}

// How one kind of kernel sees the call: its tokens in blocks, whose prepared activations are contiguous.
struct Preparation {
  bool used = false;
  int64_t block_tokens = 0;
  int64_t token_bytes = 0;  // prepared activations of one token
  std::byte* x = nullptr;
};

// One output as the tasks see it. Its task i computes `groups` row groups for one block of tokens.
struct Work {
  const MatMulOutput* output;
  const Preparation* input;
  bool is_float;
  int64_t group_rows;
  int64_t groups_per_task;
  int64_t tasks_per_block;
  int64_t first_task;
};

// Blocks of about equal size, a multiple of `multiple` tokens, within kTokenBlockBytes where possible.
int64_t TokensPerBlock(int64_t tokens, int64_t token_bytes, int64_t multiple) {
  const int64_t most =
      std::max(kTokenBlockBytes / std::max(token_bytes, int64_t{1}) / multiple, int64_t{1}) * multiple;
  return CeilDiv(CeilDiv(tokens, CeilDiv(tokens, std::max(most, int64_t{4} * multiple))), multiple) *
         multiple;
}

// Packs tokens [0, tokens) of x into FloatKernels' layout.
void PackTile(const float* x, int64_t x_stride, int64_t tokens, int64_t cols, float* out) {
  if (tokens == 1) {
    std::copy_n(x, cols, out);
    return;
  }
  for (int64_t k = 0; k < cols; ++k) {
    for (int64_t t = 0; t < tokens; ++t) out[k * tokens + t] = x[t * x_stride + k];
  }
}

// y [tokens, y_stride] from the sums of a row group [tokens, group_rows], of which `rows` exist. Rows: an
// integer, or a constant of the compiler's.
template <class Rows>
void StoreRows(const MatMulOutput& output, int64_t first_row, Rows rows, int64_t group_rows,
               int64_t first_token, int64_t tokens, const float* sums) {
  for (int64_t t = 0; t < tokens; ++t) {
    float* y = output.y + (first_token + t) * output.y_stride + first_row;
    const float* sum = sums + t * group_rows;
    if (output.bias == nullptr && !output.accumulate) {
      std::copy_n(sum, rows, y);
      continue;
    }
    for (int64_t r = 0; r < rows; ++r) {
      float value = sum[r];
      if (output.bias != nullptr) value += output.bias[first_row + r];
      if (output.accumulate) value += y[r];
      y[r] = value;
    }
  }
}

void StoreGroup(const MatMulOutput& output, int64_t first_row, int64_t rows, int64_t group_rows,
                int64_t first_token, int64_t tokens, const float* sums) {
  constexpr std::integral_constant<int64_t, 16> kSixteen;  // a whole group of the widest vectors
  if (rows == kSixteen) {
    StoreRows(output, first_row, kSixteen, group_rows, first_token, tokens, sums);
  } else {
    StoreRows(output, first_row, rows, group_rows, first_token, tokens, sums);
  }
}

}  // namespace

struct MatMulScratch::Impl {
  AlignedBuffer<QuantBlock> quantized;  // [block][cols / 32, tokens of the block]
  AlignedBuffer<float> packed;
  std::vector<WorkerScratch> workers;
};

MatMulScratch::MatMulScratch() : impl_(std::make_unique<Impl>()) {}
MatMulScratch::~MatMulScratch() = default;

namespace {

// One call of MatMul.
class Call {
 public:
  Call(ThreadPool& pool, const float* x, int64_t tokens, int64_t x_stride, MatMulScratch::Impl& scratch)
      : pool_(pool), x_(x), tokens_(tokens), x_stride_(x_stride), scratch_(scratch) {
    scratch.workers.resize(
        static_cast<size_t>(std::max<int64_t>(pool.threads(), static_cast<int64_t>(scratch.workers.size()))));
  }

  void Run(ActivationMode mode, std::span<const MatMulOutput> outputs) {
    cols_ = outputs.front().weight.cols;
    for (const MatMulOutput& output : outputs) {
      assert(output.weight.cols == cols_ && "the outputs of a call share their input");
      const bool is_float = mode == ActivationMode::kFloat || IsFloat(output.weight.type);
      (is_float ? packed_ : quantized_).used = true;
    }
    if (quantized_.used) Quantize();
    if (packed_.used) Pack();
    int64_t tasks = 0;
    for (const MatMulOutput& output : outputs) {
      if (output.weight.rows == 0) continue;
      AddWork(output, mode == ActivationMode::kFloat || IsFloat(output.weight.type), tasks);
      const Work& last = work_[work_count_ - 1];
      tasks += last.tasks_per_block * CeilDiv(tokens_, last.input->block_tokens);
      if (work_count_ == kMaxWork) {
        Execute(tasks);
        work_count_ = 0;
        tasks = 0;
      }
    }
    Execute(tasks);
  }

 private:
  static constexpr int kMaxWork = 8;  // outputs in one parallel region

  void Quantize() {
    const int64_t blocks = cols_ / 32;
    quantized_.token_bytes = blocks * static_cast<int64_t>(sizeof(QuantBlock));
    quantized_.block_tokens = TokensPerBlock(tokens_, quantized_.token_bytes, 8);
    auto* out = scratch_.quantized.Reserve(static_cast<size_t>(tokens_ * blocks));
    quantized_.x = reinterpret_cast<std::byte*>(out);
    const int64_t step = 8;  // tokens a task, a divisor of block_tokens
    const auto body = [&](int64_t task, int) {
      const int64_t first = task * step;
      const int64_t block = first / quantized_.block_tokens * quantized_.block_tokens;
      const int64_t in_block = std::min(quantized_.block_tokens, tokens_ - block);
      int8_.quantize(x_ + first * x_stride_, x_stride_, std::min(step, tokens_ - first), cols_,
                     out + block * blocks + (first - block), in_block);
    };
    ForEach(CeilDiv(tokens_, step), body);
  }

  void Pack() {
    const int64_t tile = float_.tile_tokens;
    packed_.token_bytes = cols_ * static_cast<int64_t>(sizeof(float));
    packed_.block_tokens = TokensPerBlock(tokens_, packed_.token_bytes, tile);
    auto* out = scratch_.packed.Reserve(static_cast<size_t>(tokens_ * cols_));
    packed_.x = reinterpret_cast<std::byte*>(out);
    ForEach(CeilDiv(tokens_, tile), [&](int64_t task, int) {
      const int64_t first = task * tile;
      PackTile(x_ + first * x_stride_, x_stride_, std::min(tile, tokens_ - first), cols_,
               out + first * cols_);
    });
  }

  template <class Body>
  void ForEach(int64_t tasks, const Body& body) {
    if (tokens_ * cols_ >= kParallelActivations) {
      pool_.Run(tasks, body);
    } else {
      for (int64_t task = 0; task < tasks; ++task) body(task, 0);
    }
  }

  void AddWork(const MatMulOutput& output, bool is_float, int64_t first_task) {
    Work& work = work_[work_count_++];
    work.output = &output;
    work.is_float = is_float;
    work.input = is_float ? &packed_ : &quantized_;
    work.group_rows = is_float ? float_.group_rows : int8_.group_rows;
    assert(output.weight.row_bytes() <= INT32_MAX);
    const int64_t groups = CeilDiv(output.weight.rows, work.group_rows);
    // Many tokens make a task long enough by themselves.
    const int64_t group_bytes = work.group_rows * output.weight.row_bytes() * std::min<int64_t>(tokens_, 16);
    const int64_t most = std::max<int64_t>(1, groups / (4 * static_cast<int64_t>(pool_.threads())));
    const int64_t least = std::min(tokens_ > 1 ? kTaskGroups : int64_t{1}, most);
    work.groups_per_task = std::clamp(kTaskBytes / std::max<int64_t>(group_bytes, 1), least, most);
    work.tasks_per_block = CeilDiv(groups, work.groups_per_task);
    work.first_task = first_task;
  }

  void Execute(int64_t tasks) {
    if (tasks == 0) return;
    pool_.Run(tasks, [this](int64_t task, int worker) {
      int index = work_count_ - 1;
      while (work_[index].first_task > task) --index;
      const Work& work = work_[index];
      const int64_t local = task - work.first_task;
      RunTask(work, local / work.tasks_per_block, local % work.tasks_per_block,
              scratch_.workers[static_cast<size_t>(worker)]);
    });
  }

  void RunTask(const Work& work, int64_t block, int64_t chunk, WorkerScratch& scratch) const {
    const TensorView& weight = work.output->weight;
    const int64_t first_token = block * work.input->block_tokens;
    const int64_t row_bytes = weight.row_bytes();
    GroupArgs args{};
    args.type = weight.type;
    args.row_bytes = row_bytes;
    args.cols = cols_;
    args.tokens = std::min(work.input->block_tokens, tokens_ - first_token);
    args.x = work.input->x + first_token * work.input->token_bytes;
    args.y = scratch.sums.Reserve(static_cast<size_t>(args.tokens * work.group_rows));
    if (work.is_float) args.panel_scratch = scratch.panel.Reserve(static_cast<size_t>(float_.panel_floats));

    const int64_t group_bytes = work.group_rows * row_bytes;
    const int64_t begin = chunk * work.groups_per_task * work.group_rows;
    const int64_t end = std::min(begin + work.groups_per_task * work.group_rows, weight.rows);
    for (int64_t row = begin; row < end; row += work.group_rows) {
      const int64_t rows = std::min(work.group_rows, weight.rows - row);
      args.weights = reinterpret_cast<const uint8_t*>(weight.data) + row * row_bytes;
      args.prefetch_next = row + 2 * work.group_rows <= weight.rows && group_bytes <= kPrefetchBytes;
      if (rows < work.group_rows) {
        auto* padded = scratch.rows.Reserve(static_cast<size_t>(work.group_rows * row_bytes));
        std::memcpy(padded, args.weights, static_cast<size_t>(rows * row_bytes));
        std::memset(padded + rows * row_bytes, 0, static_cast<size_t>((work.group_rows - rows) * row_bytes));
        args.weights = padded;
      }
      (work.is_float ? float_.multiply : int8_.multiply)(args);
      StoreGroup(*work.output, row, rows, work.group_rows, first_token, args.tokens, args.y);
    }
  }

  const Int8Kernels& int8_ = BestInt8Kernels();
  const FloatKernels& float_ = BestFloatKernels();
  ThreadPool& pool_;
  const float* x_;  // [tokens, cols]
  int64_t tokens_;
  int64_t x_stride_;
  int64_t cols_ = 0;
  MatMulScratch::Impl& scratch_;
  Preparation quantized_, packed_;
  Work work_[kMaxWork];
  int work_count_ = 0;
};

}  // namespace

void MatMul(ThreadPool& pool, ActivationMode mode, std::span<const MatMulOutput> outputs, const float* x,
            int64_t tokens, int64_t x_stride, MatMulScratch& scratch) {
  if (outputs.empty() || tokens <= 0) return;
  Call(pool, x, tokens, x_stride, scratch.impl()).Run(mode, outputs);
}

}  // namespace blockgtq::cpu
