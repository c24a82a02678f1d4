// An index of keys on a CPU: of all keys in several ranges of a query, those of the largest logits.
//
// A block of tokens is attended at a time. Its pairs of a query and a range are sorted by range, so
// that several queries, whatever range of theirs it is, read the same keys. All logits of a block
// are kept: what hides all but the largest is found by bisection, and values are read of these alone.
//
// Shape letters as in simd.h; B batch, H heads, N tokens, M key slots, R ranges of a query.

#include "simd.h"

DECLARE(Index,
  Tensor q, k, v, key_bias;   // [B, H, N, E], [B, 1 or H, N]; without v, no values are wanted
  Tensor key_order;           // token at each key slot, [B, H, M]; what is behind ranges is not read
  const int64_t *query_order, *lo, *hi;  // token at each query slot and its range, [B, H, R, N]
  Tensor out, lse, least;     // values and their log-sum-exp; no smaller logit is seen
  int64_t batch, heads, length, slots, ranges, number, threads;
  double slack;               // by which rounding may change a logit, to one of size 1
)

namespace {

constexpr int64_t BLOCK = 512;  // tokens

// A range of a query; its logits are those of all strips of keys that it has a part in.
struct Pair {
  int64_t lo, hi, query;
  T* logits;
  int64_t begin() const { return lo & -Q; }
  int64_t end() const { return (hi + Q - 1) & -Q; }
  T* at(int64_t slot) const { return logits + slot - begin(); }
};

// A number that as many logits as that are no smaller than: more where they are alike; -INF where
// no more are finite.
T least_of(const T* logits, int64_t count, int64_t number) {
  auto count_if = [&](auto condition) {
    I found = {};
    for (int64_t i = 0; i < count; i += L) found -= condition(vec(logits + i));
    Int total = 0;
    for (int n = 0; n < L; n++) total += found[n];
    return total;
  };
  V lows = V{} + INF, highs = V{} - INF;
  const Int finite = count_if([&](V x) {
    const I is = x > V{} - INF;
    const V y = is ? x : V{} + INF;
    lows = y < lows ? y : lows, highs = max(x, highs);
    return is;
  });
  if (finite <= number) return -INF;
  T low = lows[0], high = highs[0];
  for (int n = 1; n < L; n++) low = std::min(low, lows[n]), high = std::max(high, highs[n]);
  for (T middle; (middle = low + (high - low) / 2) > low && middle < high;) {
    const Int found = count_if([&](V x) { return x >= V{} + middle; });
    if (found == number) return middle;
    (found > number ? low : high) = middle;
  }
  return low;
}

struct Worker {
  const Index& p;
  const T scale = 1 / std::sqrt(double(E));
  int64_t row = -1, head = -1;
  Buffer keys, values, biases;  // [strips][P][Q], [M][P], [M]
  Buffer rows{Q * P};
  std::vector<Pair> pairs, sorted;
  std::vector<int64_t> places, bounds;  // bounds of each token, [N][R][2]
  std::vector<int64_t> chosen;  // slots
  std::unique_ptr<V[]> memory;  // the logits of a block, and of what a query sees
  int64_t room = 0;

  explicit Worker(const Index& p)
      : p(p), keys(rounded_up(p.slots, Q) * P), values(p.v.data ? p.slots * P : 0),
        biases(rounded_up(p.slots, Q)), places(p.slots + 2),
        bounds(p.length * p.ranges * 2) {}

  // Copies keys and values in their order, and ranges in that of tokens.
  void of(int64_t new_row, int64_t new_head) {
    if (row == new_row && head == new_head) return;
    row = new_row, head = new_head;
    for (int64_t slot = 0; slot < p.slots; slot++) {
      const int64_t token = *p.key_order.at<int64_t>(row, head, slot);
      std::copy_n(p.k.at<T>(row, head, token), E, rows + slot % Q * P);
      if (p.v.data) std::copy_n(p.v.at<T>(row, head, token), E, values + slot * P);
      if (p.key_bias.data) biases[slot] = *p.key_bias.at<T>(row, head, token);
      if (slot % Q == Q - 1 || slot == p.slots - 1) transpose(rows, keys + slot / Q * Q * P);
    }
    for (int64_t r = 0; r < p.ranges; r++) {
      const int64_t first = ((row * p.heads + head) * p.ranges + r) * p.length;
      for (int64_t slot = first; slot < first + p.length; slot++) {
        int64_t* bound = &bounds[(p.query_order[slot] * p.ranges + r) * 2];
        bound[0] = p.lo[slot], bound[1] = p.hi[slot];
      }
    }
  }

