// What the kernels share: registers as vectors, products of strips, exponentials, memory.
//
// It is compiled for one type and one width of rows: -DNUMBER=float -DWIDTH=64.
// Shape letters: E width of a row, P that width padded to whole registers, Q tokens of a strip: as
// many as fill two registers.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

// [batch, heads, tokens or slots, E or nothing]; strides count elements, the last is 1. An absent
// one has no data.
struct Tensor {
  char* data;
  int64_t strides[3];
  template <class X>
  X* at(int64_t row, int64_t head, int64_t place = 0) const {
    return reinterpret_cast<X*>(data) + row * strides[0] + head * strides[1] + place * strides[2];
  }
};

// Declares a struct, and lets library.py ask how it was declared.
#define DECLARE(Name, ...)      \
  struct Name { __VA_ARGS__ }; \
  extern "C" const char* declared_##Name() { return #__VA_ARGS__; }

namespace {

#if defined(__AVX512F__)
constexpr int BYTES = 64, ROWS = 8;  // of a register; rows of a product that registers hold
#elif defined(__AVX__)
constexpr int BYTES = 32, ROWS = 6;
#else
constexpr int BYTES = 16, ROWS = 4;
#endif
constexpr int E = WIDTH;
constexpr int TILE = 64;      // tokens that are read together
constexpr int SEGMENTS = 32;  // tasks there are at least, where sequences are long enough
constexpr double LOG2_E = 1.4426950408889634, LN_2 = 0.6931471805599453;

int64_t rounded_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// Memory that is read or written soon.
inline void ask_for(const void* row, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64)
    __builtin_prefetch(static_cast<const char*>(row) + line);
}

// Calls f(number of rows, first row) for groups of R rows, then for one of what is left.
template <int R, class F>
inline void in_groups(int64_t begin, int64_t end, F f) {
  for (; begin + R <= end; begin += R) f(std::integral_constant<int, R>{}, begin);
  if constexpr (R > 1) {
    if (begin < end) in_groups<R - 1>(begin, end, f);
  }
}

using T = NUMBER;
using Int = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
using Bits = std::make_unsigned_t<Int>;
typedef T V __attribute__((vector_size(BYTES), may_alias));
typedef Int I __attribute__((vector_size(BYTES), may_alias));
typedef Bits U __attribute__((vector_size(BYTES), may_alias));
constexpr int L = BYTES / sizeof(T), Q = 2 * L, P = (E + Q - 1) / Q * Q;
constexpr T LOWEST = std::numeric_limits<T>::lowest();
constexpr T INF = std::numeric_limits<T>::infinity();

// Zeroed: the padding of rows is never written again.
struct Buffer {
  std::unique_ptr<V[]> memory;
  explicit Buffer(size_t count) : memory(new V[count / L + 1]()) {}
  operator T*() const { return reinterpret_cast<T*>(memory.get()); }
};

inline V& vec(T* p) { return *reinterpret_cast<V*>(p); }
inline const V& vec(const T* p) { return *reinterpret_cast<const V*>(p); }
inline const I& vec(const Int* p) { return *reinterpret_cast<const I*>(p); }
inline const U& vec(const Bits* p) { return *reinterpret_cast<const U*>(p); }
// Kept in a register: GCC would read memory again for each product.
inline V loaded(const T* p) {
  V x = vec(p);
#if defined(__x86_64__)
  asm("" : "+x"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
  return x;
}
inline V max(V a, V b) { return a > b ? a : b; }
inline T sum(V x) {
  T total = 0;
  for (int n = 0; n < L; n++) total += x[n];
  return total;
}
// Of rows that are P wide.
inline T dot(const T* a, const T* b) {
  V products = {};
  for (int e = 0; e < P; e += L) products += vec(a + e) * vec(b + e);
  return sum(products);
}
// About the largest x, from `low` on, that `number` of so many values are no smaller than.
inline T bisected(const T* values, int64_t count, int64_t number, T low, T high) {
  for (T middle; (middle = low + (high - low) / 2) > low && middle < high;) {
    Int found = 0;
    for (int64_t i = 0; i < count; i++) found += values[i] >= middle;
    (found < number ? high : low) = middle;
    if (found == number) break;
  }
  return low;
}
// Calls f(row, register) for R rows of two registers.
template <int R, class F>
inline void each(F f) {
  for (int r = 0; r < R; r++)
    for (int c = 0; c < 2; c++) f(r, c);
}

// 2^x, 0 below the normal numbers; relative error 2e-9 before rounding.
inline V exp2(V x) {
  if constexpr (sizeof(T) == 4) {
    V clamped = x < -125.0f ? V{} - 125.0f : x;
    V shifted = clamped + 12582912.0f;  // 1.5 * 2^23: the last bits are the nearest integer
    V f = clamped - (shifted - 12582912.0f);
    V y = f * 1.534581182902e-4f + 1.339993121824e-3f;
    y = y * f + 9.618488957769e-3f;
    y = y * f + 5.550328776968e-2f;
    y = y * f + 2.402264689063e-1f;
    y = y * f + 6.931472057373e-1f;
    y = y * f + 1.0f;
    y *= (V)(((I)shifted << 23) + (127 << 23));
    return x < -125.0f ? V{} : y;
  } else {
    for (int i = 0; i < L; i++) x[i] = std::exp2(x[i]);
    return x;
  }
}

// products[r] = sum over e of rows[r][e] * columns[e], for the Q queries of columns [width][Q]; rows
// are `stride` apart.
// A function of its own, as the next: inlined, GCC has too few registers for all sums.
template <int R>
__attribute__((noinline)) void dot(const T* rows, const T* columns, V (&products)[R][2],
                                   int width = E, int stride = P) {
  V sums[R][2] = {};
  for (int e = 0; e < width; e++) {
    V left = loaded(columns + e * Q), right = loaded(columns + e * Q + L);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      T x = rows[r * stride + e];
      sums[r][0] += x * left;
      sums[r][1] += x * right;
    }
  }
  each<R>([&](int r, int c) { products[r][c] = sums[r][c]; });
}

