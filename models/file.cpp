#include "models/file.h"

#include <utility>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/check.h"

namespace brrr {

namespace fs = std::filesystem;

// --- reading -------------------------------------------------------------------------------------

InputFile::InputFile(const std::string& path) : path_(path) {
  // Not blocking: opening a pipe must not wait for its writer.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  BRRR_CHECK(fd_ >= 0, "cannot open {}: {}", path, std::strerror(errno));
  struct stat info;
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    fail("{} is not a regular file", path);
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

InputFile::~InputFile() {
  ::close(fd_);
}

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

// --- mapping -------------------------------------------------------------------------------------

MappedFile::MappedFile(const std::string& path) : file_(path) {
  if (file_.size() == 0) return;  // Nothing to map, which mmap refuses.
  BRRR_CHECK(file_.size() <= SIZE_MAX, "{} has {} bytes, too many to map", path, file_.size());
  data_ = ::mmap(nullptr, file_.size(), PROT_READ, MAP_SHARED, file_.fd_, 0);
  BRRR_CHECK(data_ != MAP_FAILED, "cannot map {}: {}", path, std::strerror(errno));
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, file_.size());
}

void MappedFile::check() const {
  struct stat info;
  BRRR_CHECK(::fstat(file_.fd_, &info) == 0, "cannot look at {}: {}", path(), std::strerror(errno));
  BRRR_CHECK(static_cast<uint64_t>(info.st_size) >= file_.size(),
             "{} was cut from {} bytes to {} while it was in use", path(), file_.size(),
             info.st_size);
}

// --- replacing -----------------------------------------------------------------------------------

namespace {

// A file under a temporary name, removed unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const fs::path& target) : target_(target) {
    static std::atomic<unsigned> counter{0};
    const std::string name =
        fmt::format(".{}.{}-{}.tmp", target.filename().string(), ::getpid(), counter++);
    path_ = (target.parent_path() / name).string();
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    BRRR_CHECK(fd_ >= 0, "cannot write {}: {}", path_, std::strerror(errno));
  }
  ~TemporaryFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!renamed_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  /// A private file stays private.
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
    if (::close(std::exchange(fd_, -1)) != 0) give_up("cannot close");
    if (std::rename(path_.c_str(), target_.c_str()) != 0) give_up("cannot rename");
    renamed_ = true;
    sync_directory();
  }

 private:
  [[noreturn]] void give_up(const char* what) const {
    fail("{} {}: {}; the file that was there before is unchanged", what, target_.string(),
         std::strerror(errno));
  }

  // Makes the rename itself durable. Some file systems cannot sync a directory; the file is whole
  // either way.
  void sync_directory() const {
    const fs::path parent = target_.parent_path();
    const int dir =
        ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) return;
    ::fsync(dir);
    ::close(dir);
  }

  fs::path target_;
  std::string path_;
  int fd_ = -1;
  bool renamed_ = false;
};

}  // namespace

void replace_file(const std::string& path, const std::vector<Bytes>& parts) {
  std::error_code none;
  // A link stays a link: what it points to is replaced.
  fs::path target = path;
  if (fs::is_symlink(target, none)) {
    const fs::path real = fs::canonical(target, none);
    if (!none) target = real;
  }
  BRRR_CHECK(target.has_filename(), "cannot write \"{}\": it names no file", path);
  const fs::file_status there = fs::status(target, none);
  BRRR_CHECK(!fs::exists(there) || fs::is_regular_file(there),
             "cannot write {}: it is not a regular file, and would be replaced by one", path);
  TemporaryFile file(target);
  if (fs::exists(there)) file.keep_mode(there.permissions());
  for (const Bytes& part : parts) file.write(part);
  file.commit();
}

}  // namespace brrr
