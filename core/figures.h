#pragma once
// Figures measured on this machine, kept on disk with the kernels for every later process.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace brrr {

/// Those kept under what `of` says they are of (the measure, the machine, the build), or what
/// `measure` finds: it sets its argument to false for what is not worth keeping. With `anew`
/// measured again. One thread measures at a time. Defined with the cache of kernels.
std::vector<double> kept_figures(const std::vector<std::string_view>& of, bool anew,
                                 const std::function<std::vector<double>(bool& keep)>& measure);

/// Of the file that this library is in: another after every build.
std::string build_stamp();

}  // namespace brrr
