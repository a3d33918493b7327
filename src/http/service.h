// The routes of the server: a table of method, path and handler over one engine thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/engine/loaded_model.h"
#include "src/http/completion.h"
#include "src/http/host_rule.h"
#include "src/http/server.h"
#include "src/serve/engine_thread.h"

namespace blockgtq::http {

struct ServiceOptions {
  std::vector<std::string> api_keys;  // empty: everyone may ask
  std::optional<HostRule> hosts;      // without keys: under which names; absent: under any
  std::string slot_folder;            // of saved slots; empty: saving and restoring are refused
  std::string model_name;             // as clients see it
  std::string cache_name;             // "aligned K3V3"
  std::string version;
  const Plan* plan = nullptr;  // of the cache; null: it is not coded
  bool metrics = true;
};

class Service : public Handler {
 public:
  /// What is passed outlives this; work is joined in its end.
  Service(boost::asio::io_context& io, const LoadedModel& model, serve::EngineThread& engine,
          ServiceOptions options);
  ~Service() override;

  bool Refuse(const HttpRequest& request, Response* response) override;
  void Handle(HttpRequest request, std::shared_ptr<Reply> reply) override;

 private:
  using ReplyPtr = std::shared_ptr<Reply>;
  using Route = void (Service::*)(const HttpRequest&, const ReplyPtr&);
  struct RouteInfo {
    std::string_view method, path;  // a longer path that ends in '/' stands for all below it
    Route handler;
    bool open;  // needs no key
  };
  static const std::vector<RouteInfo>& Routes();
  /// Null: none; allowed: the methods that the path has, when it is known.
  static const RouteInfo* FindRoute(const HttpRequest& request, std::string* allowed);

  void Health(const HttpRequest& request, const ReplyPtr& reply);
  void Metrics(const HttpRequest& request, const ReplyPtr& reply);
  void Models(const HttpRequest& request, const ReplyPtr& reply);
  void Page(const HttpRequest& request, const ReplyPtr& reply);
  void PlanWidths(const HttpRequest& request, const ReplyPtr& reply);
  void Props(const HttpRequest& request, const ReplyPtr& reply);
  void Slots(const HttpRequest& request, const ReplyPtr& reply);
  void SlotAction(const HttpRequest& request, const ReplyPtr& reply);
  struct SlotJob;
  using SlotJobPtr = std::shared_ptr<SlotJob>;
  static void SaveSlot(const SlotJobPtr& job);
  static void RestoreSlot(const SlotJobPtr& job);
  static void EraseSlot(const SlotJobPtr& job);
  void Chat(const HttpRequest& request, const ReplyPtr& reply);
  void Completions(const HttpRequest& request, const ReplyPtr& reply);
  void Tokenize(const HttpRequest& request, const ReplyPtr& reply);
  void Detokenize(const HttpRequest& request, const ReplyPtr& reply);

  /// Runs `make` (parsing and tokenizing, which take time on long texts) beside the I/O thread, then submits.
  void Generate(const ReplyPtr& reply, std::function<Result<GenerationJob>()> make);
  Result<GenerationJob> ChatJob(const std::string& body) const;
  Result<GenerationJob> CompletionsJob(const std::string& body) const;

  boost::asio::io_context& io_;
  const LoadedModel& model_;
  serve::EngineThread& engine_;
  const ServiceOptions options_;
  boost::asio::thread_pool workers_;                 // texts, beside the I/O thread
  std::shared_ptr<boost::asio::thread_pool> files_;  // slot files
};

/// Whether `given` is one of the keys; takes as long whichever it is, and whether or not.
bool IsKey(const std::vector<std::string>& keys, std::string_view given);

}  // namespace blockgtq::http
