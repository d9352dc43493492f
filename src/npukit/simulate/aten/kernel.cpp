#include "kernel.h"

#include "../cann/npusim.h"
#include "memory.h"
#include "random.h"
#include "stream.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <csignal>
#include <unordered_set>

namespace npusim {
namespace {

using torch::jit::Stack;

thread_local int kernels_under_way = 0;

struct Inside {
    Inside() {
        kernels_under_way++;
    }
    ~Inside() {
        kernels_under_way--;
    }
};

// In shapes-only mode these still compute: their value steers Python, or the shape of their result is a value.
const std::unordered_set<std::string> kNeedValues = {
    "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::item", "aten::nonzero",
    "aten::nonzero_static", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::bincount", "aten::repeat_interleave",
    "aten::argwhere", "aten::allclose"};

// Ops that torch_npu, too, lets have index or length tensors on the host.
bool takes_host_tensors(const std::string& name) {
    static const std::unordered_set<std::string> names = {
        "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_pack_padded_sequence",
        "aten::_ctc_loss", "aten::_ctc_loss_backward", "aten::_foreach_copy_", "aten::copy",
        "aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_fused_adam_", "aten::_fused_adamw_",
        "aten::_fused_sgd_", "aten::_unsafe_index_put", "aten::_unsafe_index"};
    return names.count(name) > 0 || name.rfind("npu::", 0) == 0;
}

bool returns_argument(const c10::AliasInfo* returned, const c10::AliasInfo* argument) {
    return returned && argument && returned->beforeSets() == argument->beforeSets();
}

// A list of tensors and Nones; scripts (torch.jit) give it no more exact type than "list".
bool holds_optional_tensors(const c10::IValue& value) {
    const auto may = [](const c10::IValue& item) { return item.isNone() || item.isTensor(); };
    return value.isList() && !value.toListRef().empty() &&
        std::all_of(value.toListRef().begin(), value.toListRef().end(), may);
}

// Applies a function to every tensor of a value, keeping its structure.
template <typename Change>
void change_tensors(c10::IValue& value, const Change& change) {
    if (value.isTensor()) {
        const auto& tensor = value.toTensor();
        if (tensor.defined()) {
            value = change(tensor);
        }
    } else if (value.isTensorList()) {
        c10::List<at::Tensor> changed;
        for (const at::Tensor& tensor : value.toTensorVector()) {
            changed.push_back(tensor.defined() ? change(tensor) : tensor);
        }
        value = std::move(changed);
    } else if (holds_optional_tensors(value)) {
        c10::List<std::optional<at::Tensor>> changed;
        for (const c10::IValue& item : value.toListRef()) {
            const bool is_there = item.isTensor() && item.toTensor().defined();
            changed.push_back(is_there ? std::optional(change(item.toTensor())) : std::nullopt);
        }
        value = std::move(changed);
    }
}

template <typename Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
    if (value.isTensor()) {
        visit(value.toTensor());
    } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) {
            visit(tensor);
        }
    } else if (holds_optional_tensors(value)) {
        for (const c10::IValue& item : value.toListRef()) {
            if (item.isTensor()) {
                visit(item.toTensor());
            }
        }
    }
}

// The device an op runs on: that of its tensors, else the one asked for, else the current one.
c10::Device device_of(c10::ArrayRef<c10::IValue> arguments, bool accepts_host_tensors, const std::string& name) {
    std::optional<c10::Device> found;
    bool host_tensor = false;
    for (const auto& argument : arguments) {
        visit_tensors(argument, [&](const at::Tensor& tensor) {
            if (is_npu(tensor)) {
                TORCH_CHECK(
                    !found || *found == tensor.device() || tensor.dim() == 0 || accepts_host_tensors,
                    "Expected all tensors to be on the same device, but found at least two devices, ", *found, " and ",
                    tensor.device(), "! (when checking arguments of ", name, ")");
                if (!found) {
                    found = tensor.device();
                }
            } else if (tensor.defined() && tensor.dim() > 0 && tensor.device().is_cpu()) {
                host_tensor = true;
            }
        });
    }
    TORCH_CHECK(
        !host_tensor || !found || accepts_host_tensors,
        "Expected all tensors to be on the same device. Expected NPU tensor, please check whether the input tensor "
        "device is correct. (when checking arguments of ", name, ")");
    if (found) {
        return *found;
    }
    for (const auto& argument : arguments) {
        if (argument.isDevice() && argument.toDevice().type() == kNPU && argument.toDevice().has_index()) {
            return argument.toDevice();
        }
    }
    return c10::impl::VirtualGuardImpl(kNPU).getDevice();
}

