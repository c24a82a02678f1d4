// An index of keys on a CPU: of all keys in several lists, those of a query's largest logits.
//
// A block of queries is attended at a time. Its pairs of a query and a range are sorted by range, so
// that several queries, whatever range of theirs it is, read the same keys. All logits of a block
// are kept: what hides all but the largest is found by bisection, and values are read of these alone.
// Where a processor multiplies bytes (VNNI), logits are first of keys and queries in 8 bits; those
// that could be among the largest are computed again, of keys as they are.
//
// Shape letters as in simd.h; B batch, H heads, J those of keys, G those of lists, N queries, M tokens,
// K lists, R lists that a query looks into.

#include <numeric>

#include "simd.h"

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

constexpr int64_t BLOCK = 64;  // queries

// Whether logits are first of 8 bits.
#if defined(__AVX512VNNI__)
constexpr bool COARSE = sizeof(T) == 4;
#else
constexpr bool COARSE = false;
#endif
constexpr int AHEAD = 8;  // keys that are asked for before they are read

// A query in 8 bits, what these are multiplied by, and by how much that changes logits, or less.
struct Bytes {
  alignas(64) int8_t query[P] = {};
  T scale, margin;
  Int begin;  // of sums: bytes of keys are 128 more, to be without a sign
};

#if defined(__AVX512VNNI__)
typedef int32_t Four __attribute__((may_alias));

// Logits of R queries and the keys of a strip, bytes [P / 4][Q][4] that are multiplied by scales [Q].
template <int R>
void dot(const Bytes* const* queries, const uint8_t* keys, const T* scales, V (&logits)[R][2]) {
  I found[R][2];
  each<R>([&](int r, int c) { found[r][c] = I{} + queries[r]->begin; });
  for (int e = 0; e < E; e += 4, keys += 4 * Q) {
    const __m512i left = _mm512_load_si512(keys), right = _mm512_load_si512(keys + 2 * Q);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const __m512i x = _mm512_set1_epi32(*reinterpret_cast<const Four*>(queries[r]->query + e));
      found[r][0] = (I)_mm512_dpbusd_epi32((__m512i)found[r][0], left, x);
      found[r][1] = (I)_mm512_dpbusd_epi32((__m512i)found[r][1], right, x);
    }
  }
  each<R>([&](int r, int c) {
    logits[r][c] = __builtin_convertvector(found[r][c], V) * queries[r]->scale * vec(scales + c * L);
  });
}
#endif

// A range of a query in a list; its logits are those of all strips of keys that it has a part in.
struct Pair {
  int64_t lo, hi, query, list;
  T* logits;
  int64_t begin() const { return lo & -Q; }
  int64_t end() const { return (hi + Q - 1) & -Q; }
  T* at(int64_t slot) const { return logits + slot - begin(); }
};

