// An index of keys on a CPU: of all keys in several lists, those of a query's largest logits.
//
// A block of queries is attended at a time. Its pairs of a query and a range are sorted by range, so
// that several queries, whatever range of theirs it is, read the same keys. All logits of a block
// are kept: what hides all but the largest is found by bisection, and values are read of these alone.
//
// Shape letters as in simd.h; B batch, H heads, J those of keys, G those of lists, N queries, M tokens,
// K lists, R lists that a query looks into.

#include "simd.h"

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__BMI2__))
#include <immintrin.h>
#endif

DECLARE(Index,
  Tensor q, k, v, key_bias;   // [B, H, N, E], [B, J, M, E], [B, 1 or H, M]; without v, no values
  Tensor queries, keys;       // lists of queries [B, H, N, R] and keys [B, G, M]; K or more: none
  Tensor places;              // first and one past the last that a query sees, [B or 1, 2 S, N]
  Tensor out, lse, least;     // values and their log-sum-exp; no smaller logit is seen
  NUMBER* rest;               // log-sum-exp of the unseen keys of each list, [B, H, N, R]; null: nobody
                              // asks
  int64_t batch, heads, key_heads, groups, length, tokens, sides, clusters, probes, number, threads;
  double slack;               // by which rounding may change a logit, to one of size 1
)

namespace {

constexpr int64_t BLOCK = 128;  // queries

// A range of a query in a list; its logits are those of all strips of keys that it has a part in.
struct Pair {
  int64_t lo, hi, query, list;
  T* logits;
  int64_t begin() const { return lo & -Q; }
  int64_t end() const { return (hi + Q - 1) & -Q; }
  T* at(int64_t slot) const { return logits + slot - begin(); }
};

// The least of so many largest logits, of which `high` is one; -INF where there are no more. Behind
// them is INF, up to a whole register.
T least_of(const T* logits, int64_t count, int64_t number, T high) {
  if (count <= number) return -INF;
  const auto least_from = [&](T from) {
    V least = V{} + INF;
    for (int64_t i = 0; i < count; i += L) {
      const V x = vec(logits + i), y = x < least ? x : least;
      least = x < from ? least : y;
    }
    T found = least[0];
    for (int n = 1; n < L; n++) found = std::min(found, least[n]);
    return found;
  };
  return least_from(bisected(logits, count, number, least_from(-INF), high));
}

// Writes `slot` and those behind it whose lanes are set, side by side; returns how many.
inline Int append(I is, Int slot, Int* to) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    I lanes;
    for (int n = 0; n < L; n++) lanes[n] = n;
    const __mmask16 set = _mm512_test_epi32_mask((__m512i)is, (__m512i)is);
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(set, (__m512i)(lanes + slot)));
    return __builtin_popcount(set);
  }
#elif defined(__AVX2__) && defined(__BMI2__)
  if constexpr (L == 8 && sizeof(T) == 4) {
    const int set = _mm256_movemask_ps((__m256)is);
    const uint64_t bytes = _pdep_u64(set, 0x0101010101010101) * 0xFF;
    const __m128i lanes = _mm_cvtsi64_si128(_pext_u64(0x0706050403020100, bytes));
    const I found = (I)_mm256_cvtepu8_epi32(lanes) + slot;
    std::memcpy(to, &found, sizeof(found));
    return __builtin_popcount(set);
  }
#endif
  Int count = 0;
  for (int n = 0; n < L; n++) to[count] = slot + n, count -= is[n];
  return count;
}

// What about so many logits are no smaller than, if they are normally distributed; and the peak.
T guess_of(const T* logits, int64_t count, int64_t number, T& peak) {
  V sums = {}, squares = {}, counts = {}, highs = V{} + LOWEST;
  for (int64_t i = 0; i < count; i += L) {
    const V all = vec(logits + i);
    const I is = all > V{} - INF;
    const V x = is ? all : V{};
    sums += x, squares += x * x, counts += is ? V{} + 1 : V{}, highs = max(all, highs);
  }
  for (int n = 0; n < L; n++) peak = std::max(peak, highs[n]);
  const T all = sum(counts), mean = sum(sums) / all, t = std::sqrt(2 * std::log(all / number));
  const T deviation = std::sqrt(sum(squares) / all - mean * mean);
  return mean + deviation * (t - (2.308f + 0.271f * t) / (1 + 0.992f * t + 0.045f * t * t));
}

struct Worker {
  const Index& p;
  const T scale = 1 / std::sqrt(double(E));
  const int64_t of_keys = p.heads / p.key_heads, of_lists = p.heads / p.groups;  // heads of each
  int64_t row = -1, head = -1;
  Buffer keys, values, biases;  // [strips][P][Q], [M][P], [M]
  Buffer rows{Q * P};
  std::vector<Pair> pairs, sorted;
  std::vector<int64_t> order, places, bounds;  // bounds of each query, [N][sides][R][2]
  std::vector<int64_t> begins;  // of each list; what is in none stands behind the last
  std::vector<Int> chosen;  // slots
  std::unique_ptr<V[]> memory;  // the logits of a block, and of what a query sees
  int64_t room = 0;

  explicit Worker(const Index& p)
      : p(p), keys(rounded_up(p.tokens, Q) * P), values(p.v.data ? p.tokens * P : 0),
        biases(rounded_up(p.tokens, Q)), order(p.tokens), places(p.tokens + 2),
        bounds(p.length * p.sides * p.probes * 2), begins(p.clusters + 2) {}

  bool is_list(int64_t n) const { return uint64_t(n) < uint64_t(p.clusters); }
  int64_t list_of(int64_t token) const {
    const int64_t list = *p.keys.at<int64_t>(row, head / of_lists, token);
    return is_list(list) ? list : p.clusters;
  }

