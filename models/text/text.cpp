#include "models/text/text.h"

#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "models/file.h"

namespace brrr::data {

namespace fs = std::filesystem;

std::string load_bytes(const std::string& path) {
  const InputFile file(path);
  BRRR_CHECK(file.size() > 0, "{} is empty", path);
  return file.read(0, file.size());
}

std::string load_text(const std::string& path) {
  std::string text = load_bytes(path);
  const size_t nul = text.find('\0');
  BRRR_CHECK(nul == text.npos,
             "{} has a NUL byte at offset {}: it is binary or UTF-16, not a text in UTF-8; convert "
             "it, or read it as bytes (--tokenizer byte)",
             path, nul);
  return text;
}

const std::vector<std::string> kSourceExtensions = {".h", ".cpp", ".md"};

bool is_skipped_directory(const std::string& directory) {
  const fs::path path = directory;
  const std::string name = path.filename().string();
  std::error_code none;
  return name.starts_with('.') || name.starts_with("build") || name == "out" ||
         fs::exists(path / "CMakeCache.txt", none);
}

std::vector<std::string> source_files(const std::string& directory,
                                      const std::vector<std::string>& extensions) {
  std::error_code none;
  BRRR_CHECK(fs::is_directory(directory, none), "load_sources: {} is not a directory", directory);
  std::vector<std::string> found;
  try {
    for (auto it = fs::recursive_directory_iterator(directory); it != fs::end(it); ++it) {
      if (it->is_symlink()) {
        it.disable_recursion_pending();
      } else if (it->is_directory()) {
        if (is_skipped_directory(it->path())) it.disable_recursion_pending();
      } else if (it->is_regular_file() &&
                 std::count(extensions.begin(), extensions.end(), it->path().extension())) {
        found.push_back(it->path().lexically_relative(directory).generic_string());
      }
    }
  } catch (const fs::filesystem_error& e) {
    fail("load_sources: {}: {}", directory, e.what());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string load_sources(const std::string& directory, const std::vector<std::string>& extensions,
                         std::string (*load)(const std::string& path)) {
  std::error_code none;
  std::string text;
  for (const std::string& name : source_files(directory, extensions)) {
    const fs::path path = fs::path(directory) / name;
    if (fs::file_size(path, none) == 0) continue;
    text += load(path.string());
    if (text.back() != '\n') text += '\n';
  }
  BRRR_CHECK(!text.empty(), "load_sources: no file with one of the endings wanted in {}",
             directory);
  return text;
}

}  // namespace brrr::data
