#include "kernel.h"

#include "../cann/npusim.h"
#include "graph.h"
#include "half.h"
#include "memory.h"
#include "older_torch.h"
#include "profile.h"
#include "random.h"
#include "recovery.h"
#include "stream.h"
#include "values.h"

#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>

namespace npusim {
namespace {

using torch::jit::Stack;

bool returns_argument(const c10::AliasInfo* returned, const c10::AliasInfo* argument) {
    return returned && argument && returned->beforeSets() == argument->beforeSets();
}

// The device an op runs on: that of its tensors, else the one asked for, else the current one.
c10::Device device_of(c10::ArrayRef<c10::IValue> arguments, const Traits& traits, const std::string& name) {
    const bool accepts_other_npus = (traits.host_tensors || traits.host_indices) && name.rfind("npu::", 0) != 0;
    std::optional<c10::Device> found;
    bool host_tensor = false;
    for (const auto& argument : arguments) {
        const bool accepts_host_tensors = traits.host_tensors || (traits.host_indices && argument.isList());
        visit_tensors(argument, [&](const at::Tensor& tensor) {
            if (is_npu(tensor)) {
                TORCH_CHECK(
                    !found || *found == tensor.device() || tensor.dim() == 0 || accepts_other_npus,
                    "Expected all tensors to be on the same device, but found at least two devices, ", *found, " and ",
                    tensor.device(), "! (when checking arguments of ", name, ")");
                if (!found) {
                    found = tensor.device();
                }
            } else if (tensor.defined() && tensor.dim() > 0 && tensor.device().is_cpu()) {
                host_tensor = host_tensor || !accepts_host_tensors;
            }
        });
    }
    TORCH_CHECK(
        !host_tensor || !found,
        "Expected all tensors to be on the same device. Expected NPU tensor, please check whether the input tensor "
        "device is correct. (when checking arguments of ",
        name, ")");
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

// Rounds what a kernel computed in fp32 into its output in half precision, which it may have given another size.
void round_into(const at::Tensor& npu, const at::Tensor& wide) {
    const OutputsOnDevice outputs_on_device;
    const auto view = cpu_view(npu);
    if (view.sizes() != wide.sizes()) {
        view.resize_(wide.sizes());
    }
    copy_values(view, wide);
    write_back(view, npu);
}

at::Tensor in_type(const at::Tensor& from, at::ScalarType type) {
    const auto to = at::empty_like(from, from.options().dtype(type));
    copy_values(to, from);
    return to;
}

bool is_about_half(const c10::Error& error) {
    return std::strstr(error.what(), "not implemented for 'Half'") ||
        std::strstr(error.what(), "not implemented for 'BFloat16'");
}

at::Tensor rounded(const at::Tensor& result, at::ScalarType half) {
    const OutputsOnDevice outputs_on_device;
    return result.scalar_type() == at::kFloat ? in_type(result, half) : result;
}

// Whether an argument says in words which type the others have, such as softmax's gradient is told.
bool names_type(const c10::Argument& argument, const c10::IValue& value, at::ScalarType type) {
    return value.isInt() && argument.real_type()->kind() == c10::TypeKind::ScalarTypeType &&
        value.toScalarType() == type;
}

} // namespace

void flip_one_bit(const at::Tensor& result) {
    if (result.defined() && result.numel() > 0) {
        auto* const bytes = static_cast<uint8_t*>(result.mutable_data_ptr());
        bytes[result.element_size() - 1] ^= 0x40; // the highest bit of the exponent, where a flip is worst
    }
}

SimulatedKernel::SimulatedKernel(const c10::OperatorHandle& op, Traits traits, Body body)
    : name_(op.schema().name()), traits_(std::move(traits)), body_(std::move(body)),
      arguments_(op.schema().arguments().size()), returns_(op.schema().returns().size()), random_(false),
      launches_(name_.rfind("aten::empty", 0) != 0) {
    const auto& arguments = op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); i++) {
        if (arguments[i].alias_info() && arguments[i].alias_info()->isWrite()) {
            written_.push_back(i);
        }
        if (arguments[i].name() == "generator") {
            generator_ = static_cast<int>(i);
        }
    }
    for (const auto& returned : op.schema().returns()) {
        int which = -1;
        for (size_t i = 0; i < arguments.size() && which < 0; i++) {
            if (returns_argument(returned.alias_info(), arguments[i].alias_info())) {
                which = static_cast<int>(i);
            }
        }
        aliased_argument_.push_back(which);
        launches_ = launches_ && (!returned.alias_info() || returned.alias_info()->isWrite());
    }
    random_ = op.hasTag(at::Tag::nondeterministic_seeded) && !body_ && generator_ < 0;
}

