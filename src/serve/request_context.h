// RequestContext holds what belongs to a request but is not in its HTTP text: the client's connection and the
// log's record.
#pragma once

#include <httplib.h>

#include "serve/http_connection.h"
#include "serve/request_record.h"

namespace kvant {

// ConnectionServer uses it as the function that says whether the client has gone, so it travels with the
// request. Both members must outlive the request.
struct RequestContext {
  HttpConnection* connection = nullptr;
  RequestRecord* record = nullptr;
  bool knows_chunks = true;  // false for clients of HTTP/1.0

  bool operator()() const { return connection->has_left(); }
};

// Returns null if another server than ConnectionServer has read the request.
inline const RequestContext* context_of(const httplib::Request& request) {
  return request.is_connection_closed.target<RequestContext>();
}

inline constexpr const char* kContextKey = "context";
inline const RequestContext* context_of(const httplib::Response& response) {
  return response.user_data.get<RequestContext>(kContextKey);
}

}  // namespace kvant
