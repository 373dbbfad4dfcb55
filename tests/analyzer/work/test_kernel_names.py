"""What real kernel names of cuBLAS, cuDNN, CUTLASS, Tensile, NCCL and PyTorch give away."""

from __future__ import annotations

import pytest
from wavecast.analyzer.work import Family
from wavecast.analyzer.work.kernel_names import family_of_kernel, rate_of_kernel
from wavecast.specs.gpu import Rate


@pytest.mark.parametrize(
    ("name", "family", "rate"),
    [
        ("volta_sgemm_64x64_nt", Family.MATMUL, Rate.MATRIX_FP32),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_nn", Family.MATMUL, Rate.MATRIX_FP16),
        ("cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1", Family.MATMUL, Rate.MATRIX_TF32),
        ("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8", Family.MATMUL, Rate.MATRIX_BF16),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", Family.MATMUL, Rate.MATRIX_BF16),
        ("nvjet_tst_64x16_64x16_2x4_2cta_h_bz_bias_TNT", Family.MATMUL, None),
        ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x128", Family.MATMUL, None),
        ("cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1", None, Rate.MATRIX_FP32),
        (
            "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw",
            Family.CONVOLUTION,
            Rate.MATRIX_TF32,
        ),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>", Family.CONVOLUTION, None),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x16", Family.CONVOLUTION, Rate.MATRIX_BF16),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>", Family.ATTENTION, None),
        ("attn_fwd", Family.ATTENTION, None),
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL", Family.COLLECTIVE, Rate.MATRIX_FP16),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", Family.COLLECTIVE, Rate.MATRIX_INT8),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
            Family.ELEMENTWISE,
            None,
        ),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>", Family.ELEMENTWISE, None),
        ("void splitKreduce_kernel<32, 16, int, float>", Family.ELEMENTWISE, None),
        ("my_kernel", None, None),
    ],
)
def test_names(name: str, family: Family | None, rate: Rate | None) -> None:
    assert family_of_kernel(name) is family
    assert rate_of_kernel(name) is rate
