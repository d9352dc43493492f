// Operators in graphs: what the runtime keeps of one that was captured, and does at every execution.
#pragma once

#include "kernel.h"
#include "random.h"

namespace npusim {

// Gives a kernel to the graph that captures the stream. `results` has a value for each return, None for those that are
// arguments. The graph holds addresses, as on a card, and no shares in memory.
void keep_kernel(
    void* stream, const SimulatedKernel& kernel, const c10::OperatorHandle& op, torch::jit::Stack arguments,
    std::vector<c10::IValue> results, RecordedDraws draws);

} // namespace npusim