void SimulatedKernel::run(const c10::OperatorHandle& op, Stack* stack, c10::DeviceIndex device) const {
    if (body_) {
        body_(op, stack);
    } else if (random_) {
        const DefaultGeneratorFollowsDevice follow(device);
        op.callBoxed(stack);
    } else {
        op.callBoxed(stack);
    }
}

void SimulatedKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    const auto first = stack->size() - arguments_;
    const auto given = c10::ArrayRef<c10::IValue>(*stack).slice(first);
    const auto device = device_of(given, traits_, name_);
    const InsideOperator inside(device);
    check_safe(given);
    auto* const stream = runtime_stream(device.index());
    if (C10_UNLIKELY(npusim_stream_keeps(stream)) && !traits_.values) {
        give_to_graph(op, stack, device);
        return;
    }
    ProfiledKernel profiled(name_, traits_.product, given);
    wait_for_stream(device.index(), stream);
    profiled.start();
    const bool shapes_only = npusim_shapes_only() && !traits_.values;
    if (const int code = shapes_only ? foresee(op, stack, device) : compute(op, stack, device, Way::compute)) {
        npusim_stream_fail(stream, code);
    }
    if (launches_) {
        profiled.end(stream, c10::ArrayRef<c10::IValue>(*stack).slice(first));
        if (traits_.values) {
            profiled.host_waited();
        }
    }
}

bool SimulatedKernel::only_computes() const {
    const bool refuses = refusing() && !traits_.limits.empty();
    return !body_ && !random_ && generator_ < 0 && launches_ && !traits_.labels && !refuses && !npusim_shapes_only();
}

bool SimulatedKernel::writes(size_t argument) const {
    return std::find(written_.begin(), written_.end(), argument) != written_.end();
}

// Where only shapes count, what the program itself says is known all the same: ones, a range, a counter.
int SimulatedKernel::foresee(const c10::OperatorHandle& op, Stack* stack, c10::Device device) const {
    const auto first = static_cast<int64_t>(stack->size() - arguments_);
    const Stack given(stack->begin() + first, stack->end());
    bool said = launches_;
    for (size_t i = 0; i < arguments_; i++) {
        visit_tensors(given[i], [&](const at::Tensor& tensor) {
            said = said && (!is_npu(tensor) || (writes(i) && !is_left_out(tensor)));
        });
    }
    const int code = compute(op, stack, device, Way::foresee);
    for (auto result = stack->begin() + first; result != stack->end(); result++) {
        visit_tensors(*result, [&](const at::Tensor& tensor) { said = said && !is_left_out(tensor); });
    }
    if (said && !code) {
        stack->resize(first);
        stack->insert(stack->end(), given.begin(), given.end());
        return compute(op, stack, device, Way::compute);
    }
    for (const auto i : written_) {
        if (op.schema().arguments()[i].kwarg_only()) { // out=
            visit_tensors(given[i], [](const at::Tensor& tensor) { tensor.zero_(); });
        }
    }
    return code;
}

// Nothing is computed while a graph is captured: the results are memory that every execution will fill.
void SimulatedKernel::give_to_graph(const c10::OperatorHandle& op, Stack* stack, c10::Device device) const {
    const auto first = static_cast<int64_t>(stack->size() - arguments_);
    const Stack given(stack->begin() + first, stack->end());
    RecordedDraws draws;
    {
        const RecordDraws recording(draws);
        try {
            compute(op, stack, device, Way::foresee);
        } catch (const c10::NotImplementedError&) {
            stack->resize(first);
            stack->insert(stack->end(), given.begin(), given.end());
            compute(op, stack, device, Way::foresee_on_zeros);
        }
        if (draws.empty()) { // foreseen without a draw
            if (generator_ >= 0) {
                draw_generator(given[generator_].toOptional<at::Generator>(), device.index());
            }
        }
    }
    std::vector<c10::IValue> results;
    for (size_t i = 0; i < returns_; i++) {
        const auto& result = (*stack)[stack->size() - returns_ + i];
        results.push_back(aliased_argument_[i] < 0 ? result : c10::IValue());
    }
    keep_kernel(runtime_stream(device.index()), *this, op, given, results, std::move(draws));
}

