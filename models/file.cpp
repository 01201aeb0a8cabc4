#include "models/file.h"

#include <utility>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <regex>

#include "core/check.h"

namespace brrr {

namespace fs = std::filesystem;

// --- reading -------------------------------------------------------------------------------------

InputFile::InputFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  BRRR_CHECK(fd_ >= 0, "cannot open {}: {}", path, std::strerror(errno));
  struct stat info;
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    fail("{} is not a regular file", path);
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

InputFile::~InputFile() { ::close(fd_); }

void InputFile::read(void* to, uint64_t offset, uint64_t bytes) const {
  auto* p = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n =
        ::pread(fd_, p, std::min<uint64_t>(bytes, 1 << 30), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    BRRR_CHECK(n >= 0, "cannot read {}: {}", path_, std::strerror(errno));
    BRRR_CHECK(n > 0, "{} ends at byte {}, {} more were expected", path_, offset, bytes);
    p += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
}

std::string InputFile::read(uint64_t offset, uint64_t bytes) const {
  std::string text;
  try {
    text.resize(bytes);
  } catch (const std::bad_alloc&) {
    fail("cannot read {}: out of memory for {} bytes of it", path_, bytes);
  }
  read(text.data(), offset, bytes);
  return text;
}

MappedFile::MappedFile(const std::string& path) : InputFile(path) {
  if (size_ == 0) return;  // mmap rejects a length of 0.
  data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd_, 0);
  BRRR_CHECK(data_ != MAP_FAILED, "cannot map {}: {}", path, std::strerror(errno));
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

void MappedFile::check() const {
  struct stat info;
  BRRR_CHECK(::fstat(fd_, &info) == 0, "cannot stat {}: {}", path_, std::strerror(errno));
  BRRR_CHECK(static_cast<uint64_t>(info.st_size) >= size_,
             "{} was cut from {} bytes to {} while it was in use", path_, size_, info.st_size);
}

// --- replacing -----------------------------------------------------------------------------------

namespace {

// A file with a temporary name, removed by the destructor unless commit() has renamed it.
class TemporaryFile : NotCopied {
 public:
  explicit TemporaryFile(const fs::path& target)
      : target_(target), folder_(target.has_parent_path() ? target.parent_path() : ".") {
    remove_stale();
    while (!create()) {}
  }
  ~TemporaryFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!renamed_) ::unlink(path_.c_str());
  }

  /// Sets the target's permissions, so that a private file stays private.
  void keep_mode(fs::perms mode) {
    if (::fchmod(fd_, static_cast<mode_t>(mode) & 07777) != 0) give_up("cannot set the mode of");
  }

  void write(Bytes part) {
    const auto* p = static_cast<const char*>(part.data);
    for (size_t left = part.size; left > 0;) {
      const ssize_t n = ::write(fd_, p, std::min<size_t>(left, 1 << 30));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) give_up("cannot write");
      p += n;
      left -= static_cast<size_t>(n);
    }
  }

  void commit() {
    if (::fsync(fd_) != 0) give_up("cannot sync");
    if (std::rename(path_.c_str(), target_.c_str()) != 0) give_up("cannot rename");
    renamed_ = true;
    ::close(std::exchange(fd_, -1));  // After the rename, because this releases the lock.
    // Makes the rename durable. Some file systems cannot sync a directory; the file is complete
    // either way.
    const int directory = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return;
    ::fsync(directory);
    ::close(directory);
  }

 private:
  // The lock, which ends with the process, distinguishes a file in use from one whose writer was
  // killed. False if another process removed the new file as stale before it was locked.
  bool create() {
    static std::atomic<unsigned> counter{0};
    const std::string name = fmt::format("{}{}-{}.tmp", prefix(), ::getpid(), counter++);
    path_ = (target_.parent_path() / name).string();
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    // If the name exists, it belongs to a killed process with the same pid.
    if (fd_ < 0 && errno == EEXIST) return false;
    BRRR_CHECK(fd_ >= 0, "cannot write {}: {}", target_.string(), std::strerror(errno));
    struct stat info;
    const bool locked = ::flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    if (locked && ::fstat(fd_, &info) == 0 && info.st_nlink > 0) return true;
    ::close(std::exchange(fd_, -1));
    return false;
  }

  // Removes what killed processes have left beside the target. Ignores errors.
  void remove_stale() const {
    static const auto& ending = *new std::regex("[0-9]+-[0-9]+\\.tmp");
    const std::string own = prefix();
    std::error_code none;
    for (fs::directory_iterator it(folder_, none), end; !none && it != end; it.increment(none)) {
      const std::string name = it->path().filename().string();
      if (!name.starts_with(own) || !std::regex_match(name.substr(own.size()), ending)) continue;
      const int fd = ::open(it->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
      if (fd < 0) continue;
      if (::flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlink(it->path().c_str());
      ::close(fd);
    }
  }

  // File names are limited to 255 bytes: truncates a long one to 200, at a character boundary.
  std::string prefix() const {
    const std::string name = target_.filename().string();
    size_t n = std::min<size_t>(name.size(), 200);
    while (n > 0 && n < name.size() && (name[n] & 0xc0) == 0x80) --n;
    return "." + name.substr(0, n) + ".";
  }

  [[noreturn]] void give_up(const char* what) const {
    fail("{} {}: {}; the file that was there before is unchanged", what, target_.string(),
         std::strerror(errno));
  }

  fs::path target_, folder_;
  std::string path_;
  int fd_ = -1;
  bool renamed_ = false;
};

}  // namespace

fs::path resolve_links(fs::path path) {
  constexpr int most_links = 40;  // Linux's own limit.
  std::error_code none;
  for (int links = 0; links < most_links && fs::is_symlink(path, none); ++links) {
    path = path.parent_path() / fs::read_symlink(path, none);
  }
  return path;
}

// A symbolic link is kept: its target, which may not exist yet, is replaced.
static fs::path target_of(const std::string& path) {
  std::error_code none;
  fs::path target = path;
  BRRR_CHECK(target.has_filename(), "cannot write \"{}\": it names no file", path);
  const fs::file_status there = fs::status(target, none);
  BRRR_CHECK(none != std::errc::filename_too_long, "cannot write {}: {}", path, none.message());
  BRRR_CHECK(!fs::exists(there) || fs::is_regular_file(there),
             "cannot write {}: it is not a regular file, and would be replaced by one", path);
  // A rename needs write permission for the directory only: check the file's explicitly.
  BRRR_CHECK(!fs::exists(there) || ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0,
             "cannot write {}: {}; it is protected, and would be replaced", path,
             std::strerror(errno));
  target = resolve_links(target);
  BRRR_CHECK(!fs::is_symlink(target, none), "cannot write {}: its links lead to no file", path);
  return target;
}

void check_replaceable(const std::string& path) { const TemporaryFile tried(target_of(path)); }

void replace_file(const std::string& path, const std::vector<Bytes>& parts) {
  const fs::path target = target_of(path);
  TemporaryFile file(target);
  if (std::error_code none; fs::exists(target, none)) {
    file.keep_mode(fs::status(target, none).permissions());
  }
  for (const Bytes& part : parts) file.write(part);
  file.commit();
}

}  // namespace brrr
