// JSON a byte at a time: which bytes can come next in the text of one JSON object.
#pragma once

#include <cstdint>
#include <string_view>

namespace blockgtq {

/// Recognises RFC 8259's texts whose value is an object, with bounds that every reader keeps: kMaxDepth
/// levels, kMaxDigits digits before and behind the point, two in the exponent, kMaxSpace bytes of white space
/// in a row. Strings are well-formed UTF-8, and \u escapes of surrogates come in pairs. From every state that
/// Push leaves, some byte leads on until done(). Small and copied freely.
class JsonMachine {
 public:
  static constexpr int kMaxDepth = 32, kMaxDigits = 17, kMaxSpace = 64;

  /// Takes the byte where it can come next. False: it cannot, and nothing has changed.
  bool Push(uint8_t byte);
  /// Takes all of the bytes. False: not all can come next; the machine is then of no use.
  bool Push(std::string_view bytes);
  /// The object is closed; nothing can follow.
  bool done() const { return state_ == State::kDone; }
  /// Between two characters of a string: any whole character but quote, backslash and controls can come.
  bool in_string() const { return state_ == State::kString; }

 private:
  enum class State : uint8_t {
    kStart,        // before the object
    kObjectBegin,  // behind '{'
    kKey,          // behind the ',' of an object
    kColon,        // behind a key
    kValue,        // behind ':', or the ',' of an array
    kArrayBegin,   // behind '['
    kAfterValue,
    kString,
    kContinuation,  // inside a character of a string
    kEscape,        // behind a backslash
    kHex,           // inside \uXXXX
    kLowBackslash,  // behind a high surrogate
    kLowU,
    kMinus,
    kZero,
    kInteger,
    kPoint,
    kFraction,
    kExponent,  // behind 'e'
    kExponentSign,
    kExponentDigits,
    kLiteral,
    kDone,
  };

  bool Structure(uint8_t byte);
  bool BeginValue(uint8_t byte);
  bool Open(bool object, State state);
  bool Close(bool object);
  bool AfterValue(uint8_t byte);
  bool InString(uint8_t byte);
  bool Escape(uint8_t byte);
  bool Hex(uint8_t byte);
  bool Number(uint8_t byte);
  bool Digit(State state, int most);
  bool Go(State state);

  State state_ = State::kStart;
  bool key_ = false;   // of the string that is being read
  bool low_ = false;   // the \u escape that is being read must be a low surrogate
  uint8_t depth_ = 0;  // open containers
  uint8_t count_ =
      0;  // digits, hex digits, bytes of white space or of a literal so far; continuation bytes to come
  uint8_t literal_ = 0;                 // 't', 'f' or 'n'
  uint8_t first_ = 0x80, last_ = 0xBF;  // the next continuation byte
  uint16_t hex_ = 0;
  uint32_t objects_ = 0;  // bit d: container d is an object
};

}  // namespace blockgtq
