#pragma once
// Reads text files for the tokenizers.

#include <string>
#include <vector>

namespace brrr::data {

/// A file's bytes. Throws if it is missing, not a regular file or empty.
std::string load_bytes(const std::string& path);
/// The same for a text: also throws at a NUL byte, which indicates a binary file or UTF-16.
std::string load_text(const std::string& path);

extern const std::vector<std::string> kSourceExtensions;  ///< .h, .cpp, .md

/// The source files below a directory, by their paths relative to it, sorted. Skips hidden
/// directories, build*, out, directories with a CMakeCache.txt, and symbolic links.
std::vector<std::string> source_files(
    const std::string& directory, const std::vector<std::string>& extensions = kSourceExtensions);
/// These files concatenated, each read by load_text() or load_bytes(): the same text on every
/// machine. Throws if the result is empty.
std::string load_sources(const std::string& directory,
                         const std::vector<std::string>& extensions = kSourceExtensions,
                         std::string (*load)(const std::string& path) = load_text);
/// Whether source_files() of a parent directory skips this directory.
bool is_skipped_directory(const std::string& directory);

}  // namespace brrr::data
