// An index of keys on a CPU: of all keys in several ranges of a query, those of the largest logits.
//
// A block of tokens is attended at a time. Its pairs of a query and a range are sorted by range, so
// that strips of queries, whatever range of theirs it is, read the same keys. All logits of a block
// are kept: what hides all but the largest is found by bisection, and values are read of these alone.
//
// Shape letters as in simd.h; B batch, H heads, N tokens, M key slots, R ranges of a query.

#include "simd.h"

DECLARE(Index,
  Tensor q, k, v, key_bias;   // [B, H, N, E], [B, 1 or H, N]; without v, no values are wanted
  Tensor key_order;           // token at each key slot, [B, H, M]; what is behind ranges is not read
  const int64_t *lo, *hi;     // of each query, [B, H, N, R]
  Tensor out, lse, least;     // values and their log-sum-exp; no smaller logit is seen
  int64_t batch, heads, length, slots, ranges, number, threads;
  double slack;               // by which rounding may change a logit, to one of size 1
)

namespace {

constexpr int64_t BLOCK = 512, CHUNK = 256;  // tokens; keys

struct Pair {
  int64_t lo, hi, query;
  T* logits;
};

// A number that as many logits as that are no smaller than: more where they are alike, all where
// they are fewer. Writes behind them, up to a whole register.
T least_of(T* logits, int64_t count, int64_t number) {
  for (; count % L; count++) logits[count] = -INF;
  auto at_least = [&](T x) {
    I found = {};
    for (int64_t i = 0; i < count; i += L) found -= vec(logits + i) >= V{} + x;
    Int total = 0;
    for (int n = 0; n < L; n++) total += found[n];
    return total;
  };
  V lows = V{} + INF, highs = V{} - INF;
  for (int64_t i = 0; i < count; i += L) {
    const V x = vec(logits + i), finite = x > V{} - INF ? x : V{} + INF;
    lows = finite < lows ? finite : lows, highs = max(x, highs);
  }
  T low = lows[0], high = highs[0];
  for (int n = 1; n < L; n++) low = std::min(low, lows[n]), high = std::max(high, highs[n]);
  if (at_least(low) < number) return -INF;
  if (at_least(high) >= number) return high;
  for (T middle; (middle = low + (high - low) / 2) > low && middle < high;) {
    const Int found = at_least(middle);
    if (found == number) return middle;
    (found > number ? low : high) = middle;
  }
  return low;
}

struct Worker {
  const Index& p;
  const T scale = 1 / std::sqrt(double(E));
  int64_t row = -1, head = -1;
  Buffer keys, values, biases, rows{Q * P}, columns{P * Q}, products{CHUNK * Q};
  std::vector<Pair> pairs;
  std::vector<int64_t> chosen;  // slots
  std::unique_ptr<V[]> memory;  // of a block's logits
  int64_t room = 0;

  explicit Worker(const Index& p)
      : p(p), keys(p.slots * P), values(p.v.data ? p.slots * P : 0), biases(p.slots) {}

  // Copies keys and values in their order.
  void of(int64_t new_row, int64_t new_head) {
    if (row == new_row && head == new_head) return;
    row = new_row, head = new_head;
    for (int64_t slot = 0; slot < p.slots; slot++) {
      const int64_t token = *p.key_order.at<int64_t>(row, head, slot);
      std::copy_n(p.k.at<T>(row, head, token), E, keys + slot * P);
      if (p.v.data) std::copy_n(p.v.at<T>(row, head, token), E, values + slot * P);
      if (p.key_bias.data) biases[slot] = *p.key_bias.at<T>(row, head, token);
    }
  }

  const int64_t* bound(const int64_t* of, int64_t query) const {
    return of + ((row * p.heads + head) * p.length + query) * p.ranges;
  }

