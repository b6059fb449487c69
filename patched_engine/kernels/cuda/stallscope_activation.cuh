// Spec (A) in CUDA, for engines that launch their activation from C++: SwiGLU and FP8
// re-quantization over the compact expert rows. Needs only the CUDA toolkit's own headers.
//
// One warp takes ROWS rows of one 128-column block at a time: 8 lanes a row, 16 bytes a lane and
// half, 4 rows a pass. The block maximum is three shuffles; no shared memory, no barrier.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace stallscope {

struct ActivationParams {
  uint8_t const* in;             // e4m3fn [P, 2 * intermediate], linear half first
  float const* in_scales;        // (block, row) at block * P + row, 2 * intermediate / 128 blocks
  uint8_t* out;                  // e4m3fn [P, intermediate]
  float* out_scales;             // (block, row) at block * P + row
  int32_t const* num_tiles;      // on the card: tiles that hold rows
  int32_t const* row_limit;      // on the card, a tile: the row after its last valid one
  int32_t const* padded_rows;    // on the card: P
  int32_t const* expert_of_tile; // read only with a control below
  float const* alpha;            // per local expert, or null for 1
  float const* beta;             // per local expert, or null for 0
  float const* limit;            // per local expert, or null for no clamp
  int32_t intermediate;          // a multiple of 128
  int32_t tile;                  // rows an expert is padded to, a multiple of 8
  int64_t expected_rows;         // the host's estimate; sizes the grid, never the result
};

namespace detail {

constexpr int kGroup = 128;
constexpr int kRowsPerPass = 4;
constexpr int kWarpsPerCta = 4;
constexpr bool kPrefetch = false;  // ask for the next item before this one is computed
constexpr float kNegLog2e = -1.4426950408889634f;
constexpr float kTwoM32 = 0x1p-32f;
constexpr float kInv448 = 1.0f / 448.0f;
constexpr float kMinScale = 0x1p-126f;

// Unsigned division by a value fixed at launch: one high multiply (Granlund and Montgomery).
struct FastDivider {
  uint32_t divisor, multiplier, shift;

  __host__ static FastDivider of(uint32_t value) {
    uint32_t shift = 0;
    while ((uint64_t{1} << shift) < value) ++shift;
    uint64_t const multiplier = (((uint64_t{1} << shift) - value) << 32) / value + 1;
    return {value, static_cast<uint32_t>(multiplier), shift};
  }

  __device__ uint32_t quotient(uint32_t n) const {
    uint32_t const high = __umulhi(n, multiplier);
    return static_cast<uint32_t>((uint64_t{high} + n) >> shift);
  }
};

__device__ __forceinline__ float reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

__device__ __forceinline__ float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

__device__ __forceinline__ uint4 load_vector(uint8_t const* address) {
  uint4 r;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(address));
  return r;
}

__device__ __forceinline__ float2 half2_to_float2(uint32_t packed) {
  float2 r;
  asm("{.reg .b16 lo, hi;\n mov.b32 {lo, hi}, %2;\n cvt.f32.f16 %0, lo;\n cvt.f32.f16 %1, hi;}"
      : "=f"(r.x), "=f"(r.y)
      : "r"(packed));
  return r;
}

// Four e4m3 codes in a word -> four floats, exactly.
__device__ __forceinline__ void unpack_e4m3(uint32_t word, float (&values)[4]) {
  uint32_t low, high;
  asm("{.reg .b16 a, b;\n mov.b32 {a, b}, %2;\n cvt.rn.f16x2.e4m3x2 %0, a;\n"
      " cvt.rn.f16x2.e4m3x2 %1, b;}"
      : "=r"(low), "=r"(high)
      : "r"(word));
  float2 const first = half2_to_float2(low), second = half2_to_float2(high);
  values[0] = first.x;
  values[1] = first.y;
  values[2] = second.x;
  values[3] = second.y;
}

__device__ __forceinline__ uint32_t pack_e4m3(float a, float b, float c, float d) {
  uint32_t word;
  asm("{.reg .b16 lo, hi;\n cvt.rn.satfinite.e4m3x2.f32 lo, %2, %1;\n"
      " cvt.rn.satfinite.e4m3x2.f32 hi, %4, %3;\n mov.b32 %0, {lo, hi};}"
      : "=r"(word)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return word;
}

// The largest over the 8 lanes that share a row; a NaN loses to any number.
__device__ __forceinline__ float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 4));
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
}

struct Controls {
  float slope = kNegLog2e, beta = 0.0f, limit = 0.0f;
};

template <bool kHasControls>
__device__ __forceinline__ Controls load_controls(ActivationParams const& p, uint32_t tile) {
  Controls c;
  if constexpr (kHasControls) {
    int32_t const expert = p.expert_of_tile[tile];
    if (p.alpha != nullptr) c.slope = p.alpha[expert] * kNegLog2e;
    if (p.beta != nullptr) c.beta = p.beta[expert];
    if (p.limit != nullptr) c.limit = p.limit[expert];
  }
  return c;
}

