// Which requests may come from a web page that has no business here, and how a request is written otherwise
// than expected but means the same.
#pragma once

#include <string>

namespace httplib {
struct Request;
}

namespace kvant {

// Whether a host of a URL, with a port or without, is this machine's own, which others don't reach.
bool is_loopback(std::string host);

std::string in_small_letters(std::string text);  // of ASCII

// "text/plain" of "Text/Plain; charset=utf-8".
std::string media_type(const std::string& content_type);

// Nobody gets a part of a response (Range). The host and the path of a URL that a proxy writes in the place
// of a path; one path of several slashes or with a slash at its end; JSON that `curl -d` calls a form, or
// that nothing is said of. A browser sends such bodies for any web page, without asking; so they are JSON
// only where no browser has sent them.
void normalize_request(httplib::Request& request);

// Whether the body is JSON, as its header says: a foreign web page can't have a browser send that.
bool is_json(const httplib::Request& request);

}  // namespace kvant
