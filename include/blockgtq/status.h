// Status and Result: how every fallible call of the library reports failure. No exceptions cross the API.
#pragma once

#include <cstdlib>
#include <string>
#include <utility>
#include <variant>

namespace blockgtq {

enum class ErrorCode {
  kOk = 0,
  kInvalidArgument,  // the caller's value is wrong: a flag, a size, a range
  kNotFound,         // a file or a name does not exist
  kCorruptFile,      // a file's content contradicts its format
  kUnsupported,      // well-formed, but this build cannot honour it
  kMismatch,         // two things that must belong together do not (plan and model, session and plan)
  kNonFinite,        // NaN or infinity where a number was needed
  kOutOfMemory,      // an allocation or a fixed capacity is exhausted
  kIo,               // the operating system refused a read, write or map
  kCancelled,        // the user stopped the work
};

/// Outcome of a call: ok, or a code and one line that says what, where and what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}
  static Status Ok() { return {}; }

  bool ok() const { return code_ == ErrorCode::kOk; }
  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }

  /// The same failure with "context: " before its message; ok stays ok.
  Status WithContext(const std::string& context) const {
    return ok() ? Status() : Status(code_, context + ": " + message_);
  }

 private:
  ErrorCode code_ = ErrorCode::kOk;
  std::string message_;
};

/// A value, or the Status that says why there is none. Reading the value of a failed Result aborts: check
/// ok() first.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : state_(std::move(status)) {}  // NOLINT: implicit by design

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }
  T& value() & { return Get(); }
  const T& value() const& { return const_cast<Result*>(this)->Get(); }
  T&& value() && { return std::move(Get()); }
  T& operator*() & { return Get(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &Get(); }
  const T* operator->() const { return &value(); }

 private:
  T& Get() {
    if (!ok()) std::abort();
    return std::get<T>(state_);
  }
  std::variant<T, Status> state_;
};

}  // namespace blockgtq

#define BGTQ_CONCAT_INNER(a, b) a##b
#define BGTQ_CONCAT(a, b) BGTQ_CONCAT_INNER(a, b)

/// Returns from the enclosing function when `expr` (a Status) failed.
#define BGTQ_RETURN_IF_ERROR(expr)             \
  do {                                         \
    ::blockgtq::Status bgtq_status = (expr);   \
    if (!bgtq_status.ok()) return bgtq_status; \
  } while (false)

/// Declares or assigns `lhs` from a Result, or returns its Status.
#define BGTQ_ASSIGN_OR_RETURN(lhs, expr) \
  BGTQ_ASSIGN_OR_RETURN_INNER(BGTQ_CONCAT(bgtq_result_, __LINE__), lhs, expr)
#define BGTQ_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                                \
  if (!result.ok()) return result.status();            \
  lhs = std::move(result).value()
