#include "stream.h"

#include "../cann/npusim.h"
#include "memory.h"

#include <torch_npu/csrc/core/npu/NPUStream.h>

namespace npusim {

void* runtime_stream(c10::DeviceIndex device) {
    // stream() also empties the queue in which torch_npu defers launches, so that order is kept.
    return c10_npu::getCurrentNPUStream(device).stream();
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
