#include "copy.h"

#include "../cann/npusim.h"
#include "half.h"
#include "kernel.h"
#include "memory.h"
#include "older_torch.h"
#include "profile.h"
#include "recovery.h"
#include "stream.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch_npu/csrc/core/NPUStorageImpl.h>

namespace npusim {
namespace {

torch_npu::NPUStorageDesc& description_of(const at::Tensor& npu) {
    return static_cast<torch_npu::NPUStorageImpl*>(npu.storage().unsafeGetStorageImpl())->npu_desc_;
}

aclFormat format_of(const at::Tensor& npu) {
    return description_of(npu).npu_format_;
}

bool is_plain(int64_t format) {
    return format == ACL_FORMAT_ND || format == ACL_FORMAT_NCHW || format == ACL_FORMAT_NHWC ||
        format == ACL_FORMAT_NCDHW || format == ACL_FORMAT_UNDEFINED;
}

bool is_plain(const at::Tensor& tensor) {
    return !is_npu(tensor) || is_plain(format_of(tensor));
}

c10::OperatorHandle copy_operator() {
    return c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
}

// torch_npu's own copy_, kept before ours takes its place.
const c10::KernelFunction& torch_npu_copy(const c10::OperatorHandle& op) {
    static const auto kernel = kernel_of(op, c10::DispatchKey::PrivateUse1);
    return kernel;
}

void transfer(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
    if (is_left_out(to)) {
        return;
    }
    torch::jit::Stack stack{to, from, non_blocking};
    static const auto op = copy_operator();
    torch_npu_copy(op).callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
}

// Gives an operator to the graph that captures the stream.
void capture(const char* name, torch::jit::Stack arguments) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
    static std::unordered_map<std::string, SimulatedKernel> kernels;
    auto& kernel = kernels.try_emplace(name, op, Traits{.host_tensors = true}, Body()).first->second;
    kernel(op, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &arguments);
}

void copy_inside(const at::Tensor& to, const at::Tensor& from) {
    auto* const stream = runtime_stream(from.device().index());
    if (C10_UNLIKELY(npusim_stream_keeps(stream))) {
        capture("aten::copy_", {to, from, /*non_blocking=*/false});
        return;
    }
    static const std::string name = "aten::copy_";
    ProfiledKernel profiled(name, from);
    wait_for_stream(from.device().index(), stream);
    if (to.device() != from.device()) {
        wait_for_stream(to.device().index());
    }
    profiled.start();
    if (!is_left_out(to)) {
        CpuViews target(/*used_again=*/true), source(/*used_again=*/true); // which may overlap
        copy_values(target.of(to), source.of(from));
    }
    profiled.end(stream, to);
}

// Whether a transfer may write there: one number after the other, as they are.
bool takes_bytes(const at::Tensor& to) {
    return to.is_contiguous() && is_plain(to) && !to.is_conj() && !to.is_neg();
}

void copy_to_device(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
    const bool as_they_are = from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes() && takes_bytes(from);
    const auto host =
        as_they_are ? from : from.to(to.scalar_type()).expand_as(to).contiguous().resolve_conj().resolve_neg();
    if (takes_bytes(to)) {
        transfer(to, host, non_blocking);
        return;
    }
    const auto staged = at::empty(to.sizes(), to.options());
    transfer(staged, host, /*non_blocking=*/false);
    copy_inside(to, staged);
}

void copy_to_host(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
    const auto expanded = from.sizes() == to.sizes() ? from : from.expand_as(to);
    at::Tensor device = expanded;
    if (!takes_bytes(expanded)) {
        device = at::empty(to.sizes(), from.options());
        copy_inside(device, expanded);
    }
    if (takes_bytes(to) && to.scalar_type() == from.scalar_type()) {
        transfer(to, device, non_blocking);
        return;
    }
    const auto host = at::empty(to.sizes(), from.options().device(c10::kCPU));
    transfer(host, device, /*non_blocking=*/false);
    to.copy_(host);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& from, bool non_blocking) {
    if (self.numel() == 0) {
        return self;
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const InsideOperator inside(is_npu(self) ? self.device() : from.device());
    check_safe_copy(self, from);
    if (from._is_zerotensor()) {
        self.zero_();
    } else if (!is_npu(from)) {
        copy_to_device(self, from, non_blocking);
    } else if (!is_npu(self)) {
        copy_to_host(self, from, non_blocking);
    } else {
        copy_inside(self, from);
    }
    return self;
}

// Fresh pages are zero: a large tensor of zeros costs no host memory until it is written to.
at::Tensor& zero_(at::Tensor& self) {
    const InsideOperator inside(self.device());
    auto* const stream = runtime_stream(self.device().index());
    if (C10_UNLIKELY(npusim_stream_keeps(stream))) {
        capture("aten::zero_", {self});
        return self;
    }
    wait_for_stream(self.device().index(), stream);
    if (is_left_out(self)) {
        return self;
    }
    if (self.is_non_overlapping_and_dense()) {
        npusim_zero(self.mutable_data_ptr(), self.nbytes());
    } else {
        cpu_view(self).zero_();
    }
    return self;
}

at::Tensor contiguous(const at::Tensor& self, c10::MemoryFormat format) {
    return self.is_contiguous(format) ? self : self.clone(format);
}

// torch_npu's own code knows how much memory a layout takes, what has no such layout, and whether it is allowed: with
// torch.npu.config.allow_internal_format = False, the default on a 910B, it warns once and takes the plain one.
at::Tensor empty_with_format(const at::Tensor& like, int64_t format) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("npu::unsafe_empty_with_format", "");
    torch::jit::Stack stack{like.sizes(), like.scalar_type(), c10::IValue(), like.device(), c10::IValue(), format};
    const auto& arguments = op.schema().arguments();
    for (size_t i = stack.size(); i < arguments.size(); i++) {
        stack.push_back(*arguments[i].default_value());
    }
    op.callBoxed(&stack);
    return stack[0].toTensor();
}

// Memory layouts of the hardware (NZ, 5HD …) take the memory that they take there, but the numbers stay as PyTorch lays
// them out. From one plain format to another, torch_npu only gives the tensor itself the other name.
at::Tensor format_cast(at::Tensor self, const c10::IValue& wanted) {
    int64_t format = wanted.isTensor() ? format_of(wanted.toTensor()) : wanted.toInt();
    if (format == ACL_FORMAT_FRACTAL_NZ && description_of(self).base_sizes_.size() < 2) {
        format = ACL_FORMAT_ND; // the memory has no rows to make tiles of, whatever the view of it
    }
    if (!is_plain(self) || !is_plain(format)) {
        return format_of(self) == format ? self : empty_with_format(self, format).copy_(self);
    }
    auto& description = description_of(self);
    description.npu_format_ = description.origin_format_ = static_cast<aclFormat>(format);
    return self;
}

at::Tensor format_cast_inplace(at::Tensor self, const c10::IValue& wanted) {
    if (wanted.isTensor()) {
        return self.copy_(wanted.toTensor());
    }
    const auto cast = format_cast(self, wanted);
    return cast.is_same(self) ? self : self.set_(cast);
}

// Versions of torch_npu differ in the arguments after the first two, which change nothing here.
template <at::Tensor (*cast)(at::Tensor, const c10::IValue&)>
void with_two_arguments(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto given = torch::jit::pop(*stack, op.schema().arguments().size());
    stack->emplace_back(cast(given[0].toTensor(), given[1]));
}

} // namespace

void install_copy(torch::Library& aten, torch::Library& npu) {
    torch_npu_copy(copy_operator());
    aten.impl("copy_", copy_);
    aten.impl("zero_", zero_);
    aten.impl("contiguous", contiguous);
    for (const auto* name :
         {"npu_format_cast", "npu_format_cast.Tensor", "_npu_format_cast", "_npu_format_cast.aclnn"}) {
        npu.impl(name, torch::CppFunction::makeFromBoxedFunction<&with_two_arguments<format_cast>>());
    }
    for (const auto* name : {"npu_format_cast_", "npu_format_cast_.acl_format"}) {
        npu.impl(name, torch::CppFunction::makeFromBoxedFunction<&with_two_arguments<format_cast_inplace>>());
    }
}

} // namespace npusim
