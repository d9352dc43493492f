// Operators run on the calling thread; this is what makes them happen "on the current stream" all the same.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>

#include <optional>

namespace npusim {

// While one lives, this device is the thread's, and what is called is not recorded as the user's. Where that is so anyway
// it changes nothing: either change takes longer than a small operator.
class InsideOperator {
public:
    explicit InsideOperator(c10::Device device);

private:
    std::optional<at::DisableRecordFunctionGuard> unrecorded_;
    c10::OptionalDeviceGuard guard_;
};

// Wait until all that was put on the device's current stream, by torch_npu's queue or by the runtime, is done.
// Throws torch_npu's own error if the stream has failed.
void wait_for_stream(c10::DeviceIndex device);

// The same for who has asked for the stream already, which takes a while.
void wait_for_stream(c10::DeviceIndex device, void* stream);

// The device's current stream, as the runtime knows it.
void* runtime_stream(c10::DeviceIndex device);

} // namespace npusim
