// See connection.h.
#include "src/http/connection.h"

#include <boost/asio/write.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <sstream>
#include <utility>

#include "src/http/responses.h"

namespace blockgtq::http {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;

constexpr size_t kMaxPipelined = 64 << 10;  // bytes of later requests read while one is answered
// Of what has arrived and is not yet taken: bounds trailers and chunk extensions too, which no other limit
// counts.
constexpr size_t kMaxBuffered = size_t{256} << 10;
constexpr size_t kMaxDiscarded = size_t{64} << 20;  // of a refused request, read so that its client sees why
constexpr std::chrono::milliseconds kLingerTime{3000};
constexpr std::chrono::milliseconds kProbeEvery{1000};

}  // namespace

Connection::Connection(net::ip::tcp::socket socket, Server& server)
    : socket_(std::move(socket)),
      server_(server),
      registry_(server.connections_),
      read_timer_(server.io_),
      write_timer_(server.io_),
      buffer_(kMaxBuffered) {
  error_code ignored;
  socket_.set_option(net::ip::tcp::no_delay(true), ignored);
  registry_->insert(this);
}

Connection::~Connection() { registry_->erase(this); }

void Connection::RefuseAsFull() { SendFinal(ErrorResponse(503, "too many connections: try again later")); }

void Connection::SetTimer(std::chrono::milliseconds timeout, void (Connection::*expired)()) {
  read_timer_.expires_after(timeout);
  read_timer_.async_wait([self = shared_from_this(), expired](error_code aborted) {
    if (!aborted && !self->closed_) ((*self).*expired)();
  });
}

void Connection::ReadTimedOut() {
  timed_out_ = true;
  error_code ignored;
  socket_.cancel(ignored);
}

void Connection::ReadHeader(std::chrono::milliseconds timeout) {
  idle_ = true;
  head_ = false;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(server_.options_.max_header_bytes));
  parser_->body_limit(server_.options_.max_body_bytes);
  SetTimer(timeout, &Connection::ReadTimedOut);
  bhttp::async_read_header(socket_, buffer_, *parser_, [self = shared_from_this()](error_code error, size_t) {
    self->HeaderRead(error);
  });
}

void Connection::HeaderRead(error_code error) {
  read_timer_.cancel();
  if (closed_) return;
  if (error) return RequestFailed(error);
  idle_ = false;
  http11_ = parser_->get().version() >= 11;
  head_ = parser_->get().method() == bhttp::verb::head;
  keep_alive_ = parser_->keep_alive() && !server_.draining_;
  Response refusal;
  if (server_.handler_.Refuse(Take(), &refusal)) {
    if (parser_->is_done()) {  // no body: the connection can go on
      answering_ = true;
      return Send(std::move(refusal));
    }
    return SendFinal(std::move(refusal));
  }
  if (http11_ && beast::iequals(parser_->get()[bhttp::field::expect], "100-continue"))
    Enqueue("HTTP/1.1 100 Continue\r\n\r\n");
  SetTimer(server_.options_.read_timeout, &Connection::ReadTimedOut);
  bhttp::async_read(socket_, buffer_, *parser_,
                    [self = shared_from_this()](error_code failed, size_t) { self->BodyRead(failed); });
}

HttpRequest Connection::Take() const {
  const auto& message = parser_->get();
  const std::string target(message.target());
  const size_t question = std::min(target.find('?'), target.size());
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.path = target.substr(0, question);
  request.query = question < target.size() ? target.substr(question + 1) : "";
  request.authorization = std::string(message[bhttp::field::authorization]);
  request.host = std::string(message[bhttp::field::host]);
  request.origin = std::string(message[bhttp::field::origin]);
  return request;
}

void Connection::BodyRead(error_code error) {
  read_timer_.cancel();
  if (closed_) return;
  if (error) return RequestFailed(error);
  HttpRequest request = Take();
  request.body = std::move(parser_->get().body());
  answering_ = true;
  Watch();
  // The last to let go of the reply may be another thread; a connection ends on this one all the same.
  const std::shared_ptr<Reply> reply(this, [&io = server_.io_, self = shared_from_this()](Reply*) mutable {
    net::post(io, [connection = std::move(self)] {});
  });
  server_.handler_.Handle(std::move(request), reply);
}

void Connection::RequestFailed(error_code error) {
  if (timed_out_ && (buffer_.size() > 0 || !idle_ || parser_->got_some()))
    return SendFinal(ErrorResponse(408, "the request did not arrive in time"));
  if (error == bhttp::error::header_limit)
    return SendFinal(ErrorResponse(431, "the request's header is too large"));
  if (error == bhttp::error::body_limit || error == bhttp::error::buffer_overflow)
    return SendFinal(ErrorResponse(413, "the request's body is too large"));
  const bool parse_error = error.category() == make_error_code(bhttp::error::bad_method).category();
  if (parse_error && error != bhttp::error::end_of_stream && error != bhttp::error::partial_message)
    return SendFinal(ErrorResponse(400, "the request is not valid HTTP"));
  Close();  // the client left, or never asked
}

void Connection::OnGone(std::function<void()> callback) {
  if (closed_) return callback();
  on_gone_ = std::move(callback);
}

void Connection::Send(Response response) {
  if (closed_ || !answering_ || complete_) return;
  if (streaming_) {
    if (!probed_json_) return;
    Write(response.body);
    return EndStream();
  }
  bhttp::response<bhttp::string_body> message(static_cast<bhttp::status>(response.status), http11_ ? 11 : 10);
  message.set(bhttp::field::content_type, response.content_type);
  for (const auto& [name, value] : response.headers) message.set(name, value);
  keep_alive_ = keep_alive_ && !server_.draining_;
  message.keep_alive(keep_alive_);
  message.body() = std::move(response.body);
  message.prepare_payload();
  if (head_) message.body().clear();  // its length is told, its bytes are not sent
  std::ostringstream text;
  text << message;
  complete_ = true;
  Enqueue(std::move(text).str());
}

