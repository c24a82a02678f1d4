// Clusters of tokens, and their shares, on a CPU, by the scores of strips.
//
// A task is a segment of the tokens of a row and head; sums over tokens are in the order of tasks.

#include "scores.h"

// Tensors are [batch, heads, tokens]; `clusters` has `probes` of these one after the other.
DECLARE(Shares,
  Scores of;
  Tensor log_weights, explored, clusters, log_share, log_total, d_log_share;
  NUMBER *log_mass, *sizes;  // [heads, K] or none, [heads, K]
  int64_t probes, probe_stride, threads;
  double tie;  // see largest_few
)

namespace {

// Of each cluster, over the tokens of a task, lane by lane: the largest score in units of log 2, the
// sum of 2^(score - largest), and how many tokens are its own.
struct Mass {
  Buffer peak, total, sizes;
  explicit Mass(int64_t clusters) : peak(clusters * L), total(clusters * L), sizes(clusters) {
    std::fill_n(static_cast<T*>(peak), clusters * L, LOWEST);
  }
};

struct Strips : Strip {
  const Shares& p;
  explicit Strips(const Shares& p) : Strip(p.of), p(p) {}

  // The first cluster whose score is within rounding of the largest, for each token.
  void choose(const V (&magnitude)[2], Int* chosen) const {
    for (int c = 0; c < 2; c++) {
      V least = tops[c] - magnitude[c] * T(p.tie);
      I found = {};
      for (int64_t k = K - 1; k >= 0; k--)
        found = vec(scores + k * Q + c * L) >= least ? I{} + Int(k) : found;
      *reinterpret_cast<I*>(chosen + c * L) = found;
    }
  }

  void assign(int64_t slot, Mass& mass) {
    score(slot);
    V magnitude[2];
    for (int c = 0; c < 2; c++)
      magnitude[c] = max(max(tops[c], -lows[c]), vec(counts + c * L) * largest_offset);
    alignas(64) Int chosen[Q];
    choose(magnitude, chosen);
    const int there = std::min<int64_t>(Q, of.length - slot);
    for (int i = 0; i < there; i++) {
      if (real[i]) mass.sizes[chosen[i]] += 1;
      if (p.explored.data) {
        int64_t drawn = *p.explored.at<int64_t>(row, head, slot + i);
        if (drawn >= 0) chosen[i] = drawn;
      }
      *p.clusters.at<int64_t>(row, head, slot + i) = chosen[i];
    }
    if (p.log_share.data) share(slot, there, chosen);
    if (p.log_mass) add_mass(mass);
    // Further clusters: the one that was chosen before is taken out.
    for (int64_t probe = 1; probe < p.probes; probe++) {
      for (int i = 0; i < Q; i++) scores[chosen[i] * Q + i] = -INF;
      tops[0] = tops[1] = V{} - INF;
      each_score([&](int64_t, int c, V x) { tops[c] = max(x, tops[c]); });
      choose(magnitude, chosen);
      for (int i = 0; i < there; i++)
        p.clusters.at<int64_t>(row, head, slot + i)[probe * p.probe_stride] = chosen[i];
    }
  }

  // The log of the softmax over clusters, of each token's own.
  void share(int64_t slot, int there, const Int* own) {
    V sums[2] = {};
    each_score([&](int64_t, int c, V x) { sums[c] += exp2((x - tops[c]) * T(LOG2_E)); });
    for (int i = 0; i < there; i++) {
      T total = std::log(sums[i / L][i % L]) + tops[i / L][i % L];
      bool drawn = p.explored.data && *p.explored.at<int64_t>(row, head, slot + i) >= 0;
      *p.log_total.at<T>(row, head, slot + i) = total;
      *p.log_share.at<T>(row, head, slot + i) = drawn ? 0 : scores[own[i] * Q + i] - total;
    }
  }

