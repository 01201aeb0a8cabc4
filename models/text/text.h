#pragma once
// Text files, as the tokenizers take them.

#include <string>
#include <vector>

namespace brrr::data {

/// A file's bytes. Throws if it is missing, no regular file or empty.
std::string load_bytes(const std::string& path);
/// The same for a text: throws at a NUL byte, which no text has, but binary files and UTF-16 do.
std::string load_text(const std::string& path);

extern const std::vector<std::string> kSourceExtensions;  ///< .h, .cpp, .md

/// The sources below a directory, as they are called from there on, ordered by path. Hidden
/// directories, build* and out, directories with a CMakeCache.txt, and links are left out.
std::vector<std::string> source_files(
    const std::string& directory, const std::vector<std::string>& extensions = kSourceExtensions);
/// Those files one after the other, each as load_text() or load_bytes() gives it: the same text on
/// every machine. Throws if nothing is found.
std::string load_sources(const std::string& directory,
                         const std::vector<std::string>& extensions = kSourceExtensions,
                         std::string (*load)(const std::string& path) = load_text);
/// Whether the sources in a directory are not among those of one above.
bool is_left_out(const std::string& directory);

}  // namespace brrr::data
