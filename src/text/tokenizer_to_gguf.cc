// See tokenizer_to_gguf.h. Keys and kinds of tokens: gguf-py of llama.cpp (constants.py, vocab.py).
#include "src/text/tokenizer_to_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "src/formats/message.h"
#include "src/text/piece_encoder.h"
#include "src/text/pre_tokenizer.h"
#include "src/text/vocabulary.h"

namespace blockgtq {
namespace {

Status Unsupported(std::string message) {
  return Status(ErrorCode::kUnsupported, "tokenizer.json: " + std::move(message));
}

/// Whether the merges make of each normal token's text that token: then it does not matter whether a piece
/// that is a token as a whole is looked up first.
Result<bool> MergesReachEveryToken(const TokenizerParts& parts) {
  const std::vector<std::string_view> tokens(parts.tokens.begin(), parts.tokens.end());
  const std::vector<std::pair<std::string_view, std::string_view>> merges(parts.merges.begin(),
                                                                          parts.merges.end());
  TokenizerVocab vocab;
  vocab.source = VocabSource::kTokenizerJson;
  vocab.tokens = tokens;
  vocab.types = parts.types;
  vocab.merge_pairs = merges;
  BGTQ_ASSIGN_OR_RETURN(const Vocabulary vocabulary, Vocabulary::Build(vocab));
  const auto encoder = MakePieceEncoder(vocabulary);
  std::vector<int32_t> made;
  for (int32_t t = 0; t < vocabulary.size(); ++t) {
    if (vocabulary.type(t) != TokenType::kNormal || vocabulary.Piece(t).empty()) continue;
    made.clear();
    encoder->Append(vocabulary.Piece(t), &made);
    if (made != std::vector<int32_t>{t}) return false;
  }
  return true;
}

Result<std::string_view> PreTokenizerFor(const TokenizerParts& parts, std::string_view preferred) {
  std::vector<PreTokenizerName> names = PreTokenizer::NamesOf(parts.pre_tokenizer);
  if (names.empty()) {
    return Unsupported("the pre-tokenizer's steps are those of no tokenizer.ggml.pre that this build knows");
  }
  std::stable_partition(names.begin(), names.end(), [&](const auto& n) { return n.name == preferred; });
  const auto same = std::find_if(names.begin(), names.end(), [&](const PreTokenizerName& n) {
    return n.whole_piece_first == parts.whole_piece_first;
  });
  if (same != names.end()) return same->name;
  BGTQ_ASSIGN_OR_RETURN(const bool immaterial, MergesReachEveryToken(parts));
  if (immaterial) return names.front().name;
  return Unsupported(fmt::format(
      "model.ignore_merges is {}, but tokenizer.ggml.pre \"{}\", which has the same steps, means {}",
      parts.whole_piece_first, names.front().name, names.front().whole_piece_first));
}

class Writer {
 public:
  Writer(const TokenizerParts& parts, int64_t tokens) : parts_(parts), tokens_(tokens) {}

  Result<GgufTokenizer> Write(const std::optional<std::string>& chat_template, std::string_view preferred) {
    if (parts_.text != TokenText::kByteLevel) {
      return Unsupported(
          "its tokens are pieces of text, not of bytes: GGUF's form of it (SentencePiece) needs the scores "
          "of "
          "tokenizer.model, which this build does not read");
    }
    BGTQ_ASSIGN_OR_RETURN(const std::string_view pre, PreTokenizerFor(parts_, preferred));
    Put("model", std::string("gpt2"));
    Put("pre", std::string(pre));
    BGTQ_RETURN_IF_ERROR(PutTokens());
    BGTQ_RETURN_IF_ERROR(PutMerges());
    PutPrompt();
    PutEnds();
    if (chat_template.has_value()) Put("tokenizer.chat_template", *chat_template);
    NoteSteps();
    return std::move(result_);
  }

 private:
  void Put(const std::string& key, GgufWriteValue value) {
    const bool whole = key.starts_with("tokenizer.");
    result_.metadata.emplace_back(whole ? key : "tokenizer.ggml." + key, std::move(value));
  }
  void PutId(const char* key, int32_t id) {
    if (id >= 0) Put(fmt::format("{}_token_id", key), static_cast<uint32_t>(id));
  }
  void Note(std::string difference) { result_.differences.push_back(std::move(difference)); }

