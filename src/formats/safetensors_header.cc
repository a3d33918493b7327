// A SAX handler over nlohmann-json's parser, which checks the JSON grammar and UTF-8.
#include "src/formats/safetensors_header.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "src/formats/message.h"

namespace blockgtq {
namespace {

constexpr size_t kMaxDims = 16;

// Depths: 0 outside, 1 in the header object, 2 in a tensor's object or in __metadata__, 3 in an array.
class Handler : public nlohmann::json_sax<nlohmann::json> {
 public:
  Result<SafetensorsHeader> Finish(bool parsed) {
    if (!parsed) return Status(ErrorCode::kCorruptFile, "header: " + error_);
    return std::move(header_);
  }

  bool start_object(std::size_t) override {
    if (depth_ == 0) {
      depth_ = 1;
      return true;
    }
    if (depth_ != 1) return Unexpected("an object");
    depth_ = 2;
    return true;
  }

  bool end_object() override {
    if (depth_ == 2 && tensor_ != nullptr) {
      const char* missing = !tensor_->has_dtype     ? "dtype"
                            : !tensor_->has_shape   ? "shape"
                            : !tensor_->has_offsets ? "data_offsets"
                                                    : nullptr;
      if (missing != nullptr) return Fail(fmt::format("{} has no {}", Where(), missing));
    }
    --depth_;
    return true;
  }

  bool key(std::string& name) override {
    if (depth_ == 1) return StartEntry(name);
    field_ = name;
    if (tensor_ == nullptr) return true;  // __metadata__: the value inserts it
    bool* seen = name == "dtype"          ? &tensor_->has_dtype
                 : name == "shape"        ? &tensor_->has_shape
                 : name == "data_offsets" ? &tensor_->has_offsets
                                          : nullptr;
    if (seen == nullptr) return Fail(fmt::format("{} has an unknown field '{}'", Where(), Printable(name)));
    if (std::exchange(*seen, true)) return Fail(fmt::format("{}: {} occurs twice", Where(), name));
    return true;
  }

  bool string(std::string& text) override {
    if (depth_ != 2) return Unexpected("a string");
    if (tensor_ == nullptr) {
      if (!header_.metadata.emplace(field_, text).second) {
        return Fail(fmt::format("__metadata__: '{}' occurs twice", Printable(field_)));
      }
      return true;
    }
    if (field_ != "dtype") return Unexpected("a string");
    tensor_->dtype = text;
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || tensor_ == nullptr || field_ == "dtype") return Unexpected("an array");
    depth_ = 3;
    return true;
  }

  bool end_array() override {
    depth_ = 2;
    if (field_ == "data_offsets" && tensor_->offsets.size() != 2) {
      return Fail(
          fmt::format("{}: data_offsets has {} numbers; 2 are needed", Where(), tensor_->offsets.size()));
    }
    return true;
  }

  bool number_unsigned(uint64_t number) override {
    if (depth_ != 3) return Unexpected("a number");
    auto& list = field_ == "shape" ? tensor_->shape : tensor_->offsets;
    const size_t limit = field_ == "shape" ? kMaxDims : 2;
    if (list.size() == limit) {
      return Fail(fmt::format("{}: {} has more than {} numbers", Where(), field_, limit));
    }
    list.push_back(number);
    return true;
  }

  bool number_integer(int64_t) override { return Unexpected("a negative number"); }
  bool number_float(double, const std::string&) override {
    return Unexpected("a number that is not a 64-bit integer");
  }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a bool"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return Fail(fmt::format("not valid JSON at byte {}", Grouped(position)));
  }

 private:
  bool StartEntry(const std::string& name) {
    entry_ = name;
    field_.clear();
    tensor_ = nullptr;
    if (name == "__metadata__") {
      if (std::exchange(has_metadata_, true)) return Fail("__metadata__ occurs twice");
      return true;
    }
    const auto [place, added] = header_.tensors.try_emplace(name);
    if (!added) return Fail(fmt::format("{} occurs twice", Where()));
    tensor_ = &place->second;
    return true;
  }

  std::string Where() const {
    return entry_ == "__metadata__" ? entry_ : fmt::format("tensor '{}'", Printable(entry_));
  }

  bool Unexpected(const char* what) {
    if (depth_ == 0) return Fail(fmt::format("it is {}; an object is needed", what));
    return Fail(field_.empty() ? fmt::format("{} holds {}", Where(), what)
                               : fmt::format("{}: field '{}' holds {}", Where(), Printable(field_), what));
  }

  bool Fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }

  SafetensorsHeader header_;
  SafetensorsHeader::Tensor* tensor_ = nullptr;  // the entry being read; null in __metadata__
  std::string entry_, field_, error_;
  bool has_metadata_ = false;
  int depth_ = 0;
};

}  // namespace

Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json) {
  Handler handler;
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  return handler.Finish(parsed);
}

}  // namespace blockgtq
