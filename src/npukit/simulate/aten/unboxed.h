// The commonest operators as torch calls them. Packing arguments into boxes takes as long as a small operator's work.
#pragma once

#include "kernel.h"

namespace npusim {

// The kernel for callers that know the operator's C++ signature, where that is one of the commonest and the kernel has
// nothing to do but to compute. Where a call needs more (a graph, the profiler, half precision), it boxes its arguments.
std::optional<torch::CppFunction>
without_boxes(const c10::OperatorHandle& op, const std::shared_ptr<SimulatedKernel>& kernel);

} // namespace npusim
