// The few declarations of FlashInfer that our overlay touches, restated so that it compiles without
// the artefacts its wheel leaves out. Member names and types follow 0.7.0.post1's DevKernel.h.
#pragma once

#include <cstdint>

namespace batchedGemm::trtllm::gen {
enum class Dtype : uint32_t { Bfloat16, E2m1, E4m3, Fp16, Fp32, Void };
}  // namespace batchedGemm::trtllm::gen

namespace moe::dev::activation {

namespace tg = batchedGemm::trtllm::gen;

struct Data {
  tg::Dtype mDtypeElt{tg::Dtype::Fp16};
  bool mUsePdl{false};
  bool mUseDeepSeekFp8{false};
  void* inPtr{};
  void* outPtr{};
  float* inDqSfsPtr{};
  float* outDqSfsPtr{};
  int32_t innerDim{};
  int32_t const* totalNumPaddedTokens{};
  float const* gatedActAlphaPtr{};
  float const* gatedActBetaPtr{};
  float const* gatedActClampLimitPtr{};
  int32_t const* ctaIdxXyToBatchIdx{};
  int32_t tileTokensDim{};
  // What the overlay adds.
  int32_t const* stallscopeNumTiles{};
  int32_t const* stallscopeRowLimit{};
  int64_t stallscopeExpectedRows{};
};

}  // namespace moe::dev::activation
