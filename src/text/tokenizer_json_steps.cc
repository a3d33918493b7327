// Normalizer, pre-tokenizer, decoder and post-processor of tokenizer.json.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/formats/message.h"
#include "src/text/tokenizer_json.h"

namespace blockgtq {
namespace {

using nlohmann::json;

constexpr std::string_view kMetaspace = "\xE2\x96\x81";

// Far beyond the supported families; what a normalizer makes of a text must fit memory as the text does.
constexpr size_t kMaxSteps = 64;
constexpr double kMaxGrowth = 64;
constexpr size_t kMaxPrepended = size_t{1} << 12;
constexpr size_t kMaxPrefix = 16;  // tokens before every text; the shortest runs have 64 tokens

Status Corrupt(std::string message) {
  return Status(ErrorCode::kCorruptFile, "tokenizer.json: " + std::move(message));
}
Status Unsupported(std::string message) {
  return Status(ErrorCode::kUnsupported, "tokenizer.json: " + std::move(message));
}

// Null when `object` is no object or lacks the member.
const json& Member(const json& object, const char* name) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

std::string Text(const json& object, const char* name) {
  const json& value = Member(object, name);
  return value.is_string() ? value.get<std::string>() : "";
}

bool Flag(const json& object, const char* name, bool otherwise) {
  const json& value = Member(object, name);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

// The steps of a section: none for null, those of a Sequence (which may hold others), or itself.
Status Flatten(const json& section, const char* what, const char* list, std::vector<const json*>* steps) {
  if (section.is_null()) return {};
  if (Text(section, "type").empty()) return Corrupt(fmt::format("{} has no type", what));
  if (Text(section, "type") != "Sequence") {
    steps->push_back(&section);
    return {};
  }
  const json& members = Member(section, list);
  if (!members.is_array()) return Corrupt(fmt::format("{} is a Sequence without {}", what, list));
  for (const json& member : members) BGTQ_RETURN_IF_ERROR(Flatten(member, what, list, steps));
  if (steps->size() > kMaxSteps) {
    return Unsupported(
        fmt::format("{} has {} steps; at most {} are supported", what, steps->size(), kMaxSteps));
  }
  return {};
}

// How many times as long the steps may make a text, beside what they put before it.
double Growth(const std::vector<NormalizerStep>& steps) {
  double growth = 1;
  for (const NormalizerStep& step : steps) {
    if (std::holds_alternative<NfcStep>(step)) growth *= 3;  // UAX #15: in UTF-8
    if (const auto* replace = std::get_if<ReplaceStep>(&step)) {
      growth *=
          std::max(1.0, static_cast<double>(replace->to.size()) / static_cast<double>(replace->from.size()));
    }
  }
  return growth;
}

Status CheckLengths(const std::vector<NormalizerStep>& steps) {
  size_t prepended = 0;
  for (const NormalizerStep& step : steps) {
    if (const auto* prepend = std::get_if<PrependStep>(&step)) prepended += prepend->text.size();
  }
  if (prepended > kMaxPrepended) {
    return Unsupported(fmt::format("the normalizer puts {} bytes before the text; at most {} are supported",
                                   prepended, kMaxPrepended));
  }
  const double growth = Growth(steps);
  if (growth <= kMaxGrowth) return {};
  return Unsupported(
      fmt::format("the normalizer can make a text {:.3g} times as long; at most {:.0f} times is supported",
                  growth, kMaxGrowth));
}

Status Unknown(const char* what, const json& step, const char* known) {
  return Unsupported(
      fmt::format("{} \"{}\" is not supported; known: {}", what, Printable(Text(step, "type")), known));
}

Status ParseSplit(const json& step, SplitStep* out) {
  const json& pattern = Member(step, "pattern");
  const std::string behavior = Text(step, "behavior");
  if (behavior == "Isolated") {
    out->behavior = SplitStep::Behavior::kIsolated;
  } else if (behavior == "Removed") {
    out->behavior = SplitStep::Behavior::kRemoved;
  } else if (behavior == "MergedWithPrevious") {
    out->behavior = SplitStep::Behavior::kMergedWithPrevious;
  } else {
    return Unsupported(
        fmt::format("behavior \"{}\" of the pre-tokenizer Split is not supported; known: Isolated, "
                    "Removed, MergedWithPrevious",
                    Printable(behavior)));
  }
  out->invert = Flag(step, "invert", false);
  out->literal = Text(pattern, "String");
  if (!out->literal.empty()) return {};
  if (Text(pattern, "Regex").empty()) return Corrupt("the pre-tokenizer Split has no pattern");
  auto compiled = SplitPattern::Create(Text(pattern, "Regex"), ContractionCase::kUnicode);
  if (!compiled.ok()) return compiled.status().WithContext("tokenizer.json");
  out->pattern = std::move(compiled).value();
  return {};
}

Status ParsePattern(std::string_view published, std::vector<PreTokenizerStep>* steps) {
  SplitStep step;
  BGTQ_ASSIGN_OR_RETURN(step.pattern, SplitPattern::Create(published, ContractionCase::kUnicode));
  steps->emplace_back(std::move(step));
  return {};
}

Status ParseMetaspace(const json& step, MetaspaceStep* out) {
  using Prepend = MetaspaceStep::Prepend;
  out->replacement = Text(step, "replacement");
  if (out->replacement != kMetaspace) {
    return Unsupported(fmt::format("Metaspace with the replacement \"{}\" is not supported; known: U+2581",
                                   Printable(out->replacement)));
  }
  static const std::map<std::string, Prepend> kSchemes = {
      {"never", Prepend::kNever}, {"first", Prepend::kFirst}, {"always", Prepend::kAlways}};
  const bool old_style = Member(step, "prepend_scheme").is_null();
  const std::string scheme = !old_style                             ? Text(step, "prepend_scheme")
                             : Flag(step, "add_prefix_space", true) ? "always"
                                                                    : "never";
  const auto found = kSchemes.find(scheme);
  if (found == kSchemes.end()) {
    return Unsupported(
        fmt::format("Metaspace with prepend_scheme \"{}\" is not supported", Printable(scheme)));
  }
  out->prepend = found->second;
  out->split = Flag(step, "split", true);
  return {};
}

}  // namespace

Status ParseNormalizer(const json& section, std::vector<NormalizerStep>* steps) {
  std::vector<const json*> parts;
  BGTQ_RETURN_IF_ERROR(Flatten(section, "the normalizer", "normalizers", &parts));
  for (const json* part : parts) {
    const std::string type = Text(*part, "type");
    if (type == "NFC") {
      steps->emplace_back(NfcStep{});
    } else if (type == "Prepend") {
      steps->emplace_back(PrependStep{Text(*part, "prepend")});
    } else if (type == "Replace") {
      const std::string from = Text(Member(*part, "pattern"), "String");
      if (from.empty())
        return Unsupported("the normalizer Replace is supported for a string only, not for a pattern");
      steps->emplace_back(ReplaceStep{from, Text(*part, "content")});
    } else {
      return Unknown("the normalizer", *part, "Sequence, NFC, Replace, Prepend");
    }
  }
  return CheckLengths(*steps);
}

Status ParsePreTokenizer(const json& section, std::vector<PreTokenizerStep>* steps, bool* byte_level) {
  std::vector<const json*> parts;
  BGTQ_RETURN_IF_ERROR(Flatten(section, "the pre-tokenizer", "pretokenizers", &parts));
  *byte_level = false;
  for (const json* part : parts) {
    if (*byte_level) return Unsupported("a pre-tokenizer after ByteLevel is not supported");
    const std::string type = Text(*part, "type");
    if (type == "Split") {
      SplitStep step;
      BGTQ_RETURN_IF_ERROR(ParseSplit(*part, &step));
      steps->emplace_back(std::move(step));
    } else if (type == "Digits") {
      BGTQ_RETURN_IF_ERROR(ParsePattern(
          Flag(*part, "individual_digits", false) ? patterns::kDigit : patterns::kDigits, steps));
    } else if (type == "ByteLevel") {
      *byte_level = true;
      if (Flag(*part, "add_prefix_space", true)) steps->emplace_back(PrefixSpaceStep{});
      if (Flag(*part, "use_regex", true)) BGTQ_RETURN_IF_ERROR(ParsePattern(patterns::kGpt2, steps));
    } else if (type == "Metaspace") {
      MetaspaceStep step;
      BGTQ_RETURN_IF_ERROR(ParseMetaspace(*part, &step));
      steps->emplace_back(std::move(step));
    } else {
      return Unknown("the pre-tokenizer", *part, "Sequence, Split, Digits, ByteLevel, Metaspace");
    }
  }
  return {};
}

Status ParseDecoder(const json& section, TokenizerParts* parts) {
  std::vector<const json*> steps;
  BGTQ_RETURN_IF_ERROR(Flatten(section, "the decoder", "decoders", &steps));
  const bool wants_bytes = parts->text == TokenText::kByteLevel;
  bool bytes = false, spaces = false, fallback = false, fused = false;
  for (const json* step : steps) {
    const std::string type = Text(*step, "type");
    const bool is_replace = type == "Replace" && Text(Member(*step, "pattern"), "String") == kMetaspace &&
                            Text(*step, "content") == " ";
    if (type == "ByteLevel") {
      bytes = true;
    } else if (is_replace && !fused) {
      spaces = true;
    } else if (type == "Metaspace" && !fused) {
      MetaspaceStep metaspace;
      BGTQ_RETURN_IF_ERROR(ParseMetaspace(*step, &metaspace));
      spaces = true;
      parts->no_space_in_first = metaspace.prepend != MetaspaceStep::Prepend::kNever;
    } else if (type == "ByteFallback" && !fused) {
      fallback = true;
    } else if (type == "Fuse") {
      fused = true;
    } else if (type == "Strip" && fused && Text(*step, "content") == " " && Member(*step, "stop") == 0 &&
               Member(*step, "start").is_number_unsigned() && Member(*step, "start") < 16) {
      parts->strip_spaces += Member(*step, "start").get<int>();
    } else {
      return Unknown(
          "the decoder", *step,
          "ByteLevel; Metaspace; Sequence of Replace (U+2581 by a space), ByteFallback, Fuse, Strip (of "
          "spaces at the start)");
    }
  }
  if (bytes != wants_bytes || (bytes && (spaces || fallback || fused))) {
    return Unsupported(
        "the decoder and the pre-tokenizer do not belong together: one is byte-level, the other not");
  }
  if (!bytes && (!spaces || fallback != parts->byte_fallback)) {
    return Unsupported("a decoder that leaves U+2581 or byte tokens in the text is not supported");
  }
  return {};
}

Status ParsePostProcessor(const json& section, TokenizerParts* parts) {
  std::vector<const json*> steps;
  BGTQ_RETURN_IF_ERROR(Flatten(section, "the post-processor", "processors", &steps));
  for (const json* step : steps) {
    const std::string type = Text(*step, "type");
    if (type == "ByteLevel") continue;  // moves offsets only
    if (type != "TemplateProcessing") {
      return Unknown("the post-processor", *step, "Sequence, ByteLevel, TemplateProcessing");
    }
    const json& single = Member(*step, "single");
    if (!single.is_array() || !parts->prompt_prefix.empty()) return Corrupt("TemplateProcessing has no use");
    bool text_seen = false;
    for (const json& item : single) {
      if (!Member(item, "Sequence").is_null()) {
        text_seen = true;
        continue;
      }
      const std::string name = Text(Member(item, "SpecialToken"), "id");
      if (text_seen) {
        return Unsupported(
            fmt::format("TemplateProcessing puts \"{}\" after the text; only tokens before it are supported",
                        Printable(name)));
      }
      const json& ids = Member(Member(Member(*step, "special_tokens"), name.c_str()), "ids");
      if (!ids.is_array())
        return Corrupt(fmt::format("TemplateProcessing has no ids for \"{}\"", Printable(name)));
      for (const json& id : ids) {
        if (!id.is_number_unsigned() || id.get<uint64_t>() >= parts->tokens.size()) {
          return Corrupt(
              fmt::format("TemplateProcessing's ids of \"{}\" are outside the vocabulary", Printable(name)));
        }
        parts->prompt_prefix.push_back(id.get<int32_t>());
      }
      if (parts->prompt_prefix.size() > kMaxPrefix) {
        return Unsupported(
            fmt::format("TemplateProcessing puts {} tokens before the text; at most {} are supported",
                        parts->prompt_prefix.size(), kMaxPrefix));
      }
    }
    if (!text_seen) return Corrupt("TemplateProcessing leaves the text out");
  }
  return {};
}

}  // namespace blockgtq
