// One token of each row, on a CPU: what its queries attend to of all that decoding keeps, under one
// softmax, and what is kept behind it. Keys are read where they stand.
//
// An entry is a key, a bias if there are any, and a value, C numbers. Shape letters: B batch, H
// heads, J heads of keys, G groups of these that share rings, Q groups of queries that read the
// same rings, E width, L layouts, R rings of each, P of them that a query reads, W slots of a ring,
// M tokens that are near, S sinks, K clusters that have means: those of the rings, of one layout.
//
// Of an index, an entry stands in the slot of its token's place; rings are lists, and L is 1.

#include "simd.h"

// What is absent has no data, and 0 of it.
DECLARE(Step,
  const NUMBER *q, *entry;   // [B, H, E], [B, J, C]
  NUMBER* out;               // [B, H, E]
  NUMBER* kept;              // [B, G, L * R, J / G, W, C]
  int64_t* seen;             // tokens that each ring was given, [B, G, L * R]
  int32_t* lists;            // of an index: the list of each key, [B, G, W]; R: none
  const int64_t* place;      // of the token in its document, [B]
  const int64_t *read;       // [B, Q, L, P]
  const int64_t *written;    // [B, G, L]; R: no ring
  NUMBER* near;              // the oldest first, [B, J, M, C]
  int64_t* near_ring;        // in which ring each will be, [B, G, L, M]
  const int64_t* before;     // real tokens that were near or in rings, [B]
  const NUMBER* sinks;       // [B, J, S, C]
  NUMBER* sums;              // of keys, of values, of ones, [B, J, chunks, K, 2 E + 1]
  const int64_t *since, *ends;  // chunk that the token counts from, above 0 if its own ends, [B]
  int64_t batch, heads, key_heads, groups, query_groups, entry_width, layouts, rings, probes,
      window, room, number_of_sinks, clusters, chunks, own, threads;
  int64_t index, gap;  // an index: how many of its keys are seen, no nearer than that; 0: none is
  double own_bias;
)

namespace {

constexpr int64_t AHEAD = 16;      // keys that are asked for before they are read
constexpr int64_t MANY = 1 << 13;  // keys from which on threads save more than it takes to begin

// Registers of rows that begin anywhere.
typedef T Loose __attribute__((vector_size(BYTES), may_alias, aligned(sizeof(T))));
inline const Loose& loose(const T* p) { return *reinterpret_cast<const Loose*>(p); }
inline Loose& loose(T* p) { return *reinterpret_cast<Loose*>(p); }

T product(const T* a, const T* b) {
  V sums = {};
  int e = 0;
  for (; e + L <= E; e += L) sums += loose(a + e) * loose(b + e);
  T total = sum(sums);
  for (; e < E; e++) total += a[e] * b[e];
  return total;
}

// What one query sees: where keys and values stand, what both are multiplied by, and logits.
struct Sight {
  const Step& p;
  const T* query;
  T scale;
  std::vector<const T*> values;
  std::vector<T> logits, factors;
  std::vector<int64_t> listed;  // slots of keys to choose from
  int64_t number_of_listed;     // so many
  std::vector<T> of_listed, weights;  // their logits, and the exponentials of these
  std::vector<char> reads;  // whether a list is read, [R + 1]
  std::vector<T> rest;      // log-sum-exp of what is not seen of each list, [R + 1]

  explicit Sight(const Step& p)
      : p(p), scale(T(1 / std::sqrt(double(E)))), listed(p.index ? p.window + 1 : 0) {}

  void begin(const T* of) { query = of, values.clear(), logits.clear(), factors.clear(); }

  void add(const T* key, const T* value, T factor, T bias) {
    logits.push_back(product(query, key) * scale * factor + bias);
    values.push_back(value), factors.push_back(factor);
  }
  void entries(const T* first, int64_t count, bool biased) {
    for (; count > 0; count--, first += p.entry_width)
      add(first, first + p.entry_width - E, 1, biased ? first[E] : 0);
  }

  // The keys of lists that stand in slots before an end. All slots are looked at, in their order:
  // to follow each list would take longer, for each of its keys would be a wait for memory.
  void list(const int32_t* of_slots, int64_t end, const int64_t* read) {
    reads.assign(p.rings + 1, 0);
    for (int64_t probe = 0; probe < p.probes; probe++) reads[std::min(read[probe], p.rings)] = 1;
    reads[p.rings] = 0;
    const char* wanted = reads.data();  // locals, which no store changes
    int64_t count = 0, *to = listed.data();
    for (int64_t slot = 0; slot < end; slot++) to[count] = slot, count += wanted[of_slots[slot]];
    number_of_listed = count;
  }