int SimulatedKernel::repeat(
    const c10::OperatorHandle& op, Stack arguments, const std::vector<c10::IValue>& into) const {
    const at::DisableRecordFunctionGuard inside;
    const auto device = device_of(arguments, traits_, name_);
    ProfiledKernel profiled(name_, traits_.product, arguments);
    profiled.start();
    const int code = compute(op, &arguments, device, Way::repeat, into);
    profiled.end(runtime_stream(device.index()), into);
    return code;
}

int SimulatedKernel::compute(
    const c10::OperatorHandle& op, Stack* stack, c10::Device device, Way way,
    const std::vector<c10::IValue>& into) const {
    const auto first = stack->size() - arguments_;
    const bool on_meta = way == Way::foresee;
    const bool foresees = on_meta || way == Way::foresee_on_zeros;
    const auto fault = foresees ? npusim_fault{} : npusim_next_fault(NPUSIM_ON_KERNEL, name_.c_str());
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveBackends);
    const c10::SmallVector<c10::IValue, 12> given(
        std::make_move_iterator(stack->begin() + static_cast<int64_t>(first)), std::make_move_iterator(stack->end()));
    check_limits(traits_.limits, given);
    const bool lacks_half = lacks_half_;
    const auto half = !on_meta && (traits_.product || lacks_half) ? half_to_widen(given, lacks_half) : std::nullopt;
    CpuViews cpu_views(/*used_again=*/!body_);
    for (size_t i = 0; i < arguments_; i++) {
        auto& argument = (*stack)[first + i];
        argument = with_tensors(given[i], [&](const at::Tensor& tensor) {
            check_type(tensor, name_);
            const auto view = !is_npu(tensor)  ? tensor
                : on_meta                      ? meta_view(tensor)
                : way == Way::foresee_on_zeros ? at::zeros_like(meta_view(tensor), at::kCPU)
                                               : cpu_views.of(tensor);
            return half && view.scalar_type() == *half             ? in_type(view, at::kFloat)
                : traits_.labels && view.scalar_type() == at::kInt ? in_type(view, at::kLong)
                                                                   : view;
        });
        if (half && names_type(op.schema().arguments()[i], argument, *half)) {
            argument = at::kFloat;
        } else if (argument.isDevice() && argument.toDevice().type() == kNPU) {
            argument = c10::Device(on_meta ? c10::kMeta : c10::kCPU);
        } else if (static_cast<int>(i) == generator_ && !body_) {
            const auto drawn = draw_generator(argument.toOptional<at::Generator>(), device.index());
            argument = on_meta ? c10::IValue() : c10::IValue(drawn); // some meta kernels want none
        }
    }
    c10::SmallVector<c10::IValue, 2> written;
    for (const auto i : written_) {
        written.push_back((*stack)[first + i]);
    }
    {
        const OutputsOnDevice outputs_on_device(!body_ && !half && way != Way::repeat);
        try {
            run(op, stack, device.index());
        } catch (const c10::Error& error) {
            if (half || lacks_half || !is_about_half(error)) {
                throw;
            }
            lacks_half_ = true;
            stack->resize(first);
            stack->insert(stack->end(), given.begin(), given.end());
            return compute(op, stack, device, way, into);
        }
    }
    for (size_t i = 0; i < written_.size() && way != Way::foresee_on_zeros; i++) {
        visit_pairs(written[i], given[written_[i]], [&](const at::Tensor& view, const at::Tensor& npu) {
            if (is_npu(npu)) {
                half ? round_into(npu, view) : write_back(view, npu);
            }
        });
    }
    for (size_t i = 0; i < returns_; i++) {
        auto& result = (*stack)[stack->size() - returns_ + i];
        if (aliased_argument_[i] >= 0) {
            result = given[aliased_argument_[i]];
        } else if (way == Way::repeat) {
            visit_pairs(result, into[i], [](const at::Tensor& found, const at::Tensor& npu) {
                if (is_npu(npu)) {
                    cpu_view(npu).copy_(found);
                }
            });
        } else if (!half && !body_ && result.isTensor()) { // nobody else has it
            auto tensor = std::move(result).toTensor();
            result = tensor.defined() ? npu_tensor(std::move(tensor), device) : tensor;
        } else {
            result = with_tensors(result, [&](const at::Tensor& tensor) {
                return npu_tensor(half ? rounded(tensor, *half) : tensor, device);
            });
        }
        if (C10_UNLIKELY(fault.kind == NPUSIM_BITFLIP) && i == 0) {
            visit_tensors(way == Way::repeat && aliased_argument_[i] < 0 ? into[i] : result, flip_one_bit);
        }
    }
    return fault.kind == NPUSIM_ACL_ERROR ? fault.code : 0;
}

} // namespace npusim
