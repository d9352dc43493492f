#include "stream.h"

#include "../cann/npusim.h"
#include "memory.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

#include <cstdlib>
#include <string>

namespace npusim {
namespace {

// What torch_npu answered last: asking it takes a while.
struct KnownStream {
    c10::Stream stream{c10::Stream::DEFAULT, c10::Device(kNPU, 0)};
    void* handle = nullptr;
    uint64_t destroyed = 0;
};

} // namespace

InsideOperator::InsideOperator(c10::Device device) {
    if (C10_UNLIKELY(at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value())) {
        unrecorded_.emplace();
    }
    if (C10_UNLIKELY(device != c10::impl::VirtualGuardImpl(kNPU).getDevice())) {
        guard_.reset_device(device);
    }
}

void* runtime_stream(c10::DeviceIndex device) {
    static const char* const setting = std::getenv("TASK_QUEUE_ENABLE");
    static const bool queue = !setting || std::string(setting) != "0";
    thread_local KnownStream known;
    const auto current = c10_npu::getCurrentNPUStream(device);
    const auto destroyed = npusim_streams_destroyed();
    if (queue || !known.handle || known.stream != current.unwrap() || known.destroyed != destroyed) {
        // stream() also empties the queue in which torch_npu defers launches, so that order is kept.
        known = {current.unwrap(), current.stream(), destroyed};
    }
    return known.handle;
}

void wait_for_stream(c10::DeviceIndex device) {
    wait_for_stream(device, runtime_stream(device));
}

void wait_for_stream(c10::DeviceIndex device, void* stream) {
    if (npusim_stream_drain(stream) != 0) {
        c10_npu::getCurrentNPUStream(device).synchronize();
    }
}

} // namespace npusim
