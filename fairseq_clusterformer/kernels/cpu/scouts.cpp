// What scouts find in their clusters, on a CPU. Scout i attends to the keys that it sees with
// weights a_ij, and shares s_ij = sum over c of p_i(c) p_j(c) with key j: found are
//
//     lands_i = sum over j of a_ij s_ij        in_sight_i = sum over the seen j of s_ij
//
// Shares of keys are as `Scores` of clustering/shares.py has them. Gradients go to the scouts'
// shares and, through the scores and the clusters' masses, to what routes keys.
//
// A strip is Q keys, a row for each scout or cluster: all products run along the keys, and nothing
// of scouts by tokens, or of tokens by clusters, is kept. Strips that no scout sees are skipped. A
// task is a row and a head of keys, for all heads of queries that share its clusters.
//
// E, the width that is compiled, is that of what routes; W that of a head. S scouts.

#include "scores.h"

// Heads are those of queries, but of what `of` scores, `log_held` and their gradients. The masses'
// logs are `of.offsets`.
DECLARE(Scouts,
  Scores of;
  Tensor q, shares;               // of scouts, [batch, heads, S, W] and [batch, heads, S, K]
  Tensor k, key_order, log_held;  // [batch, heads, tokens or slots, W or nothing]
  Tensor lands, in_sight, peak, total, d_lands, d_in_sight;  // [batch, heads, S]; as in attention.cpp
  Tensor d_shares, d_log_held;
  const int64_t *lo, *hi;  // key slots that scouts see: `ranges` times [batch, heads, S]
  int64_t query_heads, scouts, width, ranges, threads;
)

namespace {

struct Worker : Strip {
  const Scouts& p;
  const int64_t sharing, S, R;  // heads of queries for one of keys; scouts of a head, and of all
  const int W;
  const int64_t padded_W, padded_K, padded_R;
  Buffer q, shares;           // [R][padded W], [R][padded K]
  Buffer keys, columns_of_k;  // [Q][padded W], [padded W][Q]
  Buffer held;                // [Q]

  explicit Worker(const Scouts& p)
      : Strip(p.of), p(p), sharing(p.query_heads / p.of.heads), S(p.scouts), R(sharing * S),
        W(p.width), padded_W(rounded_up(W, Q)), padded_K(rounded_up(K, Q)),
        padded_R(rounded_up(R, Q)), q(R * padded_W), shares(R * padded_K), keys(Q * padded_W),
        columns_of_k(padded_W * Q), held(Q) {}

  int64_t query_head(int64_t scout) const { return head * sharing + scout / S; }
  template <class X>
  X* of_scout(const Tensor& t, int64_t scout) const {
    return t.at<X>(row, query_head(scout), scout % S);
  }

  // Queries, in units of log 2, and shares of all scouts of a row and a head of keys.
  void start(int64_t task) {
    begin(task);
    const T scale = LOG2_E / std::sqrt(double(W));
    for (int64_t i = 0; i < R; i++) {
      const T *from = of_scout<T>(p.q, i), *share = of_scout<T>(p.shares, i);
      for (int e = 0; e < W; e++) q[i * padded_W + e] = from[e] * scale;
      std::copy_n(share, K, shares + i * padded_K);
    }
  }

  // Calls f(first key slot, one past the last) for what a scout sees.
  template <class F>
  void ranges(int64_t scout, F f) const {
    for (int64_t n = 0; n < p.ranges; n++) {
      int64_t at = ((n * of.batch + row) * p.query_heads + query_head(scout)) * S + scout % S;
      if (p.lo[at] < p.hi[at]) f(p.lo[at], p.hi[at]);
    }
  }

  // Calls f(first slot) for the strips that a scout sees.
  template <class F>
  void over_strips(F f) {
    int64_t begin = of.length, end = 0;
    for (int64_t i = 0; i < R; i++)
      ranges(i, [&](int64_t lo, int64_t hi) { begin = std::min(begin, lo), end = std::max(end, hi); });
    for (int64_t slot = begin / Q * Q; slot < end; slot += Q) f(slot);
  }

  // The shares of each cluster in the keys of a strip, in place of scores; and `held`.
  void share(int64_t slot) {
    score(slot, p.key_order);
    V sums[2] = {};  // a softmax over clusters, for each key of the strip
    each_score([&](int64_t, int c, V& x) {
      x = exp2((x - tops[c]) * T(LOG2_E));
      sums[c] += x;
    });
    each_score([&](int64_t, int c, V& x) { x /= sums[c]; });
    for (int i = 0; i < Q; i++) held[i] = std::exp(log_of(p.log_held, i));
  }

