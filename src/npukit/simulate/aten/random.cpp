#include "random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Utils.h>
#include <torch_npu/csrc/aten/NPUGeneratorImpl.h>

namespace npusim {
namespace {

// CPU generators use 32 bits of their seed, so all bits of seed and offset have to reach those.
uint64_t mix(uint64_t seed, uint64_t offset) {
    uint64_t bits = seed * 0x9E3779B97F4A7C15ull + offset;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
    return (bits ^ (bits >> 31)) >> 32;
}

} // namespace

at::Generator draw_generator(const std::optional<at::Generator>& npu, c10::DeviceIndex device) {
    const auto generator = npu.has_value() && npu->defined() ? *npu : at_npu::detail::getDefaultNPUGenerator(device);
    auto* const impl = at::check_generator<at_npu::NPUGeneratorImpl>(generator);
    constexpr uint64_t kSmallestStep = 4;
    std::pair<uint64_t, uint64_t> position;
    {
        const std::lock_guard<std::mutex> lock(impl->mutex_);
        position = impl->philox_engine_inputs(kSmallestStep);
    }
    return at::detail::createCPUGenerator(mix(position.first, position.second));
}

DefaultGeneratorFollowsDevice::DefaultGeneratorFollowsDevice(c10::DeviceIndex device) {
    at::Generator host = at::detail::getDefaultCPUGenerator();
    const auto drawn = draw_generator(std::nullopt, device);
    const std::lock_guard<std::mutex> lock(host.mutex());
    saved_ = host.clone();
    host.set_state(drawn.get_state());
}

DefaultGeneratorFollowsDevice::~DefaultGeneratorFollowsDevice() {
    at::Generator host = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(host.mutex());
    host.set_state(saved_.get_state());
}

} // namespace npusim
