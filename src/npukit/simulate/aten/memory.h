// The same memory as an NPU tensor and as a CPU tensor.
//
// Device memory is host memory, so a CPU kernel can work on it in place. A CPU view borrows the NPU tensor's
// storage; what a CPU kernel allocates for its result comes from torch_npu's own allocator and is handed over
// as an NPU tensor without a copy.
#pragma once

#include <ATen/ATen.h>

namespace npusim {

inline constexpr c10::DeviceType kNPU = c10::DeviceType::PrivateUse1;

inline bool is_npu(const at::Tensor& tensor) {
    return tensor.defined() && tensor.device().type() == kNPU;
}

// Whether a tensor is data, which in shapes-only mode is neither computed nor moved nor filled. What is smaller may
// steer the program: there it is what was copied or what the program itself says, and 0 where it is not known.
bool is_left_out(const at::Tensor& tensor);

// A CPU tensor on the memory of an NPU tensor.
at::Tensor cpu_view(const at::Tensor& npu);

// CPU views of the arguments of one operator: the same tensor has the same view, and where tensors share memory, so do
// their views. PyTorch's checks for tensors that overlap, and for outputs that are inputs, see it.
class CpuViews {
public:
    // Views that nobody keeps are used again for other operators; a Python object may stay with its view.
    explicit CpuViews(bool used_again) : used_again_(used_again) {}
    ~CpuViews();

    at::Tensor of(const at::Tensor& npu);

private:
    at::Tensor new_view(const at::Tensor& npu);

    bool used_again_;
    c10::SmallVector<std::pair<const c10::TensorImpl*, at::Tensor>, 6> views_;
};

// A tensor without memory that has the geometry of an NPU tensor.
at::Tensor meta_view(const at::Tensor& npu);

// The same NPU tensor without a share in its memory, which may so be freed and used for something else: what a graph
// keeps of its tensors.
at::Tensor without_ownership(const at::Tensor& npu);

// The NPU tensor for what a kernel returned: shares, takes over or (small or foreign memory) copies it.
// It becomes that tensor itself where the caller gives it away.
// A meta tensor becomes memory that is allocated and not filled; in shapes-only mode it is 0 where it is small.
at::Tensor npu_tensor(at::Tensor result, c10::Device device);

// Carry a change of shape, strides or storage that a kernel made on a view back to its NPU tensor.
void write_back(const at::Tensor& view, const at::Tensor& npu);

// While one lives, this thread's CPU allocations of a kilobyte and more come from the NPU's memory; or from the host's.
class OutputsOnDevice {
public:
    explicit OutputsOnDevice(bool on_device = true);
    ~OutputsOnDevice();

private:
    bool before_;
};

// Make OutputsOnDevice work; called once.
void install_allocator();

} // namespace npusim
