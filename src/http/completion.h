// One answer to a chat or completion request: collects the events of its choices, or streams them.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/http/json_request.h"
#include "src/http/reply.h"
#include "src/http/tool_call_parser.h"
#include "src/serve/engine_thread.h"

namespace blockgtq::http {

/// A request that is ready for the engine.
struct GenerationJob {
  bool chat = false;
  std::vector<std::string> tools;  // their names; where there are any, calls are taken out of the answers
  GenerationSettings settings;
  std::vector<serve::Request> requests;  // a choice each
  std::vector<std::string> echoes;       // [choices] text put before the answer; may be empty
};

class Completion : public std::enable_shared_from_this<Completion> {
 public:
  Completion(GenerationJob job, std::string model_name, std::shared_ptr<Reply> reply,
             const Tokenizer& tokenizer);

  /// Submits to the engine and answers, at the latest when the engine is through. On the I/O thread.
  void Start(boost::asio::io_context& io, serve::EngineThread& engine);

 private:
  struct Choice {
    std::string text;
    ToolCallParser parser;  // used where the job has tools
    nlohmann::json calls = nlohmann::json::array();
    std::vector<serve::NewToken> tokens;
    serve::Usage usage;
    std::string finish;  // empty: not finished
  };

  void OnEvent(const serve::Event& event);
  void Fail(const Status& status);
  /// What an event adds to its choice: text, and calls as a stream's delta has them.
  struct Added {
    std::string text;
    nlohmann::json calls = nlohmann::json::array();
  };
  Added Add(Choice& choice, const serve::Event& event) const;
  void StreamEvent(size_t index, const serve::Event& event, const Added& added);
  void FinishStream();
  void FinishWhole();
  nlohmann::json Frame(const char* chat_object) const;
  nlohmann::json Logprobs(const std::vector<serve::NewToken>& tokens, size_t offset) const;
  serve::Usage Total() const;
  void Emit(const nlohmann::json& value);

  GenerationJob job_;
  const std::string model_name_;
  std::shared_ptr<Reply> reply_;
  const Tokenizer& tokenizer_;
  std::string id_;
  int64_t created_ = 0;
  std::vector<serve::RequestId> ids_;
  std::vector<Choice> choices_;
  size_t finished_ = 0;
  bool over_ = false;
};

}  // namespace blockgtq::http
