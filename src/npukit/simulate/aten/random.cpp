#include "random.h"

#include "memory.h"

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

thread_local RecordedDraws* recorded = nullptr;
thread_local const RecordedDraws* repeated = nullptr;
thread_local size_t repeats = 0;

uint64_t value_of(const at::Tensor& npu) {
    return static_cast<uint64_t>(*cpu_view(npu).const_data_ptr<int64_t>());
}

// A kernel that draws more often than was noted goes on from the last draw.
at::Generator repeat_draw() {
    TORCH_CHECK(!repeated->empty(), "A kernel draws random numbers in a graph and drew none when it was captured.");
    const auto which = std::min(repeats, repeated->size() - 1);
    const auto& draw = (*repeated)[which];
    const uint64_t beyond = repeats++ - which;
    return at::detail::createCPUGenerator(mix(value_of(draw.seed) + beyond, value_of(draw.offset) + draw.step));
}

} // namespace

RecordDraws::RecordDraws(RecordedDraws& into) {
    recorded = &into;
}

RecordDraws::~RecordDraws() {
    recorded = nullptr;
}

RepeatDraws::RepeatDraws(const RecordedDraws& draws) {
    repeated = &draws;
    repeats = 0;
}

RepeatDraws::~RepeatDraws() {
    repeated = nullptr;
}

// In newer versions of torch_npu a graph keeps seed and offset; before 2.6 they are numbers, and philox_npu_state does not
// move the offset on.
template <class State>
static at::Generator next_generator(at_npu::NPUGeneratorImpl& npu) {
    constexpr uint64_t kSmallestStep = 4;
    if constexpr (requires(State position) { position.seed_.ptr; }) {
        const State position = npu.philox_npu_state(kSmallestStep);
        if (position.captured_) {
            recorded->push_back({*position.seed_.ptr, *position.offset_.ptr, position.offset_intragraph_});
            return at::detail::createCPUGenerator();
        }
        return at::detail::createCPUGenerator(mix(position.seed_.val, position.offset_.val));
    } else {
        const auto [seed, offset] = npu.philox_engine_inputs(kSmallestStep);
        return at::detail::createCPUGenerator(mix(seed, offset));
    }
}

at::Generator draw_generator(const Maybe<at::Generator>& npu, c10::DeviceIndex device) {
    if (repeated) {
        return repeat_draw();
    }
    const auto generator = npu.has_value() && npu->defined() ? *npu : at_npu::detail::getDefaultNPUGenerator(device);
    auto* const impl = at::check_generator<at_npu::NPUGeneratorImpl>(generator);
    const std::lock_guard<std::mutex> lock(impl->mutex_);
    return next_generator<at_npu::PhiloxNpuState>(*impl);
}

DefaultGeneratorFollowsDevice::DefaultGeneratorFollowsDevice(c10::DeviceIndex device) {
    at::Generator host = at::detail::getDefaultCPUGenerator();
    const auto drawn = draw_generator({}, device);
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
