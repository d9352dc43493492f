#include "unboxed.h"

#include "../cann/npusim.h"
#include "memory.h"
#include "recovery.h"
#include "stream.h"

#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace npusim {
namespace {

// What the tensors of a call say about it.
struct Seen {
    std::optional<c10::Device> device;
    bool plain = true; // NPU tensors of one device, and numbers

    void look_at(const at::Tensor& tensor) {
        const auto type = tensor.scalar_type();
        if (!is_npu(tensor)) {
            plain = plain && tensor.defined() && tensor.is_cpu() && tensor.dim() == 0;
        } else if (type == at::kHalf || type == at::kBFloat16 || (device && *device != tensor.device())) {
            plain = false;
        } else {
            device = tensor.device();
        }
    }

    template <typename Other>
    void look_at(const Other&) {}
};

// Whether a kernel may run at once: on the thread's device, with nobody watching, and no graph that takes it.
bool runs_at_once(const Seen& seen, void*& stream) {
    if (!seen.plain || !seen.device || *seen.device != c10::impl::VirtualGuardImpl(kNPU).getDevice() ||
        may_be_unsafe() || npusim_moment_now().time ||
        at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value()) {
        return false;
    }
    stream = runtime_stream(seen.device->index());
    return !npusim_stream_keeps(stream);
}

template <typename Signature>
class Unboxed;

template <typename Return, typename... Arguments>
class Unboxed<Return(Arguments...)> {
public:
    Unboxed(const c10::OperatorHandle& op, std::shared_ptr<SimulatedKernel> kernel)
        : op_(op.typed<Return(Arguments...)>()), kernel_(std::move(kernel)) {}

    static bool fits(const c10::FunctionSchema& schema) {
        const auto& arguments = schema.arguments();
        const auto& returns = schema.returns();
        if (arguments.size() != sizeof...(Arguments) || returns.size() != 1) {
            return false;
        }
        size_t i = 0;
        return (is_a<Arguments>(arguments[i++]) && ...) && is_a<Return>(returns[0]);
    }

    Return operator()(Arguments... arguments) const {
        Seen seen;
        (seen.look_at(arguments), ...);
        void* stream = nullptr;
        if (!runs_at_once(seen, stream)) {
            return boxed(arguments...);
        }
        wait_for_stream(seen.device->index(), stream);
        const auto fault = npusim_next_fault(NPUSIM_ON_KERNEL, kernel_->name().c_str());
        const c10::impl::ExcludeDispatchKeyGuard below(kAboveBackends);
        CpuViews views(/*used_again=*/true);
        std::tuple<Held<Arguments>...> held{on_cpu(views, arguments)...};
        auto result = [&]() -> at::Tensor {
            const OutputsOnDevice outputs_on_device;
            return std::apply([&](auto&... each) { return op_.redispatch(kCpu, each...); }, held);
        }();
        if constexpr (std::is_reference_v<Return>) {
            auto& self = std::get<0>(std::tie(arguments...));
            write_back(result, self);
            carry_out(fault, self, stream);
            return self;
        } else {
            auto npu = npu_tensor(std::move(result), *seen.device);
            carry_out(fault, npu, stream);
            return npu;
        }
    }

private:
    static constexpr c10::DispatchKeySet kCpu{c10::DispatchKey::CPU};

    template <typename Argument>
    static constexpr bool kIsTensor = std::is_same_v<std::decay_t<Argument>, at::Tensor>;

    template <typename Argument>
    using Held = std::conditional_t<kIsTensor<Argument>, at::Tensor, Argument>;

    template <typename Argument>
    static bool is_a(const c10::Argument& argument) {
        using Value = std::decay_t<Argument>;
        constexpr auto kind = kIsTensor<Argument> ? c10::TypeKind::TensorType
            : std::is_same_v<Value, at::Scalar>   ? c10::TypeKind::NumberType
            : std::is_same_v<Value, bool>         ? c10::TypeKind::BoolType
                                                  : c10::TypeKind::IntType;
        constexpr bool writes = std::is_same_v<Argument, at::Tensor&>;
        const auto* const alias = argument.alias_info();
        return argument.real_type()->kind() == kind && (writes ? alias && alias->isWrite() : !alias);
    }

    static at::Tensor on_cpu(CpuViews& views, const at::Tensor& tensor) {
        return is_npu(tensor) ? views.of(tensor) : tensor;
    }

    template <typename Other>
    static const Other& on_cpu(CpuViews&, const Other& other) {
        return other;
    }

    static void carry_out(npusim_fault fault, const at::Tensor& result, void* stream) {
        if (C10_UNLIKELY(fault.kind == NPUSIM_BITFLIP)) {
            flip_one_bit(result);
        } else if (C10_UNLIKELY(fault.kind == NPUSIM_ACL_ERROR)) {
            npusim_stream_fail(stream, fault.code);
        }
    }

    Return boxed(Arguments... arguments) const {
        torch::jit::Stack stack{arguments...};
        (*kernel_)(op_, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
        if constexpr (std::is_reference_v<Return>) {
            return std::get<0>(std::tie(arguments...));
        } else {
            return std::move(stack[0]).toTensor();
        }
    }

    c10::TypedOperatorHandle<Return(Arguments...)> op_;
    std::shared_ptr<SimulatedKernel> kernel_;
};

template <typename Signature>
bool found(
    const c10::OperatorHandle& op, const std::shared_ptr<SimulatedKernel>& kernel,
    std::optional<torch::CppFunction>& function) {
    if (!Unboxed<Signature>::fits(op.schema())) {
        return false;
    }
    function.emplace(Unboxed<Signature>(op, kernel));
    return true;
}

template <typename... Signatures>
std::optional<torch::CppFunction>
first_of(const c10::OperatorHandle& op, const std::shared_ptr<SimulatedKernel>& kernel) {
    std::optional<torch::CppFunction> function;
    (found<Signatures>(op, kernel, function) || ...);
    return function;
}

} // namespace

std::optional<torch::CppFunction>
without_boxes(const c10::OperatorHandle& op, const std::shared_ptr<SimulatedKernel>& kernel) {
    using T = const at::Tensor&;
    using S = const at::Scalar&;
    using Self = at::Tensor&;
    if (!kernel->only_computes()) {
        return std::nullopt;
    }
    return first_of<
        at::Tensor(T), at::Tensor(T, T), at::Tensor(T, T, T), at::Tensor(T, S), at::Tensor(T, T, S),
        at::Tensor(T, T, T, S, S), at::Tensor(T, int64_t, bool), Self(Self), Self(Self, T), Self(Self, S),
        Self(Self, T, S), Self(Self, T, T, S)>(op, kernel);
}

} // namespace npusim
