// Ranged attention on a CPU: tiles of queries, online softmax, forward and backward.
//
// A strip is as many queries as fill two vector registers. Its logits are computed transposed, a
// row for each key: maxima, exponentials and sums then run along the queries, without a sum across
// a register, and all products read keys and values as they stand, a row for each key. Rows are
// copied into contiguous memory once for a run of tiles; neighbouring tiles share them. Each strip
// computes the keys between its first and its last: a window of W keys costs W + Q - 1.
//
// A task is a segment of the queries of one row and head. What a segment is depends on the shapes
// alone, and gradients of keys are summed in the order of segments: results do not depend on the
// number of threads. Logits are kept in units of log 2. Of calls that share one softmax, the first
// adds each query's own key, and a later one looks at those queries alone that its layout has.

#include <atomic>
#include <thread>

#include "simd.h"

// What `out`, `lse`, `peak` and `total` are, `Carry` of kernel.py says.
DECLARE(Attention,
  Tensor q, k, v, key_bias, lo, hi, query_order, key_order, num_queries, num_keys;
  Tensor out, lse, peak, total, d_out, d_lse, d_q, d_k, d_v, d_bias;
  Tensor own_hidden, own_drops;  // as of `Own`
  Tensor least;  // of each query: logits below it are hidden
  int64_t batch, heads, length, slots, seed, threads;
  int64_t adds;  // to the softmax that out, peak and total hold; backward: to d_q; it always adds
                 // to d_k, d_v and d_bias
  int64_t own;   // whether each query sees its own key, besides the ranges
  double dropout, own_bias;  // the bias in units of log 2
)

namespace {

constexpr int CHUNK = 256;  // keys between two corrections of the online softmax
constexpr int KEPT = 384;   // rows of keys that stay copied

// Scattered rows that are read or written soon: asked for in small batches, spread over what is
// computed, so that several misses of the TLB overlap.
struct Ahead {
  const T* rows[8 * TILE];
  int count = 0, next = 0, at_once = 0;
  void step() {
    for (int n = 0; n < at_once && next < count; n++) ask_for(rows[next++], E * sizeof(T));
  }
};

// What queries add to the gradients of the key slots that they see, [begin, end): rows of d_k and
// d_v, d_bias. Its memory is as if for all key slots: what is never touched takes up no room.
struct Part {
  int64_t begin = 0, end = 0, clean = 0;  // up to which slot it counts
  std::unique_ptr<V[]> memory;
  // It is of what the query slots [from, to) of a row and head see.
  void cover(const Attention& p, int64_t row, int64_t head, int64_t from, int64_t to) {
    begin = p.slots, end = 0;
    for (int64_t slot = from; slot < to; slot++) {
      int64_t lo = *p.lo.at<int64_t>(row, head, slot), hi = *p.hi.at<int64_t>(row, head, slot);
      if (lo < hi) begin = std::min(begin, lo), end = std::max(end, hi);
    }
    begin = clean = std::min(begin, end);
    if (!memory) memory.reset(new V[p.slots * (2 * P + 1) / L + 1]);
  }
  T* keys() const { return reinterpret_cast<T*>(memory.get()); }
  T* values() const { return keys() + (end - begin) * P; }
  T* bias() const { return values() + (end - begin) * P; }
  // Zero slots up to `to`. Done just before use, so that the lines are in cache.
  void clear(int64_t to) {
    if (to <= clean) return;
    std::fill(keys() + (clean - begin) * P, keys() + (to - begin) * P, T(0));
    std::fill(values() + (clean - begin) * P, values() + (to - begin) * P, T(0));
    std::fill(bias() + (clean - begin), bias() + (to - begin), T(0));
    clean = to;
  }
};

struct Worker {
  // Q queries: slots that follow each other.
  struct Strip {
    alignas(64) Int lo[Q], hi[Q];
    alignas(64) Bits draw[2][Q];  // of dropout
    alignas(64) T peak[Q], total[Q], delta[Q], least[Q];
    int64_t begin, end;          // keys that any of them sees, [slots, 0) where none does
    int64_t all_begin, all_end;  // keys that all of them see
    Buffer q{Q * P}, q_columns{P * Q}, d_out{Q * P}, d_out_columns{P * Q};
    Buffer sum{Q * P};  // output or d_q
    bool asks[Q], own[Q];  // whether it sees any key of this call; whether its own
  };

