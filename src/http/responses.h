// The JSON that answers requests, in the shapes of OpenAI's API and llama.cpp's server.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "blockgtq/status.h"
#include "src/codec/plan.h"
#include "src/http/reply.h"
#include "src/serve/request.h"
#include "src/serve/scheduler.h"

namespace blockgtq::http {

/// JSON text; bytes that are no UTF-8 become U+FFFD.
std::string Dump(const nlohmann::json& value);

/// {"error": {"code", "message", "type"}} with the type that belongs to the HTTP status.
nlohmann::json ErrorJson(int http_status, const std::string& message, const std::string& type = "");
Response ErrorResponse(int http_status, const std::string& message, const std::string& type = "");
/// kInvalidArgument 400, kNotFound 404, kUnsupported 501, kMismatch and kCorruptFile 400, the rest 500.
Response ErrorResponse(const Status& status);
Response JsonResponse(const nlohmann::json& value);

/// "stop" or "length".
std::string_view FinishName(serve::FinishReason reason);
nlohmann::json UsageJson(const serve::Usage& usage);
nlohmann::json TimingsJson(const serve::Usage& usage);
/// Chat's list of token logprobs, and the older object of completions. first_offset: bytes of text before.
nlohmann::json ChatLogprobs(const std::vector<serve::NewToken>& tokens, const Tokenizer& tokenizer);
nlohmann::json CompletionLogprobs(const std::vector<serve::NewToken>& tokens, const Tokenizer& tokenizer,
                                  size_t first_offset);

/// A plan's widths: keys by layer, KV head and RoPE block (fast frequencies first), values by layer and head.
nlohmann::json PlanJson(const Plan& plan);

/// Prometheus' text format.
std::string MetricsText(const serve::SchedulerStats& stats);

}  // namespace blockgtq::http
