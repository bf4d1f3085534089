// Decides which requests a foreign web page could have caused, and normalizes unusual spellings of requests.
// Browsers mark cross-site requests, and send only some types of bodies without a preflight.
#pragma once

#include <string>

namespace httplib {
struct Request;
}

namespace kvant {

// Returns whether a URL's host, with or without a port, is a loopback address, which other machines cannot
// reach.
bool is_loopback(std::string host);

std::string in_small_letters(std::string text);  // converts ASCII letters only

// Returns the type without parameters, in lowercase: "text/plain" for "Text/Plain; charset=utf-8".
std::string media_type(const std::string& content_type);

// Normalizes a request. The function drops byte ranges, takes host and path from a proxy's absolute URL, and
// removes double slashes and a final slash from the path. The function treats a body without a type, or with
// `curl -d`'s form type, as JSON. This rule does not apply to browsers, which send both kinds of body for any
// web page without a preflight.
void normalize_request(httplib::Request& request);

// Returns whether the header says that the body is JSON. A foreign web page cannot make a browser send the
// header without a preflight.
bool is_json(const httplib::Request& request);

}  // namespace kvant
