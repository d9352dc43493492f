// Puts simulated kernels in the place of torch_npu's, when torch_npu first initialises the runtime (aclInit).
#include "copy.h"
#include "kernel.h"
#include "memory.h"
#include "older_torch.h"
#include "python.h"
#include "sparse.h"
#include "trace.h"
#include "unboxed.h"

#include <ATen/ScalarOps.h>

#include <unordered_set>

namespace npusim {
namespace {

void not_simulated(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto count = op.schema().arguments().size();
    trace_not_simulated(op, c10::ArrayRef<const c10::IValue>(stack->data() + stack->size() - count, count));
    C10_THROW_ERROR(
        NotImplementedError,
        c10::str(op.schema().name(), " is not simulated: it needs a real NPU, or a kernel in npukit.simulate.ops."));
}

// In place, CANN also divides whole numbers by whole numbers, and drops the fraction; torch refuses to. torch_npu's
// collectives average whole numbers this way.
void divide_in_place(const c10::OperatorHandle&, torch::jit::Stack* stack) {
    const auto given = torch::jit::pop(*stack, 2);
    const auto self = given[0].toTensor();
    const auto other =
        given[1].isTensor() ? given[1].toTensor() : at::native::wrapped_scalar_tensor(given[1].toScalar());
    const bool whole = at::isIntegralType(self.scalar_type(), /*includeBool=*/false) &&
        at::isIntegralType(other.scalar_type(), /*includeBool=*/false);
    stack->emplace_back(whole ? self.copy_(self.to(at::kDouble).div_(other)) : self.div_(other));
}

// torch warns of every replaced kernel; here replacing is the purpose.
class Silent : public c10::WarningHandler {
    void process(const c10::Warning&) override {}
};

// What torch makes of other operators, on the NPU's tensors themselves: autograd and the NPU see the parts.
struct Composite : c10::OperatorKernel {
    explicit Composite(c10::KernelFunction parts) : parts_(std::move(parts)) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
        parts_.callBoxed(op, keys, stack);
    }

private:
    const c10::KernelFunction parts_;
};

bool hides_composite(const c10::OperatorHandle& op) {
    return kReplacesComposites && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
        !op.hasKernelForDispatchKey(c10::DispatchKey::AutogradPrivateUse1);
}

// A kernel that the dispatcher boxes the arguments for.
struct Boxed : c10::OperatorKernel {
    explicit Boxed(std::shared_ptr<SimulatedKernel> kernel) : kernel_(std::move(kernel)) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
        (*kernel_)(op, keys, stack);
    }

private:
    const std::shared_ptr<SimulatedKernel> kernel_;
};

void install_kernel(
    torch::Library& library, const std::string& name, const c10::OperatorHandle& op, Traits traits, Body body) {
    const auto kernel = std::make_shared<SimulatedKernel>(op, std::move(traits), std::move(body));
    if (auto unboxed = without_boxes(op, kernel)) {
        library.impl(name.c_str(), std::move(*unboxed));
    } else {
        library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Boxed>(kernel)));
    }
}

void install() {
    install_allocator();
    const PythonSide python;
    static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    static torch::Library sparse(torch::Library::IMPL, "aten", c10::DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
    static torch::Library npu(torch::Library::IMPL, "npu", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    Silent silent;
    const c10::WarningUtils::WarningHandlerGuard quiet(&silent);
    auto& dispatcher = c10::Dispatcher::singleton();
    install_copy(aten, npu);
    install_sparse(sparse);
    std::unordered_set<std::string> unknown;
    std::unordered_map<std::string, Limits> limits;
    for (const auto& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::PrivateUse1)) {
        const auto op = dispatcher.findSchema(name);
        const auto space = name.getNamespace();
        if (!op || !space || (*space != "aten" && *space != "npu")) {
            continue;
        }
        auto [traits, body] = python.find(*op);
        if (traits.kept) {
            continue;
        }
        if (!body && (*space == "npu" || !op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU))) {
            traits.host_tensors = true;
            body = not_simulated;
            unknown.insert(toString(name));
        }
        if (name.name == "aten::div_" && (name.overload_name == "Tensor" || name.overload_name == "Scalar")) {
            body = divide_in_place;
        }
        limits[toString(name)] = traits.limits;
        auto& library = *space == "aten" ? aten : npu;
        const auto full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
        if (!body && hides_composite(*op)) {
            auto parts = kernel_of(*op, c10::DispatchKey::CPU);
            library.impl(
                full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Composite>(std::move(parts))));
            continue;
        }
        install_kernel(library, full, *op, std::move(traits), std::move(body));
    }
    install_trace(std::move(unknown), std::move(limits));
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
