// One token of each row, on a CPU: what its queries attend to of all that decoding keeps, under one
// softmax, and what is kept behind it. Keys are read where they stand.
//
// An entry is a key, a bias if there are any, and a value, C numbers. Shape letters: B batch, H
// heads, J heads of keys, G groups of these that share rings, Q groups of queries that read the
// same rings, E width, L layouts, R rings of each, P of them that a query reads, W slots of a ring,
// M tokens that are near, S sinks, K clusters that have means.
//
// Of an index, an entry stands in the slot of its token's place in the document; rings are lists,
// which lead from their latest key back to the first one, and L is 1.

#include <functional>

#include "simd.h"

// What is absent has no data, and 0 of it.
DECLARE(Step,
  const NUMBER *q, *entry;   // [B, H, E], [B, J, C]
  NUMBER* out;               // [B, H, E]
  NUMBER* kept;              // [B, G, L * R, J / G, W, C]
  int64_t* seen;             // tokens that each ring was given, [B, G, L * R]
  int64_t *latest;           // of an index: the latest key of each list, [B, G, R + 1]
  int64_t *earlier, *listed; // the one before each key in its list, and that list, [B, G, W]
  const int64_t* place;      // of the token in its document, [B]
  int8_t* codes;             // keys in 8 bits, [B, J, W, E], and what they are multiplied by, [B, J, W]
  NUMBER* scales;
  const int64_t *read;       // [B, Q, L, P]
  const int64_t *written;    // [B, G, L]; R: no ring
  NUMBER* near;              // the oldest first, [B, J, M, C]
  int64_t* near_ring;        // in which ring each will be, [B, G, L, M]
  const int64_t* before;     // real tokens that were near or in rings, [B]
  const NUMBER* sinks;       // [B, J, S, C]
  NUMBER* sums;              // of keys, of values, of ones, [B, J, chunks, K, 2 E + 1]
  const int64_t *looked_into, *cluster;  // of which no mean is seen [B, H, P]; of the keys [B, J]
  const int64_t *since, *ends;  // chunk that the token counts from, above 0 if its own ends, [B]
  int64_t batch, heads, key_heads, groups, query_groups, width, entry_width, layouts, rings, probes,
      window, room, number_of_sinks, clusters, chunks, looks, own, threads;
  int64_t index, gap;  // an index: how many of its keys are seen, no nearer than that; 0: none is
  double own_bias;
)

namespace {

constexpr int LANES = 16;
constexpr int64_t ROUGHLY = 64;    // keys from which on the best are first looked for in 8 bits
constexpr int64_t AHEAD = 6;       // keys that are asked for before they are read
constexpr int64_t MANY = 1 << 13;  // keys from which on threads save more than it takes to begin

T dot(const T* a, const T* b, int64_t width) {
  T sums[LANES] = {}, sum = 0;
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES)
    for (int n = 0; n < LANES; n++) sums[n] += a[i + n] * b[i + n];
  for (; i < width; i++) sums[0] += a[i] * b[i];
  for (int n = 0; n < LANES; n++) sum += sums[n];
  return sum;
}

// A row in 8 bits; returns what they are multiplied by.
template <class X>
T round_row(const T* row, int64_t width, X* to) {
  T most = std::numeric_limits<T>::min();
  for (int64_t e = 0; e < width; e++) most = std::max(most, std::abs(row[e]));
  const T scale = most / 127;
  for (int64_t e = 0; e < width; e++) to[e] = X(std::lrint(row[e] / scale));
  return scale;
}

// What one query sees: where keys and values stand, what both are multiplied by, and logits.
struct Sight {
  const Step& p;
  const T* query;
  T scale;
  std::vector<const T*> values;
  std::vector<T> logits, factors;
  std::vector<int64_t> walks, listed;  // slots of keys to choose from, and their logits
  std::vector<T> of_listed, largest;
  std::vector<int16_t> code;  // of the query, in 8 bits

  explicit Sight(const Step& p) : p(p), scale(T(1 / std::sqrt(double(p.width)))) {}

  void begin(const T* of) { query = of, values.clear(), logits.clear(), factors.clear(); }

  void add(const T* key, const T* value, T factor, T bias) {
    logits.push_back(dot(query, key, p.width) * scale * factor + bias);
    values.push_back(value), factors.push_back(factor);
  }
  void entries(const T* first, int64_t count, bool biased) {
    for (; count > 0; count--, first += p.entry_width)
      add(first, first + p.entry_width - p.width, 1, biased ? first[p.width] : 0);
  }

  // The logits of listed slots, by a function of one; what so many of them are no smaller than.
  template <class F>
  T least_of(int64_t number, const void* rows, int64_t bytes, int64_t lines, F f) {
    const int64_t count = listed.size();
    of_listed.resize(count);
    for (int64_t i = 0; i < count; i++) {
      if (i + AHEAD < count)
        for (int64_t line = 0; line < lines; line += 64)
          __builtin_prefetch((const char*)rows + listed[i + AHEAD] * bytes + line);
      of_listed[i] = f(listed[i]);
    }
    if (count <= number) return -std::numeric_limits<T>::infinity();
    largest = of_listed;
    std::nth_element(largest.begin(), largest.begin() + number - 1, largest.end(),
                     std::greater<T>());
    return largest[number - 1];
  }

