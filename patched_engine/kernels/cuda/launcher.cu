// A thin C face over the overlay's entry, so that the kernel can be run and timed by itself. It goes
// through the same try_flashinfer() that FlashInfer's runner would call.
#include <cstdint>

#include "shim/flashinfer_shim.h"
#include "stallscope_flashinfer.cuh"

// Returns 0 when our kernel was launched, 1 when the call was left to the engine.

extern "C" int stallscope_activation(void* in, float* in_scales, void* out, float* out_scales,
                                     int32_t const* num_tiles, int32_t const* row_limit,
                                     int32_t const* padded_rows, int32_t const* expert_of_tile,
                                     float const* alpha, float const* beta, float const* limit,
                                     int32_t intermediate, int32_t tile, int64_t expected_rows,
                                     int32_t use_pdl, void* stream) {
  namespace act = moe::dev::activation;
  act::Data data;
  data.mDtypeElt = act::tg::Dtype::E4m3;
  data.mUseDeepSeekFp8 = true;
  data.mUsePdl = use_pdl != 0;
  data.inPtr = in;
  data.outPtr = out;
  data.inDqSfsPtr = in_scales;
  data.outDqSfsPtr = out_scales;
  data.innerDim = 2 * intermediate;
  data.totalNumPaddedTokens = padded_rows;
  data.gatedActAlphaPtr = alpha;
  data.gatedActBetaPtr = beta;
  data.gatedActClampLimitPtr = limit;
  data.ctaIdxXyToBatchIdx = expert_of_tile;
  data.tileTokensDim = tile;
  data.stallscopeNumTiles = num_tiles;
  data.stallscopeRowLimit = row_limit;
  data.stallscopeExpectedRows = expected_rows;
  return stallscope::try_flashinfer<act::tg::Dtype>(data, stream) ? 0 : 1;
}
