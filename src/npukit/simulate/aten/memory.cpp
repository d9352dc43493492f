#include "memory.h"

#include "../cann/npusim.h"
#include "older_torch.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <c10/core/InferenceMode.h>
#include <torch_npu/csrc/core/NPUStorageImpl.h>

namespace npusim {
namespace {

// Smaller allocations are scalars and bookkeeping of CPU kernels more often than results.
constexpr size_t kSmallestOnDevice = 1024;

thread_local bool outputs_on_device = false;
c10::Allocator* host_allocator = nullptr;

c10::Allocator* device_allocator() {
    static c10::Allocator* const allocator = c10::GetAllocator(kNPU);
    return allocator;
}

// oneDNN frees its scratch memory by address alone, so the address must tell where it came from.
void release_by_address(void* address) {
    (npusim_on_device(address) ? device_allocator() : host_allocator)->raw_deallocate(address);
}

class SwitchingAllocator final : public c10::Allocator {
public:
#if NPUSIM_TORCH_BEFORE(2, 3)
    c10::DataPtr allocate(size_t bytes) const override {
        return allocate_where_outputs_go(bytes);
    }
#else
    void copy_data(void* to, const void* from, size_t bytes) const override {
        default_copy_data(to, from, bytes);
    }
    c10::DataPtr allocate(size_t bytes) override {
        return allocate_where_outputs_go(bytes);
    }
#endif
    c10::DeleterFnPtr raw_deleter() const override {
        return &release_by_address;
    }

private:
    static c10::DataPtr allocate_where_outputs_go(size_t bytes) {
        if (!outputs_on_device || bytes < kSmallestOnDevice) {
            return host_allocator->allocate(bytes);
        }
        auto block = device_allocator()->allocate(bytes);
        auto* const address = block.get();
        auto* const deleter = block.get_deleter();
        return {address, block.release_context(), deleter, c10::Device(c10::kCPU)};
    }
};

void release_borrowed(void* storage) {
    c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage));
}

// A pointer into an NPU storage that keeps the storage alive.
c10::DataPtr borrow(const c10::Storage& npu) {
    auto* const storage = npu.unsafeGetStorageImpl();
    c10::raw::intrusive_ptr::incref(storage);
    return {const_cast<void*>(npu.data()), storage, &release_borrowed, c10::Device(c10::kCPU)};
}

bool is_borrowed(const c10::DataPtr& pointer) {
    return pointer.get_deleter() == &release_borrowed;
}

c10::Storage owner(const c10::DataPtr& borrowed) {
    auto* const storage = static_cast<c10::StorageImpl*>(borrowed.get_context());
    return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
}

bool is_device_memory(const c10::DataPtr& pointer) {
    return pointer.get_deleter() == device_allocator()->raw_deleter();
}

void describe(c10::StorageImpl* storage, c10::IntArrayRef sizes, c10::IntArrayRef strides, caffe2::TypeMeta dtype) {
    auto& description = static_cast<torch_npu::NPUStorageImpl*>(storage)->npu_desc_;
    description.base_sizes_.assign(sizes.begin(), sizes.end());
    description.base_strides_.assign(strides.begin(), strides.end());
    description.storage_sizes_.assign(sizes.begin(), sizes.end());
    description.origin_format_ = sizes.size() == 4 ? ACL_FORMAT_NCHW : ACL_FORMAT_ND;
    description.npu_format_ = description.origin_format_;
    description.data_type_ = dtype;
}

c10::Storage new_storage(size_t bytes, c10::DataPtr memory) {
    static const auto create = c10::GetStorageImplCreate(kNPU);
#if NPUSIM_TORCH_BEFORE(2, 3)
    auto storage = create(c10::StorageImpl::use_byte_size_t(), c10::SymInt(0), device_allocator(), /*resizable=*/true);
    storage->set_data_ptr_noswap(std::move(memory));
    storage->set_nbytes(bytes);
    return c10::Storage(std::move(storage));
#else
    return c10::Storage(create(
        c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<int64_t>(bytes)), std::move(memory),
        device_allocator(), /*resizable=*/true));
#endif
}