  // Of the listed slots of a head of keys, the `number` of largest logits. Of many, first twice as
  // many by keys in 8 bits, which are a quarter of the memory.
  void best(int64_t head, int64_t number, bool biased) {
    const T* first = p.kept + head * p.window * p.entry_width;
    if (!biased && int64_t(listed.size()) > std::max(4 * number, ROUGHLY)) {
      const int8_t* codes = p.codes + head * p.window * p.width;
      const T* scales = p.scales + head * p.window;
      code.resize(p.width), round_row(query, p.width, code.data());
      const T least = least_of(2 * number, codes, p.width, p.width, [&](int64_t slot) {
        const int8_t* key = codes + slot * p.width;
        int32_t sum = 0;
        for (int64_t e = 0; e < p.width; e++) sum += code[e] * int16_t(key[e]);
        return sum * scales[slot];
      });
      int64_t kept = 0;
      for (size_t i = 0; i < listed.size(); i++)
        listed[kept] = listed[i], kept += of_listed[i] >= least;
      listed.resize(kept);
    }
    const int64_t bytes = p.entry_width * sizeof(T);
    const T least = least_of(number, first, bytes, p.width * sizeof(T), [&](int64_t slot) {
      const T* entry = first + slot * p.entry_width;
      return dot(query, entry, p.width) * scale + (biased ? entry[p.width] : 0);
    });
    for (size_t i = 0; i < listed.size(); i++) {
      if (of_listed[i] < least) continue;
      logits.push_back(of_listed[i]), factors.push_back(1);
      values.push_back(first + (listed[i] + 1) * p.entry_width - p.width);
    }
  }

  void attend(T* out) {
    std::fill_n(out, p.width, T(0));
    if (logits.empty()) return;
    T peak = *std::max_element(logits.begin(), logits.end()), total = 0;
    for (T& x : logits) total += x = std::exp(x - peak);
    for (size_t i = 0; i < logits.size(); i++) {
      const T weight = logits[i] / total * factors[i], *value = values[i];
      for (int64_t e = 0; e < p.width; e++) out[e] += weight * value[e];
    }
  }
};

void look(const Step& p, Sight& sight, int64_t row, int64_t head) {
  const int64_t key_head = head * p.key_heads / p.heads, sharing = p.key_heads / p.groups;
  const int64_t group = key_head / sharing, in_group = key_head % sharing;
  const int64_t reader = (row * p.query_groups + head * p.query_groups / p.heads) * p.layouts;
  const bool biased = p.entry_width > 2 * p.width;
  const int64_t of_key_head = row * p.key_heads + key_head;
  sight.begin(p.q + (row * p.heads + head) * p.width);
  if (p.index) {
    const int64_t place = p.place[row], sinks = p.number_of_sinks, of_row = row * p.groups + group;
    const T* first = p.kept + of_key_head * p.window * p.entry_width;
    const int64_t* latest = p.latest + of_row * (p.rings + 1);
    sight.listed.clear(), sight.walks.clear();
    for (int64_t probe = 0; probe < p.probes; probe++)
      sight.walks.push_back(latest[p.read[reader * p.probes + probe]]);
    for (bool more = true; more;) {  // all lists side by side, for each key is a wait for memory
      more = false;
      for (int64_t& at : sight.walks) {
        if (at < 0) continue;
        if (at <= place - p.gap) sight.listed.push_back(at);
        at = p.earlier[of_row * p.window + at], more = true;
      }
    }
    sight.best(of_key_head, p.index, biased);
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
    sight.add(entry, entry + p.entry_width - p.width, 1, T(p.own_bias));
  }
  if (p.room) {
    const int64_t count = std::min(p.before[row], p.room);
    const T* end = p.near + (of_key_head + 1) * p.room * p.entry_width;
    sight.entries(end - count * p.entry_width, count, false);  // near, biases do not count
  }
  if (!p.index)
    sight.entries(p.sinks + of_key_head * p.number_of_sinks * p.entry_width, p.number_of_sinks,
                  false);
  const int64_t* looked = p.looked_into + (row * p.heads + head) * p.looks;
  const T* sums = p.sums + of_key_head * p.chunks * p.clusters * (2 * p.width + 1);
  for (int64_t k = 0; k < p.clusters; k++, sums += 2 * p.width + 1) {
    const T count = sums[2 * p.width];
    if (count == 0 || std::find(looked, looked + p.looks, k) != looked + p.looks) continue;
    sight.add(sums, sums + p.width, 1 / count, std::log(count));
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
      const int64_t list = place < p.number_of_sinks ? p.rings : *written;  // the last: in none
      int64_t& latest = p.latest[(row * p.groups + group) * (p.rings + 1) + list];
      p.earlier[at] = latest, p.listed[at] = list, latest = place;
      for (int64_t head = 0; head < sharing; head++) {
        const int64_t slot = (first + head) * p.window + place;
        const T* entry = entries + head * p.entry_width;
        std::copy_n(entry, p.entry_width, p.kept + slot * p.entry_width);
        p.scales[slot] = round_row(entry, p.width, p.codes + slot * p.width);
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
  const int64_t width = 2 * p.width + 1, chunk = p.clusters * width;
  for (int64_t head = row * p.key_heads; head < (row + 1) * p.key_heads; head++) {
    T* sums = p.sums + head * p.chunks * chunk;
    T* to = sums + p.since[row] * chunk + p.cluster[head] * width;
    const T *key = p.entry + head * p.entry_width, *value = key + p.entry_width - p.width;
    for (int64_t e = 0; e < p.width; e++) to[e] += key[e], to[p.width + e] += value[e];
    to[2 * p.width] += 1;
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
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows_and_heads; i++) {
      look(p, sight, i / p.heads, i % p.heads);
      sight.attend(p.out + i * p.width);
    }
  }
  for (int64_t row = 0; row < p.batch; row++) {
    if (p.own) keep(p, row);
    if (p.clusters) sum(p, row);
  }
}
