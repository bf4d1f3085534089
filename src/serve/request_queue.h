// RequestQueue holds waiting requests, and lets clients take turns.
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
  // Returns the next request. Requires !empty().
  const Job& front() const { return lines_.front().jobs.front(); }
  // Takes out the next request. Its client is the last in turn now.
  Job pop();
  // Removes all requests for which `unwanted` is true.
  void remove_if(const std::function<bool(const Job&)>& unwanted);

  bool empty() const { return lines_.empty(); }
  int size() const;
  int clients_requests() const;  // counts all prompts of one request once
  void for_each(const std::function<void(const Job&)>& visit) const;  // visits client by client

 private:
  struct Line {
    std::string client;
    std::deque<Job> jobs;  // never empty
  };
  std::list<Line> lines_;
};

}  // namespace kvant
