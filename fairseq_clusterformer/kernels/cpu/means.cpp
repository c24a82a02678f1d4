// Means on a CPU: the mean of each cluster's keys as one key, for what is not seen otherwise.
//
// A task is a block of the tokens of a row and head. Tokens of a chunk see the same means, which
// are made once for all of them that stand side by side.
//
// Shape letters as in simd.h; B batch, H heads, J heads of keys, N tokens, M chunks, K clusters.

#include "simd.h"

DECLARE(Means,
  Tensor q;               // [B, H, N, E]
  Tensor sums;            // of keys, of values, and how many they are, [B, J, M * K, 2 E + 1]
  Tensor chunk;           // that a token sees, [B, 1, N]; M: none
  const int64_t* looked;  // clusters that a query looks into, [B, H, N, probes]
  const NUMBER* rest;     // the logit of each of these means; null: they are hidden
  Tensor out, lse;        // values and their log-sum-exp
  int64_t batch, heads, key_heads, length, chunks, clusters, probes, threads;
)

namespace {

constexpr int64_t BLOCK = 256;  // tokens

struct Worker {
  const Means& p;
  const T scale = 1 / std::sqrt(double(E));
  const int64_t room = rounded_up(p.clusters, Q);
  int64_t row = -1, head = -1, chunk = -1;
  Buffer keys{size_t(room * P)}, values{size_t(room * P)};
  Buffer biases{size_t(room)};
  Buffer rows{size_t(std::max(ROWS, Q) * P)}, logits{size_t(ROWS * room)};
  Buffer weights{size_t(ROWS * room)}, sum{size_t(ROWS * P)}, none{2 * E + 1};  // weights [K][ROWS]

  void of(int64_t new_row, int64_t new_head, int64_t new_chunk) {
    if (row == new_row && head == new_head && chunk == new_chunk) return;
    row = new_row, head = new_head, chunk = new_chunk;
    const int64_t key_head = head / (p.heads / p.key_heads), first = chunk * p.clusters;
    for (int64_t c = 0; c < room; c++) {
      const bool there = chunk < p.chunks && c < p.clusters;
      const T* of = there ? p.sums.at<T>(row, key_head, first + c) : none;
      const T number = of[2 * E], share = number > 0 ? 1 / number : 0;
      for (int e = 0; e < E; e++)
        rows[c % Q * P + e] = of[e] * share, values[c * P + e] = of[E + e] * share;
      biases[c] = number > 0 ? std::log(number) : -INF;
      if (c % Q == Q - 1) transpose(rows, keys + (c - Q + 1) * P);
    }
  }

  // R tokens of the chunk.
  template <int R>
  void attend(int64_t first) {
    for (int r = 0; r < R; r++) {
      const T* query = p.q.at<T>(row, head, first + r);
      for (int e = 0; e < E; e++) rows[r * P + e] = query[e] * scale;
    }
    for (int64_t c = 0; c < room; c += Q) {
      V found[R][2];
      dot<R>(rows, keys + c * P, found);
      each<R>([&](int r, int n) {
        vec(logits + r * room + c + n * L) = found[r][n] + vec(biases + c + n * L);
      });
    }
    T totals[R];
    for (int r = 0; r < R; r++) {
      T* const of = logits + r * room;
      const int64_t query = (row * p.heads + head) * p.length + first + r;
      for (int64_t i = query * p.probes; i < (query + 1) * p.probes; i++) {
        T& logit = of[p.looked[i]];
        logit = p.rest && logit > -INF ? p.rest[i] : -INF;  // -INF: there is no mean yet
      }
      const T peak = std::max(*std::max_element(of, of + p.clusters), LOWEST);
      V total = {};
      for (int64_t c = 0; c < room; c += L)
        total += vec(of + c) = exp2((vec(of + c) - peak) * T(LOG2_E));
      totals[r] = ::sum(total);
      for (int64_t c = 0; c < p.clusters; c++) weights[c * ROWS + r] = of[c];
      *p.lse.at<T>(row, head, first + r) = totals[r] > 0 ? peak + std::log(totals[r]) : -INF;
    }
    std::fill_n(sum + 0, R * P, T(0));
    add_weighted<R, ROWS, 1>(weights, values, p.clusters, sum);
    for (int r = 0; r < R; r++) {
      T* out = p.out.at<T>(row, head, first + r);
      for (int e = 0; e < E; e++) out[e] = totals[r] > 0 ? sum[r * P + e] / totals[r] : 0;
    }
  }

  void block(int64_t of_row, int64_t of_head, int64_t begin, int64_t end) {
    const int64_t* chunks = p.chunk.at<int64_t>(of_row, 0);
    for (int64_t until; begin < end; begin = until) {
      for (until = begin + 1; until < end && chunks[until] == chunks[begin];) until++;
      of(of_row, of_head, chunks[begin]);
      in_groups<ROWS>(begin, until, [&](auto size, int64_t at) { attend<size>(at); });
    }
  }
};

}  // namespace

extern "C" void run_means(const Means& p) {
  const int64_t blocks = rounded_up(p.length, BLOCK) / BLOCK;
  over_tasks<Worker>(p, p.batch * p.heads * blocks, [&](Worker& worker, int64_t task) {
    const int64_t both = task / blocks, begin = task % blocks * BLOCK;
    worker.block(both / p.heads, both % p.heads, begin, std::min(begin + BLOCK, p.length));
  });
}
