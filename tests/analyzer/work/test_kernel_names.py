"""What real kernel names of cuBLAS, cuDNN, CUTLASS, Tensile, NCCL and PyTorch give away."""

from __future__ import annotations

import pytest
from wavecast.analyzer.work import Family
from wavecast.analyzer.work.kernel_names import attention_of_kernel, family_of_kernel, rate_of_kernel
from wavecast.specs.attention_kernels import AttentionKernel
from wavecast.specs.gpu import Rate


@pytest.mark.parametrize(
    ("name", "family", "rate"),
    [
        ("volta_sgemm_64x64_nt", Family.MATMUL, Rate.MATRIX_FP32),
        ("triton_poi_fused_convolution_relu_0", Family.ELEMENTWISE, None),
        ("triton_per_fused_addmm_native_layer_norm_2", Family.REDUCTION, None),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_nn", Family.MATMUL, Rate.MATRIX_FP16),
        ("cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1", Family.MATMUL, Rate.MATRIX_TF32),
        ("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8", Family.MATMUL, Rate.MATRIX_BF16),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", Family.MATMUL, Rate.MATRIX_BF16),
        ("nvjet_tst_64x16_64x16_2x4_2cta_h_bz_bias_TNT", Family.MATMUL, None),
        ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x128", Family.MATMUL, None),
        ("cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1", Family.CONVOLUTION, Rate.MATRIX_FP32),
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
        # FBGEMM's, of the recordings of an A100 and a V100; its inference kernels; PyTorch's; HugeCTR's
        (
            "void split_embedding_codegen_forward_unweighted_kernel<float, float, float, false, long, 1ul, 16ul>",
            Family.EMBEDDING,
            None,
        ),
        ("split_embedding_backward_codegen_find_long_segments(at::Gener)", Family.EMBEDDING, None),
        (
            "void dense_embedding_codegen_forward_unweighted_kernel<float, float, float, long, 1ul>",
            Family.EMBEDDING,
            None,
        ),
        ("void split_embedding_nobag_codegen_forward_unweighted_kernel<float, float>", Family.EMBEDDING, None),
        (
            "void nbit::INT8_split_embedding_codegen_forward_unweighted_kernel_small_L<int>",
            Family.EMBEDDING,
            Rate.MATRIX_INT8,
        ),
        (
            "void at::native::(anonymous namespace)::EmbeddingBag_updateOutputKernel_sum_mean<float, long>",
            Family.EMBEDDING,
            None,
        ),
        ("void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float>", Family.EMBEDDING, None),
        ("void embedding::multi_to_one_reduce_vec4<embedding::MultiToOne<float>>(float)", Family.EMBEDDING, None),
        ("void HugeCTR::(anonymous namespace)::forward_sum_kernel<long long, float>", Family.EMBEDDING, None),
        ("void HugeCTR::opt_adam_kernel_global<unsigned int, __half>", Family.EMBEDDING, Rate.MATRIX_FP16),
        ("void fbgemm_gpu::permute_2D_data_kernel<false, int, int, decltype(nullptr)>", Family.INDEXING, None),
        ("void fbgemm_gpu::_block_bucketize_sparse_features_cuda_kernel1<int, int>", Family.INDEXING, None),
        ("void bounds_check_indices_kernel<long, false>", Family.INDEXING, None),
        ("void permute_pooled_embs_kernel<float>(float const*)", Family.INDEXING, None),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>", Family.ELEMENTWISE, Rate.MATRIX_BF16),
        ("my_kernel", None, None),
        # XLA's, by how it writes their loops; Triton's templates; words, not parts of them
        ("loop_convert_fusion_3", Family.ELEMENTWISE, None),
        ("void cudnn::fusion::convert_dq_to_16bits<true>(void const*)", Family.ATTENTION, None),
        ("void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*)", Family.ATTENTION, None),
        ("wrapped_convert", Family.ELEMENTWISE, None),
        ("loop_convolution_fusion", Family.ELEMENTWISE, None),
        ("fusion_12", Family.ELEMENTWISE, None),
        ("input_multiply_reduce_fusion_1", Family.REDUCTION, None),
        ("wrapped_reduce", Family.REDUCTION, None),
        ("input_scatter_fusion", Family.INDEXING, None),
        ("gemm_fusion_dot_7", Family.MATMUL, None),
        ("triton_tem_fused_addmm_relu_2", Family.MATMUL, None),
        ("triton_tem_fused_convolution_1", Family.CONVOLUTION, None),
        ("triton_poi_fused_convolution_relu_3", Family.ELEMENTWISE, None),
        ("convertTensor_kernel", Family.ELEMENTWISE, None),
        ("ck::kernel_grouped_conv_fwd_multiple_abd_xdl_cshuffle", Family.CONVOLUTION, None),
        ("DeviceGroupedConvFwdMultipleABD", Family.CONVOLUTION, None),
        ("turing_h1688cudnn_256x64_sliced1x2_ldg8_relu_exp_small_nhwc_tn_v1", Family.CONVOLUTION, Rate.MATRIX_FP16),
    ],
)
def test_names(name: str, family: Family | None, rate: Rate | None) -> None:
    assert family_of_kernel(name) is family
    assert rate_of_kernel(name) is rate


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>", "FLASH2"),
        ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128>>", "FLASH2"),
        ("void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64>>", "FLASH2"),
        (
            "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloop>>>",
            "FLASH3",
        ),
        ("cudnn_generated_fort_native_sdpa_sm90_knob_7_64x128x128_4x1x1_kernel0_0", "CUDNN"),
        (
            "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)",
            "EFFICIENT",
        ),
        ("fmha_cutlassB_bf16_aligned_128x64_k64_sm80", "EFFICIENT"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext", "TENSORRT_LLM"),
        ("fmha_v2_flash_attention_bf16_64_128_S_q_paged_kv_128_causal_sm90_kernel", "TENSORRT_LLM"),
        ("attn_fwd", "TRITON"),
        ("_attn_fwd", "TRITON"),
        ("kernel_unified_attention_2d", "TRITON"),
        ("void ck_tile::kentry<256, 1, ck_tile::FmhaFwdKernel<ck_tile::BlockFmhaPipelineQRKSVSAsync>>", "CK"),
        ("aiter::fmha_fwd_hd128_bf16_causal", "CK"),
        ("void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16>", "CK"),
        ("volta_sgemm_64x64_nt", None),
        ("void at::native::(anonymous namespace)::softmax_warp_forward<float, float, float, 8, false>", None),
    ],
)
def test_names_of_attention_kernels(name: str, kernel: str | None) -> None:
    assert attention_of_kernel(name) is (None if kernel is None else AttentionKernel[kernel])
    if kernel is not None:
        assert family_of_kernel(name) is Family.ATTENTION
