#include "backends/kernel_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <optional>
#include <vector>

#include "backends/sha256.h"
#include "core/check.h"

namespace brrr::jit {

namespace {

namespace fs = std::filesystem;

constexpr char scratch_prefix[] = "build.";
constexpr size_t key_length = 32;
constexpr mode_t writable_by_others = S_IWGRP | S_IWOTH;

// Stands behind the shared object, where the loader does not look.
struct Footer {
  char magic[8];
  uint64_t length;
  Sha256::Digest digest;
};
static_assert(sizeof(Footer) == 48);
constexpr char footer_magic[9] = "brrrjit1";

Footer make_footer(const std::string& key, const char* object, size_t size) {
  Footer footer{};
  std::memcpy(footer.magic, footer_magic, sizeof footer.magic);
  footer.length = size;
  footer.digest = Sha256().field(key).bytes(object, size).finish();
  return footer;
}

struct File {
  int fd;
  explicit File(int f) : fd(f) {}
  ~File() {
    if (fd >= 0) close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
};

bool read_all(int fd, std::string& data) {
  for (size_t at = 0; at < data.size();) {
    const ssize_t n = read(fd, data.data() + at, data.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += static_cast<size_t>(n);
  }
  return true;
}

std::string env_or_empty(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string wanted_dir() {
  const std::string own = env_or_empty("BRRR_CACHE_DIR");
  if (!own.empty()) {
    std::error_code error;
    const fs::path path = fs::absolute(own, error);
    return error ? own : path.string();
  }
  // The XDG specification has relative paths ignored.
  const std::string xdg = env_or_empty("XDG_CACHE_HOME"), home = env_or_empty("HOME");
  if (xdg.starts_with('/')) return xdg + "/brrr";
  if (home.starts_with('/')) return home + "/.cache/brrr";
  return fmt::format("/tmp/brrr-{}", geteuid());
}

// Makes the directory if need be. Returns why it cannot be used; empty if it can.
std::string refusal(const std::string& dir) {
  struct stat info;
  if (lstat(dir.c_str(), &info) != 0) {
    std::error_code ignored;
    fs::create_directories(fs::path(dir).parent_path(), ignored);
    if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) return std::strerror(errno);
    if (lstat(dir.c_str(), &info) != 0) return std::strerror(errno);
  }
  if (S_ISLNK(info.st_mode)) {
    if (info.st_uid != geteuid()) return "it is a symbolic link that belongs to somebody else";
    if (stat(dir.c_str(), &info) != 0) return std::strerror(errno);
  }
  if (!S_ISDIR(info.st_mode)) return "it is not a directory";
  if (info.st_uid != geteuid()) return "it belongs to somebody else";
  if (info.st_mode & writable_by_others) return "others can write to it (mend: chmod go-w)";
  if (access(dir.c_str(), R_OK | W_OK | X_OK) != 0) return std::strerror(errno);
  return "";
}

// What mkdtemp made; a fork of this process must not remove it.
struct PrivateDir {
  std::string path;
  pid_t owner = 0;
  std::mutex mutex;
  ~PrivateDir() {
    std::error_code ignored;
    if (!path.empty() && owner == getpid()) fs::remove_all(path, ignored);
  }
};

std::string private_dir(const std::string& refused, const std::string& why) {
  static PrivateDir dir;
  const std::lock_guard lock(dir.mutex);
  if (!dir.path.empty() && dir.owner == getpid() && access(dir.path.c_str(), W_OK) == 0) {
    return dir.path;
  }
  const std::string temp = env_or_empty("TMPDIR");
  std::string path = (temp.starts_with('/') ? temp : "/tmp") + "/brrr-XXXXXX";
  BRRR_CHECK(mkdtemp(path.data()),
             "kernel cache: {}: {}, and {} cannot be made: {}; "
             "set BRRR_CACHE_DIR",
             refused, why, path, std::strerror(errno));
  fmt::print(stderr, "brrr: kernel cache {} is not used: {}; kernels of this process go to {}\n",
             refused, why, path);
  dir.path = path;
  dir.owner = getpid();
  return path;
}

bool is_key(const std::string& name) {
  return name.size() == key_length &&
         name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

std::string kernel_cache_dir() {
  const std::string dir = wanted_dir();
  const std::string why = refusal(dir);
  return why.empty() ? dir : private_dir(dir, why);
}

std::optional<std::string> read_kernel(const std::string& dir, const std::string& key) {
  const std::string path = dir + "/" + key + ".so";
  const File file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (file.fd < 0 || fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  if (info.st_uid != geteuid() || (info.st_mode & writable_by_others)) return std::nullopt;
  if (info.st_size <= static_cast<off_t>(sizeof(Footer))) return std::nullopt;
  std::string data(static_cast<size_t>(info.st_size), '\0');
  if (!read_all(file.fd, data)) return std::nullopt;
  const size_t size = data.size() - sizeof(Footer);
  Footer footer;
  std::memcpy(&footer, data.data() + size, sizeof footer);
  if (footer.length != size) return std::nullopt;  // the cheap test first
  const Footer expected = make_footer(key, data.data(), size);
  if (std::memcmp(&footer, &expected, sizeof footer) != 0) return std::nullopt;
  futimens(file.fd, nullptr);
  data.resize(size);
  return data;
}

bool kernel_is_cached(const std::string& dir, const std::string& key) {
  return read_kernel(dir, key).has_value();
}

void publish_kernel(const std::string& dir, const std::string& key, const std::string& object) {
  const std::string path = dir + "/" + key + ".so";
  const File file(open(object.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  struct stat info;
  bool done = file.fd >= 0 && fstat(file.fd, &info) == 0;
  if (done) {
    std::string data(static_cast<size_t>(info.st_size), '\0');
    done = read_all(file.fd, data);
    const Footer footer = make_footer(key, data.data(), data.size());
    // The linker's file has the mode that the user's umask gave it, which may be too wide.
    done = done && write(file.fd, &footer, sizeof footer) == ssize_t{sizeof footer} &&
           fchmod(file.fd, 0700) == 0 && rename(object.c_str(), path.c_str()) == 0;
  }
  BRRR_CHECK(done, "kernel cache: {} cannot be written: {}; set BRRR_CACHE_DIR to another place",
             path, std::strerror(errno));
}

void publish_kernel_code(const std::string& dir, const std::string& key, const std::string& code) {
  const ScratchDir scratch(dir);
  const std::string object = scratch.path() + "/kernel";
  {
    const File file(open(object.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    const bool done = file.fd >= 0 &&
                      write(file.fd, code.data(), code.size()) == static_cast<ssize_t>(code.size());
    BRRR_CHECK(done, "kernel cache: {} cannot be written: {}; set BRRR_CACHE_DIR to another place",
               object, std::strerror(errno));
  }
  publish_kernel(dir, key, object);
  trim_kernel_cache(dir);
}

void trim_kernel_cache(const std::string& dir, size_t most_files, uint64_t most_bytes) {
  struct Entry {
    timespec used;
    uint64_t size;
    std::string name;
  };
  std::vector<Entry> entries;
  std::vector<std::string> left_behind;
  uint64_t bytes = 0;
  DIR* listing = opendir(dir.c_str());
  if (!listing) return;
  while (const dirent* d = readdir(listing)) {
    const std::string name = d->d_name;
    const bool scratch = name.starts_with(scratch_prefix);
    const bool kernel =
        is_key(name.substr(0, name.find('.'))) && (name.ends_with(".so") || name.ends_with(".cpp"));
    struct stat info;
    if (!scratch && !kernel) continue;
    if (fstatat(dirfd(listing), d->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    // No build runs for an hour.
    if (scratch && S_ISDIR(info.st_mode) && info.st_mtime + 3600 < time(nullptr)) {
      left_behind.push_back(name);
    } else if (kernel && S_ISREG(info.st_mode)) {
      entries.push_back({info.st_mtim, static_cast<uint64_t>(info.st_size), name});
      bytes += entries.back().size;
    }
  }
  closedir(listing);
  std::error_code ignored;
  for (const std::string& name : left_behind) fs::remove_all(dir + "/" + name, ignored);
  if (entries.size() <= most_files && bytes <= most_bytes) return;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    if (a.used.tv_sec != b.used.tv_sec) return a.used.tv_sec < b.used.tv_sec;
    return a.used.tv_nsec < b.used.tv_nsec;
  });
  size_t files = entries.size();
  for (const Entry& entry : entries) {
    if (files <= most_files && bytes <= most_bytes) break;
    unlink((dir + "/" + entry.name).c_str());
    --files;
    bytes -= entry.size;
  }
}

ScratchDir::ScratchDir(const std::string& parent) : path_(parent + "/" + scratch_prefix) {
  path_ += "XXXXXX";
  BRRR_CHECK(mkdtemp(path_.data()), "kernel cache: {} cannot be made: {}; set BRRR_CACHE_DIR",
             path_, std::strerror(errno));
}

ScratchDir::~ScratchDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace brrr::jit
