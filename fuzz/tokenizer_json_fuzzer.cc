// tokenizer.json and its companions made of any bytes must be refused or work: ids in range, no text that is
// not decoded. Also SentencePiece vocabularies of any scores, and Normalization Form C of any bytes.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/nfc.h"
#include "src/text/tokenizer_folder.h"
#include "src/text/vocabulary.h"

namespace {

using blockgtq::Token;
using blockgtq::Tokenizer;

void Check(bool ok) {
  if (!ok) std::abort();
}

void Use(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool special : {false, true}) {
    const std::vector<Token> ids = tokenizer.Encode(text, special);
    for (const Token id : ids) Check(id >= 0 && id < tokenizer.vocab_size());
    tokenizer.Decode(ids);
  }
  for (const Token id : tokenizer.prompt_prefix()) Check(id >= 0 && id < tokenizer.vocab_size());
  for (Token t = -1; t <= std::min(tokenizer.vocab_size(), 2000); ++t) {
    tokenizer.Piece(t);
    tokenizer.IsControl(t);
    tokenizer.IsEndOfGeneration(t);
  }
}

// Cuts the next part off, up to a NUL.
std::string_view Part(std::string_view* data) {
  const std::string_view part = data->substr(0, data->find('\0'));
  data->remove_prefix(std::min(part.size() + 1, data->size()));
  return part;
}

void UseTexts(const blockgtq::TokenizerTexts& texts, std::string_view text) {
  const auto loaded = blockgtq::TokenizerFromTexts(texts);
  if (loaded.ok()) {
    Use(*loaded->tokenizer, text);
  } else {
    Check(!loaded.status().message().empty());
    Check(loaded.status().message().find('\n') == std::string::npos);
  }
}

// A small vocabulary with the sections of the file that the data gives.
void FuzzSections(std::string_view sections, std::string_view config, std::string_view text) {
  auto json = nlohmann::json::parse(R"({"added_tokens":[
      {"id":7,"content":"<s>","special":true},{"id":8,"content":"<t>","special":false,"rstrip":true},
      {"id":9,"content":" a","special":false,"normalized":true,"lstrip":true}],
    "model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"\u2581":3,"\u2581a":4,"<0x0A>":5,"\u0120":6,"<unk>":10},
      "merges":[["a","b"],["\u2581","a"]],"unk_token":"<unk>"}})");
  const auto given = nlohmann::json::parse(sections, nullptr, false);
  if (!given.is_object()) return;
  for (const auto& [name, value] : given.items()) json[name] = value;
  const std::string whole = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  UseTexts({whole, config, "", ""}, text);
}

void FuzzScores(std::string_view data) {
  std::vector<std::string> tokens = {"<unk>", "<s>"};
  std::vector<int64_t> types = {2, 3};
  std::vector<double> scores = {0, 0};
  const std::string_view lines = Part(&data);
  for (size_t at = 0; at < lines.size();) {
    const std::string_view line = lines.substr(at, lines.find('\n', at) - at);
    at += line.size() + 1;
    if (line.empty()) continue;
    types.push_back(line[0] % 8 < 6 ? 1 : line[0] % 8 - 2);
    scores.push_back(line.size() > 1 ? -(line[1] % 5) : 0);
    tokens.emplace_back(line);
  }
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  blockgtq::TokenizerVocab vocab;
  vocab.text = blockgtq::TokenText::kMetaspace;
  vocab.model = blockgtq::TokenModel::kScores;
  vocab.tokens = views;
  vocab.types = types;
  vocab.scores = scores;
  vocab.unk = 0;
  const auto tokenizer = Tokenizer::FromVocab(vocab);
  if (tokenizer.ok()) Use(**tokenizer, data);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: {
      const std::string_view json = Part(&rest), config = Part(&rest), generation = Part(&rest);
      UseTexts({json, config, generation, ""}, rest);
      break;
    }
    case 1: {
      const std::string_view sections = Part(&rest), config = Part(&rest);
      FuzzSections(sections, config, rest);
      break;
    }
    case 2:
      FuzzScores(rest);
      break;
    default: {
      const std::string once = blockgtq::ToNfc(rest);
      Check(blockgtq::ToNfc(once) == once);
    }
  }
  return 0;
}
