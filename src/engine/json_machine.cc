// See json_machine.h.
#include "src/engine/json_machine.h"

namespace blockgtq {
namespace {

bool IsSpace(uint8_t c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool IsDigit(uint8_t c) { return c >= '0' && c <= '9'; }

std::string_view Literal(uint8_t first) { return first == 't' ? "true" : first == 'f' ? "false" : "null"; }

/// 0 to 15, or -1.
int HexValue(uint8_t c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace

bool JsonMachine::Push(std::string_view bytes) {
  for (const char c : bytes) {
    if (!Push(static_cast<uint8_t>(c))) return false;
  }
  return true;
}

bool JsonMachine::Go(State state) {
  state_ = state;
  count_ = 0;
  return true;
}

bool JsonMachine::Push(uint8_t byte) {
  switch (state_) {
    case State::kStart:
    case State::kObjectBegin:
    case State::kKey:
    case State::kColon:
    case State::kValue:
    case State::kArrayBegin:
    case State::kAfterValue:
      return Structure(byte);
    case State::kString:
      return InString(byte);
    case State::kContinuation:
      if (byte < first_ || byte > last_) return false;
      first_ = 0x80, last_ = 0xBF;
      if (--count_ == 0) state_ = State::kString;
      return true;
    case State::kEscape:
      return Escape(byte);
    case State::kHex:
      return Hex(byte);
    case State::kLowBackslash:
      return byte == '\\' && Go(State::kLowU);
    case State::kLowU:
      if (byte != 'u') return false;
      low_ = true;
      hex_ = 0;
      return Go(State::kHex);
    case State::kLiteral: {
      const std::string_view word = Literal(literal_);
      if (byte != static_cast<uint8_t>(word[count_])) return false;
      return ++count_ < word.size() || Go(State::kAfterValue);
    }
    case State::kDone:
      return false;
    default:
      return Number(byte);
  }
}

bool JsonMachine::Structure(uint8_t byte) {
  if (IsSpace(byte)) {
    if (count_ == kMaxSpace) return false;
    ++count_;
    return true;
  }
  switch (state_) {
    case State::kStart:
      return byte == '{' && Open(true, State::kObjectBegin);
    case State::kObjectBegin:
      if (byte == '}') return Close(true);
      [[fallthrough]];
    case State::kKey:
      if (byte != '"') return false;
      key_ = true;
      return Go(State::kString);
    case State::kColon:
      return byte == ':' && Go(State::kValue);
    case State::kArrayBegin:
      if (byte == ']') return Close(false);
      [[fallthrough]];
    case State::kValue:
      return BeginValue(byte);
    default:
      return AfterValue(byte);
  }
}

bool JsonMachine::BeginValue(uint8_t byte) {
  switch (byte) {
    case '{':
      return Open(true, State::kObjectBegin);
    case '[':
      return Open(false, State::kArrayBegin);
    case '"':
      key_ = false;
      return Go(State::kString);
    case '-':
      return Go(State::kMinus);
    case '0':
      return Go(State::kZero);
    case 't':
    case 'f':
    case 'n':
      literal_ = byte;
      Go(State::kLiteral);
      count_ = 1;
      return true;
    default:
      if (!IsDigit(byte)) return false;
      Go(State::kInteger);
      count_ = 1;
      return true;
  }
}

bool JsonMachine::Open(bool object, State state) {
  if (depth_ == kMaxDepth) return false;
  const uint32_t bit = uint32_t{1} << depth_;
  objects_ = object ? objects_ | bit : objects_ & ~bit;
  ++depth_;
  return Go(state);
}

bool JsonMachine::Close(bool object) {
  if ((((objects_ >> (depth_ - 1)) & 1) != 0) != object) return false;
  --depth_;
  return Go(depth_ == 0 ? State::kDone : State::kAfterValue);
}

bool JsonMachine::AfterValue(uint8_t byte) {
  if (byte == '}' || byte == ']') return Close(byte == '}');
  if (byte != ',') return false;
  return Go(((objects_ >> (depth_ - 1)) & 1) != 0 ? State::kKey : State::kValue);
}

bool JsonMachine::InString(uint8_t byte) {
  if (byte == '"') return Go(key_ ? State::kColon : State::kAfterValue);
  if (byte == '\\') return Go(State::kEscape);
  if (byte < 0x20) return false;
  if (byte < 0x80) return true;
  // The first byte of a longer character: RFC 3629's table of what follows.
  if (byte < 0xC2 || byte > 0xF4) return false;
  state_ = State::kContinuation;
  count_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
  first_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
  last_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
  return true;
}

bool JsonMachine::Escape(uint8_t byte) {
  if (byte == 'u') {
    low_ = false;
    hex_ = 0;
    return Go(State::kHex);
  }
  return std::string_view("\"\\/bfnrt").find(static_cast<char>(byte)) != std::string_view::npos &&
         Go(State::kString);
}

bool JsonMachine::Hex(uint8_t byte) {
  const int value = HexValue(byte);
  if (value < 0) return false;
  // DC00 to DFFF are the second halves of pairs, D800 to DBFF the first.
  if (low_ && count_ == 0 && value != 0xD) return false;
  if (count_ == 1 && hex_ == 0xD && low_ != (value >= 0xC)) return false;
  hex_ = static_cast<uint16_t>((hex_ << 4) | value);
  if (++count_ < 4) return true;
  return Go(!low_ && hex_ >= 0xD800 && hex_ <= 0xDBFF ? State::kLowBackslash : State::kString);
}

bool JsonMachine::Digit(State state, int most) {
  if (state_ != state) {
    Go(state);
  } else if (count_ == most) {
    return false;
  }
  ++count_;
  return true;
}

bool JsonMachine::Number(uint8_t byte) {
  const bool digit = IsDigit(byte), exponent = byte == 'e' || byte == 'E';
  switch (state_) {
    case State::kMinus:
      return byte == '0' ? Go(State::kZero) : digit && Digit(State::kInteger, kMaxDigits);
    case State::kZero:
    case State::kInteger:
      if (digit) return state_ == State::kInteger && Digit(State::kInteger, kMaxDigits);
      if (byte == '.') return Go(State::kPoint);
      break;
    case State::kPoint:
      return digit && Digit(State::kFraction, kMaxDigits);
    case State::kFraction:
      if (digit) return Digit(State::kFraction, kMaxDigits);
      break;
    case State::kExponent:
      if (byte == '+' || byte == '-') return Go(State::kExponentSign);
      return digit && Digit(State::kExponentDigits, 2);
    case State::kExponentSign:
      return digit && Digit(State::kExponentDigits, 2);
    default:  // kExponentDigits
      if (digit) return Digit(State::kExponentDigits, 2);
      if (exponent) return false;
      break;
  }
  if (exponent) return Go(State::kExponent);
  // Behind the number: what it stands in goes on.
  JsonMachine next = *this;
  next.Go(State::kAfterValue);
  if (!next.Structure(byte)) return false;
  *this = next;
  return true;
}

}  // namespace blockgtq
