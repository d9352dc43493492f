// --trace-ops: which ops ran, how often, with what, from where.
#pragma once

namespace npusim {

// Starts recording if NPUKIT_SIM_TRACE names a file; it is written when the process ends.
void install_trace();

} // namespace npusim