  // Adds to what is seen the `number` listed entries of largest logits, and sets `rest`.
  void best(const T* entries, const int32_t* of_slots, int64_t number, bool biased) {
    const int64_t count = number_of_listed, bytes = E * sizeof(T);
    T low = INF, high = LOWEST;
    of_listed.assign(rounded_up(count, L), -INF), weights.resize(of_listed.size());
    for (int64_t i = 0; i < count; i++) {
      if (i + AHEAD < count) ask_for(entries + listed[i + AHEAD] * p.entry_width, bytes);
      const T* entry = entries + listed[i] * p.entry_width;
      const T logit = of_listed[i] = product(query, entry) * scale + (biased ? entry[E] : 0);
      low = std::min(low, logit), high = std::max(high, logit);
    }
    // The least of them by bisection: a processor foresees no branch of an order.
    low = std::max(low, LOWEST);  // -INF is not seen
    if (count > number) low = bisected(of_listed.data(), count, number, low, high);
    for (int64_t i = 0; i < count; i += L)
      loose(&weights[i]) = exp2((loose(&of_listed[i]) - high) * T(LOG2_E));
    rest.assign(p.rings + 1, 0);
    for (int64_t i = 0; i < count; i++) {
      if (of_listed[i] < low) {
        rest[of_slots[listed[i]]] += weights[i];
        continue;
      }
      logits.push_back(of_listed[i]), factors.push_back(1);
      values.push_back(entries + (listed[i] + 1) * p.entry_width - E);
    }
    for (T& x : rest) x = std::log(x) + high;
  }

