#include "copy.h"

#include "../cann/npusim.h"
#include "half.h"
#include "kernel.h"
#include "memory.h"
#include "stream.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch_npu/csrc/core/NPUStorageImpl.h>

namespace npusim {
namespace {

// In shapes-only mode, what is larger than this is data, and data is not moved; what is smaller may steer the program.
constexpr size_t kLargestMovedWithoutCompute = 64 * 1024;

aclFormat& format_of(const at::Tensor& npu) {
    return static_cast<torch_npu::NPUStorageImpl*>(npu.storage().unsafeGetStorageImpl())->npu_desc_.npu_format_;
}

bool is_plain(const at::Tensor& tensor) {
    if (!is_npu(tensor)) {
        return true;
    }
    const auto format = format_of(tensor);
    return format == ACL_FORMAT_ND || format == ACL_FORMAT_NCHW || format == ACL_FORMAT_NHWC ||
        format == ACL_FORMAT_NCDHW || format == ACL_FORMAT_UNDEFINED;
}

// torch_npu's own copy_, kept before ours takes its place.
const c10::SafeKernelFunction& torch_npu_copy() {
    static const auto kernel = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow("aten::copy_", "")
                                   .getComputedKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
    return kernel;
}

void transfer(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
    if (npusim_shapes_only() && to.nbytes() > kLargestMovedWithoutCompute) {
        return;
    }
    torch::jit::Stack stack{to, from, non_blocking};
    const auto& original = torch_npu_copy();
    original.callBoxed(original.opHandle(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
}

// Gives an operator on the device to the graph that captures the device's current stream, if there is one.
bool captured(const char* name, torch::jit::Stack arguments, c10::DeviceIndex device) {
    if (!npusim_stream_keeps(runtime_stream(device))) {
        return false;
    }
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
    static std::unordered_map<std::string, SimulatedKernel> kernels;
    auto& kernel = kernels.try_emplace(name, op, Traits{.host_tensors = true}, Body()).first->second;
    kernel(op, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &arguments);
    return true;
}

void copy_inside(const at::Tensor& to, const at::Tensor& from) {
    if (captured("aten::copy_", {to, from, /*non_blocking=*/false}, from.device().index())) {
        return;
    }
    wait_for_stream(from.device().index());
    if (to.device() != from.device()) {
        wait_for_stream(to.device().index());
    }
    if (!npusim_shapes_only()) {
        copy_values(cpu_view(to), cpu_view(from));
    }
}

void copy_to_device(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
    const auto host = from.to(to.scalar_type()).expand_as(to).contiguous();
    if (to.is_contiguous() && is_plain(to)) {
        transfer(to, host, non_blocking);
        return;
    }
    const auto staged = at::empty(to.sizes(), to.options());
    transfer(staged, host, /*non_blocking=*/false);
    copy_inside(to, staged);
}

void copy_to_host(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
    const auto expanded = from.expand_as(to);
    at::Tensor device = expanded;
    if (!expanded.is_contiguous() || !is_plain(from)) {
        device = at::empty(to.sizes(), from.options());
        copy_inside(device, expanded);
    }
    if (to.is_contiguous() && to.scalar_type() == from.scalar_type()) {
        transfer(to, device.resolve_conj().resolve_neg(), non_blocking);
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
    const c10::DeviceGuard guard(is_npu(self) ? self.device() : from.device());
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
    const c10::DeviceGuard guard(self.device());
    if (captured("aten::zero_", {self}, self.device().index())) {
        return self;
    }
    wait_for_stream(self.device().index());
    if (npusim_shapes_only()) {
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

// Memory layouts of the hardware (NZ, 5HD …) are a note on the tensor here; the memory stays as PyTorch lays it out.
at::Tensor format_cast(const at::Tensor& self, int64_t format) {
    if (format_of(self) == format) {
        return self;
    }
    auto cast = self.clone(at::MemoryFormat::Contiguous);
    format_of(cast) = static_cast<aclFormat>(format);
    return cast;
}

at::Tensor format_cast_to(const at::Tensor& self, int64_t format, std::optional<int64_t>, std::optional<int64_t>) {
    return format_cast(self, format);
}

at::Tensor format_cast_like(
    const at::Tensor& self, const at::Tensor& like, std::optional<int64_t>, std::optional<int64_t>) {
    return format_cast(self, format_of(like));
}

at::Tensor& format_cast_inplace(at::Tensor& self, int64_t format, std::optional<int64_t>, std::optional<int64_t>) {
    format_of(self) = static_cast<aclFormat>(format);
    return self;
}

at::Tensor& format_cast_from(
    at::Tensor& self, const at::Tensor& from, std::optional<int64_t>, std::optional<int64_t>) {
    return self.copy_(from);
}

} // namespace

void install_copy(torch::Library& aten, torch::Library& npu) {
    torch_npu_copy();
    aten.impl("copy_", copy_);
    aten.impl("zero_", zero_);
    aten.impl("contiguous", contiguous);
    npu.impl("npu_format_cast", format_cast_to);
    npu.impl("npu_format_cast.Tensor", format_cast_like);
    npu.impl("npu_format_cast_", format_cast_from);
    npu.impl("npu_format_cast_.acl_format", format_cast_inplace);
    npu.impl("_npu_format_cast", format_cast);
    npu.impl("_npu_format_cast.aclnn", [](const at::Tensor& self, int64_t format, int64_t) {
        return format_cast(self, format);
    });
}

} // namespace npusim