  // Calls f(number of scouts, first scout, logits in units of log 2, where they see keys) for groups
  // that see the strip; logits are -INF elsewhere.
  template <class F>
  void over_scouts(int64_t slot, F f) {
    for (int64_t group = 0; group < sharing; group++) {
      for (int i = 0; i < Q; i++) {
        T* to = keys + i * padded_W;
        if (real[i]) std::copy_n(p.k.at<T>(row, head * sharing + group, tokens[i]), W, to);
        else std::memset(to, 0, W * sizeof(T));
      }
      transpose(keys, columns_of_k, padded_W);
      in_groups<ROWS>(group * S, (group + 1) * S, [&](auto size, int64_t scout) {
        constexpr int N = size;
        bool any = false;
        for (int r = 0; r < N; r++)
          ranges(scout + r, [&](int64_t lo, int64_t hi) { any |= lo < slot + Q && hi > slot; });
        if (!any) return;
        V logits[N][2];
        I seen[N][2];
        dot<N>(q + scout * padded_W, columns_of_k, logits, W, padded_W);
        for (int r = 0; r < N; r++) mask(scout + r, slot, seen[r]);
        each<N>([&](int r, int c) { logits[r][c] = seen[r][c] ? logits[r][c] : V{} - INF; });
        f(size, scout, logits, seen);
      });
    }
  }

  // Where a scout sees keys of a strip.
  void mask(int64_t scout, int64_t slot, I (&seen)[2]) const {
    seen[0] = seen[1] = I{};
    ranges(scout, [&](int64_t lo, int64_t hi) {
      Int first = std::max<int64_t>(0, lo - slot), last = std::min<int64_t>(Q, hi - slot);
      for (int c = 0; c < 2; c++) {
        I lane;
        for (int i = 0; i < L; i++) lane[i] = c * L + i;
        seen[c] |= (lane >= first) & (lane < last);
      }
    });
  }

  void forward(int64_t task) {
    start(task);
    // lane by lane, as the mass in shares.cpp
    Buffer peak(R * L), total(R * L), lands(R * L), in_sight(R * L);
    std::fill_n(static_cast<T*>(peak), R * L, LOWEST);
    over_strips([&](int64_t slot) {
      share(slot);
      over_scouts(slot, [&](auto size, int64_t scout, auto& logits, auto& seen) {
        constexpr int N = size;
        V common[N][2];  // s_ij but for how surely the key is held
        dot<N>(shares + scout * padded_K, scores, common, K, padded_K);
        for (int r = 0; r < N; r++) {
          V(&x)[2] = logits[r], s[2];
          for (int c = 0; c < 2; c++)
            s[c] = seen[r][c] ? common[r][c] * vec(held + c * L) : V{};
          // Online softmax, lane by lane; `lands` is its sum of values s_ij.
          const int64_t at = (scout + r) * L;
          V higher = max(max(x[0], x[1]), vec(peak + at)), before = exp2(vec(peak + at) - higher);
          V weights[2] = {exp2(x[0] - higher), exp2(x[1] - higher)};
          vec(total + at) = vec(total + at) * before + weights[0] + weights[1];
          vec(lands + at) = vec(lands + at) * before + weights[0] * s[0] + weights[1] * s[1];
          vec(in_sight + at) += s[0] + s[1];
          vec(peak + at) = higher;
        }
      });
    });
    for (int64_t i = 0; i < R; i++) {  // the lanes of each scout under one maximum
      const T top = *std::max_element(peak + i * L, peak + (i + 1) * L);
      const V weight = exp2(vec(peak + i * L) - top);
      const T all = sum(vec(total + i * L) * weight), land = sum(vec(lands + i * L) * weight);
      *of_scout<T>(p.lands, i) = all != 0 ? land / all : 0;
      *of_scout<T>(p.in_sight, i) = sum(vec(in_sight + i * L));
      *of_scout<T>(p.peak, i) = top, *of_scout<T>(p.total, i) = all;
    }
  }

