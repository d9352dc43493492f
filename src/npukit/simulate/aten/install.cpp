// Puts simulated kernels in the place of torch_npu's, when torch_npu first initialises the runtime (aclInit).
#include "copy.h"
#include "kernel.h"
#include "memory.h"
#include "python.h"
#include "sparse.h"
#include "trace.h"

#include <unordered_set>

namespace npusim {
namespace {

// What torch_npu does with its own memory, storage and views works as it is: it ends in the runtime, not in operators.
const std::unordered_set<std::string> kKept = {
    "aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided",
    "aten::as_strided", "aten::set_", "aten::resize_", "aten::resize_as_", "aten::view", "aten::_reshape_alias",
    "aten::view_as_real", "aten::view_as_complex", "aten::unfold", "aten::squeeze", "aten::unsqueeze", "aten::contiguous",
    "aten::record_stream", "aten::is_set_to", "aten::is_pinned", "aten::_pin_memory", "aten::set_data", "aten::lift",
    "aten::alias", "aten::detach", "aten::to", "aten::_to_copy", "aten::_copy_from", "aten::_copy_from_and_resize",
    "aten::_local_scalar_dense", "aten::copy_", "aten::zero_", "npu::npu_format_cast", "npu::npu_format_cast_",
    "npu::_npu_format_cast", "aten::item", "aten::_has_compatible_shallow_copy_type",
    "npu::get_npu_format", "npu::get_storage_size", "npu::npu_change_data_ptr", "npu::empty_with_format",
    "npu::unsafe_empty_with_format", "npu::empty_with_swapped_memory", "npu::copy_memory_", "npu::set_op_timeout_ms",
    "npu::npu_hccl_check", "aten::_to_sparse", "aten::_to_sparse_csr", "aten::_to_sparse_csc", "aten::_to_sparse_bsr",
    "aten::_to_sparse_bsc"};

void not_simulated(const c10::OperatorHandle& op, torch::jit::Stack*) {
    C10_THROW_ERROR(
        NotImplementedError,
        c10::str(op.schema().name(), " is not simulated: it needs a real NPU, or a kernel in npukit.simulate.ops."));
}


// torch warns of every replaced kernel; here replacing is the purpose.
class Silent : public c10::WarningHandler {
    void process(const c10::Warning&) override {}
};

void install() {
    install_allocator();
    const PythonKernels python;
    static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    static torch::Library sparse(
        torch::Library::IMPL, "aten", c10::DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
    static torch::Library npu(torch::Library::IMPL, "npu", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    Silent silent;
    const c10::WarningUtils::WarningHandlerGuard quiet(&silent);
    auto& dispatcher = c10::Dispatcher::singleton();
    install_copy(aten, npu);
    install_sparse(sparse);
    std::unordered_set<std::string> unknown;
    for (const auto& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::PrivateUse1)) {
        const auto op = dispatcher.findSchema(name);
        const auto space = name.getNamespace();
        if (!op || !space || (*space != "aten" && *space != "npu") || (kKept.count(name.name) && !python.find(*op))) {
            continue;
        }
        auto& library = *space == "aten" ? aten : npu;
        auto body = python.find(*op);
        if (!body && (*space == "npu" || !op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU))) {
            body = not_simulated;
            unknown.insert(toString(name));
        }
        const auto full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
        library.impl(
            full.c_str(),
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<SimulatedKernel>(*op, std::move(body))));
    }
    install_trace(std::move(unknown));
}

} // namespace
} // namespace npusim

// The runtime calls this once, from aclInit.
extern "C" __attribute__((visibility("default"))) int npusim_install() {
    try {
        npusim::install();
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "npukit: the simulated operators could not be installed: %s\n", error.what());
        return 1;
    }
}
