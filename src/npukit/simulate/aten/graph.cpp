#include "graph.h"

#include "../cann/npusim.h"
#include "memory.h"
#include "values.h"

#include <ATen/ATen.h>
#include <acl/acl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace npusim {
namespace {

struct KeptKernel {
    const SimulatedKernel& kernel;
    c10::OperatorHandle op;
    torch::jit::Stack arguments;
    std::vector<c10::IValue> results;
    RecordedDraws draws;
};

bool is_there(const c10::IValue& value) {
    bool all = true;
    visit_tensors(value, [&all](const at::Tensor& tensor) {
        if (is_npu(tensor) && tensor.numel() > 0) {
            all = all && npusim_on_device(tensor.storage().data());
        }
    });
    return all;
}

int run(void* kept) {
    auto& work = *static_cast<KeptKernel*>(kept);
    const auto name = toString(work.op.operator_name());
    if (!std::all_of(work.arguments.begin(), work.arguments.end(), is_there)) {
        return npusim_error(
            ACL_ERROR_RT_AICORE_EXCEPTION, "%s in a graph: the memory of an argument was freed after the capture.",
            name.c_str());
    }
    try {
        const c10::impl::ExcludeDispatchKeyGuard no_modes(
            c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
        const RepeatDraws draws(work.draws);
        return work.kernel.repeat(work.op, work.arguments, work.results);
    } catch (const std::exception& error) {
        return npusim_error(ACL_ERROR_RT_AICORE_EXCEPTION, "%s in a graph: %s", name.c_str(), error.what());
    }
}

void drop(void* kept) {
    delete static_cast<KeptKernel*>(kept);
}

// What the graph keeps of a tensor: the place of one on the device, the values of one on the host.
at::Tensor kept_tensor(const at::Tensor& tensor) {
    if (is_npu(tensor)) {
        return without_ownership(tensor);
    }
    return tensor.unsafeGetTensorImpl()->is_wrapped_number() ? tensor : tensor.detach().clone();
}

} // namespace

void keep_kernel(
    void* stream, const SimulatedKernel& kernel, const c10::OperatorHandle& op, torch::jit::Stack arguments,
    std::vector<c10::IValue> results, RecordedDraws draws) {
    static constexpr npusim_keeping keeping = {.run = run, .launch = nullptr, .drop = drop};
    if (npusim_shapes_only()) {
        return;
    }
    for (auto& argument : arguments) {
        argument = with_tensors(argument, kept_tensor);
    }
    for (auto& result : results) {
        result = with_tensors(result, kept_tensor);
    }
    auto* const work = new KeptKernel{kernel, op, std::move(arguments), std::move(results), std::move(draws)};
    const int error = npusim_keep(stream, &keeping, work, toString(op.operator_name()).c_str());
    TORCH_CHECK(error == 0, "A graph cannot take ", op.operator_name(), ": ", aclGetRecentErrMsg());
}

} // namespace npusim