void Connection::SendFinal(Response response) {
  answering_ = true;
  keep_alive_ = false;
  Send(std::move(response));
}

void Connection::BeginStream(const std::string& content_type) {
  if (closed_ || !answering_ || streaming_) return;
  streaming_ = true;
  bhttp::response<bhttp::empty_body> message(bhttp::status::ok, http11_ ? 11 : 10);
  message.set(bhttp::field::content_type, content_type);
  message.set(bhttp::field::cache_control, "no-cache");
  keep_alive_ =
      keep_alive_ && http11_ && !server_.draining_;  // an older client's stream ends with the connection
  message.keep_alive(keep_alive_);
  message.chunked(http11_);
  std::ostringstream text;
  text << message.base();
  Enqueue(std::move(text).str());
}

void Connection::Write(const std::string& data) {
  if (closed_ || !streaming_ || complete_ || data.empty()) return;
  Enqueue(http11_ ? beast::buffers_to_string(bhttp::make_chunk(net::buffer(data))) : data);
}

void Connection::EndStream() {
  if (closed_ || !streaming_ || complete_) return;
  complete_ = true;
  Enqueue(http11_ ? beast::buffers_to_string(bhttp::make_chunk_last()) : std::string());
}

void Connection::Enqueue(std::string bytes) {
  out_bytes_ += bytes.size();
  out_.push_back(std::move(bytes));
  // A whole answer may be larger than the limit; what grows while nobody reads may not.
  if (streaming_ && out_.size() > 1 && out_bytes_ > server_.options_.max_unread_bytes) return Close();
  WriteNext();
}

void Connection::WriteNext() {
  if (writing_ || closed_) return;
  if (out_.empty()) {
    if (complete_) Answered();
    return;
  }
  writing_ = true;
  write_timer_.expires_after(server_.options_.write_timeout);
  write_timer_.async_wait([self = shared_from_this(), number = ++writes_](error_code aborted) {
    if (aborted) return;
    // Past what is ready: after a pause of the whole process a write may have ended as well.
    net::post(self->server_.io_, [self, number] {
      if (self->writing_ && self->writes_ == number) self->Close();
    });
  });
  net::async_write(socket_, net::buffer(out_.front()), [self = shared_from_this()](error_code error, size_t) {
    self->writing_ = false;
    self->write_timer_.cancel();
    if (self->closed_) return;
    if (error) return self->Close();
    self->out_bytes_ -= self->out_.front().size();
    self->out_.pop_front();
    self->WriteNext();
  });
}

void Connection::Answered() {
  on_gone_ = nullptr;
  answering_ = streaming_ = probed_json_ = complete_ = false;
  read_timer_.cancel();
  if (watching_) {
    watching_ = false;
    error_code ignored;
    socket_.cancel(ignored);
  }
  if (!keep_alive_ || server_.draining_) return Linger();
  // Past the cancelled watch, whose handler may be queued.
  net::post(server_.io_, [self = shared_from_this()] {
    if (!self->closed_) self->ReadHeader(self->server_.options_.idle_timeout);
  });
}

void Connection::Watch() {
  if (half_closed_ || buffer_.size() >= kMaxPipelined) return;
  watching_ = true;
  socket_.async_wait(net::ip::tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
    if (self->closed_ || !self->watching_) return;
    self->watching_ = false;
    if (error) return self->Close();
    self->ReadWhileAnswering();
  });
}

void Connection::ReadWhileAnswering() {
  error_code error;
  const size_t got = socket_.read_some(buffer_.prepare(4096), error);
  buffer_.commit(got);
  if (error == net::error::eof) return ClientHalfClosed();
  if (error && error != net::error::would_block) return Close();
  Watch();
}

void Connection::ClientHalfClosed() {
  // The client may still read (it only said that it sends no more) or be gone: bytes that it can ignore tell,
  // for a client that is gone answers them with a reset.
  half_closed_ = true;
  keep_alive_ = keep_alive_ && buffer_.size() > 0;
  if (!http11_ && !streaming_) return Close();
  SetTimer(kProbeEvery, &Connection::Probe);
}

void Connection::Probe() {
  if (!answering_ || complete_) return;
  if (!streaming_) {
    probed_json_ = true;
    BeginStream("application/json");
  }
  Write(probed_json_ ? " " : ":\n\n");
  if (!closed_) SetTimer(kProbeEvery, &Connection::Probe);
}

void Connection::Linger() {
  // Closing with unread input would reset the connection, and the client might lose the answer.
  error_code ignored;
  socket_.shutdown(net::ip::tcp::socket::shutdown_send, ignored);
  SetTimer(kLingerTime, &Connection::Close);
  buffer_.clear();
  DiscardInput();
}

void Connection::DiscardInput() {
  socket_.async_read_some(buffer_.prepare(16 << 10),
                          [self = shared_from_this()](error_code error, size_t got) {
                            if (self->closed_) return;
                            self->discarded_ += got;
                            if (error || self->discarded_ > kMaxDiscarded) return self->Close();
                            self->DiscardInput();
                          });
}

void Connection::Close() {
  if (closed_) return;
  closed_ = true;
  error_code ignored;
  socket_.close(ignored);
  read_timer_.cancel();
  write_timer_.cancel();
  if (on_gone_) std::exchange(on_gone_, nullptr)();
}

void Connection::CloseIfIdle() {
  if (idle_ && buffer_.size() == 0 && !parser_->got_some()) Close();
}

}  // namespace blockgtq::http
