// Half precision in operators that multiply and add up: fp32 inside, one rounding at the end, as on a card.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>

namespace npusim {

// The half type that all floating-point tensors of an operator have, if it is to be computed in fp32; else nothing. What
// is left to the CPU otherwise is widened, too, where the CPU's kernel lacks it. With mixed types it is nothing: PyTorch's
// own complaint about them is what the user should see.
std::optional<at::ScalarType> half_to_widen(c10::ArrayRef<c10::IValue> arguments, bool cpu_lacks_it);

// to.copy_(from), except that numbers in fp16 are converted by the CPU's instructions where PyTorch does without them.
void copy_values(const at::Tensor& to, const at::Tensor& from);

// The CPU has instructions for bf16 that beat fp32, and rounds once itself: leave bf16 to it.
void leave_bf16_to_cpu();

} // namespace npusim