  void block(int64_t begin, int64_t end) {
    int64_t count = 0;
    pairs.clear();
    std::fill(places.begin(), places.end(), 0);
    for (int64_t query = begin; query < end; query++)
      for (int64_t r = 0; r < p.ranges; r++) {
        const int64_t* bound = &bounds[(query * p.ranges + r) * 2];
        const Pair pair = {bound[0], bound[1], query, nullptr};
        if (pair.lo >= pair.hi) continue;
        pairs.push_back(pair), places[pair.lo + 1]++;
        count += pair.end() - pair.begin();
      }
    if (count > room) {
      room = count, memory.reset(new V[2 * count / L + 1]), chosen.resize(count + 1);
    }
    T* const logits = reinterpret_cast<T*>(memory.get());
    for (size_t i = 1; i < places.size(); i++) places[i] += places[i - 1];
    sorted.resize(pairs.size()), count = 0;
    for (Pair& pair : pairs) {
      pair.logits = logits + count, count += pair.end() - pair.begin();
      sorted[places[pair.lo]++] = pair;
    }
    int number;
    for (size_t first = 0; first < sorted.size(); first += number) {
      int64_t until = sorted[first].hi;
      for (number = 1; number < ROWS && first + number < sorted.size(); number++) {
        if (sorted[first + number].lo >= until) break;
        until = std::max(until, sorted[first + number].hi);
      }
      multiply(&sorted[first], number, until);
    }
    const Pair* pair = pairs.data();
    for (int64_t query = begin; query < end; query++) {
      const Pair* first = pair;
      while (pair < pairs.data() + pairs.size() && pair->query == query) pair++;
      choose(query, first, pair);
    }
  }

  // The logits of some pairs, which begin in order and end before a slot.
  void multiply(const Pair* pairs, int64_t number, int64_t until) {
    for (int64_t i = 0; i < number; i++) {
      const T* query = p.q.at<T>(row, head, pairs[i].query);
      for (int e = 0; e < E; e++) rows[i * P + e] = query[e] * scale;
    }
    in_groups<ROWS>(0, number, [&](auto size, int64_t) {
      constexpr int R = size;
      for (int64_t slot = pairs[0].begin(); slot < until; slot += Q) {
        V found[R][2];
        dot<R>(rows, keys + slot * P, found);
        each<R>([&](int r, int c) {
          if (pairs[r].begin() <= slot && slot < pairs[r].hi)
            vec(pairs[r].at(slot) + c * L) = found[r][c] + vec(biases + slot + c * L);
        });
      }
    });
    for (const Pair* pair = pairs; pair < pairs + number; pair++) {
      std::fill(pair->logits, pair->at(pair->lo), -INF);
      std::fill(pair->at(pair->hi), pair->at(pair->end()), -INF);
    }
  }

  // What a query sees of the logits of its pairs, which stand side by side.
  void choose(int64_t query, const Pair* pair, const Pair* end) {
    T least = -INF, peak = LOWEST, total = 0;
    T* weights = reinterpret_cast<T*>(memory.get()) + room;
    if (pair != end) {
      const int64_t count = end[-1].at(end[-1].end()) - pair->logits;
      least = least_of(pair->logits, count, p.number);
    }
    if (least > -INF) least -= (1 + std::abs(least)) * T(p.slack);
    *p.least.at<T>(row, head, query) = least;
    if (!p.v.data) return;
    int64_t kept = 0;
    for (; pair < end; pair++) {
      const T* logits = pair->at(0);
      for (int64_t slot = pair->lo; slot < pair->hi; slot++) {  // without a branch to guess
        weights[kept] = logits[slot], chosen[kept] = slot;
        kept += logits[slot] >= least;
      }
    }
    for (int64_t i = 0; i < kept; i++) peak = std::max(peak, weights[i]);
    for (int64_t i = 0; i < kept; i += L)
      vec(weights + i) = exp2((vec(weights + i) - peak) * T(LOG2_E));
    V sum[P / L] = {};
    for (int64_t i = 0; i < kept; i++) {
      const T* value = values + chosen[i] * P;
      total += weights[i];
      for (int e = 0; e < P; e += L) sum[e / L] += weights[i] * vec(value + e);
    }
    T* out = p.out.at<T>(row, head, query);
    for (int e = 0; e < E; e++) out[e] = total > 0 ? sum[e / L][e % L] / total : 0;
    *p.lse.at<T>(row, head, query) = total > 0 ? peak + std::log(total) : -INF;
  }
};

}  // namespace

extern "C" void run_index(const Index& p) {
  const int64_t blocks = rounded_up(p.length, BLOCK) / BLOCK;
  over_tasks<Worker>(p, p.batch * p.heads * blocks, [&](Worker& worker, int64_t task) {
    const int64_t both = task / blocks, begin = task % blocks * BLOCK;
    worker.of(both / p.heads, both % p.heads);
    worker.block(begin, std::min(begin + BLOCK, p.length));
  });
}
