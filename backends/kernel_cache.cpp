#include "backends/kernel_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "core/check.h"

namespace brrr::jit {

namespace {

namespace fs = std::filesystem;

constexpr char scratch_prefix[] = "build.", private_prefix[] = "brrr-process-kernels-";
constexpr size_t key_length = 32;
constexpr mode_t writable_by_others = S_IWGRP | S_IWOTH;

std::string configured_dir() {
  const std::string own = env_or_empty("BRRR_CACHE_DIR");
  if (!own.empty()) {
    std::error_code error;
    std::string path = fs::absolute(own, error).string();
    while (path.size() > 1 && path.ends_with('/')) path.pop_back();  // lstat("x/") follows a link.
    return error ? own : path;
  }
  // The XDG specification says to ignore relative paths.
  const std::string xdg = env_or_empty("XDG_CACHE_HOME"), home = env_or_empty("HOME");
  if (xdg.starts_with('/')) return xdg + "/brrr";
  if (home.starts_with('/')) return home + "/.cache/brrr";
  return fmt::format("/tmp/brrr-{}", geteuid());
}

// Creates the directory if it does not exist. Returns why it cannot be used; empty if it can.
std::string refusal(const std::string& dir) {
  struct stat info;
  if (lstat(dir.c_str(), &info) != 0) {
    std::error_code ignored;
    fs::create_directories(fs::path(dir).parent_path(), ignored);
    if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) return std::strerror(errno);
    if (lstat(dir.c_str(), &info) != 0) return std::strerror(errno);
  }
  if (S_ISLNK(info.st_mode)) {
    if (info.st_uid != geteuid()) return "it is a symbolic link that belongs to another user";
    if (stat(dir.c_str(), &info) != 0) return std::strerror(errno);
  }
  if (!S_ISDIR(info.st_mode)) return "it is not a directory";
  if (info.st_uid != geteuid()) return "it belongs to another user";
  if (info.st_mode & writable_by_others) return "others can write to it (fix: chmod go-w)";
  if (access(dir.c_str(), R_OK | W_OK | X_OK) != 0) return std::strerror(errno);
  return "";
}

// A directory made by mkdtemp; a forked child must not remove it.
struct PrivateDir {
  std::string& path = *new std::string;  // Leaked: threads may read it during process exit.
  pid_t owner = 0;
  std::mutex mutex;
  ~PrivateDir() {
    std::error_code ignored;
    if (!path.empty() && owner == getpid()) fs::remove_all(path, ignored);
  }
};

// Removes private directories of killed processes, whose locks ended with them. Skips directories
// younger than a minute: their owner may not hold the lock yet.
void remove_stale_dirs(const std::string& temp) {
  const auto old = std::time(nullptr) - 60;
  std::error_code error, ignored;
  for (fs::directory_iterator it(temp, error), end; !error && it != end; it.increment(error)) {
    struct stat info;
    const fs::path& path = it->path();
    const std::string name = path.filename();  // The prefix and mkdtemp's six characters.
    if (!name.starts_with(private_prefix) || name.size() != sizeof private_prefix + 5) continue;
    if (lstat(path.c_str(), &info) != 0 || info.st_uid != geteuid() || info.st_mtime > old)
      continue;
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) fs::remove_all(path, ignored);
    if (fd >= 0) close(fd);
  }
}

std::string private_dir(const std::string& refused, const std::string& why) {
  static PrivateDir dir;
  const std::lock_guard lock(dir.mutex);
  if (!dir.path.empty() && dir.owner == getpid() && access(dir.path.c_str(), W_OK) == 0) {
    return dir.path;
  }
  std::string temp = env_or_empty("TMPDIR");
  if (!temp.starts_with('/')) temp = "/tmp";
  remove_stale_dirs(temp);
  std::string path = fmt::format("{}/{}XXXXXX", temp, private_prefix);
  BRRR_CHECK(mkdtemp(path.data()),
             "kernel cache: {}: {}, and {} cannot be made: {}; set BRRR_CACHE_DIR", refused, why,
             path, std::strerror(errno));
  std::fprintf(stderr, "brrr: kernel cache %s is not used: %s; kernels of this process go to %s\n",
               refused.c_str(), why.c_str(), path.c_str());
  const int held = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // Until exit.
  if (held >= 0) flock(held, LOCK_EX | LOCK_NB);
  dir.path = path;
  dir.owner = getpid();
  return path;
}

bool is_kernel(const fs::path& path) {
  const std::string key = path.stem(), kind = path.extension();
  return key.size() == key_length &&
         key.find_first_not_of("0123456789abcdef") == std::string::npos &&
         (kind == ".so" || kind == ".cpp");
}

}  // namespace

// 128-bit FNV-1a (Fowler, Noll and Vo).
std::string fingerprint(const std::vector<std::string_view>& fields) {
  using Bits = unsigned __int128;
  constexpr Bits prime = Bits{1} << 88 | 0x13b;
  Bits bits = Bits{0x6c62272e07bb0142} << 64 | 0x62b821756295c58d;
  auto add = [&](std::string_view text) {
    for (const unsigned char c : text) bits = (bits ^ c) * prime;
  };
  for (const std::string_view field : fields) {
    add(fmt::format("{} ", field.size()));  // so that ("ab", "c") and ("a", "bc") differ
    add(field);
  }
  return fmt::format("{:016x}{:016x}", static_cast<uint64_t>(bits >> 64),
                     static_cast<uint64_t>(bits));
}

