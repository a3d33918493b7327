// Tokenizer: encoding of any bytes with a small vocabulary, whose decoding must give the bytes back, and
// vocabularies and chat templates made of any bytes, which must be refused or work.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/byte_alphabet.h"
#include "src/text/chat_template.h"
#include "src/text/tokenizer.h"
#include "src/text/vocabulary.h"

namespace {

using blockgtq::Token;
using blockgtq::Tokenizer;
using blockgtq::TokenizerVocab;

constexpr std::string_view kPreTokenizers[] = {"deepseek-llm", "qwen2", "tekken", "gpt-2"};

void Check(bool ok) {
  if (!ok) std::abort();
}

std::unique_ptr<Tokenizer> SmallTokenizer(std::string_view pre) {
  std::vector<std::string> tokens;
  std::vector<int64_t> types(256, 1);
  for (int b = 0; b < 256; ++b) tokens.push_back(blockgtq::ByteToAlphabet(static_cast<uint8_t>(b)));
  const std::vector<std::string_view> merges = {"a b", "ab c",       "a a", "aa aa",
                                                "b c", "\xC4\xA0 a", "1 2", "\xC3\x83 \xC2\xA9"};
  for (const std::string_view merge : merges) {
    std::string result(merge);
    result.erase(result.find(' '), 1);
    tokens.push_back(result);
    types.push_back(1);
  }
  for (const char* special : {"<|a|>", "<|a|><", "<|", "<t>"}) {
    tokens.emplace_back(special);
    types.push_back(tokens.back() == "<t>" ? 4 : 3);
  }
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  TokenizerVocab vocab;
  vocab.tokens = views;
  vocab.types = types;
  vocab.merges = merges;
  vocab.pre = pre;
  auto result = Tokenizer::FromVocab(vocab);
  Check(result.ok());
  return std::move(result).value();
}

void FuzzEncode(const Tokenizer& tokenizer, std::string_view text, bool all_bytes) {
  for (const bool special : {false, true}) {
    const std::vector<Token> ids = tokenizer.Encode(text, special);
    for (const Token id : ids) Check(id >= 0 && id < tokenizer.vocab_size());
    if (all_bytes) Check(tokenizer.Decode(ids) == text);
  }
}

// Newlines part the tokens, then after an empty line the merges, then after another one the text.
void FuzzVocabulary(std::string_view data, uint8_t choice) {
  std::vector<std::string> tokens;
  if (choice & 4) {
    for (int b = 0; b < 256; ++b) tokens.push_back(blockgtq::ByteToAlphabet(static_cast<uint8_t>(b)));
  }
  std::vector<std::string_view> merges;
  int section = 0;
  while (section < 2 && !data.empty()) {
    const std::string_view line = data.substr(0, data.find('\n'));
    data.remove_prefix(std::min(line.size() + 1, data.size()));
    if (line.empty()) {
      ++section;
    } else if (section == 0) {
      tokens.emplace_back(line);
    } else {
      merges.push_back(line);
    }
  }
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  std::vector<int64_t> types;
  if (choice & 8) {
    for (const std::string_view token : views) types.push_back(token.size() > 2 ? token[0] % 8 : 1);
  }
  TokenizerVocab vocab;
  vocab.tokens = views;
  vocab.types = types;
  vocab.merges = merges;
  vocab.pre = kPreTokenizers[choice & 3];
  if (choice & 16) vocab.eos = choice;
  const auto tokenizer = Tokenizer::FromVocab(vocab);
  if (tokenizer.ok()) {
    FuzzEncode(**tokenizer, data, false);
    for (Token t = -1; t <= (*tokenizer)->vocab_size(); ++t) (*tokenizer)->Piece(t);
  } else {
    Check(!tokenizer.status().message().empty());
  }
}

void FuzzChatTemplate(std::string_view jinja) {
  const auto recognized = blockgtq::RecognizeTemplate(jinja, "</s>");
  if (!recognized.ok()) return;
  const std::vector<blockgtq::ChatMessage> messages = {{"user", std::string(jinja)}};
  Check(blockgtq::RenderChat(*recognized, messages).ok());
}

void FuzzUtf8Stream(std::string_view text, size_t step) {
  blockgtq::Utf8Stream whole, pieces;
  std::string once = whole.Push(text);
  once += whole.Finish();
  std::string cut;
  for (size_t at = 0; at < text.size(); at += step) cut += pieces.Push(text.substr(at, step));
  cut += pieces.Finish();
  Check(once == cut);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint8_t choice = data[0];
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (choice >> 6) {
    case 0:
    case 1: {
      static const std::vector<std::unique_ptr<Tokenizer>> tokenizers = [] {
        std::vector<std::unique_ptr<Tokenizer>> made;
        for (const std::string_view pre : kPreTokenizers) made.push_back(SmallTokenizer(pre));
        return made;
      }();
      FuzzEncode(*tokenizers[choice & 3], text, true);
      break;
    }
    case 2:
      FuzzVocabulary(text, choice & 31);
      break;
    default:
      FuzzChatTemplate(text);
      FuzzUtf8Stream(text, 1 + (choice & 7));
  }
  return 0;
}