  void of(int64_t new_row, int64_t new_head) {
    if (row == new_row && head == new_head) return;
    const int64_t sharing = std::min(of_keys, of_lists);
    const bool listed = row == new_row && head / sharing == new_head / sharing;
    row = new_row, head = new_head;
    if (!listed) list();
    if (p.key_bias.data)
      for (int64_t slot = 0; slot < p.tokens; slot++)
        biases[slot] = *p.key_bias.at<T>(row, head, order[slot]);
    look();
  }

  // Copies keys and values list by list.
  void list() {
    std::fill(begins.begin(), begins.end(), 0);
    for (int64_t token = 0; token < p.tokens; token++) begins[list_of(token) + 1]++;
    for (int64_t n = 0; n < p.clusters; n++) begins[n + 1] += begins[n];
    std::vector<int64_t> ends = begins;
    for (int64_t token = 0; token < p.tokens; token++) order[ends[list_of(token)]++] = token;
    for (int64_t slot = 0, end = begins[p.clusters]; slot < end; slot++) {
      const int64_t token = order[slot], of_head = head / of_keys;
      std::copy_n(p.k.at<T>(row, of_head, token), E, rows + slot % Q * P);
      if (p.v.data) std::copy_n(p.v.at<T>(row, of_head, token), E, values + slot * P);
      if (slot % Q == Q - 1 || slot == end - 1) transpose(rows, keys + slot / Q * Q * P);
    }
  }

  // Finds what each query sees of its lists: places never fall, so keys before them are counted.
  void look() {
    std::vector<std::vector<int64_t>> slots(2 * p.sides, begins);
    std::vector<int64_t> counted(2 * p.sides);
    int64_t* bound = bounds.data();
    for (int64_t query = 0; query < p.length; query++) {
      for (int64_t i = 0; i < 2 * p.sides; i++)
        for (; counted[i] < *p.places.at<int64_t>(row, i, query); counted[i]++)
          slots[i][list_of(counted[i])]++;
      const int64_t* lists = p.queries.at<int64_t>(row, head, query);
      for (int64_t side = 0; side < p.sides; side++)
        for (int64_t r = 0; r < p.probes; r++)
          for (int64_t i = 2 * side; i < 2 * side + 2; i++)
            *bound++ = is_list(lists[r]) ? slots[i][lists[r]] : 0;
    }
  }

  void block(int64_t begin, int64_t end) {
    int64_t count = 0;
    pairs.clear();
    std::fill(places.begin(), places.end(), 0);
    for (int64_t query = begin; query < end; query++)
      for (int64_t r = 0; r < p.sides * p.probes; r++) {
        const int64_t* bound = &bounds[(query * p.sides * p.probes + r) * 2];
        const Pair pair = {bound[0], bound[1], query, r % p.probes, nullptr};
        if (pair.lo >= pair.hi) continue;
        pairs.push_back(pair), places[pair.lo + 1]++;
        count += pair.end() - pair.begin();
      }
    if (count > room || !memory) {
      room = rounded_up(count + count / 4, Q);
      memory.reset(new V[2 * room / L + 2]), chosen.resize(room + L);
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
      const Pair* const first = pair;
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

  // What a query sees of the logits of its pairs, which stand side by side. Few of them are looked
  // at several times: those that are no smaller than a guess.
  void choose(int64_t query, const Pair* first, const Pair* end) {
    T* weights = reinterpret_cast<T*>(memory.get()) + room;
    T least = -INF, peak = LOWEST, total = 0;
    const int64_t count = first < end ? end[-1].at(end[-1].end()) - first->logits : 0;
    T from = count ? guess_of(first->logits, count, 2 * p.number, peak) : LOWEST;
    if (count <= 4 * p.number) from = LOWEST;
    Int few = 0, kept = 0, *to = chosen.data();
    for (;; from = LOWEST, few = 0) {
      for (const Pair* pair = first; pair < end; pair++) {
        const Int before = few, stop = pair->end();  // locals, which no store changes
        const T* logits = pair->at(0);
        for (Int slot = pair->begin(); slot < stop; slot += L)
          few += append(vec(logits + slot) >= V{} + from, slot, to + few);
        for (Int i = before; i < few; i++) weights[i] = logits[to[i]];
      }
      std::fill_n(weights + few, L, INF);
      least = least_of(weights, few, p.number, peak);
      if (least > -INF) least -= (1 + std::abs(least)) * T(p.slack);
      if (least >= from || from == LOWEST) break;
    }
    *p.least.at<T>(row, head, query) = least;
    const T floor = std::max(least, LOWEST);
    if (p.rest) {
      T* rest = p.rest + ((row * p.heads + head) * p.length + query) * p.probes;
      std::fill_n(rest, p.probes, T(0));
      for (const Pair* pair = first; pair < end; pair++) {
        V hidden = {};
        for (const T* x = pair->logits; x < pair->at(pair->end()); x += L)
          hidden += vec(x) < V{} + floor ? exp2((vec(x) - peak) * T(LOG2_E)) : V{};
        rest[pair->list] += sum(hidden);
      }
      for (int64_t r = 0; r < p.probes; r++) rest[r] = std::log(rest[r]) + peak;
    }
    for (Int i = 0; i < few; i++) {  // without a branch to guess
      const T weight = weights[i];
      weights[kept] = weight, to[kept] = to[i], kept += weight >= floor;
    }
    if (!p.v.data) return;
    for (int64_t i = 0; i < kept; i += L)
      vec(weights + i) = exp2((vec(weights + i) - peak) * T(LOG2_E));
    V sum[P / L] = {};
    for (int64_t i = 0; i < kept; i++) {
      const T* value = values + to[i] * P;
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
