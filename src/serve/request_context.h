// RequestContext holds the client's connection and the log record of a request, which are not part of the
// request's HTTP text. httplib's request type has no room for such data, so the context uses a member that
// the server may set.
#pragma once

#include <httplib.h>

#include "serve/http_connection.h"
#include "serve/request_record.h"

namespace kvant {

// httplib keeps one function with each request, which says whether the client has gone. ConnectionServer
// passes a RequestContext as that function, so the context reaches every handler. Both members must outlive
// the request.
struct RequestContext {
  HttpConnection* connection = nullptr;
  RequestRecord* record = nullptr;
  bool knows_chunks = true;  // false for clients of HTTP/1.0, which do not know chunked bodies

  bool operator()() const { return connection->has_left(); }
};

// Returns the context of a request, or null if a server other than ConnectionServer has read the request.
inline const RequestContext* context_of(const httplib::Request& request) {
  return request.is_connection_closed.target<RequestContext>();
}

inline constexpr const char* kContextKey = "context";
inline const RequestContext* context_of(const httplib::Response& response) {
  return response.user_data.get<RequestContext>(kContextKey);
}

}  // namespace kvant
