// The real vocabularies against llama.cpp's tokenizer (tests/data/llama_cpp/*/tokenizer.json). Skipped where
// the models are not installed. Where Hugging Face differs from llama.cpp (NFC, which tokens are special) we
// follow llama.cpp's `ids` and `ids_special`, not the `hf` entry.
#include <gtest/gtest.h>

#include <cctype>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>

#include "src/formats/gguf.h"
#include "tests/text/test_vocab.h"

namespace blockgtq {
namespace {

std::string FromBase64(const std::string& text) {
  static const std::string kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(kDigits.find(c));
    count += 6;
    if (count >= 8) {
      count -= 8;
      out.push_back(static_cast<char>(bits >> count & 0xFF));
    }
  }
  return out;
}

struct Golden {
  const char* file;
  const char* data;
};
void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.file; }

class RealVocabulary : public testing::TestWithParam<Golden> {
 protected:
  void SetUp() override {
    const std::string path = test::ModelPath(GetParam().file);
    if (path.empty()) GTEST_SKIP() << GetParam().file << " is not installed (set BGTQ_MODELS to its folder)";
    auto file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status().message();
    auto tokenizer = Tokenizer::FromGguf(**file);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = std::move(tokenizer).value();
    golden_ = test::ReadJson(std::string("llama_cpp/") + GetParam().data + "/tokenizer.json");
  }
  std::unique_ptr<Tokenizer> tokenizer_;
  nlohmann::json golden_;
};

TEST_P(RealVocabulary, EncodesAndDecodesEveryValidTextAsLlamaCppDoes) {
  int cases = 0;
  for (const auto& c : golden_["cases"]) {
    if (!c["valid_utf8"]) continue;
    ++cases;
    const std::string text = FromBase64(c["bytes"]);
    for (const bool special : {false, true}) {
      const auto ids = tokenizer_->Encode(text, special);
      EXPECT_EQ(ids, c[special ? "ids_special" : "ids"].get<std::vector<Token>>())
          << c["name"] << " " << special;
      EXPECT_EQ(tokenizer_->Decode(ids), FromBase64(c[special ? "detok_special" : "detok"])) << c["name"];
    }
  }
  EXPECT_GE(cases, 40);
}

TEST_P(RealVocabulary, GivesInvalidBytesBack) {
  // llama.cpp replaces them, or aborts; here only bytes that the vocabulary lacks are lost.
  int cases = 0;
  for (const auto& c : golden_["cases"]) {
    if (c["valid_utf8"]) continue;
    ++cases;
    const std::string text = FromBase64(c["bytes"]);
    std::string expected;
    for (const char byte : text) {
      if (!tokenizer_->Encode(std::string(1, byte), false).empty()) expected.push_back(byte);
    }
    const auto ids = tokenizer_->Encode(text, true);
    EXPECT_EQ(tokenizer_->Decode(ids), expected) << c["name"];
    for (const Token id : ids) EXPECT_TRUE(id >= 0 && id < tokenizer_->vocab_size());
    // Surrogates are the one kind that llama.cpp passes through.
    if (c.value("roundtrip", false)) {
      EXPECT_EQ(ids, c["ids"].get<std::vector<Token>>());
    }
  }
  EXPECT_GE(cases, 3);
}

TEST_P(RealVocabulary, KnowsTheSpecialTokens) {
  const auto& vocab = golden_["vocab"];
  EXPECT_EQ(tokenizer_->vocab_size(), vocab["n_tokens"]);
  EXPECT_EQ(tokenizer_->bos(), vocab["bos"]);
  EXPECT_EQ(tokenizer_->eos(), vocab["eos"]);
  EXPECT_EQ(tokenizer_->add_bos(), vocab["add_bos"]);
  std::vector<Token> ends, control;
  for (Token t = -1; t <= tokenizer_->vocab_size(); ++t) {
    if (tokenizer_->IsEndOfGeneration(t)) ends.push_back(t);
    if (tokenizer_->IsControl(t)) control.push_back(t);
  }
  EXPECT_EQ(ends, vocab["eog"].get<std::vector<Token>>());
  EXPECT_EQ(control, vocab["control"].get<std::vector<Token>>());
}

// FIPS 180-4, on whole messages.
std::string Sha256(std::string message) {
  const auto rotate = [](uint32_t x, int n) { return x >> n | x << (32 - n); };
  // Fractional parts of the roots of the first primes.
  std::vector<uint32_t> k, h;
  for (int n = 2; k.size() < 64; ++n) {
    bool prime = true;
    for (int d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
    if (!prime) continue;
    const auto fraction = [](long double x) {
      return static_cast<uint32_t>((x - static_cast<uint64_t>(x)) * 4294967296.0L);
    };
    k.push_back(fraction(std::cbrt(static_cast<long double>(n))));
    if (h.size() < 8) h.push_back(fraction(std::sqrt(static_cast<long double>(n))));
  }
  const uint64_t bits = message.size() * 8;
  message.push_back('\x80');
  while (message.size() % 64 != 56) message.push_back('\0');
  for (int shift = 56; shift >= 0; shift -= 8) message.push_back(static_cast<char>(bits >> shift));
  for (size_t at = 0; at < message.size(); at += 64) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      w[i] = 0;
      for (int b = 0; b < 4; ++b) w[i] = w[i] << 8 | static_cast<uint8_t>(message[at + 4 * i + b]);
    }
    for (int i = 16; i < 64; ++i) {
      w[i] = w[i - 16] + (rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
             (rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10);
    }
    auto v = h;
    for (int i = 0; i < 64; ++i) {
      const uint32_t t1 = v[7] + (rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25)) +
                          ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
      const uint32_t t2 = (rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22)) +
                          ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      v = {t1 + t2, v[0], v[1], v[2], v[3] + t1, v[4], v[5], v[6]};
    }
    for (int i = 0; i < 8; ++i) h[i] += v[i];
  }
  std::string hex;
  for (const uint32_t word : h) {
    for (int shift = 28; shift >= 0; shift -= 4) hex.push_back("0123456789abcdef"[word >> shift & 15]);
  }
  return hex;
}

TEST_P(RealVocabulary, HasLlamaCppsPieces) {
  ASSERT_EQ(Sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  std::string all;
  for (Token t = 0; t < tokenizer_->vocab_size(); ++t) {
    const std::string_view piece = tokenizer_->Piece(t);
    for (int shift = 0; shift < 32; shift += 8) all.push_back(static_cast<char>(piece.size() >> shift));
    all.append(piece);
  }
  EXPECT_EQ(Sha256(all), golden_["vocab"]["pieces_sha256"]);
}

TEST_P(RealVocabulary, EncodesALongRunOfOneLetterInSeconds) {
  const std::string text(1 << 20, 'a');
  const auto start = std::chrono::steady_clock::now();
  const auto ids = tokenizer_->Encode(text, true);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(tokenizer_->Decode(ids), text);
  EXPECT_LE(ids.size(), text.size() / 4);
  EXPECT_LT(seconds, 10) << "a quadratic merge takes hours";
}

INSTANTIATE_TEST_SUITE_P(Models, RealVocabulary,
                         testing::Values(Golden{"SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m"},
                                         Golden{"qwen2.5-coder-0.5b.gguf", "qwen2.5-coder-0.5b"},
                                         // The same vocabulary and ids as the 0.5b.
                                         Golden{"qwen2.5-coder-1.5b.gguf", "qwen2.5-coder-0.5b"}),
                         [](const auto& info) {
                           std::string name = info.param.file;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace blockgtq
