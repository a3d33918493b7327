// See server.h.
#include "src/http/server.h"

#include <fmt/format.h>

#include <utility>

#include "src/http/connection.h"

namespace blockgtq::http {
namespace {

namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;

constexpr std::chrono::milliseconds kPoll{50};  // of the stop request

}  // namespace

Server::Server(net::io_context& io, const ServerOptions& options, Handler& handler)
    : io_(io), options_(options), handler_(handler), acceptor_(io), accept_timer_(io), stop_timer_(io) {}

Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::Listen(net::io_context& io, const ServerOptions& options,
                                               Handler& handler) {
  std::unique_ptr<Server> server(new Server(io, options, handler));
  error_code error;
  const net::ip::address address =
      net::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
  if (error) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("--host {}: must be an IP address, or localhost", options.host));
  }
  const tcp::endpoint endpoint(address, options.port);
  tcp::acceptor& acceptor = server->acceptor_;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(net::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(net::socket_base::max_listen_connections, error);
  if (!error) server->port_ = acceptor.local_endpoint(error).port();
  if (error) {
    return Status(ErrorCode::kIo, fmt::format("{} port {}: {}; choose another --port", options.host,
                                              options.port, error.message()));
  }
  return server;
}

void Server::Run(const std::atomic<bool>& stop) {
  Accept();
  Watch(stop);
  io_.run();
}

void Server::Accept() {
  acceptor_.async_accept([this](error_code error, tcp::socket socket) {
    if (draining_ || error == net::error::operation_aborted) return;
    if (error) {  // out of file descriptors, most likely: they come back as connections end
      accept_timer_.expires_after(kPoll);
      accept_timer_.async_wait([this](error_code aborted) {
        if (!aborted) Accept();
      });
      return;
    }
    const bool full = connections_->size() >= options_.max_connections;
    const auto connection = std::make_shared<Connection>(std::move(socket), *this);
    full ? connection->RefuseAsFull() : connection->Start();
    Accept();
  });
}

void Server::Watch(const std::atomic<bool>& stop) {
  stop_timer_.expires_after(kPoll);
  stop_timer_.async_wait([this, &stop](error_code) {
    if (stop.load() && !draining_) Drain();
    if (draining_) {
      const bool late = std::chrono::steady_clock::now() >= drain_end_;
      if (late) {
        for (Connection* connection : std::set<Connection*>(*connections_)) connection->Close();
      }
      if (connections_->empty() || late) return io_.stop();
    }
    Watch(stop);
  });
}

void Server::Drain() {
  draining_ = true;
  drain_end_ = std::chrono::steady_clock::now() + options_.drain_timeout;
  error_code ignored;
  acceptor_.close(ignored);
  for (Connection* connection : std::set<Connection*>(*connections_)) connection->CloseIfIdle();
}

}  // namespace blockgtq::http