  void block(int64_t begin, int64_t end) {
    int64_t count = 0;
    pairs.clear();
    for (int64_t query = begin; query < end; query++, count = rounded_up(count, L))
      for (int64_t r = 0; r < p.ranges; r++) {
        const int64_t lo = bound(p.lo, query)[r], hi = bound(p.hi, query)[r];
        if (lo >= hi) continue;
        pairs.push_back({lo, hi, query, nullptr}), pairs.back().logits += count, count += hi - lo;
      }
    if (count > room) room = count, memory.reset(new V[count / L + 1]);
    T* logits = reinterpret_cast<T*>(memory.get());
    for (Pair& pair : pairs) pair.logits = logits + (pair.logits - static_cast<T*>(nullptr));
    std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
      return a.lo != b.lo ? a.lo < b.lo : a.hi < b.hi;
    });
    for (size_t first = 0; first < pairs.size(); first += Q)
      multiply(&pairs[first], std::min<int64_t>(Q, pairs.size() - first));
    for (int64_t query = begin; query < end; query++) logits = choose(query, logits);
  }

  // The logits of a strip of pairs.
  void multiply(const Pair* strip, int64_t number) {
    int64_t begin = strip[0].lo, end = strip[0].hi;
    for (int64_t i = 0; i < number; i++) {
      begin = std::min(begin, strip[i].lo), end = std::max(end, strip[i].hi);
      const T* query = p.q.at<T>(row, head, strip[i].query);
      for (int e = 0; e < E; e++) rows[i * P + e] = query[e] * scale;
    }
    transpose(rows, columns);
    for (; begin < end; begin += CHUNK) {
      const int64_t until = std::min(begin + CHUNK, end);
      in_groups<ROWS>(begin, until, [&](auto size, int64_t slot) {
        constexpr int R = size;
        V found[R][2];
        dot<R>(keys + slot * P, columns, found);
        each<R>([&](int r, int c) {
          vec(products + (slot - begin + r) * Q + c * L) = found[r][c] + biases[slot + r];
        });
      });
      for (int64_t i = 0; i < number; i++) {
        const int64_t from = std::max(begin, strip[i].lo), to = std::min(until, strip[i].hi);
        T* logits = strip[i].logits - strip[i].lo;
        for (int64_t slot = from; slot < to; slot++) logits[slot] = products[(slot - begin) * Q + i];
      }
    }
  }

  // What a query sees of its logits, which begin there; where those of the next one do.
  T* choose(int64_t query, T* logits) {
    const int64_t *lo = bound(p.lo, query), *hi = bound(p.hi, query);
    int64_t count = 0;
    for (int64_t r = 0; r < p.ranges; r++) count += std::max<int64_t>(hi[r] - lo[r], 0);
    T least = count > p.number ? least_of(logits, count, p.number) : -INF;
    if (least > -INF) least -= (1 + std::abs(least)) * T(p.slack);
    *p.least.at<T>(row, head, query) = least;
    T* const behind = logits + rounded_up(count, L);
    if (!p.v.data) return behind;
    chosen.resize(count + 1);
    T peak = LOWEST, total = 0, *weights = logits;  // over the logits, of which there are fewer
    int64_t number = 0;
    for (int64_t r = 0; r < p.ranges; r++)
      for (int64_t slot = lo[r]; slot < hi[r]; slot++) {  // without a branch to guess
        const T logit = *logits++;
        weights[number] = logit, chosen[number] = slot, number += logit >= least;
      }
    for (int64_t i = 0; i < number; i++) peak = std::max(peak, weights[i]);
    for (int64_t i = 0; i < number; i += L)
      vec(weights + i) = exp2((vec(weights + i) - peak) * T(LOG2_E));
    V sum[P / L] = {};
    for (int64_t i = 0; i < number; i++) {
      const T* value = values + chosen[i] * P;
      total += weights[i];
      for (int e = 0; e < P; e += L) sum[e / L] += weights[i] * vec(value + e);
    }
    T* out = p.out.at<T>(row, head, query);
    for (int e = 0; e < E; e++) out[e] = total > 0 ? sum[e / L][e % L] / total : 0;
    *p.lse.at<T>(row, head, query) = total > 0 ? peak + std::log(total) : -INF;
    return behind;
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
