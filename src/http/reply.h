// What a handler sees of a connection: the request that came, and the reply that it gives, whole or as a
// stream.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace blockgtq::http {

struct HttpRequest {
  std::string method;                       // "GET", "POST", ...
  std::string path;                         // without the query
  std::string query;                        // behind the '?'
  std::string authorization, host, origin;  // the headers; empty: absent
  std::string body;
};

struct Response {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
};

/// All calls on the server's I/O thread. Once the client is gone the others do nothing.
class Reply {
 public:
  virtual ~Reply() = default;
  /// The whole answer; or, after BeginStream, nothing.
  virtual void Send(Response response) = 0;
  virtual void BeginStream(const std::string& content_type) = 0;
  virtual void Write(const std::string& data) = 0;
  virtual void EndStream() = 0;
  /// Called once when the client goes away, or does not read, before the answer's end; at once where it has
  /// gone already.
  virtual void OnGone(std::function<void()> callback) = 0;
};

}  // namespace blockgtq::http
