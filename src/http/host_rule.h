// Which names a server without a key answers to: against pages of other sites that reach it through the
// browser, by a name of theirs that resolves to this address (DNS rebinding) or straight.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "blockgtq/status.h"

namespace blockgtq::http {

/// The host of "name", "name:port", "[address]:port", in lower case, without a final dot; empty where the
/// text is none of these.
std::string HostOfAuthority(std::string_view authority);

class HostRule {
 public:
  /// bound: the address listened at, or "localhost"; allowed: further names. Errors: kInvalidArgument (not an
  /// address; a name that no request can have).
  static Result<HostRule> Create(const std::string& bound, const std::vector<std::string>& allowed);

  /// Why a request with these headers (empty: absent) is refused; empty: it is not.
  ///   Host: localhost, a loopback address, the bound address (any address where all are bound), or an
  ///   allowed name. Origin: that of the page itself (as Host has it), one on localhost, or on an allowed
  ///   name.
  std::string Refusal(std::string_view host, std::string_view origin) const;

 private:
  HostRule() = default;
  bool IsLocal(const std::string& host) const;
  bool IsAllowed(const std::string& host) const;

  boost::asio::ip::address bound_;
  std::vector<std::string> allowed_;
};

}  // namespace blockgtq::http