// One row's 16 elements of this lane; every lane of the warp takes part in the maximum.
template <bool kHasControls>
__device__ __forceinline__ void requantize(uint4 linear, uint4 gate, float su, float sg,
                                           Controls const& c, bool has_limit, uint4& codes,
                                           float& scale) {
  uint32_t const u_words[4] = {linear.x, linear.y, linear.z, linear.w};
  uint32_t const g_words[4] = {gate.x, gate.y, gate.z, gate.w};
  float v[16];
  float amax = 0.0f;
  float const gate_slope = sg * c.slope;
  float const linear_scale = su * kTwoM32, linear_limit = c.limit * kTwoM32,
              linear_beta = c.beta * kTwoM32;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    float u[4], g[4];
    unpack_e4m3(u_words[w], u);
    unpack_e4m3(g_words[w], g);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float value;
      if constexpr (kHasControls) {
        // The linear half carries 2^-32 (in its scale, limit and beta), the sigmoid 2^32.
        float gs = g[i] * sg, us = u[i] * linear_scale;
        if (has_limit) {
          // fmin and fmax keep the number when the other is NaN: a NaN becomes the limit.
          gs = fminf(gs, c.limit);
          us = fmaxf(fminf(us, linear_limit), -linear_limit);
        }
        float const sigmoid = reciprocal(kTwoM32 + exp2_approx(fmaf(gs, c.slope, -32.0f)));
        value = (gs * sigmoid) * (us + linear_beta);
      } else {
        // Carries 2^32 and neither input scale: they are per row, so they join afterwards.
        float const sigmoid = reciprocal(kTwoM32 + exp2_approx(fmaf(g[i], gate_slope, -32.0f)));
        value = (g[i] * u[i]) * sigmoid;
      }
      v[4 * w + i] = value;
      amax = fmaxf(amax, fabsf(value));
    }
  }
  amax = row_max(amax);
  float factor;
  if constexpr (kHasControls) {
    scale = fmaxf(amax * kInv448, kMinScale);
    factor = reciprocal(scale);
  } else {
    // The larger scale meets the constants and the smaller one the maximum, so that no
    // intermediate leaves fp32's range unless the result does.
    bool const linear_larger = fabsf(su) >= fabsf(sg);
    float const larger = linear_larger ? su : sg, smaller = linear_larger ? sg : su;
    scale = fmaxf((amax * fabsf(smaller)) * (fabsf(larger) * (kTwoM32 * kInv448)), kMinScale);
    factor = (reciprocal(scale) * (larger * kTwoM32)) * smaller;
    // A zero block must give 0 (not inf * 0); a non-finite input scale must give NaN.
    factor = (amax > 0.0f ? factor : 0.0f) + (su * 0.0f + sg * 0.0f);
  }
  uint32_t words[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    words[w] = pack_e4m3(v[4 * w] * factor, v[4 * w + 1] * factor, v[4 * w + 2] * factor,
                         v[4 * w + 3] * factor);
  }
  codes = make_uint4(words[0], words[1], words[2], words[3]);
}

// One item's rows as they come from memory: this lane's 16 bytes of each half, and both scales.
template <int kPasses>
struct Loaded {
  uint4 linear[kPasses], gate[kPasses];
  float su[kPasses], sg[kPasses];
  uint32_t limit;
};

template <bool kHasControls, bool kUsePdl, int kRows>
__global__ void __launch_bounds__(kWarpsPerCta * 32)
    activation_kernel(ActivationParams const p, FastDivider const blocks, FastDivider const sub) {
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 900)
  if constexpr (kUsePdl) {
    // Let the next kernel be scheduled, then wait for the one whose output this one reads.
    cudaTriggerProgrammaticLaunchCompletion();
    cudaGridDependencySynchronize();
  }