// to[r] += sum over n of weights[n * STEP + r * STRIDE] * rows[n]; all rows as wide, in whole strips.
template <int R, int STEP, int STRIDE>
__attribute__((noinline)) void add_weighted(const T* weights, const T* rows, int64_t count, T* to,
                                            int width = P) {
  for (int e = 0; e < width; e += Q) {
    V sums[R][2] = {};
    const T* w = weights;
    const T* row = rows + e;
    for (int64_t n = 0; n < count; n++, w += STEP, row += width) {
      V left = loaded(row), right = loaded(row + L);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        T x = w[r * STRIDE];
        sums[r][0] += x * left;
        sums[r][1] += x * right;
      }
    }
    each<R>([&](int r, int c) { vec(to + r * width + e + c * L) += sums[r][c]; });
  }
}

// [Q][width] to [width][Q].
void transpose(const T* from, T* to, int width = P) {
#if defined(__clang__)
  for (int e = 0; e < width; e++)
    for (int i = 0; i < Q; i++) to[e * Q + i] = from[i * width + e];
#else
  // Blocks of L rows: log2(L) times, rows i and i + L / 2 are interleaved.
  I low, high;
  for (int i = 0; i < L; i++) low[i] = i / 2 + i % 2 * L, high[i] = low[i] + L / 2;
  for (int i = 0; i < Q; i += L)
    for (int e = 0; e < width; e += L) {
      V rows[L], next[L];
      for (int r = 0; r < L; r++) rows[r] = vec(from + (i + r) * width + e);
      for (int done = 1; done < L; done *= 2) {
        for (int r = 0; r < L / 2; r++) {
          next[2 * r] = __builtin_shuffle(rows[r], rows[r + L / 2], low);
          next[2 * r + 1] = __builtin_shuffle(rows[r], rows[r + L / 2], high);
        }
        for (int r = 0; r < L; r++) rows[r] = next[r];
      }
      for (int r = 0; r < L; r++) vec(to + (e + r) * Q + i) = rows[r];
    }
#endif
}

// Calls f(worker, task) for each task; every thread has a worker, made of the problem.
template <class Worker, class Problem, class F>
void over_tasks(const Problem& p, int64_t count, F f) {
#pragma omp parallel num_threads(p.threads) if (p.threads > 1)
  {
    Worker worker{p};
#pragma omp for schedule(monotonic : dynamic)
    for (int64_t task = 0; task < count; task++) f(worker, task);
  }
}

// How the tokens of a row and head are cut into tasks.
struct Tasks {
  int64_t tiles, segments, per_segment, count;
  template <class Problem>
  explicit Tasks(const Problem& p) {
    tiles = rounded_up(p.length, TILE) / TILE;
    segments = std::min(tiles, rounded_up(SEGMENTS, p.batch * p.heads) / (p.batch * p.heads));
    per_segment = rounded_up(tiles, segments) / segments;
    segments = rounded_up(tiles, per_segment) / per_segment;
    count = p.batch * p.heads * segments;
  }
  // Calls f(first slot) for the tiles of a task.
  template <class F>
  void over_tiles(int64_t task, F f) const {
    const int64_t first = task % segments * per_segment, end = std::min(tiles, first + per_segment);
    for (int64_t tile = first; tile < end; tile++) f(tile * TILE);
  }
};

}  // namespace
