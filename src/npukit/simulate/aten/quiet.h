// Keeps lines of torch and torch_npu that are of no use to anybody from stderr.
#pragma once

#include <string>
#include <vector>

namespace npusim {

// From now on what C++ code writes to std::cerr is dropped where it contains one of these.
void keep_from_stderr(std::vector<std::string> noise);

} // namespace npusim
