// Scores of tokens and clusters: x . vector, of x scaled to length 1 or by a constant, less the
// cluster's offset. They exist for a strip of Q tokens at a time, transposed: a row for each
// cluster. Shape letters as in simd.h; K clusters.

#pragma once

#include "simd.h"

DECLARE(Scores,
  Tensor x, d_x;                    // [batch, heads, tokens, E]
  const NUMBER *vectors, *offsets;  // [heads, K, E], [heads, K]
  NUMBER* d_vectors;                // as vectors
  const uint8_t* padding_mask;      // [batch, length]
  int64_t batch, heads, length, num_clusters, unit;
  double scale, smallest;  // of x that is not scaled to length 1; least norm that is divided by
  double temperature;      // of vectors that are centroids as they are; 0: they are not
  int64_t free;            // so many tokens, the first, have no offsets
)

namespace {

struct Strip {
  const Scores& of;
  const int64_t K;
  int64_t row, head;
  T largest_offset;
  V tops[2], lows[2];            // the largest and the smallest score of each token
  Buffer vectors, offsets;       // of the head: [K][P], [K]
  Buffer scores;                 // [K][Q]
  Buffer unit, columns, d_unit;  // [Q][P], [P][Q], [Q][P]
  alignas(64) T factor[Q];          // what each x was multiplied by
  alignas(64) T counts[Q];          // 1 where offsets count, else 0
  int64_t tokens[Q];                // -1: none
  bool real[Q];

  explicit Strip(const Scores& of)
      : of(of), K(of.num_clusters), vectors(K * P), offsets(K), scores(K * Q), unit(Q * P),
        columns(P * Q), d_unit(Q * P) {}

  // `both`: the number of a row and a head.
  void begin(int64_t both) {
    row = both / of.heads, head = both % of.heads, largest_offset = 0;
    for (int64_t k = 0; k < K; k++) {
      T* to = vectors + k * P;
      std::copy_n(of.vectors + (head * K + k) * E, E, to);
      const T divided = of.temperature > 0 ? scale_of(to) / T(of.temperature) : 1;
      for (int e = 0; e < E; e++) to[e] *= divided;
      offsets[k] = of.offsets[head * K + k];
      largest_offset = std::max(largest_offset, std::abs(offsets[k]));
    }
  }

  T scale_of(const T* x) const {
    if (!of.unit) return T(of.scale);
    const T norm = std::sqrt(dot(x, x));
    return 1 / (norm < T(of.smallest) ? T(of.smallest) : norm);
  }

  // A token's log of how much it counts, 0 without a tensor; -INF if it is not real.
  T log_of(const Tensor& logs, int i) const {
    return !real[i] ? -INF : logs.data ? *logs.at<T>(row, head, tokens[i]) : 0;
  }

  // Scores of the tokens from a slot on; those of tokens that are padding, or that do not exist,
  // are of a vector of zeros.
  void score(int64_t slot, const Tensor& order = {}) {
    for (int i = 0; i < Q; i++, slot++) {
      counts[i] = slot >= of.free;
      tokens[i] = slot >= of.length ? -1 : order.data ? *order.at<int64_t>(row, head, slot) : slot;
      real[i] = tokens[i] >= 0 && !(of.padding_mask && of.padding_mask[row * of.length + tokens[i]]);
      T* to = unit + i * P;
      if (!real[i]) {
        std::memset(to, 0, E * sizeof(T)), factor[i] = 1;
        continue;
      }
      std::copy_n(of.x.at<T>(row, head, tokens[i]), E, to);
      factor[i] = scale_of(to);
      for (int e = 0; e < E; e++) to[e] *= factor[i];  // the padding stays 0, whatever x is
    }
    transpose(unit, columns);
    for (int c = 0; c < 2; c++) tops[c] = V{} - INF, lows[c] = V{} + INF;
    in_groups<ROWS>(0, K, [&](auto size, int64_t k) {
      constexpr int R = size;
      V products[R][2];
      dot<R>(vectors + k * P, columns, products);
      each<R>([&](int r, int c) {
        V x = products[r][c] - offsets[k + r] * vec(counts + c * L);
        vec(scores + (k + r) * Q + c * L) = x;
        tops[c] = max(x, tops[c]);
        lows[c] = x < lows[c] ? x : lows[c];
      });
    });
  }

  // Calls f(cluster, c, scores) for each register.
  template <class F>
  void each_score(F f) {
    for (int64_t k = 0; k < K; k++)
      for (int c = 0; c < 2; c++) f(k, c, vec(scores + k * Q + c * L));
  }

  // From gradients of scores, which stand in their place: adds to d_vectors [K][P] and to d_x.
  void backward(T* d_vectors) {
    std::memset(d_unit, 0, Q * P * sizeof(T));
    in_groups<ROWS>(0, Q, [&](auto size, int64_t i) {
      add_weighted<size, Q, 1>(scores + i, vectors, K, d_unit + i * P);
    });
    in_groups<ROWS>(0, K, [&](auto size, int64_t k) {
      add_weighted<size, 1, Q>(scores + k * Q, unit, Q, d_vectors + k * P);
    });
    for (int i = 0; i < Q; i++) {
      if (!real[i]) continue;
      T *from = d_unit + i * P, *direction = unit + i * P, *to = of.d_x.at<T>(row, head, tokens[i]);
      // what is along x does not change its direction
      const T along = of.unit ? dot(from, direction) : 0;
      for (int e = 0; e < E; e++) to[e] += (from[e] - direction[e] * along) * factor[i];
    }
  }
};

// Gradients of vectors, from those of tasks [K][P], `tasks` of a head, in their order.
void add_up(const std::vector<Buffer>& parts, int64_t tasks, const Scores& of) {
  const int64_t K = of.num_clusters;
  std::fill_n(of.d_vectors, of.heads * K * E, T(0));
  for (size_t task = 0; task < parts.size(); task++)
    for (int64_t k = 0; k < K; k++)
      for (int e = 0; e < E; e++)
        of.d_vectors[(task / tasks % of.heads * K + k) * E + e] += parts[task][k * P + e];
}

}  // namespace
