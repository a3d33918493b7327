// blockgtq serve: the HTTP server of one model.
#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "apps/cli/command.h"
#include "apps/cli/options.h"
#include "apps/cli/terminal.h"
#include "src/formats/atomic_file.h"
#include "src/http/service.h"

namespace blockgtq::cli {
namespace {

constexpr int64_t kDefaultCacheTokens = 65536;

class ServeCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    model_.Add(app, "fast");
    cache_.Add(app);
    app.add_option("--host", server_.host, "address to listen at; other machines reach 0.0.0.0 only")
        ->capture_default_str();
    app.add_option("--port", server_.port, "port (0: any free one)")->capture_default_str();
    app.add_option("--api-key", service_.api_keys, "key that clients must send (may be given several times)")
        ->check(NotEmpty());
    app.add_option("--api-key-file", key_file_, "file with a key a line")->check(NotEmpty());
    app.add_option(
           "--allow-host", allowed_hosts_,
           "name under which browsers may reach a server without a key, beside localhost and its address "
           "(may be given several times)")
        ->check(NotEmpty());
    app.add_option("-c,--context", scheduler_.max_sequence,
                   "tokens of one request, prompt and answer (0: the model's context)")
        ->check(CLI::Range(0, 1 << 30));
    app.add_option("--cache-tokens", cache_tokens_,
                   "tokens of the cache over all requests (default: 65536, or one context if that is more)")
        ->check(CLI::Range(64, 1 << 30));
    app.add_option("--np,--parallel", scheduler_.max_running, "requests that run together; also the slots")
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
    app.add_option("-b,--batch", scheduler_.chunk, "prompt tokens a pass, a multiple of 64")
        ->check(CLI::Range(64, 1 << 16))
        ->capture_default_str();
    app.add_option("--queue", max_waiting_, "requests that may wait; more get 503")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    app.add_option("--prefix-cache", scheduler_.prefix_entries,
                   "prompt beginnings kept for later prompts (0: none)")
        ->check(CLI::Range(0, 1 << 20))
        ->capture_default_str();
    app.add_option("--slot-save-path", service_.slot_folder,
                   "folder of saved slots (default: none are saved)")
        ->check(CLI::ExistingDirectory);
    app.add_option("--alias", service_.model_name, "the model's name for clients (default: its file's)");
    app.add_option("--max-connections", server_.max_connections, "connections at a time")
        ->check(CLI::Range(1, 1 << 16))
        ->capture_default_str();
    AddSeconds(app, "--read-timeout", server_.read_timeout,
               "seconds for a request's header, and for its body");
    AddSeconds(app, "--write-timeout", server_.write_timeout, "seconds that a client may not read");
    AddSeconds(app, "--drain-timeout", server_.drain_timeout, "seconds that running answers get at the end");
    app.add_flag("!--no-metrics", service_.metrics, "no /metrics");
    moments_.Add(app);
  }

