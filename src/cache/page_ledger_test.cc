// Tests ledgers over a store that remembers the token of every row. After any steps, aborts, forks and cuts
// in any order, each sequence must find its own tokens, and every entry must come back.
#include "cache/page_ledger.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <utility>

#include "cache/schedule.h"
#include "recipe/recipe.h"

namespace kvant {
namespace {

class RowStore final : public EntryStore {
 public:
  PageEntry take(int room) override {
    if (n_left == 0) return {};
    if (n_left > 0) --n_left;
    entries_.push_back({1, std::vector<int>(room == kSealedRoom ? kPageTokens : room, -1)});
    return {static_cast<int>(entries_.size()) - 1, room};
  }
  void retain(PageEntry entry) override { ++entries_.at(entry.id).holders; }
  void release(PageEntry entry) noexcept override {
    if (--entries_[entry.id].holders == 0) entries_[entry.id].rows.clear();
  }
  bool shared(PageEntry entry) const override { return entries_.at(entry.id).holders > 1; }
  bool copy(PageEntry from, int n, PageEntry to) override {
    if (from.room == kSealedRoom) n = kPageTokens;
    for (int i = 0; i < n; ++i) rows(to).at(i) = rows(from).at(i);
    return true;
  }
  std::vector<int>& rows(PageEntry entry) {
    EXPECT_GT(entries_.at(entry.id).holders, 0) << "an entry that nobody holds";
    return entries_.at(entry.id).rows;
  }
  int n_held() const {
    int n = 0;
    for (const Entry& entry : entries_) n += entry.holders > 0 ? 1 : 0;
    return n;
  }

  int n_left = -1;  // entries that can still be taken; -1 for any number

 private:
  struct Entry {
    int holders;
    std::vector<int> rows;  // The token of each row.
  };
  std::vector<Entry> entries_;
};

// Holds a sequence with one head.
struct Sequence {
  Sequence(const GroupRules& rules, RowStore& store)
      : rules(rules), store(&store), ledger(std::make_unique<PageLedger>(rules, store)) {}

  // Does what a head does in a step that has reserved. Tokens get numbers from next_token on.
  void run(int n, bool is_prompt, int& next_token, bool held_ahead = false) {
    const int first = ledger->length();
    int sealed = ledger->n_sealed(), length = first;
    std::vector<int> all = tokens;
    const auto seal = [&](int n_pages) {
      if (!rules.seals) return;
      for (; sealed < n_pages; ++sealed) {
        const std::vector<int> rows = store->rows(ledger->tail(sealed));
        ASSERT_EQ(static_cast<int>(rows.size()), kPageTokens);
        if (!std::exchange(is_ahead, false)) store->rows(ledger->sealed(sealed)) = rows;
      }
    };
    for (const Tile& tile : schedule(first, n, {is_prompt, rules.prefill, rules.window, sealed})) {
      seal(tile.n_sealed);
      for (; length < tile.append_end; ++length) {
        all.push_back(next_token++);
        store->rows(ledger->tail(length / kPageTokens)).at(length % kPageTokens) = all.back();
      }
      seal(tile.end_sealed);
    }
    EXPECT_EQ(sealed, ledger->end_sealed());
    EXPECT_EQ(length, ledger->end());
    if (!is_ahead && held_ahead && length >= (sealed + 1) * kPageTokens) {
      store->rows(ledger->ahead()) = store->rows(ledger->tail(sealed));
      is_ahead = true;
    }
    provisional = all;
  }

  void expect_own_tokens() const {
    ASSERT_EQ(ledger->length(), static_cast<int>(tokens.size()));
    for (int t = ledger->first_page() * kPageTokens; t < ledger->length(); ++t) {
      const int page = t / kPageTokens;
      const PageEntry entry = page < ledger->n_sealed() ? ledger->sealed(page) : ledger->tail(page);
      ASSERT_EQ(store->rows(entry).at(t % kPageTokens), tokens[t]) << "token " << t;
    }
  }

