// Joins our kernel to FlashInfer's runner: from its activation::Data to one launch of ours, or to
// false, upon which its own kernel runs. Included by the overlay inside namespace-free scope.
#pragma once

#include <cuda_runtime.h>

#include "stallscope_activation.cuh"

namespace stallscope {

// Data: moe::dev::activation::Data with the three members that the overlay adds. ElementKind: its
// Dtype enumeration. Runs for e4m3 block-scaled input only.
template <typename ElementKind, typename Data>
bool try_flashinfer(Data const& data, void* stream) {
  if (data.mDtypeElt != ElementKind::E4m3 || !data.mUseDeepSeekFp8) return false;
  ActivationParams p{};
  p.in = static_cast<uint8_t const*>(data.inPtr);
  p.in_scales = data.inDqSfsPtr;
  p.out = static_cast<uint8_t*>(data.outPtr);
  p.out_scales = data.outDqSfsPtr;
  p.num_tiles = data.stallscopeNumTiles;
  p.row_limit = data.stallscopeRowLimit;
  p.padded_rows = data.totalNumPaddedTokens;
  p.expert_of_tile = data.ctaIdxXyToBatchIdx;
  p.alpha = data.gatedActAlphaPtr;
  p.beta = data.gatedActBetaPtr;
  p.limit = data.gatedActClampLimitPtr;
  p.intermediate = data.innerDim / 2;
  p.tile = data.tileTokensDim;
  p.expected_rows = data.stallscopeExpectedRows;
  if (data.innerDim % 2 != 0 || !supported(p)) return false;
  int device = 0, sm_count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  if (cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return false;
  }
  auto const cuda_stream = static_cast<cudaStream_t>(stream);
  if (launch(p, grid_for(p, sm_count), data.mUsePdl, cuda_stream) == cudaSuccess) return true;
  cudaGetLastError();  // a refused launch must not surface as someone else's error
  return false;
}

}  // namespace stallscope
