// Writes and reads the bytes of a coded sequence:
//   magic, version (u32 each), the predictor's checksum, the number of the sequence's bytes,
//     the sequence's checksum, the number of bytes of the rest (u64 each)
//   the rest         the sequence without its sealed entries
//   sizes            u32 for each entry
//   entries          in the order of the sequence (entry_coder.h)
#include "compact/sequence_coder.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <system_error>
#include <thread>

#include "base/checksum.h"
#include "cache/byte_stream.h"
#include "cache/sealed_runs.h"
#include "compact/entry_coder.h"

namespace kvant {
namespace {

constexpr std::uint32_t kSequenceMagic = 0x7163766b;  // The characters "kvcq".
constexpr std::uint32_t kSequenceVersion = 2;         // In version 1, means had 16 bits.

struct Start {
  std::uint32_t magic, version;
  std::uint64_t predictor, bytes, checksum, rest_bytes;
};
static_assert(sizeof(Start) == 40);

// Describes one entry of a sequence.
struct Entry {
  const SealedRun* run;
  int page;           // index of the page in the sequence
  std::size_t first;  // byte offset in the sequence
};

std::vector<Entry> entries_of(const std::vector<SealedRun>& runs) {
  std::vector<Entry> entries;
  for (const SealedRun& run : runs)
    for (int i = 0; i < run.n_pages; ++i)
      entries.push_back(
          {&run, run.first_page + i, run.first + run.entry_bytes * static_cast<std::size_t>(i)});
  return entries;
}

// Calls visit(first, n) with each range of bytes that lies outside of all entries.
template <class Visit>
void for_each_rest(const std::vector<SealedRun>& runs, std::size_t n_bytes, const Visit& visit) {
  std::size_t at = 0;
  for (const SealedRun& run : runs) {
    visit(at, run.first - at);
    at = run.first + run.bytes();
  }
  visit(at, n_bytes - at);
}

// Calls work(coder, i) for each entry i on several threads, each with its own coders. Rethrows the first
// exception.
void for_each_entry(const Plan& plan, const Predictor& predictor, const std::vector<SealedRun>& runs,
                    const std::vector<Entry>& entries, int n_threads,
                    const std::function<void(EntryCoder&, std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  const auto share = [&](std::exception_ptr& failure) {
    try {
      std::vector<EntryCoder> coders;
      coders.reserve(runs.size());
      for (const SealedRun& run : runs) coders.emplace_back(plan, predictor, run.layers);
      for (std::size_t i = next++; i < entries.size(); i = next++)
        work(coders[static_cast<std::size_t>(entries[i].run - runs.data())], i);
    } catch (...) {
      failure = std::current_exception();
      next = entries.size();
    }
  };
  const std::size_t n =
      std::min<std::size_t>(std::max(1, n_threads), std::max<std::size_t>(1, entries.size()));
  std::vector<std::exception_ptr> failures(n);
  std::vector<std::thread> others;
  try {
    for (std::size_t i = 1; i < n; ++i) others.emplace_back(share, std::ref(failures[i]));
  } catch (const std::system_error&) {  // The system gives no more threads, so the other threads take over
                                        // the work.
  }
  share(failures[0]);
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace

SequenceCoder::SequenceCoder(std::shared_ptr<const Plan> plan, Predictor predictor)
    : plan_(std::move(plan)), predictor_(std::move(predictor)) {}

std::vector<std::byte> SequenceCoder::encode(std::span<const std::byte> sequence, int n_threads) const {
  const auto runs = sealed_runs(*plan_, sequence, sequence.size());
  KVANT_CHECK(runs.has_value(), "a sequence of another plan");
  const std::vector<Entry> entries = entries_of(*runs);
  std::vector<std::vector<std::byte>> coded(entries.size());
  for_each_entry(*plan_, predictor_, *runs, entries, n_threads, [&](EntryCoder& coder, std::size_t i) {
    coded[i] = coder.encode(entries[i].page, sequence.subspan(entries[i].first, coder.entry_bytes()));
  });
  std::size_t n_rest = sequence.size();
  for (const SealedRun& run : *runs) n_rest -= run.bytes();
  ByteWriter to;
  std::size_t n_coded = 0;
  for (const auto& entry : coded) n_coded += sizeof(std::uint32_t) + entry.size();
  to.reserve(sizeof(Start) + n_rest + n_coded);
  to.write(Start{kSequenceMagic, kSequenceVersion, predictor_.checksum, sequence.size(), checksum(sequence),
                 n_rest});
  for_each_rest(*runs, sequence.size(),
                [&](std::size_t first, std::size_t n) { to.write_all(sequence.subspan(first, n)); });
  for (const auto& entry : coded) to.write(static_cast<std::uint32_t>(entry.size()));
  for (const auto& entry : coded) to.write_all(std::span<const std::byte>(entry));
  return to.take();
}

Result<HugeBuffer> SequenceCoder::decode(std::span<const std::byte> bytes, int n_threads) const {
  ByteReader from(bytes);
  const auto start = from.read<Start>();
  if (!from.ok() || start.magic != kSequenceMagic || start.version != kSequenceVersion)
    return error("it is not coded as this kvant codes sequences");
  if (start.predictor != predictor_.checksum)
    return error("it was coded with a different predictor ({:016x}, not {:016x})", start.predictor,
                 predictor_.checksum);
  const std::byte* rest = from.skip(start.rest_bytes);
  if (rest == nullptr) return error("it is cut short");
  const auto runs = sealed_runs(*plan_, {rest, static_cast<std::size_t>(start.rest_bytes)}, start.bytes);
  std::uint64_t n_bytes = start.rest_bytes;
  if (runs)
    for (const SealedRun& run : *runs) n_bytes += run.bytes();
  if (!runs || n_bytes != start.bytes) return error("its sizes can't be");
  const std::vector<Entry> entries = entries_of(*runs);
  const auto sizes = from.read_all<std::uint32_t>(entries.size());
  std::vector<std::span<const std::byte>> coded;
  for (const std::uint32_t size : sizes) {
    const std::byte* at = from.skip(size);
    if (at == nullptr) break;
    coded.emplace_back(at, size);
  }
  from.require(from.at_end());
  if (!from.ok()) return error("it is cut short");
  HugeBuffer sequence(start.bytes);
  for_each_rest(*runs, sequence.size(), [&](std::size_t first, std::size_t n) {
    if (n > 0) std::memcpy(sequence.data() + first, rest, n);
    rest += n;
  });
  std::atomic<bool> decoded{true};
  for_each_entry(*plan_, predictor_, *runs, entries, n_threads, [&](EntryCoder& coder, std::size_t i) {
    if (!coder.decode(entries[i].page, coded[i], sequence.data() + entries[i].first)) decoded = false;
  });
  if (!decoded || checksum(sequence.bytes()) != start.checksum)
    return error("it doesn't decode to what it was made of");
  return sequence;
}

}  // namespace kvant
