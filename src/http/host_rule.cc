// See host_rule.h.
#include "src/http/host_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>

namespace blockgtq::http {
namespace {

namespace ip = boost::asio::ip;

/// "127.0.0.1", "::1" and "[::1]".
std::optional<ip::address> AddressOf(std::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  boost::system::error_code error;
  ip::address address = ip::make_address(std::string(host), error);
  if (error) return std::nullopt;
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    return ip::make_address_v4(ip::v4_mapped, address.to_v6());
  return address;
}

bool IsNameByte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.' || c == '_';
}

}  // namespace

std::string HostOfAuthority(std::string_view authority) {
  std::string_view host = authority, port;
  if (!authority.empty() && authority.front() == '[') {
    const size_t end = authority.find(']');
    if (end == std::string_view::npos) return {};
    host = authority.substr(0, end + 1);
    port = authority.substr(end + 1);
    if (!AddressOf(host).has_value()) return {};
  } else {
    const size_t colon = std::min(authority.find(':'), authority.size());
    host = authority.substr(0, colon);
    port = authority.substr(colon);
    if (!std::ranges::all_of(host, IsNameByte)) return {};
    if (host.ends_with('.')) host.remove_suffix(1);
  }
  const bool digits = std::ranges::all_of(port.substr(std::min<size_t>(port.size(), 1)),
                                          [](unsigned char c) { return std::isdigit(c) != 0; });
  if (!port.empty() && (port.front() != ':' || !digits)) return {};
  std::string name(host);
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

Result<HostRule> HostRule::Create(const std::string& bound, const std::vector<std::string>& allowed) {
  HostRule rule;
  const std::optional<ip::address> address = AddressOf(bound == "localhost" ? "127.0.0.1" : bound);
  if (!address.has_value()) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("--host {}: must be an IP address, or localhost", bound));
  }
  rule.bound_ = *address;
  for (const std::string& name : allowed) {
    rule.allowed_.push_back(HostOfAuthority(name));
    if (!rule.allowed_.back().empty() && name.find(':') == std::string::npos) continue;
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("--allow-host {}: must be a name without scheme and port", name));
  }
  return rule;
}

bool HostRule::IsLocal(const std::string& host) const {
  if (host == "localhost" || host.ends_with(".localhost")) return true;
  const std::optional<ip::address> address = AddressOf(host);
  return address.has_value() && address->is_loopback();
}

bool HostRule::IsAllowed(const std::string& host) const {
  return std::ranges::find(allowed_, host) != allowed_.end();
}

std::string HostRule::Refusal(std::string_view host, std::string_view origin) const {
  // Clients before HTTP/1.1 may send no Host; browsers always do.
  const std::string name = HostOfAuthority(host);
  if (!host.empty() && !IsLocal(name) && !IsAllowed(name)) {
    // Rebinding needs a name: an address in Host is the one that was connected to.
    const std::optional<ip::address> address = AddressOf(name);
    if (!address.has_value() || (!bound_.is_unspecified() && *address != bound_)) {
      return "the Host header names another server: without an API key this one answers as localhost, by its "
             "address, and to the names of --allow-host";
    }
  }
  if (origin.empty()) return {};
  const size_t scheme = origin.find("://");
  if (scheme != std::string_view::npos) {
    const std::string_view authority = origin.substr(scheme + 3);
    const std::string page = HostOfAuthority(authority);
    if (!page.empty() && ((!host.empty() && authority == host) || IsLocal(page) || IsAllowed(page)))
      return {};
  }
  return "the Origin header names another site: without an API key only pages of this server, of localhost "
         "and of the names of --allow-host may ask";
}

}  // namespace blockgtq::http
