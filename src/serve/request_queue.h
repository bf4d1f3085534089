// RequestQueue: requests that wait, one of each client in turn.
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
  // The one whose turn it is. Requires !empty().
  const Job& front() const { return lines_.front().jobs.front(); }
  // Takes it out; its client comes last now.
  Job pop();
  // Takes out all for which it is true.
  void remove_if(const std::function<bool(const Job&)>& unwanted);

  bool empty() const { return lines_.empty(); }
  int size() const;
  int clients_requests() const;  // the same, where all prompts of one request count once
  void for_each(const std::function<void(const Job&)>& visit) const;  // client by client

 private:
  struct Line {
    std::string client;
    std::deque<Job> jobs;  // never empty
  };
  std::list<Line> lines_;
};

}  // namespace kvant