  // Gradients but for those through the mass; of its log, less these, to d_mass [K].
  void backward(int64_t task, T* d_vectors, T* d_mass) {
    start(task);
    Buffer by_cluster(padded_K * padded_R);  // shares, [K][padded R]
    Buffer d_shares(R * padded_K), d_common(R * Q), p_rows(Q * padded_K), d_p(padded_K * Q);
    Buffer lanes(K * L);
    for (int64_t i = 0; i < R; i++)
      for (int64_t k = 0; k < K; k++) by_cluster[k * padded_R + i] = shares[i * padded_K + k];
    over_strips([&](int64_t slot) {
      share(slot);
      std::memset(d_common, 0, R * Q * sizeof(T));
      alignas(64) T d_held[Q] = {};
      for (int64_t k = 0; k < K; k++)  // shares of keys, a row for each key
        for (int i = 0; i < Q; i++) p_rows[i * padded_K + k] = scores[k * Q + i];
      over_scouts(slot, [&](auto size, int64_t scout, auto& logits, auto& seen) {
        constexpr int N = size;
        V common[N][2];
        if (p.log_held.data) dot<N>(shares + scout * padded_K, scores, common, K, padded_K);
        for (int r = 0; r < N; r++) {
          const int64_t i = scout + r;
          T total = *of_scout<T>(p.total, i), top = *of_scout<T>(p.peak, i);
          T of_weight = total != 0 ? *of_scout<T>(p.d_lands, i) / total : 0;
          T of_all = *of_scout<T>(p.d_in_sight, i);
          // d s_ij = a_ij d_lands_i + d_in_sight_i: attention itself gets no gradient.
          for (int c = 0; c < 2; c++) {
            V all = seen[r][c] ? V{} + of_all : V{};
            V d = exp2(logits[r][c] - top) * of_weight + all;
            if (p.log_held.data) vec(d_held + c * L) += d * common[r][c] * vec(held + c * L);
            vec(d_common + i * Q + c * L) = d * vec(held + c * L);
          }
        }
        // d_shares += d_common p^T
        add_weighted<N, 1, Q>(d_common + scout * Q, p_rows, Q, d_shares + scout * padded_K,
                              padded_K);
      });
      // the gradient of p: shares^T d_common
      in_groups<ROWS>(0, K, [&](auto size, int64_t k) {
        constexpr int N = size;
        V found[N][2];
        dot<N>(by_cluster + k * padded_R, d_common, found, R, padded_R);
        each<N>([&](int r, int c) { vec(d_p + (k + r) * Q + c * L) = found[r][c]; });
      });
      V delta[2] = {};  // of the softmax over clusters
      each_score([&](int64_t k, int c, V x) { delta[c] += x * vec(d_p + k * Q + c * L); });
      each_score([&](int64_t k, int c, V& x) {
        x *= vec(d_p + k * Q + c * L) - delta[c];
        vec(lanes + k * L) += x;  // scores have the log of the mass taken off
      });
      Strip::backward(d_vectors);
      for (int i = 0; i < Q && p.log_held.data; i++)
        if (tokens[i] >= 0) *p.d_log_held.at<T>(row, head, tokens[i]) = d_held[i];
    });
    for (int64_t i = 0; i < R; i++)
      std::copy_n(d_shares + i * padded_K, K, of_scout<T>(p.d_shares, i));
    for (int64_t k = 0; k < K; k++) d_mass[k] = -sum(vec(lanes + k * L));
  }

  // Adds what goes through the log of the mass, of which this is the gradient [K].
  void backward_mass(int64_t task, const T* d_mass, T* d_vectors) {
    begin(task);
    for (int64_t slot = 0; slot < of.length; slot += Q) {
      score(slot);
      V sums[2] = {};
      for (int i = 0; i < Q; i++) held[i] = log_of(p.log_held, i);
      each_score([&](int64_t k, int c, V& x) {
        // d log_mass_k / d score_kj = held_j exp(score_kj) / mass_k; scores are less log_mass
        x = exp2((x + vec(held + c * L)) * T(LOG2_E)) * d_mass[k];
        sums[c] += x;
      });
      Strip::backward(d_vectors);
      for (int i = 0; i < Q && p.log_held.data; i++)
        if (real[i]) *p.d_log_held.at<T>(row, head, tokens[i]) += sums[i / L][i % L];
    }
  }
};

}  // namespace

extern "C" void run_scouts(const Scouts& p) {
  over_tasks<Worker>(p, p.of.batch * p.of.heads,
                     [](Worker& worker, int64_t task) { worker.forward(task); });
}

extern "C" void run_scouts_backward(const Scouts& p) {
  const int64_t tasks = p.of.batch * p.of.heads, K = p.of.num_clusters;
  std::vector<Buffer> parts;
  std::vector<T> d_mass(tasks * K), d_masses(p.of.heads * K, 0);
  for (int64_t task = 0; task < tasks; task++) parts.emplace_back(K * P);
  over_tasks<Worker>(p, tasks, [&](Worker& worker, int64_t task) {
    worker.backward(task, parts[task], &d_mass[task * K]);
  });
  for (int64_t task = 0; task < tasks; task++)
    for (int64_t k = 0; k < K; k++) d_masses[task % p.of.heads * K + k] += d_mass[task * K + k];
  over_tasks<Worker>(p, tasks, [&](Worker& worker, int64_t task) {
    worker.backward_mass(task, &d_masses[task % p.of.heads * K], parts[task]);
  });
  add_up(parts, 1, p.of);
}