  const Attention& p;
  // Of queries; of weights that dropout keeps.
  const T scale = LOG2_E / std::sqrt(double(E)), kept_scale = 1 / (1 - p.dropout);
  const Int kept_below = std::min((1 - p.dropout) * 0x1p31, double(0x7fffffff));
  int64_t row, head;

  // Copied keys, slots [first, last).
  int64_t first = 0, last = 0;
  Buffer keys{KEPT * P}, values{KEPT * P}, biases{KEPT};
  Part part;
  std::vector<T> own;  // gradients of the keys and values of a segment's queries, [queries][2][E]
  Ahead ahead;
  Buffer weights{CHUNK * Q}, d_logits{CHUNK * Q};  // weights and their gradients, [keys][Q]
  Strip strips[TILE / Q];

  explicit Worker(const Attention& p) : p(p) {}

  // `both`: the number of a row and a head.
  void of(int64_t both) { row = both / p.heads, head = both % p.heads, first = last = 0; }

  // What a tensor has there; the other where there is no tensor.
  template <class X>
  X given(const Tensor& t, int64_t at, X absent) const {
    return t.data ? *t.at<X>(row, head, at) : absent;
  }
  int64_t token(const Tensor& order, int64_t slot) const { return given(order, slot, slot); }

  // A token's row, times a factor; 0, whatever stands there, where it is not to be seen.
  void read(T* to, const Tensor& of, int64_t at, bool seen = true, T factor = 1) const {
    if (!seen) return void(std::memset(to, 0, E * sizeof(T)));
    const T* from = of.at<T>(row, head, at);
    for (int e = 0; e < E; e++) to[e] = from[e] * factor;
  }

  // Keys [begin, end) are copied afterwards; they are CHUNK or fewer.
  void reach(int64_t begin, int64_t end) {
    if (begin < first || begin > last) first = last = begin;  // a jump: nothing copied is of use
    if (end - first > KEPT) {  // make room: what stands before `begin` is needed no more
      int64_t moved = begin - first, left = last - begin;
      std::memmove(keys, keys + moved * P, left * P * sizeof(T));
      std::memmove(values, values + moved * P, left * P * sizeof(T));
      std::memmove(biases, biases + moved, left * sizeof(T));
      first = begin;
    }
    int64_t used = given(p.num_keys, 0, p.slots);
    for (; last < end; last++) {
      const int64_t from = token(p.key_order, last), to = last - first;
      const bool holds = last < used;  // a token
      read(keys + to * P, p.k, from, holds), read(values + to * P, p.v, from, holds);
      if (p.key_bias.data)
        biases[to] = holds ? *p.key_bias.at<T>(row, head, from) * T(LOG2_E) : 0;
    }
  }

