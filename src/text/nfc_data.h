// Tables of Unicode's canonical composition (nfc_data.cc, generated). Hangul syllables are computed, not
// listed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace blockgtq {

struct NfcDecomposition {
  char32_t code_point, first, second;  // second 0: a single character
};
struct NfcComposition {
  char32_t first, second, code_point;
};
struct NfcClassRange {
  char32_t first, last;
  uint8_t combining_class;
};

extern const NfcDecomposition kNfcDecompositions[];  // by code_point
extern const size_t kNfcDecompositionsCount;
extern const NfcComposition kNfcCompositions[];  // by first, second
extern const size_t kNfcCompositionsCount;
extern const NfcClassRange kNfcClasses[];  // by first; characters outside have class 0
extern const size_t kNfcClassesCount;

}  // namespace blockgtq
