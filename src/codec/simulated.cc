// What every simulation shares: a model's heads taken together, and the twin of a packed head.
#include "src/codec/simulated.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <utility>

#include "src/codec/record.h"
#include "src/codec/reference_codec.h"

namespace blockgtq {
namespace {

class PlannedHead : public SimulatedHead {
 public:
  PlannedHead(const HeadPlan& plan, std::shared_ptr<const RopeTable> rope)
      : plan_(plan), layout_(RecordLayout::For(plan)), rope_(std::move(rope)) {}

  void RoundTripKeys(std::span<const float>, std::span<float> keys, int64_t first_position) const override {
    ForPages(keys, first_position, [&](std::span<float> page, int64_t position, std::span<std::byte> record) {
      [[maybe_unused]] const Status encoded =
          reference::EncodeKeys(plan_, layout_, *rope_, page, position, record);
      assert(encoded.ok());
      for (size_t i = 0; i * dim() < page.size(); ++i) {
        reference::DecodeKey(plan_, layout_, *rope_, record, position + static_cast<int64_t>(i),
                             &page[i * dim()]);
      }
    });
  }

  void RoundTripValues(std::span<float> values, int64_t first_position) const override {
    ForPages(values, first_position,
             [&](std::span<float> page, int64_t position, std::span<std::byte> record) {
               [[maybe_unused]] const Status encoded =
                   reference::EncodeValues(plan_, layout_, page, position, record);
               assert(encoded.ok());
               for (size_t i = 0; i * dim() < page.size(); ++i) {
                 reference::DecodeValue(plan_, layout_, record,
                                        static_cast<int>((position + static_cast<int64_t>(i)) % kPageTokens),
                                        &page[i * dim()]);
               }
             });
  }

  double bytes_per_token() const override { return static_cast<double>(layout_.bytes) / kPageTokens; }
  double key_bytes_per_token() const override {
    double bytes = 0;
    for (const GroupPlan& group : plan_.groups)
      bytes += static_cast<double>(group.units * UnitBytes(group.width)) / kPageTokens +
               (plan_.norm_type == NormType::kHalf ? 2 : 1);
    return bytes;
  }

 private:
  size_t dim() const { return static_cast<size_t>(plan_.head_dim); }

  // Calls f(vectors of one page, position of the first, an empty record) for each page of a range.
  template <typename F>
  void ForPages(std::span<float> vectors, int64_t position, F f) const {
    std::vector<std::byte> record(static_cast<size_t>(layout_.bytes));
    while (!vectors.empty()) {
      const size_t room = static_cast<size_t>(kPageTokens - position % kPageTokens);
      const size_t tokens = std::min(vectors.size() / dim(), room);
      f(vectors.first(tokens * dim()), position, std::span<std::byte>(record));
      vectors = vectors.subspan(tokens * dim());
      position += static_cast<int64_t>(tokens);
    }
  }

  HeadPlan plan_;
  RecordLayout layout_;
  std::shared_ptr<const RopeTable> rope_;
};

}  // namespace

double SimulatedHeads::bytes_per_token_per_head() const {
  double sum = 0;
  for (const auto& head : heads) sum += head->bytes_per_token();
  return heads.empty() ? 0 : sum / static_cast<double>(heads.size());
}

double SimulatedHeads::bytes_per_token_per_head(int64_t coded) const {
  double sum = 0;
  for (const auto& head : heads) sum += head->At(coded).bytes_per_token();
  return heads.empty() ? 0 : sum / static_cast<double>(heads.size());
}

int64_t SimulatedHeads::ChangesAfter(int64_t coded) const {
  int64_t first = SimulatedHead::kNever;
  for (const auto& head : heads) first = std::min(first, head->ChangesAfter(coded));
  return first;
}

std::vector<std::pair<int64_t, double>> SimulatedHeads::BytesByLength() const {
  std::vector<std::pair<int64_t, double>> steps;
  for (int64_t coded = 0; coded != SimulatedHead::kNever; coded = ChangesAfter(coded)) {
    steps.emplace_back(coded, bytes_per_token_per_head(coded));
  }
  return steps;
}

int SimulatedHeads::token_unit() const {
  int unit = 1;
  for (const auto& head : heads) unit = std::max(unit, head->token_unit());
  return unit;
}

int SimulatedHeads::history_tokens() const {
  int tokens = 0;
  for (const auto& head : heads) tokens = std::max(tokens, head->history_tokens());
  return tokens;
}

std::unique_ptr<const SimulatedHead> SimulatePlannedHead(const HeadPlan& plan,
                                                         std::shared_ptr<const RopeTable> rope) {
  return std::make_unique<PlannedHead>(plan, std::move(rope));
}

}  // namespace blockgtq
