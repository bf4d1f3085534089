// RequestQueue holds waiting requests, and takes one request of each client in turn. A client with many
// requests therefore delays each other client by at most one request.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <string>

#include "serve/job.h"

namespace kvant {

class RequestQueue {
 public:
  void push(Job job);
  // Returns the next request. The queue must not be empty.
  const Job& front() const { return lines_.front().jobs.front(); }
  // Removes and returns the next request. The request's client then becomes the last in turn.
  Job pop();
  // Removes all requests for which `unwanted` returns true.
  void remove_if(const std::function<bool(const Job&)>& unwanted);

  bool empty() const { return lines_.empty(); }
  int size() const;
  int clients_requests() const;  // counts all prompts of one client's request once
  void for_each(const std::function<void(const Job&)>& visit) const;  // calls visit() for all requests,
                                                                      // client by client

 private:
  struct Line {
    std::string client;
    std::deque<Job> jobs;  // a line without jobs is removed
  };
  std::list<Line> lines_;
};

}  // namespace kvant
