"""Collective kernels as NCCL, RCCL and engines have spelled them, and kernels that are none."""

from __future__ import annotations

import pytest

from exporters.readers.profiles.names import collective_of, host_collective_of, op_named, plain


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long)", "all_gather"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, long)", "send_recv"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgs)", "reduce_scatter"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("ncclSymDevKernel_AllGather_LLMC(ncclSymDevArgs)", "all_gather"),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16", "all_reduce"),
        ("void rccl_main_kernel<true>(ncclDevComm*)", "collective"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("mscclKernel_Sum_half_Simple_false", "collective"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(RankData*)", "all_reduce"),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<4>()", "all_reduce"),
        ("multimem_all_gather_kernel", "all_gather"),
        ("flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel<...>", "all_reduce"),
        ("void cub::DeviceReduceKernel<cub::Policy>(int)", ""),
        ("void at::native::reduce_kernel<512, 1>(at::native::ReduceOp)", ""),
        ("scatter_gather_elementwise_kernel", ""),
        ("moe_all_to_all_helper", ""),
        ("", ""),
    ],
)
def test_kernels(name: str, op: str) -> None:
    assert collective_of(name) == op


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("_allgather_base", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("allreduce", "all_reduce"),
        ("AllReduce", "all_reduce"),
        ("broadcast_oop", "broadcast"),
        ("barrier", "barrier"),
        ("send 0->1", "send_recv"),
        ("something", "collective"),
    ],
)
def test_stated_names(name: str, op: str) -> None:
    assert op_named(name) == op


def test_host_collectives_and_plain_names() -> None:
    assert host_collective_of("gloo:all_gather") == "all_gather"
    assert host_collective_of("nccl:all_gather") == ""
    assert plain("aten::copy_, op_id = 991065") == "aten::copy_"
    assert plain("ProfilerStep#551") == "ProfilerStep"
