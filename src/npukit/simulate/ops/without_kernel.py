"""Traits of operators that need no kernel of ours, because PyTorch's CPU kernels or torch_npu's code compute them."""

from npukit.simulate.ops.registry import traits

traits(
    "aten::mm", "aten::bmm", "aten::addmm", "aten::addbmm", "aten::baddbmm", "aten::matmul", "aten::_addmm_activation",
    "aten::addmm_", "aten::addbmm_", "aten::baddbmm_", "aten::mv", "aten::addmv", "aten::addmv_", "aten::dot",
    "aten::vdot", "aten::convolution", "aten::_convolution", "aten::convolution_backward",
    "aten::convolution_overrideable", "aten::convolution_backward_overrideable", "aten::_nnpack_spatial_convolution",
    "aten::conv_tbc", "aten::conv_tbc_backward", "aten::_slow_conv2d_forward", "aten::_slow_conv2d_backward",
    "aten::slow_conv3d_forward", "aten::slow_conv_dilated2d", "aten::slow_conv_transpose2d", "aten::lstm", "aten::gru",
    "aten::lstm_cell", "aten::_thnn_fused_gru_cell", "aten::_native_multi_head_attention", "aten::_cdist_forward",
    "aten::_cdist_backward", "aten::cdist",
    product=True,
)  # fmt: skip

traits(
    "aten::_pack_padded_sequence", "aten::_ctc_loss", "aten::_ctc_loss_backward", "aten::copy", "aten::_foreach_copy_",
    "aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_",
    host_tensors=True,
)  # fmt: skip

traits(
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index",
    "aten::_unsafe_index_put",
    host_indices=True,
)  # fmt: skip

traits(
    "aten::equal", "aten::is_nonzero", "aten::nonzero", "aten::nonzero_static", "aten::masked_select", "aten::_unique",
    "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::bincount",
    "aten::repeat_interleave", "aten::argwhere", "aten::allclose",
    values=True,
)  # fmt: skip
traits("aten::repeat_interleave.self_int")  # unlike for the other overloads, its shape is known

traits(
    "aten::nll_loss_forward", "aten::nll_loss_backward", "aten::nll_loss2d_forward", "aten::nll_loss2d_backward",
    "aten::multilabel_margin_loss", "aten::multilabel_margin_loss_forward",
    labels=True,
)  # fmt: skip

# Memory, storage, views and formats.
traits(
    "aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided",
    "aten::as_strided", "aten::set_", "aten::resize_", "aten::resize_as_", "aten::view", "aten::_reshape_alias",
    "aten::view_as_real", "aten::view_as_complex", "aten::unfold", "aten::squeeze", "aten::unsqueeze",
    "aten::contiguous", "aten::record_stream", "aten::is_set_to", "aten::is_pinned", "aten::_pin_memory",
    "aten::set_data", "aten::lift", "aten::alias", "aten::detach", "aten::to", "aten::_to_copy", "aten::_copy_from",
    "aten::_copy_from_and_resize", "aten::_local_scalar_dense", "aten::item", "aten::copy_", "aten::zero_",
    "aten::_has_compatible_shallow_copy_type", "aten::_to_sparse", "aten::_to_sparse_csr", "aten::_to_sparse_csc",
    "aten::_to_sparse_bsr", "aten::_to_sparse_bsc", "npu::npu_format_cast", "npu::npu_format_cast_",
    "npu::_npu_format_cast", "npu::get_npu_format", "npu::get_storage_size", "npu::npu_change_data_ptr",
    "npu::empty_with_format", "npu::unsafe_empty_with_format", "npu::empty_with_swapped_memory", "npu::copy_memory_",
    "npu::set_op_timeout_ms", "npu::npu_hccl_check",
    kept=True,
)  # fmt: skip

# Marks and prints in graphs, which torch_npu implements with events, copies and host functions.
traits(
    "npu::super_kernel_scope_begin", "npu::super_kernel_scope_end", "npu::print_npugraph_tensor",
    "npu::save_npugraph_tensor",
    kept=True,
)  # fmt: skip
