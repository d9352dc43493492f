// --trace-ops: which ops ran on the device, how often, with which shapes and types, and from which line.
#pragma once

#include "limits.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <unordered_map>
#include <unordered_set>

namespace npusim {

// Starts recording if NPUKIT_SIM_TRACE names a file; it is written when the process ends.
void install_trace(std::unordered_set<std::string> not_simulated, std::unordered_map<std::string, Limits> limits);

// Records that the program reached an op which is not simulated; does nothing without a trace.
void trace_not_simulated(const c10::OperatorHandle& op, c10::ArrayRef<const c10::IValue> inputs);

} // namespace npusim