  GroupRules rules;
  RowStore* store;
  std::unique_ptr<PageLedger> ledger;
  std::vector<int> tokens, provisional;
  bool is_ahead = false;  // True if the next page to be sealed is already written.
};

class Ledgers : public ::testing::TestWithParam<GroupRules> {};
INSTANTIATE_TEST_SUITE_P(Rules, Ledgers,
                         ::testing::Values(GroupRules{0, 0, 128}, GroupRules{128, 0, 128},
                                           GroupRules{256, 0, 512}, GroupRules{0, 200, 128},
                                           GroupRules{128, 0, kPrefillAll},
                                           GroupRules{128, 200, 128, kPageTokens, true},
                                           GroupRules{128, 200, 128, kPageTokens, true, false},
                                           GroupRules{256, 0, 128, kPageTokens, true, false}));

// Makes one random move of a sequence's life.
void move(std::vector<Sequence>& all, std::mt19937& random, int& next_token) {
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  Sequence& s = all[below(static_cast<int>(all.size()))];
  const int kind = below(10);
  if (kind < 6) {
    const bool is_prompt = below(2) == 0;
    const int n = is_prompt ? 1 + below(500) : 1 + below(below(3) == 0 ? 200 : 3);
    s.store->n_left = below(4) == 0 ? below(6) : -1;
    s.ledger->begin();
    bool enough = s.ledger->reserve(n, is_prompt);
    const bool ahead = s.rules.seals && s.ledger->end_sealed() == s.ledger->n_sealed() && below(3) == 0;
    if (enough && ahead) enough = s.ledger->hold_ahead();
    s.store->n_left = -1;
    const bool was_ahead = s.is_ahead;
    if (enough) s.run(n, is_prompt, next_token, ahead);
    if (!enough || below(4) == 0) {
      s.ledger->abort();
      s.is_ahead = was_ahead;
      return;
    }
    s.ledger->commit();
    s.tokens = s.provisional;
  } else if (kind < 8 && all.size() < 6) {
    Sequence fork(s.rules, *s.store);
    fork.ledger->copy_from(*s.ledger);
    fork.tokens = s.tokens;
    fork.is_ahead = s.is_ahead;
    all.push_back(std::move(fork));
  } else if (kind == 8 && all.size() > 1) {
    all.erase(all.begin() + below(static_cast<int>(all.size())));
  } else {
    const int n = below(s.ledger->length() + 1);
    const int first_needed = first_visible_token(n, s.rules.sliding_window);
    if (n > 0 && first_needed < s.ledger->first_page() * kPageTokens) return;
    if (n / kPageTokens <= s.ledger->n_sealed()) s.is_ahead = false;
    s.ledger->truncate(n, [&](PageEntry sealed, PageEntry tail) {
      EXPECT_FALSE(s.store->shared(tail));
      for (int i = 0; i < n % kPageTokens; ++i) s.store->rows(tail).at(i) = s.store->rows(sealed).at(i);
    });
    s.tokens.resize(n);
  }
}

TEST_P(Ledgers, KeepEverySequencesOwnTokens) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    RowStore store;
    {
      std::mt19937 random(seed);
      std::vector<Sequence> all;
      all.emplace_back(GetParam(), store);
      int next_token = 0;
      for (int i = 0; i < 200; ++i) {
        move(all, random, next_token);
        for (const Sequence& s : all) s.expect_own_tokens();
        if (HasFatalFailure()) FAIL() << "seed " << seed << ", move " << i;
      }
    }
    EXPECT_EQ(store.n_held(), 0) << seed;
  }
}

TEST(PageLedger, HoldsWhatTheLengthDemands) {
  RowStore store;
  int next_token = 0;
  Sequence s({128, 300, 128}, store);
  for (int n = 1; n < 900; ++n) {
    s.ledger->begin();
    ASSERT_TRUE(s.ledger->reserve(1, false));
    s.run(1, false, next_token);
    s.ledger->commit();
    s.tokens = s.provisional;
    // A page is sealed as soon as the token that it is due at has been decoded.
    const PageCounts counts = page_counts(n, 128, 300);
    ASSERT_EQ(s.ledger->n_sealed(), counts.sealed) << n;
    ASSERT_EQ(s.ledger->first_page(), counts.freed) << n;
    int room = 0;
    s.ledger->for_each_entry([&](int, PageEntry entry) { room += entry.room; });
    ASSERT_EQ(room, tail_room(counts.tail_tokens)) << n;
    ASSERT_EQ(store.n_held(), counts.sealed - counts.freed + pages_for(counts.tail_tokens)) << n;
  }
}

// A group that seals nothing must free exactly the pages that a sealing group would have freed.
TEST(PageLedger, FreesUnsealedPagesThatNoTokenSees) {
  for (const int window : {0, 128, 512}) {
    RowStore store;
    int next_token = 0;
    Sequence s({window, 300, 128, kPageTokens, true, false}, store);
    for (int n = 1; n < 1500; n += n % 200) {  // steps of 1, 2, 4, ... tokens
      const int more = n % 200;
      s.ledger->begin();
      ASSERT_TRUE(s.ledger->reserve(more, false));
      s.run(more, false, next_token);
      s.ledger->commit();
      s.tokens = s.provisional;
      int needed = 0;  // pages with a token that is seen by the next one, or that a window keeps unsealed
      const int length = s.ledger->length();
      for (int page = 0; page * kPageTokens < length; ++page) {
        const int end = (page + 1) * kPageTokens;
        needed += end - 1 > length - 300 || end + window > length ? 1 : 0;
      }
      ASSERT_EQ(store.n_held(), needed) << length << ", window " << window;
      ASSERT_EQ(s.ledger->first_page(), pages_for(length) - needed) << length;
      ASSERT_EQ(s.ledger->n_sealed(), s.ledger->first_page()) << length;
    }
  }
}

TEST(PageLedger, OfForksHoldOnePrefix) {
  RowStore store;
  int next_token = 0;
  Sequence s({0, 0, 128}, store);
  s.ledger->begin();
  ASSERT_TRUE(s.ledger->reserve(1000, true));
  s.run(1000, true, next_token);
  s.ledger->commit();
  s.tokens = s.provisional;
  EXPECT_EQ(store.n_held(), 8);  // Seven entries are sealed, and one is open.
  std::vector<Sequence> forks;
  for (int i = 0; i < 10; ++i) {
    forks.emplace_back(s.rules, store);
    forks.back().ledger->copy_from(*s.ledger);
  }
  EXPECT_EQ(store.n_held(), 8);
  for (Sequence& fork : forks) {  // Each fork that continues copies the open page.
    fork.ledger->begin();
    ASSERT_TRUE(fork.ledger->reserve(1, false));
    fork.tokens = s.tokens;
    fork.run(1, false, next_token);
    fork.ledger->commit();
  }
  EXPECT_EQ(store.n_held(), 8 + 10);
  forks.clear();
  EXPECT_EQ(store.n_held(), 8);
}

}  // namespace
}  // namespace kvant
