// Operators run on the calling thread; this is what makes them happen "on the current stream" all the same.
#pragma once

#include <c10/core/Device.h>

namespace npusim {

// Wait until all that was put on the device's current stream, by torch_npu's queue or by the runtime, is done.
// Throws torch_npu's own error if the stream has failed.
void wait_for_stream(c10::DeviceIndex device);

// The same for who has asked for the stream already, which takes a while.
void wait_for_stream(c10::DeviceIndex device, void* stream);

// The device's current stream, as the runtime knows it.
void* runtime_stream(c10::DeviceIndex device);

} // namespace npusim
