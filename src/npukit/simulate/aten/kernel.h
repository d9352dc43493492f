// The kernel that stands in for those of torch_npu: the same op, on a CPU (or shape-only) view of the same memory.
#pragma once

#include "limits.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <atomic>
#include <functional>
#include <memory>

namespace npusim {

// Computes an op whose arguments were already turned into CPU or meta tensors; works on the stack like the op.
using Body = std::function<void(const c10::OperatorHandle&, torch::jit::Stack*)>;

// What npukit.simulate.ops.registry says of an op.
struct Traits {
    bool host_tensors = false; // CPU tensors are allowed beside NPU ones
    bool host_indices = false; // CPU tensors are allowed in lists: as indices
    bool values = false;       // computed in shapes-only mode, too
    bool product = false;      // half precision is computed in fp32 and rounded once
    bool labels = false;       // int32 is widened to int64
    bool kept = false;         // torch_npu's own code stays
    Limits limits = {};        // what CANN refuses
};

// What torch does with an operator before its backend does: keys that a kernel leaves out of what it calls.
inline constexpr auto kAboveBackends =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

void flip_one_bit(const at::Tensor& result);

class SimulatedKernel final {
public:
    // Without a body the op's own CPU kernel computes it.
    SimulatedKernel(const c10::OperatorHandle& op, Traits traits, Body body);

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

    // Computes again, into tensors that are there. Returns 0, or the ACL code of a fault that was asked for.
    int repeat(const c10::OperatorHandle& op, torch::jit::Stack arguments, const std::vector<c10::IValue>& into) const;

    // Whether it calls the CPU kernel with CPU views and nothing else: without random numbers, labels or refusals.
    bool only_computes() const;

    const std::string& name() const {
        return name_;
    }

private:
    enum class Way {
        compute,
        foresee,          // the results' shapes, from tensors without memory
        foresee_on_zeros, // the same for kernels that want memory
        repeat,
    };

    int compute(
        const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device, Way way,
        const std::vector<c10::IValue>& into = {}) const;
    int foresee(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device) const;
    void give_to_graph(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device) const;
    bool writes(size_t argument) const;
    void run(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DeviceIndex device) const;

    std::string name_;
    Traits traits_;
    Body body_;
    size_t arguments_;
    size_t returns_;
    std::vector<size_t> written_;                  // the arguments it writes into
    int generator_ = -1;                           // the argument that is one
    std::vector<int> aliased_argument_;            // for each return: the argument it is, or -1
    bool random_;                                  // draws random numbers without being given a generator
    bool launches_;                                // does something on the device: views and empty tensors do not
    mutable std::atomic<bool> lacks_half_ = false; // the CPU kernel turned out not to know fp16 or bf16
};

} // namespace npusim