  void add_mass(Mass& mass) {
    alignas(64) T weights[Q];  // logs
    for (int i = 0; i < Q; i++) weights[i] = log_of(p.log_weights, i) * T(LOG2_E);
    for (int64_t k = 0; k < K; k++) {
      V x[2];
      for (int c = 0; c < 2; c++)
        x[c] = vec(scores + k * Q + c * L) * T(LOG2_E) + vec(weights + c * L);
      V &peak = vec(mass.peak + k * L), &total = vec(mass.total + k * L);
      V higher = max(max(x[0], x[1]), peak);  // online log-sum-exp over tokens
      total = total * exp2(peak - higher) + exp2(x[0] - higher) + exp2(x[1] - higher);
      peak = higher;
    }
  }

  // d_vectors [K][P] of the task.
  void backward(int64_t slot, T* d_vectors) {
    score(slot);
    const int there = std::min<int64_t>(Q, of.length - slot);
    alignas(64) T totals[Q], gradients[Q];
    for (int i = 0; i < Q; i++) {
      totals[i] = i < there ? *p.log_total.at<T>(row, head, slot + i) : INF;
      gradients[i] = real[i] ? *p.d_log_share.at<T>(row, head, slot + i) : 0;
    }
    // of s_own - log(sum of exp(s)): 1 at the own cluster, less each cluster's share
    each_score([&](int64_t, int c, V& x) {
      x = exp2((x - vec(totals + c * L)) * T(LOG2_E)) * -vec(gradients + c * L);
    });
    for (int i = 0; i < there; i++)
      scores[*p.clusters.at<int64_t>(row, head, slot + i) * Q + i] += gradients[i];
    Strip::backward(d_vectors);
  }
};

// Calls f(strips, task, first slot) for each strip of each task.
template <class F>
void over_strips(const Shares& p, const Tasks& tasks, F f) {
  over_tasks<Strips>(p, tasks.count, [&](Strips& strips, int64_t task) {
    strips.begin(task / tasks.segments);
    tasks.over_tiles(task, [&](int64_t tile) {
      for (int64_t slot = tile; slot < std::min(tile + TILE, p.of.length); slot += Q)
        f(strips, task, slot);
    });
  });
}

}  // namespace

extern "C" void run_shares(const Shares& p) {
  Tasks tasks(p.of);
  const int64_t K = p.of.num_clusters;
  std::vector<Mass> masses;
  for (int64_t task = 0; task < tasks.count; task++) masses.emplace_back(K);
  over_strips(p, tasks, [&](Strips& strips, int64_t task, int64_t slot) {
    strips.assign(slot, masses[task]);
  });
  // Masses of all tasks and lanes of a head under one maximum, in the order of tasks.
  std::vector<T> total(p.of.heads * K, 0), peak(p.of.heads * K, LOWEST);
  std::fill_n(p.sizes, p.of.heads * K, T(0));
  for (int64_t task = 0; task < tasks.count; task++) {
    const Mass& mass = masses[task];
    const int64_t first = task / tasks.segments % p.of.heads * K;
    for (int64_t k = 0; k < K; k++) {
      p.sizes[first + k] += mass.sizes[k];
      for (int n = 0; n < L; n++) {
        T of = mass.peak[k * L + n], higher = std::max(peak[first + k], of);
        total[first + k] = total[first + k] * std::exp2(peak[first + k] - higher) +
                           mass.total[k * L + n] * std::exp2(of - higher);
        peak[first + k] = higher;
      }
    }
  }
  if (!p.log_mass) return;
  for (int64_t i = 0; i < p.of.heads * K; i++)
    p.log_mass[i] = (peak[i] + std::log2(total[i])) * T(LN_2);
}

extern "C" void run_shares_backward(const Shares& p) {
  Tasks tasks(p.of);
  std::vector<Buffer> parts;
  for (int64_t task = 0; task < tasks.count; task++) parts.emplace_back(p.of.num_clusters * P);
  over_strips(p, tasks, [&](Strips& strips, int64_t task, int64_t slot) {
    strips.backward(slot, parts[task]);
  });
  add_up(parts, tasks.segments, p.of);
}