  void attend(T* out) {
    T sums[E] = {};
    const int64_t count = logits.size();
    const T peak = count ? *std::max_element(logits.begin(), logits.end()) : 0;
    logits.resize(rounded_up(count, L), -INF);  // to whole registers
    V totals = {};
    for (int64_t i = 0; i < count; i += L) {
      Loose& weights = loose(&logits[i]);
      totals += weights = exp2((weights - peak) * T(LOG2_E));
    }
    const T total = sum(totals);
    for (int64_t i = 0; i < count; i++) {
      if (i + AHEAD < count) ask_for(values[i + AHEAD], E * sizeof(T));
      const T weight = logits[i] / total * factors[i], *value = values[i];
      for (int e = 0; e < E; e++) sums[e] += weight * value[e];
    }
    std::copy_n(sums, E, out);
  }
};

void look(const Step& p, Sight& sight, int64_t row, int64_t head) {
  const int64_t key_head = head * p.key_heads / p.heads, sharing = p.key_heads / p.groups;
  const int64_t group = key_head / sharing, in_group = key_head % sharing;
  const int64_t reader = (row * p.query_groups + head * p.query_groups / p.heads) * p.layouts;
  const bool biased = p.entry_width > 2 * E;
  const int64_t of_key_head = row * p.key_heads + key_head;
  sight.begin(p.q + (row * p.heads + head) * E);
  if (p.index) {
    const int64_t place = p.place[row], sinks = p.number_of_sinks, of_row = row * p.groups + group;
    const T* first = p.kept + of_key_head * p.window * p.entry_width;
    sight.list(p.lists + of_row * p.window, std::max<int64_t>(place - p.gap + 1, 0),
               p.read + reader * p.probes);
    sight.best(first, p.lists + of_row * p.window, p.index, biased);
    sight.entries(first, std::min(sinks, place), false);
    const int64_t from = std::max(sinks, place - p.gap + 1);
    sight.entries(first + from * p.entry_width, place - from, false);
  }
  for (int64_t layout = 0; layout < p.layouts && !p.index; layout++)
    for (int64_t probe = 0; probe < p.probes; probe++) {
      int64_t ring = p.read[(reader + layout) * p.probes + probe];
      if (ring >= p.rings) continue;
      ring += ((row * p.groups + group) * p.layouts + layout) * p.rings;
      const T* first = p.kept + (ring * sharing + in_group) * p.window * p.entry_width;
      sight.entries(first, std::min(p.seen[ring], p.window), biased);
    }
  if (p.own) {
    const T* entry = p.entry + of_key_head * p.entry_width;
    sight.add(entry, entry + p.entry_width - E, 1, T(p.own_bias));
  }
  if (p.room) {
    const int64_t count = std::min(p.before[row], p.room);
    const T* end = p.near + (of_key_head + 1) * p.room * p.entry_width;
    sight.entries(end - count * p.entry_width, count, false);  // near, biases do not count
  }
  const T* sinks = p.sinks + of_key_head * p.number_of_sinks * p.entry_width;
  if (!p.index) sight.entries(sinks, p.number_of_sinks, false);
  const int64_t *read = p.read + reader * p.probes, *end = read + p.probes;
  const T* sums = p.sums + of_key_head * p.chunks * p.clusters * (2 * E + 1);
  for (int64_t k = 0; k < p.clusters; k++, sums += 2 * E + 1) {
    const T count = sums[2 * E];
    const bool looked = std::find(read, end, k) != end;
    if (count <= 0 || (looked && !p.index)) continue;
    sight.add(sums, sums + E, 1 / count, std::log(count));
    if (looked) sight.logits.back() = sight.rest[k];
  }
}

// Into the ring of each layout, the entries [J / G, C] of a group, `stride` numbers apart.
void store(const Step& p, int64_t row, int64_t group, const T* entries, int64_t stride,
           const int64_t* rings, int64_t ring_stride) {
  const int64_t sharing = p.key_heads / p.groups;
  for (int64_t layout = 0; layout < p.layouts; layout++) {
    int64_t ring = rings[layout * ring_stride];
    if (ring >= p.rings) continue;
    ring += ((row * p.groups + group) * p.layouts + layout) * p.rings;
    const int64_t slot = p.seen[ring]++ % p.window;
    for (int64_t head = 0; head < sharing; head++)
      std::copy_n(entries + head * stride, p.entry_width,
                  p.kept + ((ring * sharing + head) * p.window + slot) * p.entry_width);
  }
}

void keep(const Step& p, int64_t row) {
  const int64_t sharing = p.key_heads / p.groups, all = p.room * p.entry_width;
  for (int64_t group = 0; group < p.groups; group++) {
    const int64_t first = row * p.key_heads + group * sharing;
    const T* entries = p.entry + first * p.entry_width;
    const int64_t* written = p.written + (row * p.groups + group) * p.layouts;
    if (p.index) {
      const int64_t place = p.place[row], at = (row * p.groups + group) * p.window + place;
      p.lists[at] = place < p.number_of_sinks ? p.rings : *written;
      for (int64_t head = 0; head < sharing; head++) {
        const int64_t slot = (first + head) * p.window + place;
        const T* entry = entries + head * p.entry_width;
        std::copy_n(entry, p.entry_width, p.kept + slot * p.entry_width);
      }
      continue;
    }
    if (!p.room) {
      store(p, row, group, entries, p.entry_width, written, 1);
      continue;
    }
    int64_t* waiting = p.near_ring + (row * p.groups + group) * p.layouts * p.room;
    T* near = p.near + first * all;
    if (p.before[row] >= p.room) store(p, row, group, near, all, waiting, p.room);
    for (int64_t head = 0; head < sharing; head++, near += all) {
      std::memmove(near, near + p.entry_width, (all - p.entry_width) * sizeof(T));
      std::copy_n(entries + head * p.entry_width, p.entry_width, near + all - p.entry_width);
    }
    for (int64_t layout = 0; layout < p.layouts; layout++, waiting += p.room) {
      std::memmove(waiting, waiting + 1, (p.room - 1) * sizeof(int64_t));
      waiting[p.room - 1] = written[layout];
    }
  }
}

// What the token adds to sums, and the sums of the next chunk where one ends.
void sum(const Step& p, int64_t row) {
  const int64_t width = 2 * E + 1, chunk = p.clusters * width;
  for (int64_t head = row * p.key_heads; head < (row + 1) * p.key_heads; head++) {
    T* sums = p.sums + head * p.chunks * chunk;
    const int64_t cluster = p.written[head * p.groups / p.key_heads * p.layouts];
    T* to = sums + p.since[row] * chunk + cluster * width;
    const T *key = p.entry + head * p.entry_width, *value = key + p.entry_width - E;
    for (int64_t e = 0; e < E; e++) to[e] += key[e], to[E + e] += value[e];
    to[2 * E] += 1;
    if (p.ends[row] <= 0) continue;
    for (int64_t i = 0; i < chunk; i++) sums[i] += sums[chunk + i];
    std::memmove(sums + chunk, sums + 2 * chunk, (p.chunks - 2) * chunk * sizeof(T));
    std::fill_n(sums + (p.chunks - 1) * chunk, chunk, T(0));
  }
}

}  // namespace

extern "C" void run_step(const Step& p) {
  const int64_t rows_and_heads = p.batch * p.heads;
  if (!p.own)  // a query sees its own key in its ring
    for (int64_t row = 0; row < p.batch; row++) keep(p, row);
#pragma omp parallel num_threads(p.threads) if (p.threads > 1 && rows_and_heads * p.window > MANY)
  {
    Sight sight(p);
#pragma omp for schedule(dynamic)  // heads read lists of other lengths
    for (int64_t i = 0; i < rows_and_heads; i++) {
      look(p, sight, i / p.heads, i % p.heads);
      sight.attend(p.out + i * E);
    }
  }
  for (int64_t row = 0; row < p.batch; row++) {
    if (p.own) keep(p, row);
    if (p.clusters) sum(p, row);
  }
}
