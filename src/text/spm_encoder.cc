// SentencePiece's BPE: starts from characters, and of all neighbours whose union is a token joins those with
// the highest score, leftmost first, until none is left. Characters that are no token become their bytes.
#include <algorithm>

#include "src/text/piece_encoder.h"
#include "src/text/utf8.h"

namespace blockgtq {
namespace {

constexpr uint32_t kNone = ~uint32_t{0};
constexpr size_t kMaxPieceBytes = size_t{1} << 30;  // fits the 32-bit links

class SpmEncoder : public PieceEncoder {
 public:
  explicit SpmEncoder(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  void Append(std::string_view piece, std::vector<int32_t>* out) override {
    while (piece.size() > kMaxPieceBytes) {
      Append(piece.substr(0, kMaxPieceBytes), out);
      piece.remove_prefix(kMaxPieceBytes);
    }
    piece_ = piece;
    symbols_.clear();
    for (size_t at = 0; at < piece.size();) {
      const uint32_t index = static_cast<uint32_t>(symbols_.size());
      const uint32_t bytes = static_cast<uint32_t>(FirstUtf8Unit(piece.substr(at)).bytes);
      symbols_.push_back({static_cast<uint32_t>(at), bytes, index == 0 ? kNone : index - 1, index + 1});
      at += bytes;
    }
    if (symbols_.empty()) return;
    symbols_.back().next = kNone;
    heap_.clear();
    for (uint32_t i = 1; i < symbols_.size(); ++i) Push(i - 1, i);
    Merge();
    for (uint32_t i = 0; i != kNone; i = symbols_[i].next) AppendSymbol(Text(symbols_[i]), out);
  }

 private:
  struct Symbol {
    uint32_t begin, bytes;  // bytes 0: joined to the symbol before it
    uint32_t previous, next;
  };
  struct Candidate {
    float score;
    uint32_t left, right;
    uint32_t bytes;  // of both: a candidate is stale when one of them has changed
  };

  static bool Later(const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score < b.score : a.left > b.left;
  }
  std::string_view Text(const Symbol& symbol) const { return piece_.substr(symbol.begin, symbol.bytes); }

  void Push(uint32_t left, uint32_t right) {
    const uint32_t bytes = symbols_[left].bytes + symbols_[right].bytes;
    const int32_t token = vocabulary_.Find(piece_.substr(symbols_[left].begin, bytes));
    if (token < 0) return;
    heap_.push_back({vocabulary_.score(token), left, right, bytes});
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }

  void Merge() {
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), Later);
      const Candidate top = heap_.back();
      heap_.pop_back();
      Symbol &left = symbols_[top.left], &right = symbols_[top.right];
      if (left.bytes == 0 || right.bytes == 0 || left.bytes + right.bytes != top.bytes) continue;
      left.bytes = top.bytes;
      right.bytes = 0;
      left.next = right.next;
      if (left.next != kNone) symbols_[left.next].previous = top.left;
      if (left.previous != kNone) Push(left.previous, top.left);
      if (left.next != kNone) Push(top.left, left.next);
    }
  }

  void AppendSymbol(std::string_view text, std::vector<int32_t>* out) const {
    if (const int32_t token = vocabulary_.Find(text); token >= 0) {
      out->push_back(token);
      return;
    }
    for (const char c : text) {
      const int32_t byte = vocabulary_.byte_tokens()[static_cast<uint8_t>(c)];
      if (byte >= 0) {
        out->push_back(byte);
      } else if (vocabulary_.unk() >= 0) {
        out->push_back(vocabulary_.unk());
        return;
      }
    }
  }

  const Vocabulary& vocabulary_;
  std::string_view piece_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace

std::unique_ptr<PieceEncoder> MakeSpmEncoder(const Vocabulary& vocabulary) {
  return std::make_unique<SpmEncoder>(vocabulary);
}

}  // namespace blockgtq
