// See responses.h.
#include "src/http/responses.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/codec/block_widths.h"

namespace blockgtq::http {
namespace {

using Json = nlohmann::json;

const char* ErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 500:
      return "server_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    default:
      return "invalid_request_error";
  }
}

double PerSecond(int64_t count, double ms) { return ms > 0 ? static_cast<double>(count) / ms * 1000 : 0; }

Json LogprobJson(const serve::TokenLogprob& token, const Tokenizer& tokenizer) {
  const std::string_view piece = tokenizer.Piece(token.token);
  Json bytes = Json::array();
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", std::string(piece)}, {"logprob", token.logprob}, {"bytes", std::move(bytes)}};
}

}  // namespace

std::string Dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json ErrorJson(int http_status, const std::string& message, const std::string& type) {
  return {{"error",
           {{"code", http_status},
            {"message", message},
            {"type", type.empty() ? ErrorType(http_status) : type}}}};
}

Response ErrorResponse(int http_status, const std::string& message, const std::string& type) {
  Response response = JsonResponse(ErrorJson(http_status, message, type));
  response.status = http_status;
  if (http_status == 503) response.headers.emplace_back("Retry-After", "1");
  if (http_status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

Response ErrorResponse(const Status& status) {
  switch (status.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kMismatch:
    case ErrorCode::kCorruptFile:
      return ErrorResponse(400, status.message());
    case ErrorCode::kNotFound:
      return ErrorResponse(404, status.message());
    case ErrorCode::kUnsupported:
      return ErrorResponse(501, status.message());
    case ErrorCode::kCancelled:
      return ErrorResponse(503, status.message());
    default:
      return ErrorResponse(500, status.message());
  }
}

Response JsonResponse(const Json& value) {
  Response response;
  response.body = Dump(value);
  return response;
}

std::string_view FinishName(serve::FinishReason reason) {
  using serve::FinishReason;
  return reason == FinishReason::kEnd || reason == FinishReason::kStop ? "stop" : "length";
}

Json UsageJson(const serve::Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.new_tokens},
          {"total_tokens", usage.prompt_tokens + usage.new_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

Json TimingsJson(const serve::Usage& usage) {
  const int64_t run = usage.prompt_tokens - usage.cached_tokens;
  const int64_t decoded = std::max<int64_t>(usage.new_tokens - 1, 0);  // the first comes with the prompt
  return {{"cache_n", usage.cached_tokens},
          {"queue_ms", usage.queue_ms},
          {"prompt_n", run},
          {"prompt_ms", usage.prompt_ms},
          {"prompt_per_second", PerSecond(run, usage.prompt_ms)},
          {"predicted_n", usage.new_tokens},
          {"predicted_ms", usage.decode_ms},
          {"predicted_per_second", PerSecond(decoded, usage.decode_ms)}};
}

Json ChatLogprobs(const std::vector<serve::NewToken>& tokens, const Tokenizer& tokenizer) {
  Json content = Json::array();
  for (const serve::NewToken& token : tokens) {
    Json entry = LogprobJson(token.chosen, tokenizer);
    entry["top_logprobs"] = Json::array();
    for (const serve::TokenLogprob& top : token.top)
      entry["top_logprobs"].push_back(LogprobJson(top, tokenizer));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

Json CompletionLogprobs(const std::vector<serve::NewToken>& tokens, const Tokenizer& tokenizer,
                        size_t first_offset) {
  Json out = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
  size_t offset = first_offset;
  for (const serve::NewToken& token : tokens) {
    const std::string_view piece = tokenizer.Piece(token.chosen.token);
    out["tokens"].push_back(std::string(piece));
    out["token_logprobs"].push_back(token.chosen.logprob);
    out["text_offset"].push_back(offset);
    Json top = Json::object();
    for (const serve::TokenLogprob& t : token.top) top[std::string(tokenizer.Piece(t.token))] = t.logprob;
    out["top_logprobs"].push_back(std::move(top));
    offset += piece.size();
  }
  return out;
}

Json PlanJson(const Plan& plan) {
  const ModelFingerprint& m = plan.model;
  Json keys = Json::array(), values = Json::array();
  for (int layer = 0; layer < m.layers; ++layer) {
    Json key_heads = Json::array(), value_heads = Json::array();
    for (int head = 0; head < m.kv_heads; ++head) {
      key_heads.push_back(BlockWidths(plan.head(layer, head)));
      value_heads.push_back(plan.head(layer, head).value.code_width);
    }
    keys.push_back(std::move(key_heads));
    values.push_back(std::move(value_heads));
  }
  const double heads = static_cast<double>(plan.heads.size());
  return {{"recipe", plan.recipe},
          {"key_bits", plan.k_bits},
          {"value_bits", plan.v_bits},
          {"layers", m.layers},
          {"kv_heads", m.kv_heads},
          {"blocks", m.head_dim / 2},
          {"bytes_per_token", plan.bytes_per_token_per_head() * heads},
          {"bytes_per_token_fp16", 4.0 * m.head_dim * heads},
          {"keys", std::move(keys)},
          {"values", std::move(values)}};
}

std::string MetricsText(const serve::SchedulerStats& s) {
  std::string text;
  const auto line = [&](const char* name, const char* type, const char* help, auto value) {
    text += fmt::format("# HELP blockgtq_{0} {2}\n# TYPE blockgtq_{0} {1}\nblockgtq_{0} {3}\n", name, type,
                        help, value);
  };
  line("requests_total", "counter", "Requests accepted.", s.requests);
  line("requests_finished_total", "counter", "Requests answered in full.", s.finished);
  line("requests_cancelled_total", "counter", "Requests whose client went away.", s.cancelled);
  line("requests_failed_total", "counter", "Requests that the engine failed.", s.failed);
  line("preemptions_total", "counter", "Times a request gave its pages back and waited.", s.preemptions);
  line("prompt_tokens_total", "counter", "Prompt tokens run.", s.prompt_tokens);
  line("cached_tokens_total", "counter", "Prompt tokens found in the cache.", s.cached_tokens);
  line("new_tokens_total", "counter", "Tokens drawn.", s.new_tokens);
  line("passes_total", "counter", "Forward passes.", s.passes);
  line("pass_seconds_total", "counter", "Seconds in forward passes.", s.pass_seconds);
  line("first_token_seconds_sum", "counter", "Seconds from arrival to first token, summed.",
       s.first_token_seconds);
  line("first_token_seconds_count", "counter", "Requests in that sum.", s.first_tokens);
  line("prefix_evictions_total", "counter", "Entries that the prefix cache dropped.", s.prefix_evictions);
  line("requests_running", "gauge", "Requests in the batch.", s.running);
  line("requests_waiting", "gauge", "Requests in the queue.", s.waiting);
  line("prefix_entries", "gauge", "Entries of the prefix cache.", s.prefix_entries);
  line("page_tokens", "gauge", "Tokens that the cache's pages hold.", s.page_tokens);
  line("page_tokens_used", "gauge", "Tokens of pages in use.", s.page_tokens_used);
  line("sequence_tokens", "gauge", "Tokens of running requests and kept slots.", s.sequence_tokens);
  line("kv_bytes", "gauge", "Bytes that those take.", s.kv_bytes);
  line("kv_bytes_fp16", "gauge", "Bytes that those would take in fp16.", s.kv_bytes_fp16);
  if (s.watched) {
    line("moments_tokens", "gauge", "Tokens whose moments were gathered.", s.moments_tokens);
    line("moments_failures_total", "counter", "Failures to write them or to measure drift.",
         s.moments_failures);
  }
  if (s.drift > 0) {
    line("plan_drift", "gauge", "Logit error of the plan over that of the best one, mean over heads.",
         s.drift);
    line("plan_drift_worst", "gauge", "The same of the head where it is largest.", s.worst_drift);
  }
  return text;
}

}  // namespace blockgtq::http