  Status Run() override {
    BGTQ_RETURN_IF_ERROR(ReadKeys());
    BGTQ_RETURN_IF_ERROR(MakeHostRule());
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, model_.Open());
    BGTQ_ASSIGN_OR_RETURN(const std::optional<Plan> plan, cache_.ObtainPlan(*model));
    if (cache_.choice.simulated != nullptr) {
      return Status(
          ErrorCode::kUnsupported,
          fmt::format("recipe {} is simulated, for comparisons: name a packed or an uncompressed one",
                      cache_.choice.recipe));
    }
    const int64_t context =
        scheduler_.max_sequence > 0 ? scheduler_.max_sequence : model->config().context_length;
    const int64_t tokens = cache_tokens_ > 0 ? cache_tokens_ : std::max(context, kDefaultCacheTokens);
    BGTQ_ASSIGN_OR_RETURN(const CacheOptions options, CacheOptionsFor(cache_.choice, tokens));
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<MomentsWatch> watch, moments_.Open(*model, cache_, plan));
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> engine_context,
                          Context::Create(*model, options, plan.has_value() ? &*plan : nullptr));
    BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<serve::Scheduler> scheduler,
                          serve::Scheduler::Create(*engine_context, scheduler_));
    BGTQ_RETURN_IF_ERROR(scheduler->WarmUp());
    engine_context->Watch(watch.get());  // nobody asked for the tokens of the warm-up

    if (service_.model_name.empty()) service_.model_name = std::filesystem::path(model_.path).stem().string();
    service_.cache_name = cache_.Name();
    service_.version = BGTQ_VERSION;
    service_.plan = plan.has_value() ? &*plan : nullptr;
    if (!service_.slot_folder.empty()) {
      BGTQ_ASSIGN_OR_RETURN(const int64_t removed, RemoveAbandonedTemporaries(service_.slot_folder));
      if (removed > 0)
        Log(fmt::format("slots: removed {} unfinished files of a server that was killed", removed));
    }
    InstallStopHandler();
    BGTQ_RETURN_IF_ERROR(Serve(*model, std::move(scheduler)));
    return moments_.Finish(watch.get());
  }

 private:
  Status Serve(LoadedModel& model, std::unique_ptr<serve::Scheduler> scheduler) {
    boost::asio::io_context io(1);
    serve::EngineThread engine(std::move(scheduler), max_waiting_);
    http::Service service(io, model, engine, service_);
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<http::Server> server,
                          http::Server::Listen(io, server_, service));
    Log(fmt::format("cache: {} tokens, {}; {} requests at a time", engine.cache().options().max_tokens,
                    cache_.Name(), scheduler_.max_running));
    if (service_.api_keys.empty() && server_.host != "127.0.0.1" && server_.host != "::1" &&
        server_.host != "localhost") {
      Log("warning: anyone who reaches this address may use the server: give --api-key");
    }
    Log(fmt::format("listening on http://{}:{}", server_.host, server->port()));
    server->Run(StopRequested());
    Log("stopped");
    return Status::Ok();
  }

  static void AddSeconds(CLI::App& app, const char* name, std::chrono::milliseconds& value,
                         const char* what) {
    app.add_option_function<double>(
           name,
           [&value](double seconds) {
             value = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
           },
           fmt::format("{} (default {})", what, value.count() / 1000))
        ->check(CLI::Range(0.001, 86400.0));
  }

  Status ReadKeys() {
    if (key_file_.empty()) return Status::Ok();
    BGTQ_ASSIGN_OR_RETURN(const std::string text, ReadFile(key_file_));
    std::istringstream lines(text);
    bool any = false;
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (line.empty()) continue;
      service_.api_keys.push_back(line);
      any = true;
    }
    if (any) return Status::Ok();
    return Status(ErrorCode::kInvalidArgument, key_file_ + ": holds no key; put one on a line");
  }

  /// Keys keep other sites out by themselves: their pages have none.
  Status MakeHostRule() {
    if (service_.api_keys.empty()) {
      BGTQ_ASSIGN_OR_RETURN(service_.hosts, http::HostRule::Create(server_.host, allowed_hosts_));
      return Status::Ok();
    }
    if (allowed_hosts_.empty()) return Status::Ok();
    return Status(ErrorCode::kInvalidArgument,
                  "--allow-host: a server with API keys answers to every name; leave one of the two out");
  }

  ModelOptions model_;
  CacheFlags cache_;
  http::ServerOptions server_;
  http::ServiceOptions service_;
  serve::SchedulerOptions scheduler_;
  int64_t cache_tokens_ = 0, max_waiting_ = 256;
  std::string key_file_;
  MomentsOption moments_;
  std::vector<std::string> allowed_hosts_;
};

}  // namespace

std::unique_ptr<Command> MakeServe() { return std::make_unique<ServeCommand>(); }

}  // namespace blockgtq::cli
