// The instructions of ptx.cuh that are more than a line. Fragments lie as the PTX manual lays them out: lane
// 4 g + t has, of a [16, k], rows g and g + 8; of b [k, 8], column g; of c and d [16, 8], columns 2 t, 2 t
// + 1.

#include "src/core/half.h"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {
namespace {

template <typename T>
struct Fragments {
  uint32_t a[4], b[2];
  T c[4];
};

// c += a b, with kPack elements in a register; decode(x, j) is element j of register x.
template <int kDepth, int kPack, typename T, typename DecodeA, typename DecodeB>
void Multiply(void* const* arguments, DecodeA decode_a, DecodeB decode_b) {
  constexpr int kRegisters = kDepth / (4 * kPack);  // of a lane's column of b; of a, twice as many
  T a[16][kDepth], b[kDepth][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& f = *static_cast<const Fragments<T>*>(arguments[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < kRegisters; ++r) {
      for (int j = 0; j < kPack; ++j) {
        const int k = 4 * kPack * r + kPack * t + j;
        a[g][k] = decode_a(f.a[2 * r], j);
        a[g + 8][k] = decode_a(f.a[2 * r + 1], j);
        b[k][g] = decode_b(f.b[r], j);
      }
    }
  }
  T product[16][8] = {};
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < kDepth; ++k) {
      for (int n = 0; n < 8; ++n) product[i][n] += a[i][k] * b[k][n];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    auto& f = *static_cast<Fragments<T>*>(arguments[lane]);
    for (int e = 0; e < 4; ++e) f.c[e] += product[lane / 4 + 8 * (e >> 1)][2 * (lane % 4) + (e & 1)];
  }
}

int SignedByte(uint32_t x, int j) { return static_cast<int8_t>(x >> 8 * j); }
int UnsignedByte(uint32_t x, int j) { return static_cast<uint8_t>(x >> 8 * j); }
float Half(uint32_t x, int j) { return HalfToFloat(static_cast<uint16_t>(x >> 16 * j)); }

template <int kDepth, int (*kDecodeB)(uint32_t, int)>
void MultiplyBytes(const char* name, int* d, Fragments<int> f) {
  emulator::WarpInstruction(
      name, &f, [](void* const* arguments) { Multiply<kDepth, 4, int>(arguments, SignedByte, kDecodeB); });
  for (int e = 0; e < 4; ++e) d[e] = f.c[e];
}

}  // namespace

uint32_t SelectBytes(uint32_t a, uint32_t b, uint32_t selectors) {
  const uint64_t bytes = a | static_cast<uint64_t>(b) << 32;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t selector = selectors >> 4 * i & 15;
    uint32_t byte = bytes >> 8 * (selector & 7) & 255;
    if ((selector & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;  // its sign, eight times
    result |= byte << 8 * i;
  }
  return result;
}

uint32_t TransposeB16(uint32_t x) {
  emulator::WarpInstruction("TransposeB16", &x, [](void* const* arguments) {
    uint32_t m[8][8];
    for (int lane = 0; lane < 32; ++lane) {
      const uint32_t pair = *static_cast<const uint32_t*>(arguments[lane]);
      m[lane / 4][lane % 4 * 2] = pair & 0xffff;
      m[lane / 4][lane % 4 * 2 + 1] = pair >> 16;
    }
    for (int lane = 0; lane < 32; ++lane) {
      *static_cast<uint32_t*>(arguments[lane]) = m[lane % 4 * 2][lane / 4] | m[lane % 4 * 2 + 1][lane / 4]
                                                                                 << 16;
    }
  });
  return x;
}

void ExchangeMatrixRows(uint32_t (&r)[4], const uint4& row, bool transposed) {
  struct Rows {
    uint16_t row[8];
    uint32_t result[4];
    bool transposed;
  } rows;
  std::memcpy(rows.row, &row, sizeof rows.row);
  rows.transposed = transposed;
  emulator::WarpInstruction("LoadMatrixRows", &rows, [](void* const* arguments) {
    for (int lane = 0; lane < 32; ++lane) {
      auto& to = *static_cast<Rows*>(arguments[lane]);
      for (int m = 0; m < 4; ++m) {
        uint32_t pair = 0;
        for (int e = 0; e < 2; ++e) {
          const int i = lane / 4, j = 2 * (lane % 4) + e;
          const int from = 8 * m + (to.transposed ? j : i);
          pair |= static_cast<uint32_t>(static_cast<const Rows*>(arguments[from])->row[to.transposed ? i : j])
                  << 16 * e;
        }
        to.result[m] = pair;
      }
    }
  });
  for (int m = 0; m < 4; ++m) r[m] = rows.result[m];
}

void MmaS8K32(int* d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  MmaS8K32From(d, a0, a1, a2, a3, b0, b1, {d[0], d[1], d[2], d[3]});
}
void MmaS8K32From(int* d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
                  const Int4& c) {
  MultiplyBytes<32, SignedByte>("MmaS8K32", d, {{a0, a1, a2, a3}, {b0, b1}, {c.x, c.y, c.z, c.w}});
}
void MmaS8K16(int* d, uint32_t a0, uint32_t a1, uint32_t b0) {
  MultiplyBytes<16, SignedByte>("MmaS8K16", d, {{a0, a1, 0, 0}, {b0, 0}, {d[0], d[1], d[2], d[3]}});
}
void MmaS8U8K16(int* d, uint32_t a0, uint32_t a1, uint32_t b0) {
  MmaS8U8K16From(d, a0, a1, b0, {d[0], d[1], d[2], d[3]});
}
void MmaS8U8K16From(int* d, uint32_t a0, uint32_t a1, uint32_t b0, const Int4& c) {
  MultiplyBytes<16, UnsignedByte>("MmaS8U8K16", d, {{a0, a1, 0, 0}, {b0, 0}, {c.x, c.y, c.z, c.w}});
}
void MmaS8U8K32(int* d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  MmaS8U8K32From(d, a0, a1, a2, a3, b0, b1, {d[0], d[1], d[2], d[3]});
}
void MmaS8U8K32From(int* d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
                    const Int4& c) {
  MultiplyBytes<32, UnsignedByte>("MmaS8U8K32", d, {{a0, a1, a2, a3}, {b0, b1}, {c.x, c.y, c.z, c.w}});
}
void MmaF16(float* d, uint4 a, uint32_t b0, uint32_t b1) {
  Fragments<float> f = {{a.x, a.y, a.z, a.w}, {b0, b1}, {d[0], d[1], d[2], d[3]}};
  emulator::WarpInstruction("MmaF16", &f,
                            [](void* const* arguments) { Multiply<16, 2, float>(arguments, Half, Half); });
  for (int e = 0; e < 4; ++e) d[e] = f.c[e];
}
void MmaF16FromZero(float* d, uint4 a, uint32_t b0, uint32_t b1) {
  d[0] = d[1] = d[2] = d[3] = 0;
  MmaF16(d, a, b0, b1);
}

}  // namespace blockgtq::cuda

int atomicAdd(int* p, int value) {
  const int before = *p;
  *p = before + value;
  return before;
}
int atomicMin(int* p, int value) {
  const int before = *p;
  if (value < before) *p = value;
  return before;
}