// `like` itself, where nobody else has it: a new tensor takes longer.
at::Tensor on_storage(c10::Storage storage, at::Tensor like) {
    if (like.use_count() == 1 && like.is_cpu() && !like.unsafeGetTensorImpl()->is_wrapped_number()) {
        auto* const impl = like.unsafeGetTensorImpl();
        impl->_change_backend_component_keys(storage.device());
        impl->set_storage_keep_dtype(std::move(storage));
        return like;
    }
    constexpr c10::DispatchKeySet keys{c10::DispatchKey::PrivateUse1, c10::DispatchKey::AutogradPrivateUse1};
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
    auto* const impl = tensor.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    if (like.is_conj()) {
        tensor._set_conj(true);
    }
    if (like.is_neg()) {
        tensor._set_neg(true);
    }
    return tensor;
}

c10::Storage take_over(const c10::Storage& cpu, c10::Device device) {
    auto& pointer = cpu.unsafeGetStorageImpl()->mutable_data_ptr();
    auto* const address = pointer.get();
    auto* const deleter = pointer.get_deleter();
    auto npu = new_storage(cpu.nbytes(), c10::DataPtr(address, pointer.release_context(), deleter, device));
    cpu.unsafeGetStorageImpl()->set_data_ptr_noswap(borrow(npu));
    return npu;
}

size_t span_bytes(const at::Tensor& tensor) {
    return at::detail::computeStorageNbytes(
        tensor.sizes(), tensor.strides(), tensor.element_size(), tensor.storage_offset());
}

c10::Storage borrowed_storage(const c10::Storage& npu) {
    return c10::Storage(
        c10::make_intrusive<c10::StorageImpl>(
            c10::StorageImpl::use_byte_size_t(), npu.nbytes(), borrow(npu), c10::GetCPUAllocator(),
            /*resizable=*/true));
}

void take_geometry(const at::Tensor& view, const at::Tensor& npu) {
    auto* const impl = view.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(npu.sizes(), npu.strides(), npu.storage_offset());
    if (npu.is_conj()) {
        view._set_conj(true);
    }
    if (npu.is_neg()) {
        view._set_neg(true);
    }
    // "3 * x" keeps x's type: the mark of a Python number has to survive.
    if (npu.unsafeGetTensorImpl()->is_wrapped_number()) {
        impl->set_wrapped_number(true);
    }
}

at::Tensor cpu_view_on(c10::Storage borrowed, const at::Tensor& npu) {
    auto view = at::detail::make_tensor<c10::TensorImpl>(
        std::move(borrowed), c10::DispatchKeySet(c10::DispatchKey::CPU), npu.dtype());
    take_geometry(view, npu);
    return view;
}

// Views that were used, for the next operator: making one takes as long as a small operator itself.
class IdleViews {
public:
    at::Tensor take(const at::Tensor& npu) {
        auto& idle = idle_[c10::InferenceMode::is_enabled()];
        if (idle.empty()) {
            return {};
        }
        auto view = std::move(idle.back());
        idle.pop_back();
        auto* const impl = view.unsafeGetTensorImpl();
        auto* const storage = impl->unsafe_storage().unsafeGetStorageImpl();
        const auto& of_npu = npu.unsafeGetTensorImpl()->unsafe_storage();
        storage->set_data_ptr_noswap(borrow(of_npu));
        storage->set_nbytes(of_npu.nbytes());
        if (impl->dtype() != npu.dtype()) {
            impl->set_storage_and_dtype(impl->unsafe_storage(), npu.dtype());
        }
        take_geometry(view, npu);
        return view;
    }

    void put(at::Tensor view) {
        auto* const impl = view.unsafeGetTensorImpl();
        const auto& storage = impl->unsafe_storage();
        const bool nobody_else_has_it = view.use_count() == 1 && storage.use_count() == 1;
        if (!nobody_else_has_it || !is_borrowed(storage.data_ptr()) || view.is_conj() || view.is_neg() ||
            impl->is_wrapped_number()) {
            return;
        }
        storage.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
        auto& idle = idle_[view.is_inference()];
        if (idle.size() < kMost) {
            idle.push_back(std::move(view));
        }
    }

private:
    static constexpr size_t kMost = 16;

    std::array<c10::SmallVector<at::Tensor, kMost>, 2> idle_; // outside of and in inference mode
};

thread_local IdleViews idle_views;

} // namespace

bool is_left_out(const at::Tensor& tensor) {
    return npusim_shapes_only() && tensor.nbytes() > NPUSIM_STEERING_BYTES;
}