#endif
  constexpr int kPasses = kRows / kRowsPerPass;
  uint32_t const lane = threadIdx.x & 31, row_in_pass = lane >> 3, column = (lane & 7) * 16;
  uint32_t const items = static_cast<uint32_t>(*p.num_tiles) * sub.divisor * blocks.divisor;
  int64_t const stride = *p.padded_rows;
  int64_t const gate_offset = p.intermediate, gate_scales = blocks.divisor * stride;
  uint32_t const warps = gridDim.x * kWarpsPerCta;
  bool const has_limit = kHasControls && p.limit != nullptr;

  auto const fetch = [&](uint32_t item, Loaded<kPasses>& into) {
    uint32_t const group = blocks.quotient(item), block = item - group * blocks.divisor;
    into.limit = item < items ? static_cast<uint32_t>(p.row_limit[sub.quotient(group)]) : 0;
    uint8_t const* at = p.in + (group * kRows + row_in_pass) * (2 * gate_offset) +
                        block * kGroup + column;
    float const* scale_at = p.in_scales + block * stride + group * kRows + row_in_pass;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      into.linear[pass] = into.gate[pass] = make_uint4(0, 0, 0, 0);
      into.su[pass] = into.sg[pass] = 0.0f;
      if (group * kRows + pass * kRowsPerPass + row_in_pass < into.limit) {
        into.linear[pass] = load_vector(at + pass * kRowsPerPass * 2 * gate_offset);
        into.gate[pass] = load_vector(at + pass * kRowsPerPass * 2 * gate_offset + gate_offset);
        into.su[pass] = scale_at[pass * kRowsPerPass];
        into.sg[pass] = scale_at[pass * kRowsPerPass + gate_scales];
      }
    }
  };

  uint32_t item = blockIdx.x * kWarpsPerCta + threadIdx.x / 32;
  Loaded<kPasses> now;
  if (kPrefetch && item < items) fetch(item, now);
  for (; item < items; item += warps) {
    Loaded<kPasses> next;
    if constexpr (kPrefetch) {
      fetch(item + warps, next);  // on its way while this item is computed
    } else {
      fetch(item, now);
    }
    uint32_t const group = blocks.quotient(item), block = item - group * blocks.divisor;
    if (group * kRows < now.limit) {  // else a whole group of padding, the same for every lane
    Controls const controls = load_controls<kHasControls>(p, sub.quotient(group));
    uint8_t* out = p.out + (group * kRows + row_in_pass) * gate_offset + block * kGroup + column;
    float* out_scales = p.out_scales + block * stride + group * kRows + row_in_pass;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      uint4 codes;
      float scale;
      requantize<kHasControls>(now.linear[pass], now.gate[pass], now.su[pass], now.sg[pass],
                               controls, has_limit, codes, scale);
      if (group * kRows + pass * kRowsPerPass + row_in_pass < now.limit) {
        *reinterpret_cast<uint4*>(out + pass * kRowsPerPass * gate_offset) = codes;
        if ((lane & 7) == 0) out_scales[pass * kRowsPerPass] = scale;
      }
    }
    }
    if constexpr (kPrefetch) now = next;
  }
}

template <bool kHasControls, bool kUsePdl, int kRows>
cudaError_t launch_as(ActivationParams const& p, int grid, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid);
  config.blockDim = dim3(kWarpsPerCta * 32);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = kUsePdl ? 1 : 0;
  config.attrs = &attribute;
  config.numAttrs = kUsePdl ? 1 : 0;
  return cudaLaunchKernelEx(&config, activation_kernel<kHasControls, kUsePdl, kRows>, p,
                            FastDivider::of(p.intermediate / kGroup),
                            FastDivider::of(p.tile / kRows));
}

}  // namespace detail

constexpr int kRowsPerItem = 8;
// CTAs a multiprocessor gets: so many times the square root of the items, within two bounds, so that
// an estimate that is 8 times off moves the grid by less than 3.
constexpr double kCtasPerSmPerRootItem = 0.1875;
constexpr double kMinCtasPerSm = 16.0, kMaxCtasPerSm = 40.0;

// Whether launch() takes this call; false leaves it to the engine's own kernel.
inline bool supported(ActivationParams const& p) {
  bool const has_controls = p.alpha != nullptr || p.beta != nullptr || p.limit != nullptr;
  bool const pointers = p.in != nullptr && p.in_scales != nullptr && p.out != nullptr &&
                        p.out_scales != nullptr && p.num_tiles != nullptr &&
                        p.row_limit != nullptr && p.padded_rows != nullptr &&
                        (!has_controls || p.expert_of_tile != nullptr);
  bool const aligned =
      reinterpret_cast<uintptr_t>(p.in) % 16 == 0 && reinterpret_cast<uintptr_t>(p.out) % 16 == 0;
  return pointers && aligned && p.intermediate > 0 && p.intermediate % detail::kGroup == 0 &&
         p.tile >= kRowsPerItem && p.tile % kRowsPerItem == 0;
}

// The grid from the host's estimate, at least enough CTAs to fill the card and never so many that
// launching them outweighs the work.
inline int grid_for(ActivationParams const& p, int sm_count) {
  int64_t const rows = p.expected_rows > 0 ? p.expected_rows : 1;
  int64_t const items = (rows + kRowsPerItem - 1) / kRowsPerItem * (p.intermediate / detail::kGroup);
  double const per_sm = kCtasPerSmPerRootItem * std::sqrt(static_cast<double>(items));
  double const bounded = per_sm < kMinCtasPerSm ? kMinCtasPerSm
                                                : (per_sm > kMaxCtasPerSm ? kMaxCtasPerSm : per_sm);
  return static_cast<int>(sm_count * bounded);
}

// Launch on `stream`; no synchronization, no allocation, so a CUDA graph can capture it.
inline cudaError_t launch(ActivationParams const& p, int grid, bool use_pdl, cudaStream_t stream) {
  bool const has_controls = p.alpha != nullptr || p.beta != nullptr || p.limit != nullptr;
  if (has_controls) {
    return use_pdl ? detail::launch_as<true, true, kRowsPerItem>(p, grid, stream)
                   : detail::launch_as<true, false, kRowsPerItem>(p, grid, stream);
  }
  return use_pdl ? detail::launch_as<false, true, kRowsPerItem>(p, grid, stream)
                 : detail::launch_as<false, false, kRowsPerItem>(p, grid, stream);
}

}  // namespace stallscope