std::string kernel_cache_dir() {
  const std::string dir = configured_dir();
  const std::string why = refusal(dir);
  return why.empty() ? dir : private_dir(dir, why);
}

std::string kernel_path(const std::string& dir, const std::string& key) {
  return dir + "/" + key + ".so";
}

std::optional<std::string> read_kernel(const std::string& dir, const std::string& key) {
  const std::string path = kernel_path(dir, key);
  struct stat info;
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  if (info.st_uid != geteuid() || (info.st_mode & writable_by_others)) return std::nullopt;
  if (static_cast<uint64_t>(info.st_size) > most_kernel_bytes) return std::nullopt;
  std::string code(static_cast<size_t>(info.st_size), '\0');
  std::ifstream in(path, std::ios::binary);
  if (code.size() < key_length || !in.read(code.data(), info.st_size)) return std::nullopt;
  const std::string checksum = code.substr(code.size() - key_length);
  code.resize(code.size() - key_length);
  if (checksum != fingerprint({key, code})) return std::nullopt;
  std::error_code ignored;
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
  return code;
}

// The checksum follows the end of the shared object, where the loader does not look.
void publish_kernel(const std::string& dir, const std::string& key, const std::string& code) {
  const ScratchDir scratch(dir);
  const std::string written = scratch.path() + "/kernel", path = kernel_path(dir, key);
  std::ofstream out(written, std::ios::binary);
  out << code << fingerprint({key, code});
  out.close();
  // The user's umask may have made the file writable by others.
  const bool done =
      out && chmod(written.c_str(), 0700) == 0 && rename(written.c_str(), path.c_str()) == 0;
  BRRR_CHECK(done, "kernel cache: {} cannot be written: {}; set BRRR_CACHE_DIR to another place",
             path, std::strerror(errno));
  // Scanning thousands of files takes 10 to 20 ms.
  constexpr unsigned trim_interval = 64;
  static std::atomic<unsigned> published{0};
  if (published++ % trim_interval == 0) trim_kernel_cache(dir);
}

void try_to_publish(const std::string& dir, const std::string& key, const std::string& code) try {
  publish_kernel(dir, key, code);
} catch (const Error& e) {
  static std::once_flag reported;
  std::call_once(reported, [&] { std::fprintf(stderr, "brrr: %s\n", e.what()); });
}

// An open-file-description lock, not a process lock, so that threads exclude each other, too.
bool BuildLock::lock(short kind) const {
  struct flock byte = {};
  byte.l_type = kind;
  byte.l_whence = SEEK_SET;
  byte.l_start = at_;
  byte.l_len = 1;
  return fcntl(file_, F_OFD_SETLK, &byte) == 0;
}

BuildLock::BuildLock(const std::string& dir, const std::string& key)
    : file_(open((dir + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)),
      at_(static_cast<int64_t>(std::stoull(key.substr(0, 15), nullptr, 16))) {
  constexpr int polls = 4000;  // Bounded: the holder may be suspended, or on another machine.
  int i = 0;
  for (; i < polls && !lock(F_WRLCK) && (errno == EAGAIN || errno == EACCES); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (i > 0) lock(F_UNLCK);  // If that build failed, the other waiters should not queue behind us.
}

// Closing alone does not unlock while a child forked meanwhile holds the description.
BuildLock::~BuildLock() {
  if (file_ < 0) return;
  lock(F_UNLCK);
  close(file_);
}

void trim_kernel_cache(const std::string& dir, size_t most_files, uint64_t most_bytes) {
  struct Kernel {
    std::pair<int64_t, int64_t> used;  // Seconds, nanoseconds.
    uint64_t size;
    std::string name;
  };
  std::vector<Kernel> kernels;
  uint64_t bytes = 0;
  // No build takes an hour.
  const auto old = std::time(nullptr) - 3600;
  std::error_code error;
  for (fs::directory_iterator file(dir, error), end; !error && file != end; file.increment(error)) {
    struct stat info;
    if (lstat(file->path().c_str(), &info) != 0) continue;
    const std::string name = file->path().filename();
    if (name.starts_with(scratch_prefix) && S_ISDIR(info.st_mode) && info.st_mtime < old) {
      std::error_code ignored;
      fs::remove_all(file->path(), ignored);
    } else if (is_kernel(file->path()) && S_ISREG(info.st_mode)) {
      const timespec& used = info.st_mtim;
      kernels.push_back({{used.tv_sec, used.tv_nsec}, static_cast<uint64_t>(info.st_size), name});
      bytes += kernels.back().size;
    }
  }
  size_t files = kernels.size();
  if (files <= most_files && bytes <= most_bytes) return;
  std::ranges::sort(kernels, {}, &Kernel::used);
  for (const Kernel& kernel : kernels) {
    if (files <= most_files && bytes <= most_bytes) break;
    unlink((dir + "/" + kernel.name).c_str());
    --files;
    bytes -= kernel.size;
  }
}

ScratchDir::ScratchDir(const std::string& parent) : path_(parent + "/" + scratch_prefix) {
  path_ += "XXXXXX";
  // The message omits the random name, so that repeated failures give the same text.
  BRRR_CHECK(mkdtemp(path_.data()),
             "kernel cache: no folder can be made in {}: {}; set BRRR_CACHE_DIR to another place",
             parent, std::strerror(errno));
}

ScratchDir::~ScratchDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace brrr::jit
