// BPE from bytes, and BPE from characters with their bytes to fall back on (Hugging Face's BPE with
// byte_fallback).
#include "src/text/piece_encoder.h"

#include "src/text/bpe.h"
#include "src/text/utf8.h"

namespace blockgtq {
namespace {

class ByteEncoder : public PieceEncoder {
 public:
  explicit ByteEncoder(const Vocabulary& vocabulary)
      : vocabulary_(vocabulary), merger_(vocabulary.merges()) {}

  void Append(std::string_view piece, std::vector<int32_t>* out) override {
    symbols_.clear();
    for (const char c : piece) {
      const int32_t token = vocabulary_.byte_tokens()[static_cast<uint8_t>(c)];
      if (token >= 0 || vocabulary_.source() == VocabSource::kGguf) {
        symbols_.push_back(token);  // -1 keeps its neighbours from merging
      } else if (vocabulary_.unk() >= 0) {
        const bool joins =
            vocabulary_.fuse_unk() && !symbols_.empty() && symbols_.back() == vocabulary_.unk();
        if (!joins) symbols_.push_back(vocabulary_.unk());
      }
    }
    merger_.Append(symbols_, out);
  }

 private:
  const Vocabulary& vocabulary_;
  BpeMerger merger_;
  std::vector<int32_t> symbols_;
};

class CharacterEncoder : public PieceEncoder {
 public:
  explicit CharacterEncoder(const Vocabulary& vocabulary)
      : vocabulary_(vocabulary), merger_(vocabulary.merges()) {}

  void Append(std::string_view piece, std::vector<int32_t>* out) override {
    symbols_.clear();
    bool unknown = false;  // an unknown token waits for the end of its run
    const auto flush = [&] {
      if (unknown) symbols_.push_back(vocabulary_.unk());
      unknown = false;
    };
    while (!piece.empty()) {
      const std::string_view character = piece.substr(0, FirstUtf8Unit(piece).bytes);
      piece.remove_prefix(character.size());
      if (const int32_t token = vocabulary_.Find(character); token >= 0) {
        flush();
        symbols_.push_back(token);
      } else if (!AppendBytes(character) && vocabulary_.unk() >= 0) {
        if (!vocabulary_.fuse_unk()) flush();
        unknown = true;
      }
    }
    flush();
    merger_.Append(symbols_, out);
  }

 private:
  // False when one of the bytes has no token.
  bool AppendBytes(std::string_view character) {
    const auto bytes = vocabulary_.byte_tokens();
    for (const char c : character) {
      if (bytes[static_cast<uint8_t>(c)] < 0) return false;
    }
    for (const char c : character) symbols_.push_back(bytes[static_cast<uint8_t>(c)]);
    return true;
  }

  const Vocabulary& vocabulary_;
  BpeMerger merger_;
  std::vector<int32_t> symbols_;
};

}  // namespace

std::unique_ptr<PieceEncoder> MakePieceEncoder(const Vocabulary& vocabulary) {
  if (vocabulary.model() == TokenModel::kScores) return MakeSpmEncoder(vocabulary);
  if (vocabulary.text() == TokenText::kMetaspace) return std::make_unique<CharacterEncoder>(vocabulary);
  return std::make_unique<ByteEncoder>(vocabulary);
}

}  // namespace blockgtq
