// The paths of kept sequences. Files are written and checked on a thread of their own: streams go on
// meanwhile.
#include <boost/asio/post.hpp>
#include <charconv>
#include <string_view>
#include <utility>

#include "src/http/json_request.h"
#include "src/http/responses.h"
#include "src/http/service.h"

namespace blockgtq::http {

using Json = nlohmann::json;

/// One action on a slot. It owns what it needs: the engine runs what is left to do when the service has gone.
struct Service::SlotJob {
  boost::asio::io_context& io;
  serve::EngineThread& engine;
  std::shared_ptr<boost::asio::thread_pool> files;
  ReplyPtr reply;
  int slot = 0;
  std::string name, path;  // of the file, for the client and for us; empty: none

  void Answer(const Result<int64_t>& tokens) const;
};

void Service::Slots(const HttpRequest&, const ReplyPtr& reply) {
  engine_.Post([&io = io_, reply](serve::Scheduler& scheduler) {
    Json list = Json::array();
    for (const serve::SlotInfo& slot : scheduler.slots()) {
      list.push_back({{"id", slot.slot}, {"is_processing", slot.busy}, {"n_tokens", slot.tokens}});
    }
    boost::asio::post(io, [reply, list = std::move(list)] { reply->Send(JsonResponse(list)); });
  });
}

void Service::SlotAction(const HttpRequest& request, const ReplyPtr& reply) {
  const std::string_view digits = std::string_view(request.path).substr(std::string_view("/slots/").size());
  int slot = -1;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), slot);
  if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size() || slot < 0)
    return reply->Send(ErrorResponse(404, "a slot's path is /slots/NUMBER"));
  const auto job = std::make_shared<SlotJob>(SlotJob{io_, engine_, files_, reply, slot, {}, {}});
  if (request.query == "action=erase") return EraseSlot(job);
  const bool save = request.query == "action=save";
  if (!save && request.query != "action=restore")
    return reply->Send(ErrorResponse(400, "the query must be action=save, action=restore or action=erase"));
  if (options_.slot_folder.empty())
    return reply->Send(ErrorResponse(501, "slots are not kept on disk (start with --slot-save-path)"));
  Result<std::string> name = ParseSlotFileName(request.body);
  if (!name.ok()) return reply->Send(ErrorResponse(name.status()));
  job->name = std::move(*name);
  job->path = options_.slot_folder + "/" + job->name;
  save ? SaveSlot(job) : RestoreSlot(job);
}

void Service::SaveSlot(const SlotJobPtr& job) {
  job->engine.Post([job](serve::Scheduler& scheduler) {
    Result<PendingSession> begun = scheduler.BeginSave(job->slot);
    if (!begun.ok()) return job->Answer(begun.status());
    const auto session = std::make_shared<PendingSession>(std::move(*begun));
    const auto write = [job, session]() -> Result<int64_t> {
      BGTQ_RETURN_IF_ERROR(session->Write(job->path));
      return session->length();
    };
    if (!scheduler.saves_aside()) {
      const Result<int64_t> written = write();
      scheduler.EndSave(job->slot);
      return job->Answer(written);
    }
    boost::asio::post(*job->files, [job, write] {
      job->engine.Post([job, written = write()](serve::Scheduler& after) {
        after.EndSave(job->slot);
        job->Answer(written);
      });
    });
  });
}

void Service::RestoreSlot(const SlotJobPtr& job) {
  boost::asio::post(*job->files, [job] {
    const auto session =
        std::make_shared<Result<SessionFile>>(SessionFile::Open(job->engine.cache(), job->path));
    if (!session->ok()) return job->Answer(session->status());
    job->engine.Post([job, session](serve::Scheduler& scheduler) {
      job->Answer(scheduler.RestoreSlot(job->slot, **session));
    });
  });
}

void Service::EraseSlot(const SlotJobPtr& job) {
  job->engine.Post([job](serve::Scheduler& scheduler) { job->Answer(scheduler.EraseSlot(job->slot)); });
}

void Service::SlotJob::Answer(const Result<int64_t>& tokens) const {
  Response response;
  if (tokens.ok()) {
    response = JsonResponse({{"id_slot", slot}, {"filename", name}, {"n_tokens", *tokens}});
  } else {  // the message names the file by its whole path; a client is told its name
    std::string message = tokens.status().message();
    for (size_t at; !path.empty() && (at = message.find(path)) != std::string::npos;)
      message.replace(at, path.size(), "slot file " + name);
    response = ErrorResponse(Status(tokens.status().code(), message));
  }
  boost::asio::post(io, [to = reply, response = std::move(response)] { to->Send(response); });
}

}  // namespace blockgtq::http
