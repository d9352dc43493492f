#include "quiet.h"

#include <algorithm>
#include <iostream>
#include <streambuf>
#include <string_view>

namespace npusim {
namespace {

// torch's logger writes a whole message at once.
class WithoutNoise final : public std::streambuf {
public:
    WithoutNoise(std::streambuf* out, std::vector<std::string> noise) : out_(out), noise_(std::move(noise)) {}

protected:
    std::streamsize xsputn(const char* text, std::streamsize size) override {
        const std::string_view message(text, static_cast<size_t>(size));
        const auto within = [&](const std::string& part) { return message.find(part) != message.npos; };
        return std::any_of(noise_.begin(), noise_.end(), within) ? size : out_->sputn(text, size);
    }
    int overflow(int character) override {
        return character == traits_type::eof() ? out_->pubsync() : out_->sputc(static_cast<char>(character));
    }
    int sync() override {
        return out_->pubsync();
    }

private:
    std::streambuf* out_;
    std::vector<std::string> noise_;
};

} // namespace

void keep_from_stderr(std::vector<std::string> noise) {
    // Never freed: destructors of others may still write.
    std::cerr.rdbuf(new WithoutNoise(std::cerr.rdbuf(), std::move(noise)));
}

} // namespace npusim