  Status PutTokens() {
    const auto count = static_cast<size_t>(tokens_);
    if (parts_.tokens.size() > count) {
      return Status(
          ErrorCode::kCorruptFile,
          fmt::format("the tokenizer has {} tokens, the embedding table {}", parts_.tokens.size(), tokens_));
    }
    std::vector<std::string> texts = parts_.tokens;
    std::vector<int32_t> types(parts_.types.begin(), parts_.types.end());
    texts.resize(count);
    types.resize(count, static_cast<int32_t>(TokenType::kUnused));
    for (size_t i = 0; i < count; ++i) {
      if (texts[i].empty()) {
        texts[i] = fmt::format("[PAD{}]", i);
        types[i] = static_cast<int32_t>(TokenType::kUnused);
      } else if (types[i] == static_cast<int32_t>(TokenType::kNormal) && EndsTurnByName(texts[i])) {
        Note(fmt::format("\"{}\", which is text like any other, is a special token for readers of GGUF",
                         Printable(texts[i])));
      }
    }
    Put("tokens", std::move(texts));
    Put("token_type", std::move(types));
    return Status::Ok();
  }

  Status PutMerges() {
    std::vector<std::string> merges;
    std::set<std::pair<std::string_view, std::string_view>> seen;
    for (const auto& [left, right] : parts_.merges) {
      if (left.find(' ') != left.npos || right.find(' ') != right.npos) {
        return Unsupported(fmt::format("the merge of \"{}\" and \"{}\" holds a space, which GGUF cannot say",
                                       Printable(left), Printable(right)));
      }
      if (!seen.emplace(left, right).second) {
        return Unsupported(
            fmt::format("\"{} {}\" is twice in model.merges; readers of GGUF take the first, "
                        "those of tokenizer.json the last",
                        Printable(left), Printable(right)));
      }
      merges.push_back(fmt::format("{} {}", left, right));
    }
    Put("merges", std::move(merges));
    return Status::Ok();
  }

  void PutPrompt() {
    PutId("bos", parts_.bos);
    PutId("unknown", parts_.unk);
    const std::vector<int32_t>& prefix = parts_.prompt_prefix;
    const bool add_bos = parts_.bos >= 0 && prefix == std::vector<int32_t>{parts_.bos};
    Put("add_bos_token", add_bos);
    Put("add_eos_token", false);
    if (add_bos || prefix.empty()) return;
    std::string names;
    for (const int32_t id : prefix) names += parts_.tokens[static_cast<size_t>(id)];
    Note(fmt::format("prompts without a chat template do not start with {}: GGUF knows BOS alone",
                     Printable(names)));
  }

  void PutEnds() {
    std::vector<int32_t> others;  // that readers do not know by their names
    for (const int32_t id : parts_.end_of_generation) {
      const bool known = id == parts_.eos || EndsTurnByName(parts_.tokens[static_cast<size_t>(id)]);
      if (!known && std::find(others.begin(), others.end(), id) == others.end()) others.push_back(id);
    }
    PutId("eos", parts_.eos);
    PutId("eot", others.empty() ? -1 : others[0]);
    PutId("eom", others.size() < 2 ? -1 : others[1]);
    for (size_t i = 2; i < others.size(); ++i) {
      Note(fmt::format("\"{}\" does not end an answer: GGUF has room for three such tokens",
                       Printable(parts_.tokens[static_cast<size_t>(others[i])])));
    }
  }

  void NoteSteps() {
    if (!parts_.normalizer.empty())
      Note("text is not normalised (Unicode's NFC, for instance) before it is cut");
    std::string names;
    for (const AddedToken& token : parts_.added) {
      if (!token.strip_left && !token.strip_right) continue;
      if (names.size() < 200) names += fmt::format("{}{}", names.empty() ? "" : ", ", Printable(token.text));
    }
    if (!names.empty()) Note(fmt::format("spaces beside these tokens stay in the text: {}", names));
  }

  const TokenizerParts& parts_;
  int64_t tokens_;
  GgufTokenizer result_;
};

}  // namespace

Result<GgufTokenizer> TokenizerToGguf(const TokenizerParts& parts,
                                      const std::optional<std::string>& chat_template, int64_t tokens,
                                      std::string_view preferred_pre) {
  return Writer(parts, tokens).Write(chat_template, preferred_pre);
}

}  // namespace blockgtq