  // Ranges and queries of the strip whose first slot is given; backward: what gradients need.
  void load(Strip& s, int64_t slot, bool backward) {
    const int64_t used = given(p.num_queries, 0, p.length);
    s.begin = s.all_end = p.slots, s.end = s.all_begin = 0;
    alignas(64) T out[P] = {};
    for (int i = 0; i < Q; i++, slot++) {
      bool there = slot < p.length;
      int64_t from = there ? token(p.query_order, slot) : 0;
      int64_t lo = there ? *p.lo.at<int64_t>(row, head, slot) : 0;
      int64_t hi = there ? *p.hi.at<int64_t>(row, head, slot) : 0;
      bool sees = lo < hi;
      bool own = there && p.own && !given<uint8_t>(p.own_hidden, from, 0);
      bool asks = sees || own;
      s.peak[i] = LOWEST, s.total[i] = 0;
      s.least[i] = p.least.data && there ? *p.least.at<T>(row, head, from) * T(LOG2_E) : -INF;
      if (asks && (backward || p.adds)) {
        T total = *p.total.at<T>(row, head, from);
        s.peak[i] = *p.peak.at<T>(row, head, from);
        s.total[i] = backward && total != 0 ? 1 / total : total;  // weights are multiplied by it
        if (backward && total == 0) sees = own = asks = false;  // all its keys had logits of -inf
      }
      s.asks[i] = asks, s.own[i] = own;
      s.lo[i] = sees ? lo : 0, s.hi[i] = sees ? hi : 0;
      s.all_begin = std::max<int64_t>(s.all_begin, s.lo[i]);
      s.all_end = std::min<int64_t>(s.all_end, s.hi[i]);
      if (sees) s.begin = std::min(s.begin, lo), s.end = std::max(s.end, hi);
      // the softmax goes on from an output that was divided by its total
      read(s.sum + i * P, p.out, from, p.adds && !backward && s.total[i] != 0, s.total[i]);
      // a slot without a token asks with 0, so that its logits stay finite
      read(s.q + i * P, p.q, from, (sees && slot < used) || own, scale);
      if (backward) {  // delta is out . d_out - d_lse, the term of the softmax's gradient
        read(out, p.out, from, asks), read(s.d_out + i * P, p.d_out, from, asks);
        s.delta[i] = dot(out, s.d_out + i * P);
        if (asks) s.delta[i] -= given(p.d_lse, from, T(0));
      }
      if (p.dropout > 0) {  // two numbers of the query, from which `keeps` draws for each key
        uint64_t x = p.seed + ((row * p.heads + head) * p.length + slot + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;  // splitmix64
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        x ^= x >> 31;
        s.draw[0][i] = uint32_t(x), s.draw[1][i] = uint32_t(x >> 32) | 1;
      }
    }
    transpose(s.q, s.q_columns);
    if (backward) transpose(s.d_out, s.d_out_columns);
  }

  // Adds the bias to the logits of R keys from `slot` on; -inf where a key is hidden.
  template <int R>
  void hide(const Strip& s, int64_t slot, V (&logits)[R][2]) const {
    if (p.key_bias.data)
      each<R>([&](int r, int c) { logits[r][c] += biases[slot - first + r]; });
    if (p.least.data)
      each<R>([&](int r, int c) {
        V least = vec(s.least + c * L);
        logits[r][c] = logits[r][c] >= least ? logits[r][c] : V{} - INF;
      });
    if (slot >= s.all_begin && slot + R <= s.all_end) return;
    each<R>([&](int r, int c) {
      I key = I{} + Int(slot + r);
      I seen = (key >= vec(s.lo + c * L)) & (key < vec(s.hi + c * L));
      logits[r][c] = seen ? logits[r][c] : V{} - INF;
    });
  }

  // 1 / (1 - dropout) where a weight is kept, else 0: murmur3's finalizer of query and key.
  V keeps(const Strip& s, int64_t slot, int c) const {
    constexpr Bits mask = 0xffffffff;
    U x = (vec(s.draw[1] + c * L) * Bits(slot) + vec(s.draw[0] + c * L)) & mask;
    x = ((x ^ x >> 16) * Bits(0x85ebca6b)) & mask;
    x = ((x ^ x >> 13) * Bits(0xc2b2ae35)) & mask;
    x ^= x >> 16;
    return (I)(x >> 1) < kept_below ? V{} + kept_scale : V{};
  }

  // Keys [begin, end), CHUNK or fewer: logits, then weights, then what these add to the output.
  void attend(Strip& s, int64_t begin, int64_t end) {
    V tops[2] = {V{} + LOWEST, V{} + LOWEST};
    in_groups<ROWS>(begin, end, [&](auto size, int64_t slot) {
      constexpr int R = size;
      ahead.step();
      V logits[R][2];
      dot<R>(keys + (slot - first) * P, s.q_columns, logits);
      hide<R>(s, slot, logits);
      T* to = weights + (slot - begin) * Q;
      each<R>([&](int r, int c) {
        tops[c] = max(logits[r][c], tops[c]);
        vec(to + r * Q + c * L) = logits[r][c];
      });
    });
    V sums[2] = {};
    alignas(64) T corrections[Q];
    // Online softmax: move to the new maximum, and correct what was summed before by 2^(old - new).
    for (int c = 0; c < 2; c++) {
      tops[c] = max(tops[c], vec(s.peak + c * L));
      vec(corrections + c * L) = exp2(vec(s.peak + c * L) - tops[c]);
      vec(s.peak + c * L) = tops[c];
    }
    const bool dropping = p.dropout > 0;
    for (int64_t slot = begin; slot < end; slot++)
      for (int c = 0; c < 2; c++) {
        V& weight = vec(weights + (slot - begin) * Q + c * L);
        V x = exp2(weight - tops[c]);
        sums[c] += x;
        weight = dropping ? x * keeps(s, slot, c) : x;
      }
    for (int c = 0; c < 2; c++) {
      V& total = vec(s.total + c * L);
      total = total * vec(corrections + c * L) + sums[c];
    }
    if (begin > s.begin || p.adds)  // else nothing was summed before
      for (int i = 0; i < Q; i++)
        for (int e = 0; e < P; e += L) vec(s.sum + i * P + e) *= corrections[i];
    // out += P v, over the chunk's keys.
    in_groups<ROWS>(0, Q, [&](auto size, int64_t i) {
      add_weighted<size, Q, 1>(weights + i, values + (begin - first) * P, end - begin,
                               s.sum + i * P);
    });
  }

  // Weights are computed again from the softmax's maximum and total. With dP = d_out . v, the
  // gradient of a logit is dS = P (dP - delta). Those of keys go to the part.
  void attend_backward(Strip& s, int64_t begin, int64_t end) {
    part.clear(end);
    in_groups<ROWS>(begin, end, [&](auto size, int64_t slot) {
      constexpr int R = size;
      ahead.step();
      V logits[R][2], d_weights[R][2];
      int64_t at = (slot - first) * P;
      dot<R>(keys + at, s.q_columns, logits);
      hide<R>(s, slot, logits);
      T* to = weights + (slot - begin) * Q;
      each<R>([&](int r, int c) {
        vec(to + r * Q + c * L) = exp2(logits[r][c] - vec(s.peak + c * L)) * vec(s.total + c * L);
      });
      dot<R>(values + at, s.d_out_columns, d_weights);
      T* d_to = d_logits + (slot - begin) * Q;
      each<R>([&](int r, int c) {
        V &weight = vec(to + r * Q + c * L), d_weight = d_weights[r][c], x = weight;
        if (p.dropout > 0) {
          V keep = keeps(s, slot + r, c);
          d_weight *= keep, weight *= keep;
        }
        vec(d_to + r * Q + c * L) = x * (d_weight - vec(s.delta + c * L));
      });
    });
    // d_v += P^T d_out and d_k += dS^T q, over the strip's queries.
    in_groups<ROWS>(begin, end, [&](auto size, int64_t slot) {
      int64_t at = (slot - begin) * Q, to = slot - part.begin;
      add_weighted<size, 1, Q>(weights + at, s.d_out, Q, part.values() + to * P);
      add_weighted<size, 1, Q>(d_logits + at, s.q, Q, part.keys() + to * P);
      for (int r = 0; r < size && p.d_bias.data; r++, at += Q)
        part.bias()[to + r] += sum(vec(d_logits + at) + vec(d_logits + at + L));
    });
    // d_q += dS k, over the chunk's keys.
    in_groups<ROWS>(0, Q, [&](auto size, int64_t i) {
      add_weighted<size, Q, 1>(d_logits + i, keys + (begin - first) * P, end - begin,
                               s.sum + i * P);
    });
  }

  // What this tile writes, the next tile's queries, and the keys after this one's last.
  void fetch_ahead(int64_t slot, int64_t key, bool backward) {
    ahead.count = ahead.next = 0;
    auto add = [&](const Tensor& of, const Tensor& order, int64_t begin, int64_t all) {
      for (int64_t i = begin; i < std::min(begin + TILE, all); i++)
        ahead.rows[ahead.count++] = of.at<T>(row, head, token(order, i));
    };
    add(backward ? p.d_q : p.out, p.query_order, slot, p.length);
    for (const Tensor* t : {&p.q, p.own ? &p.k : nullptr, p.own ? &p.v : nullptr,
                            backward ? &p.out : nullptr, backward ? &p.d_out : nullptr})
      if (t) add(*t, p.query_order, slot + TILE, p.length);
    for (const Tensor* t : {&p.k, &p.v}) add(*t, p.key_order, key, p.slots);
    int64_t groups = 1;  // of keys, that the strips will compute
    for (const Strip& s : strips) groups += std::max<int64_t>(0, s.end - s.begin) / ROWS;
    ahead.at_once = rounded_up(ahead.count, groups) / groups;
  }

  // Loads the tile's strips, and attends to the keys of each, chunk by chunk.
  void over_chunks(int64_t slot, bool backward) {
    int64_t end = 0, begin = p.slots;
    for (int i = 0; i < TILE / Q; i++) {
      load(strips[i], slot + i * Q, backward);
      begin = std::min(begin, strips[i].begin), end = std::max(end, strips[i].end);
    }
    fetch_ahead(slot, end, backward);
    // Chunk by chunk, for all strips: they share the copied keys.
    for (; begin < end; begin += CHUNK) {
      int64_t until = std::min(begin + CHUNK, end);
      reach(begin, until);
      for (int i = 0; i < TILE / Q; i++) {
        int64_t from = std::max(begin, strips[i].begin), to = std::min(until, strips[i].end);
        if (from < to) backward ? attend_backward(strips[i], from, to) : attend(strips[i], from, to);
      }
    }
  }

  // Calls f(strip, query of it, token) for the tile's queries.
  template <class F>
  void over_queries(int64_t slot, F f) {
    for (int i = 0; i < TILE && slot + i < p.length; i++)
      f(strips[i / Q], i % Q, token(p.query_order, slot + i));
  }

  // Whether no slot from this one on has a query that adds to what is there.
  bool is_behind(int64_t slot) const { return p.adds && slot >= given(p.num_queries, 0, p.length); }

  void forward_tile(int64_t slot) {
    if (is_behind(slot)) return;
    over_chunks(slot, false);
    over_queries(slot, [&](Strip& s, int i, int64_t at) {
      if (p.adds && !s.asks[i]) return;  // what is there stays
      if (s.own[i]) see_own(s, i, at);
      T total = s.total[i], factor = total != 0 ? 1 / total : 0;
      T* out = p.out.at<T>(row, head, at);
      for (int e = 0; e < E; e++) out[e] = s.sum[i * P + e] * factor;
      *p.lse.at<T>(row, head, at) = (s.peak[i] + std::log2(total)) * T(LN_2);
      *p.peak.at<T>(row, head, at) = s.peak[i];
      *p.total.at<T>(row, head, at) = total;
    });
  }

  // The own key of a strip's query, added to its softmax.
  void see_own(Strip& s, int i, int64_t at) {
    alignas(64) T own[P] = {};
    read(own, p.k, at);
    T logit = dot(s.q + i * P, own) + T(p.own_bias), top = std::max(s.peak[i], logit);
    T before = std::exp2(s.peak[i] - top), weight = std::exp2(logit - top);
    s.peak[i] = top, s.total[i] = s.total[i] * before + weight;
    read(own, p.v, at, true, weight * given(p.own_drops, at, T(1)));
    T* sum = s.sum + i * P;
    for (int e = 0; e < P; e += L) vec(sum + e) = vec(sum + e) * before + vec(own + e);
  }

  // Its gradients: of q to the strip's sum, of key and value to `d_own`.
  void see_own_backward(Strip& s, int i, int64_t at, T* d_own) {
    alignas(64) T key[P] = {}, value[P] = {};
    read(key, p.k, at), read(value, p.v, at);
    T* q = s.q + i * P, *d_out = s.d_out + i * P, *d_q = s.sum + i * P;
    T logit = dot(q, key) + T(p.own_bias), drop = given(p.own_drops, at, T(1));
    T weight = std::exp2(logit - s.peak[i]) * s.total[i];
    T d_logit = weight * (dot(d_out, value) * drop - s.delta[i]);
    for (int e = 0; e < P; e += L) vec(d_q + e) += vec(key + e) * d_logit;
    for (int e = 0; e < E; e++) d_own[e] = q[e] * d_logit, d_own[E + e] = d_out[e] * weight * drop;
  }

  // Adds to the part what the tile's queries contribute, of the segment that begins at a slot.
  void backward_tile(int64_t segment, int64_t slot) {
    if (is_behind(slot)) return;
    over_chunks(slot, true);
    int64_t used = given(p.num_queries, 0, p.length);
    over_queries(slot, [&](Strip& s, int i, int64_t at) {
      const int64_t place = slot + (&s - strips) * Q + i;
      if (s.own[i]) see_own_backward(s, i, at, &own[(place - segment) * 2 * E]);
      bool there = place < used;  // whether the slot holds a token
      T factor = there || s.own[i] ? scale * T(LN_2) : 0;
      T* d_q = p.d_q.at<T>(row, head, at);
      for (int e = 0; e < E; e++) d_q[e] = (p.adds ? d_q[e] : 0) + s.sum[i * P + e] * factor;
    });
  }

  // Adds the gradients of the keys that queries of a segment see, and of the queries' own.
  void store(int64_t begin, int64_t end) const {
    auto add = [&](int64_t at, const T* d_keys, const T* d_values) {
      T *d_k = p.d_k.at<T>(row, head, at), *d_v = p.d_v.at<T>(row, head, at);
      for (int e = 0; e < E; e++) d_k[e] += d_keys[e] * T(LN_2), d_v[e] += d_values[e];
    };
    const int64_t used = std::min(given(p.num_keys, 0, p.slots), part.end);
    for (int64_t slot = part.begin; slot < used; slot++) {
      for (const Tensor* t : {&p.d_k, &p.d_v})
        if (slot + L < used)
          ask_for(t->at<T>(row, head, token(p.key_order, slot + L)), E * sizeof(T));
      const int64_t to = token(p.key_order, slot), at = slot - part.begin;
      add(to, part.keys() + at * P, part.values() + at * P);
      if (p.d_bias.data) *p.d_bias.at<T>(row, head, to) += part.bias()[at];
    }
    for (int64_t slot = begin; slot < end && p.own; slot++) {
      const T* of = &own[(slot - begin) * 2 * E];
      add(token(p.query_order, slot), of, of + E);
    }
  }
};

}  // namespace

extern "C" void run_forward(const Attention& p) {
  Tasks tasks(p);
  over_tasks<Worker>(p, tasks.count, [&](Worker& worker, int64_t task) {
    worker.of(task / tasks.segments);
    tasks.over_tiles(task, [&](int64_t slot) { worker.forward_tile(slot); });
  });
}

extern "C" void run_backward(const Attention& p) {
  Tasks tasks(p);
  // Segments of a row and head that are done: they add their gradients of keys in their order.
  // Those before one that is done are at work.
  std::vector<std::atomic<int64_t>> added(p.batch * p.heads);
  over_tasks<Worker>(p, tasks.count, [&](Worker& worker, int64_t task) {
    const int64_t both = task / tasks.segments, segment = task % tasks.segments;
    const int64_t begin = segment * tasks.per_segment * TILE;
    const int64_t end = std::min(begin + tasks.per_segment * TILE, p.length);
    worker.of(both);
    worker.part.cover(p, worker.row, worker.head, begin, end);
    if (p.own) worker.own.assign((end - begin) * 2 * E, T(0));
    tasks.over_tiles(task, [&](int64_t slot) { worker.backward_tile(begin, slot); });
    worker.part.clear(worker.part.end);
    while (added[both] != segment) std::this_thread::yield();
    worker.store(begin, end);
    added[both]++;
  });
}
