// One client: reads requests one after the other, writes their answers, watches for the client's going. Beast
// parses; what is written is queued here, so that a client that does not read is noticed and dropped.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "src/http/server.h"

namespace blockgtq::http {

class Connection : public Reply, public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::ip::tcp::socket socket, Server& server);
  ~Connection() override;

  void Start() { ReadHeader(server_.options_.read_timeout); }
  /// Answers 503 without reading.
  void RefuseAsFull();
  /// Drops the connection; a handler whose answer is not complete hears of it.
  void Close();
  void CloseIfIdle();

  void Send(Response response) override;
  void BeginStream(const std::string& content_type) override;
  void Write(const std::string& data) override;
  void EndStream() override;
  void OnGone(std::function<void()> callback) override;

 private:
  using error_code = boost::system::error_code;

  void ReadHeader(std::chrono::milliseconds timeout);
  void HeaderRead(error_code error);
  void BodyRead(error_code error);
  void RequestFailed(error_code error);
  HttpRequest Take() const;

  void SetTimer(std::chrono::milliseconds timeout, void (Connection::*expired)());
  void ReadTimedOut();
  void Watch();
  void ReadWhileAnswering();
  void ClientHalfClosed();
  void Probe();

  void SendFinal(Response response);
  void Enqueue(std::string bytes);
  void WriteNext();
  void Answered();
  void Linger();
  void DiscardInput();

  boost::asio::ip::tcp::socket socket_;
  Server& server_;
  std::shared_ptr<std::set<Connection*>> registry_;
  boost::asio::steady_timer read_timer_, write_timer_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;

  std::deque<std::string> out_;
  size_t out_bytes_ = 0;
  size_t discarded_ = 0;
  uint64_t writes_ = 0;  // begun
  std::function<void()> on_gone_;
  bool writing_ = false;
  bool answering_ = false;    // a handler owes the rest of an answer
  bool streaming_ = false;    // its header is out
  bool probed_json_ = false;  // the stream was begun by Probe, for an answer that will be sent whole
  bool complete_ = false;     // the whole answer is in out_
  bool keep_alive_ = false;
  bool http11_ = true;
  bool head_ = false;  // the request's method: its answer has no body
  bool timed_out_ = false;
  bool half_closed_ = false;
  bool watching_ = false;
  bool closed_ = false;
  bool idle_ = false;  // waits for a request
};

}  // namespace blockgtq::http
