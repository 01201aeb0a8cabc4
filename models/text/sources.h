#pragma once
// Which folders' sources load_sources() takes.

#include <filesystem>

namespace brrr::data {

/// Whether the sources in a directory are not among those of one above.
bool is_left_out(const std::filesystem::path& directory);

}  // namespace brrr::data
