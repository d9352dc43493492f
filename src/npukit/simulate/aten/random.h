// Random numbers that follow torch.npu's generators.
#pragma once

#include <ATen/core/Generator.h>

namespace npusim {

// A CPU generator whose numbers depend on nothing but the NPU generator's seed and offset, which it advances:
// so seeds, saved states, forks and checkpointing act on the simulated NPU as torch_npu means them to.
// Without a generator the device's default one is used.
at::Generator draw_generator(const std::optional<at::Generator>& npu, c10::DeviceIndex device);

// While one lives, CPU ops that take no generator draw from the device's default one.
class DefaultGeneratorFollowsDevice {
public:
    explicit DefaultGeneratorFollowsDevice(c10::DeviceIndex device);
    ~DefaultGeneratorFollowsDevice();

private:
    at::Generator saved_;
};

} // namespace npusim
