// --trace-ops: which ops ran on the device, how often, with which shapes and types, and from which line.
#pragma once

#include "limits.h"

#include <string>
#include <unordered_map>
#include <unordered_set>

namespace npusim {

// Starts recording if NPUKIT_SIM_TRACE names a file; it is written when the process ends.
void install_trace(std::unordered_set<std::string> not_simulated, std::unordered_map<std::string, Limits> limits);

} // namespace npusim
