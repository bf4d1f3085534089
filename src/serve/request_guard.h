// Decides which requests may come from foreign web pages, and normalizes unusual spellings of requests.
#pragma once

#include <string>

namespace httplib {
struct Request;
}

namespace kvant {

// Returns whether a URL's host, with or without a port, is the loopback of this machine, which others cannot
// reach.
bool is_loopback(std::string host);

std::string in_small_letters(std::string text);  // ASCII only

// Returns "text/plain" for "Text/Plain; charset=utf-8".
std::string media_type(const std::string& content_type);

// Normalizes a request. It removes ranges, because nobody gets a part of a response. It takes host and path
// from a URL that a proxy wrote. It removes double slashes and a final slash from the path. It treats a body
// without a type, or one that `curl -d` calls a form, as JSON, unless a browser sent it: browsers send such
// bodies for any web page without asking.
void normalize_request(httplib::Request& request);

// Returns whether the header says that the body is JSON. A foreign web page cannot make a browser send that.
bool is_json(const httplib::Request& request);

}  // namespace kvant
