// RequestContext: what belongs to a request beside what HTTP says of it: its client's connection, and what
// the log will say.
#pragma once

#include <httplib.h>

#include "serve/http_connection.h"
#include "serve/request_record.h"

namespace kvant {

// ConnectionServer makes it the function that says whether the client has gone, so it travels with the
// request. Both outlive the request.
struct RequestContext {
  HttpConnection* connection = nullptr;
  RequestRecord* record = nullptr;
  bool knows_chunks = true;  // not: a client of HTTP/1.0

  bool operator()() const { return connection->has_left(); }
};

// Null: another server than ConnectionServer has read the request.
inline const RequestContext* context_of(const httplib::Request& request) {
  return request.is_connection_closed.target<RequestContext>();
}

inline constexpr const char* kContextKey = "context";
inline const RequestContext* context_of(const httplib::Response& response) {
  return response.user_data.get<RequestContext>(kContextKey);
}

}  // namespace kvant
