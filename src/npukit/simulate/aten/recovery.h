// Memory that torch_npu marks as unsafe after an error of the card: it is not read until it has been written again.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

namespace npusim {

// Whether any memory may be marked.
bool may_be_unsafe();

// Refuses tensors in marked memory, as the wrapper around each of torch_npu's own kernels does.
void check_safe(c10::ArrayRef<c10::IValue> arguments);

// A copy makes its target safe, and refuses a source that is not.
void check_safe_copy(const at::Tensor& to, const at::Tensor& from);

} // namespace npusim