void check_type(const at::Tensor& tensor, const std::string& name) {
    static const char* const setting = std::getenv("NPUKIT_SIM_BF16");
    static const bool has_bf16 = !setting || std::string(setting) != "0";
    TORCH_CHECK(
        has_bf16 || tensor.scalar_type() != at::kBFloat16, name,
        " does not support bfloat16 on this card (EZ1001, DT_BFLOAT16): use float16.");
}

void flip_one_bit(const c10::IValue& result) {
    visit_tensors(result, [](const at::Tensor& tensor) {
        if (tensor.defined() && tensor.numel() > 0) {
            auto* const bytes = static_cast<uint8_t*>(tensor.mutable_data_ptr());
            bytes[tensor.element_size() - 1] ^= 0x40; // the highest bit of the exponent, where a flip is worst
        }
    });
}

} // namespace

bool inside_kernel() {
    return kernels_under_way > 0;
}

SimulatedKernel::SimulatedKernel(const c10::OperatorHandle& op, Body body)
    : name_(op.schema().name()), body_(std::move(body)), arguments_(op.schema().arguments().size()),
      returns_(op.schema().returns().size()), needs_values_(kNeedValues.count(name_) > 0), random_(false),
      accepts_host_tensors_(takes_host_tensors(name_)) {
    const auto& arguments = op.schema().arguments();
    for (const auto& returned : op.schema().returns()) {
        int which = -1;
        for (size_t i = 0; i < arguments.size() && which < 0; i++) {
            if (returns_argument(returned.alias_info(), arguments[i].alias_info())) {
                which = static_cast<int>(i);
            }
        }
        aliased_argument_.push_back(which);
    }
    if (op.hasTag(at::Tag::nondeterministic_seeded) && !body_) {
        random_ = std::none_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
            return argument.name() == "generator";
        });
    }
}

void SimulatedKernel::run(const c10::OperatorHandle& op, Stack* stack, bool random, c10::DeviceIndex device) const {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    if (body_) {
        body_(op, stack);
        return;
    }
    const OutputsOnDevice outputs_on_device;
    if (random) {
        const DefaultGeneratorFollowsDevice follow(device);
        op.callBoxed(stack);
    } else {
        op.callBoxed(stack);
    }
}

void SimulatedKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    const Inside inside;
    const auto first = stack->size() - arguments_;
    const auto device = device_of(c10::ArrayRef<c10::IValue>(*stack).slice(first), accepts_host_tensors_, name_);
    const c10::DeviceGuard guard(device);
    wait_for_stream(device.index());
    const auto fault = npusim_next_fault(NPUSIM_ON_KERNEL, name_.c_str());
    if (C10_UNLIKELY(fault.kind == NPUSIM_ACL_ERROR)) {
        npusim_stream_fail(runtime_stream(device.index()), fault.code);
    }

    const bool shapes_only = npusim_shapes_only() && !needs_values_;
    const c10::SmallVector<c10::IValue, 12> given(stack->begin() + static_cast<int64_t>(first), stack->end());
    for (size_t i = 0; i < arguments_; i++) {
        auto& argument = (*stack)[first + i];
        change_tensors(argument, [&](const at::Tensor& tensor) {
            check_type(tensor, name_);
            return !is_npu(tensor) ? tensor : shapes_only ? meta_view(tensor) : cpu_view(tensor);
        });
        if (argument.isDevice() && argument.toDevice().type() == kNPU) {
            argument = c10::Device(shapes_only ? c10::kMeta : c10::kCPU);
        } else if (op.schema().arguments()[i].name() == "generator" && !body_) {
            argument = draw_generator(argument.toOptional<at::Generator>(), device.index());
        }
    }
    const c10::SmallVector<c10::IValue, 12> views(stack->begin() + static_cast<int64_t>(first), stack->end());
    run(op, stack, random_, device.index());

    for (size_t i = 0; i < arguments_; i++) {
        const auto* alias = op.schema().arguments()[i].alias_info();
        if (alias && alias->isWrite() && given[i].isTensor() && is_npu(given[i].toTensor())) {
            write_back(views[i].toTensor(), given[i].toTensor());
        }
    }
    for (size_t i = 0; i < returns_; i++) {
        auto& result = (*stack)[stack->size() - returns_ + i];
        if (aliased_argument_[i] >= 0) {
            result = given[aliased_argument_[i]];
        } else {
            change_tensors(result, [&](const at::Tensor& tensor) { return npu_tensor(tensor, device); });
        }
        if (C10_UNLIKELY(fault.kind == NPUSIM_BITFLIP) && i == 0) {
            flip_one_bit(result);
        }
    }
}

} // namespace npusim
