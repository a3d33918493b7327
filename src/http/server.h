// The listener: accepts connections, bounds their number, drains them at the end. Everything here runs on one
// I/O thread, the one that calls Run.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "blockgtq/status.h"
#include "src/http/reply.h"

namespace blockgtq::http {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0: any free one
  size_t max_connections = 512;
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 8 << 20;
  size_t max_unread_bytes = 1 << 20;              // of an answer that the client does not read
  std::chrono::milliseconds read_timeout{15000};  // for a whole header, and for a whole body
  std::chrono::milliseconds idle_timeout{60000};  // between requests of one connection
  std::chrono::milliseconds write_timeout{30000};
  std::chrono::milliseconds drain_timeout{30000};
};

/// What requests mean; called on the I/O thread.
class Handler {
 public:
  virtual ~Handler() = default;
  /// Before the body is read: an answer that needs none of it (unknown path, no key), or nothing.
  virtual bool Refuse(const HttpRequest& request, Response* response) = 0;
  virtual void Handle(HttpRequest request, std::shared_ptr<Reply> reply) = 0;
};

class Connection;

class Server {
 public:
  /// io and handler outlive this. Errors: kInvalidArgument (host), kIo (the port is taken, ...).
  static Result<std::unique_ptr<Server>> Listen(boost::asio::io_context& io, const ServerOptions& options,
                                                Handler& handler);
  ~Server();

  uint16_t port() const { return port_; }
  /// Serves until *stop; then takes no more connections, lets what runs end for drain_timeout, and returns.
  void Run(const std::atomic<bool>& stop);

 private:
  friend class Connection;
  Server(boost::asio::io_context& io, const ServerOptions& options, Handler& handler);
  void Accept();
  void Watch(const std::atomic<bool>& stop);
  void Drain();

  boost::asio::io_context& io_;
  const ServerOptions options_;
  Handler& handler_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer accept_timer_, stop_timer_;
  // Shared with the connections, which the I/O context may keep for longer than the server lives.
  std::shared_ptr<std::set<Connection*>> connections_ = std::make_shared<std::set<Connection*>>();
  std::chrono::steady_clock::time_point drain_end_;
  uint16_t port_ = 0;
  bool draining_ = false;
};

}  // namespace blockgtq::http
