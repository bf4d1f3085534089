#include "serve/request_queue.h"

#include <algorithm>

namespace kvant {

void RequestQueue::push(Job job) {
  auto line = std::ranges::find(lines_, job.request.client, &Line::client);
  if (line == lines_.end()) line = lines_.insert(lines_.end(), {job.request.client, {}});
  line->jobs.push_back(std::move(job));
}

Job RequestQueue::pop() {
  KVANT_CHECK(!lines_.empty(), "nothing waits");
  Job job = std::move(lines_.front().jobs.front());
  lines_.front().jobs.pop_front();
  lines_.splice(lines_.end(), lines_, lines_.begin());
  if (lines_.back().jobs.empty()) lines_.pop_back();
  return job;
}

void RequestQueue::remove_if(const std::function<bool(const Job&)>& unwanted) {
  for (Line& line : lines_) std::erase_if(line.jobs, unwanted);
  lines_.remove_if([](const Line& line) { return line.jobs.empty(); });
}

int RequestQueue::size() const {
  std::size_t n = 0;
  for (const Line& line : lines_) n += line.jobs.size();
  return static_cast<int>(n);
}

int RequestQueue::clients_requests() const {
  int n = 0;
  for_each([&](const Job& job) { n += job.request.follows ? 0 : 1; });
  return n;
}

void RequestQueue::for_each(const std::function<void(const Job&)>& visit) const {
  for (const Line& line : lines_) std::ranges::for_each(line.jobs, visit);
}

}  // namespace kvant
