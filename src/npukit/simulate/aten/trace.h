// --trace-ops: which ops ran on the device, how often, with which shapes and types, and from which line.
#pragma once

#include <string>
#include <unordered_set>

namespace npusim {

// Starts recording if NPUKIT_SIM_TRACE names a file; it is written when the process ends.
void install_trace(std::unordered_set<std::string> not_simulated);

} // namespace npusim