// The least of so many largest logits; -INF where there are no more. Behind them stands -INF, too.
T least_of(const T* logits, int64_t count, int64_t number) {
  if (count <= number) return -INF;
  const T from = bisected(logits, count, number);
  V most = V{} - INF;  // of what is negated
  for (int64_t i = 0; i < count; i += L)
    most = max(vec(logits + i) >= V{} + from ? -vec(logits + i) : V{} - INF, most);
  T least = INF;
  for (int n = 0; n < L; n++) least = std::min(least, -most[n]);
  return least;
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

// What about so many logits are no smaller than, by a sample of two of each register; it is copied.
T guess_of(const T* logits, int64_t count, int64_t number, T* sample) {
  constexpr int64_t OF = L / 2;
  I lanes;
  for (int n = 0; n < L; n++) lanes[n] = n / 2;
  int64_t copied = 0;
  for (int64_t i = 0; i < count; i += OF * L, copied += L) {
    V& x = vec(sample + copied) = V{} - INF;
    for (Int n = 0; n < OF && i + n * L < count; n++) x = lanes == n ? vec(logits + i + n * L) : x;
  }
  return bisected(sample, copied, std::max<int64_t>(number / OF, 1));
}

// 2^x; of coarse x within 3 %, by straight lines between the powers.
V about_exp2(V x) {
  if constexpr (!COARSE) return exp2(x);
  const V y = max(x + T(126.96), V{}) * T(1 << 23);  // the bits of an exponent and a fraction
  return (V)__builtin_convertvector(y, I);
}

struct Worker {
  const Index& p;
  const T scale = 1 / std::sqrt(double(E));
  const int64_t of_keys = p.heads / p.key_heads, of_lists = p.heads / p.groups;  // heads of each
  int64_t row = -1, head = -1;
  Buffer keys, values, biases;  // [M][P], [M][P], [M]
  Buffer strips, scales;        // of keys, [strips][P][Q]; of bytes [strips][P / 4][Q][4], [M]
  Buffer rows{ROWS * P};
  T largest;                    // of scales
  std::vector<Bytes> queries;  // of a block
  std::vector<Pair> pairs, sorted;
  std::vector<int64_t> order, places;
  std::vector<std::vector<int64_t>> slots;  // one past those of each list before a place, [2 S][K]
  std::vector<int64_t> counted;             // tokens that these count, [2 S]
  std::vector<int64_t> begins;  // of each list; what is in none stands behind the last
  std::vector<Int> chosen;  // slots
  std::unique_ptr<V[]> memory;
  T *logits, *weights, *exps;  // of a block; those of chosen keys, and their exponentials
  int64_t room = 0;
  std::vector<T> hidden;  // sums of the exponentials of a query's other keys, of each pair
  std::vector<Int> ends;  // one past the chosen of each pair

  explicit Worker(const Index& p)
      : p(p), keys(rounded_up(p.tokens, Q) * P), values(p.v.data ? p.tokens * P : 0),
        biases(rounded_up(p.tokens, Q)), strips(rounded_up(p.tokens, Q) * P / (COARSE ? 4 : 1)),
        scales(rounded_up(p.tokens, Q)), queries(BLOCK), order(p.tokens), places(p.tokens + 2),
        begins(p.clusters + 2) {}

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
    slots.assign(2 * p.sides, begins), counted.assign(2 * p.sides, 0);
  }

  // Copies keys and values list by list.
  void list() {
    std::fill(begins.begin(), begins.end(), 0);
    for (int64_t token = 0; token < p.tokens; token++) begins[list_of(token) + 1]++;
    for (int64_t n = 0; n < p.clusters; n++) begins[n + 1] += begins[n];
    std::vector<int64_t> ends = begins;
    largest = 0;
    for (int64_t token = 0; token < p.tokens; token++) order[ends[list_of(token)]++] = token;
    for (int64_t slot = 0, end = begins[p.clusters]; slot < end; slot++) {
      const int64_t token = order[slot], of_head = head / of_keys;
      T* key = std::copy_n(p.k.at<T>(row, of_head, token), E, keys + slot * P) - E;
      if (p.v.data) std::copy_n(p.v.at<T>(row, of_head, token), E, values + slot * P);
      if (COARSE) {
        int8_t of_key[P] = {};
        largest = std::max(largest, scales[slot] = to_bytes(key, of_key));
        for (int e = 0; e < P; e++) of_key[e] ^= -128;
        for (int e = 0; e < P; e += 4) std::memcpy(strip(slot) + e * Q + slot % Q * 4, of_key + e, 4);
      } else if (slot % Q == Q - 1 || slot == end - 1) {
        transpose(keys + slot / Q * Q * P, strips + slot / Q * Q * P);
      }
    }
  }

  uint8_t* strip(int64_t slot) const {
    return reinterpret_cast<uint8_t*>(static_cast<T*>(strips)) + slot / Q * Q * P;
  }

  void round(int64_t query, Bytes& to) {
    const T* of = p.q.at<T>(row, head, query);
    to.scale = to_bytes(of, to.query) * scale;
    to.margin = margin_of(to.query, to.scale * largest);
    to.begin = -128 * std::accumulate(to.query, to.query + E, Int(0));
  }

  // Counts the keys of each list before the places of a query; places never fall.
  void pass(int64_t query) {
    for (int64_t i = 0; i < 2 * p.sides; i++) {
      const int64_t place = *p.places.at<int64_t>(row, i, query);
      for (; counted[i] < place; counted[i]++) slots[i][list_of(counted[i])]++;
    }
  }

  void block(int64_t begin, int64_t end) {
    int64_t count = 0;
    pairs.clear();
    std::fill(places.begin(), places.end(), 0);
    for (int64_t query = begin; query < end; query++) {
      const int64_t* lists = p.queries.at<int64_t>(row, head, query);
      pass(query);
      for (int64_t r = 0; r < p.sides * p.probes; r++) {
        const int64_t list = lists[r % p.probes], from = r / p.probes * 2;
        if (!is_list(list)) continue;
        const Pair pair = {slots[from][list], slots[from + 1][list], query, r % p.probes, nullptr};
        if (pair.lo >= pair.hi) continue;
        pairs.push_back(pair), places[pair.lo + 1]++;
        count += pair.end() - pair.begin();
      }
      if (COARSE) round(query, queries[query - begin]);
    }
    if (count > room || !memory) {
      room = rounded_up(count + count / 4, Q);
      memory.reset(new V[3 * (room / L + 1)]), chosen.resize(room + L);
      logits = reinterpret_cast<T*>(memory.get()), weights = logits + room + L;
      exps = weights + room + L;
    }
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
      multiply(&sorted[first], number, until, begin);
    }
    const Pair* pair = pairs.data();
    for (int64_t query = begin; query < end; query++) {
      const Pair* const first = pair;
      while (pair < pairs.data() + pairs.size() && pair->query == query) pair++;
      choose(query, first, pair, COARSE ? queries[query - begin].margin : 0);
    }
  }

  // The logits of some pairs, which begin in order and end before a slot; `first` query of the block.
  void multiply(const Pair* pairs, int64_t number, int64_t until, int64_t first) {
    const Bytes* of[ROWS];
    for (int64_t i = 0; i < number; i++) {
      if (COARSE) of[i] = &queries[pairs[i].query - first];
      const T* query = p.q.at<T>(row, head, pairs[i].query);
      for (int e = 0; e < E && !COARSE; e++) rows[i * P + e] = query[e] * scale;
    }
    in_groups<ROWS>(0, number, [&](auto size, int64_t) {
      constexpr int R = size;
      for (int64_t slot = pairs[0].begin(); slot < until; slot += Q) {
        V found[R][2];
        if constexpr (COARSE)
          dot<R>(of, strip(slot), scales + slot, found);
        else
          dot<R>(rows, strips + slot * P, found);
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

  // The logits of chosen keys, of keys as they are; returns the largest.
  T weigh(int64_t query, Int few) {
    const Int* of = chosen.data();
    T peak = LOWEST;
    for (int e = 0; e < E; e++) rows[e] = p.q.at<T>(row, head, query)[e] * scale;
    for (Int i = 0; i < few; i++) {
      if (i + AHEAD < few) ask_for(keys + of[i + AHEAD] * P, E * sizeof(T));
      weights[i] = dot(rows, keys + of[i] * P) + biases[of[i]];
      peak = std::max(peak, weights[i]);
    }
    std::fill_n(weights + few, L, -INF);
    return peak;
  }

  // What a query sees of the logits of its pairs, which stand side by side and may be wrong by a
  // margin. Few of them, those that are no smaller than a guess, are looked at several times.
  void choose(int64_t query, const Pair* first, const Pair* end, T margin) {
    T least = -INF, peak = LOWEST, total = 0;
    const int64_t count = first < end ? end[-1].at(end[-1].end()) - first->logits : 0;
    T from = count > 4 * p.number ? guess_of(first->logits, count, 2 * p.number, weights) : LOWEST;
    Int few, kept = 0, *to = chosen.data();
    for (;; from = least > -INF ? least - margin : LOWEST) {
      few = 0, hidden.clear(), ends.clear();
      for (const Pair* pair = first; pair < end; pair++) {
        V sums = {};
        const Int stop = pair->end();  // locals, which no store changes
        const T* logits = pair->at(0);
        for (Int slot = pair->begin(); slot < stop; slot += L) {
          const V x = vec(logits + slot);
          const I is = x >= V{} + from;
          few += append(is, slot, to + few);
          if (p.rest) sums += is ? V{} : about_exp2((x - from) * T(LOG2_E));
        }
        hidden.push_back(sum(sums)), ends.push_back(few);
      }
      peak = weigh(query, few);
      least = least_of(weights, few, p.number);
      if (least > -INF) least -= (1 + std::abs(least)) * T(p.slack);
      if (least - margin >= from || from == LOWEST) break;
    }
    *p.least.at<T>(row, head, query) = least;
    for (Int i = 0; i < few; i += L) {  // the exponentials of what is seen, and of what is not
      const V x = vec(weights + i), y = exp2((x - peak) * T(LOG2_E));
      const I is = x >= V{} + std::max(least, LOWEST);
      vec(exps + i) = is ? y : V{}, vec(weights + i) = is ? V{} : y;
    }
    if (p.rest) {
      T* rest = p.rest + ((row * p.heads + head) * p.length + query) * p.probes;
      std::fill_n(rest, p.probes, T(0));
      const T below = std::exp(from - peak);
      Int i = 0;
      for (int64_t n = 0; n < end - first; n++) {
        T sum = hidden[n] * below;
        for (; i < ends[n]; i++) sum += weights[i];
        rest[first[n].list] += sum;
      }
      for (int64_t r = 0; r < p.probes; r++) rest[r] = std::log(rest[r]) + peak;
    }
    for (Int i = 0; i < few; i++) {  // without a branch to guess
      const T weight = exps[i];
      exps[kept] = weight, to[kept] = to[i], kept += weight > 0;
    }
    if (!p.v.data) return;
    V sum[P / L] = {};
    for (int64_t i = 0; i < kept; i++) {
      const T* value = values + to[i] * P;
      if (i + AHEAD < kept) ask_for(values + to[i + AHEAD] * P, E * sizeof(T));
      total += exps[i];
      for (int e = 0; e < P; e += L) sum[e / L] += exps[i] * vec(value + e);
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