at::Tensor cpu_view(const at::Tensor& npu) {
    return cpu_view_on(borrowed_storage(npu.storage()), npu);
}

CpuViews::~CpuViews() {
    if (used_again_) {
        for (auto& [known, view] : views_) {
            idle_views.put(std::move(view));
        }
    }
}

at::Tensor CpuViews::of(const at::Tensor& npu) {
    for (const auto& [known, view] : views_) {
        if (known == npu.unsafeGetTensorImpl()) {
            return view;
        }
    }
    views_.emplace_back(npu.unsafeGetTensorImpl(), new_view(npu));
    return views_.back().second;
}

at::Tensor CpuViews::new_view(const at::Tensor& npu) {
    for (const auto& [known, view] : views_) {
        if (known->unsafe_storage().is_alias_of(npu.unsafeGetTensorImpl()->unsafe_storage())) {
            return cpu_view_on(view.storage(), npu);
        }
    }
    auto view = used_again_ ? idle_views.take(npu) : at::Tensor();
    return view.defined() ? view : cpu_view(npu);
}

at::Tensor meta_view(const at::Tensor& npu) {
    auto view = at::empty_strided(npu.sizes(), npu.strides(), npu.options().device(c10::kMeta));
    if (npu.unsafeGetTensorImpl()->is_wrapped_number()) {
        view.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return view;
}

at::Tensor without_ownership(const at::Tensor& npu) {
    const auto& storage = npu.storage();
    auto tensor =
        on_storage(new_storage(storage.nbytes(), c10::DataPtr(const_cast<void*>(storage.data()), npu.device())), npu);
    if (npu.unsafeGetTensorImpl()->is_wrapped_number()) {
        tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return tensor;
}

at::Tensor npu_tensor(at::Tensor result, c10::Device device) {
    if (!result.is_meta()) {
        const auto& pointer = result.storage().data_ptr();
        if (is_borrowed(pointer)) {
            return on_storage(owner(pointer), std::move(result));
        }
        if (is_device_memory(pointer)) {
            auto storage = take_over(result.storage(), device);
            describe(storage.unsafeGetStorageImpl(), result.sizes(), result.strides(), result.dtype());
            return on_storage(std::move(storage), std::move(result));
        }
    }
    const auto bytes = span_bytes(result);
    auto storage = new_storage(bytes, device_allocator()->allocate(bytes));
    describe(storage.unsafeGetStorageImpl(), result.sizes(), result.strides(), result.dtype());
    if (!result.is_meta() && result.numel() > 0) {
        std::memcpy(storage.mutable_data(), result.storage().data(), bytes);
    } else if (npusim_shapes_only() && bytes <= NPUSIM_STEERING_BYTES) {
        std::memset(storage.mutable_data(), 0, bytes);
    }
    return on_storage(std::move(storage), std::move(result));
}

void write_back(const at::Tensor& view, const at::Tensor& npu) {
    if (view.is_meta()) {
        if (view.sizes() != npu.sizes()) {
            npu.resize_(view.sizes());
        }
        return;
    }
    const auto& pointer = view.storage().data_ptr();
    if (!is_borrowed(pointer)) {
        // The kernel gave its output another size, and with it another storage.
        auto replacement = npu_tensor(view, npu.device());
        auto* const storage = npu.storage().unsafeGetStorageImpl();
        auto* const fresh = replacement.storage().unsafeGetStorageImpl();
        storage->set_nbytes(fresh->nbytes());
        auto& memory = fresh->mutable_data_ptr();
        auto* const address = memory.get();
        auto* const deleter = memory.get_deleter();
        storage->set_data_ptr_noswap(c10::DataPtr(address, memory.release_context(), deleter, npu.device()));
        describe(storage, view.sizes(), view.strides(), view.dtype());
    }
    if (view.sizes() != npu.sizes() || view.strides() != npu.strides()) {
        npu.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
    }
}

OutputsOnDevice::OutputsOnDevice(bool on_device) : before_(outputs_on_device) {
    outputs_on_device = on_device;
}

OutputsOnDevice::~OutputsOnDevice() {
    outputs_on_device = before_;
}

void install_allocator() {
    static SwitchingAllocator switching;
    host_allocator = c10::GetCPUAllocator();
    c10::SetAllocator(c10::kCPU, &switching, /*priority=*/1);
}

} // namespace npusim
