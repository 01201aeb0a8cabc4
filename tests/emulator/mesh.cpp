// Unix sockets in the abstract namespace, which leave no files behind.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "core/check.h"
#include "tests/emulator/collective.h"

namespace brrr::emulator {

namespace {

constexpr uint64_t kData = 1, kAck = 2;
constexpr int kPauseMs = 10;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Address {
  sockaddr_un in{};
  socklen_t bytes;
  Address(const std::string& id, int rank) {
    const std::string name = fmt::format("brrr-{}-{}", id, rank);
    in.sun_family = AF_UNIX;
    name.copy(in.sun_path + 1, sizeof in.sun_path - 1);  // The first byte is 0: abstract.
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&in); }
};

int make_socket() {
  const int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  BRRR_CHECK(s >= 0, "socket: {}", std::strerror(errno));
  return s;
}

}  // namespace

int Mesh::listen_at(const std::string& id) const {
  const int s = make_socket();
  const Address own(id, rank_);
  BRRR_CHECK(bind(s, own.get(), own.bytes) == 0 && listen(s, ranks()) == 0,
             "rank {} has joined already: {}", rank_, std::strerror(errno));
  return s;
}

void Mesh::connect_to(int peer, const std::string& id) {
  const int s = peers_[static_cast<size_t>(peer)].socket = make_socket();
  const Address there(id, peer);
  for (const double begin = now_s(); connect(s, there.get(), there.bytes) != 0;) {
    BRRR_CHECK(now_s() - begin < limit_s_, "rank {} does not join", peer);
    poll(nullptr, 0, kPauseMs);
  }
  BRRR_CHECK(write(s, &rank_, sizeof rank_) == sizeof rank_, "rank {} is gone", peer);
}

void Mesh::accept_from(int listener) {
  pollfd p{listener, POLLIN, 0};
  BRRR_CHECK(poll(&p, 1, static_cast<int>(1e3 * limit_s_)) == 1, "not all ranks join");
  const int s = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  int peer = -1;
  BRRR_CHECK(s >= 0 && read(s, &peer, sizeof peer) == sizeof peer, "a rank that joins is gone");
  peers_[static_cast<size_t>(peer)].socket = s;
}

Mesh::Mesh(const std::string& id, int rank, int ranks)
    : rank_(rank), limit_s_(60), peers_(static_cast<size_t>(ranks)) {
  if (const char* limit = std::getenv("BRRR_DIST_LIMIT")) limit_s_ = std::atof(limit);
  const int listener = listen_at(id);
  for (int peer = 0; peer < rank; ++peer) connect_to(peer, id);
  for (int peer = rank + 1; peer < ranks; ++peer) accept_from(listener);
  close(listener);
  for (const Peer& p : peers_) {
    if (p.socket >= 0) fcntl(p.socket, F_SETFL, O_NONBLOCK);
  }
}

Mesh::~Mesh() {
  for (const Peer& p : peers_) {
    if (p.socket >= 0) close(p.socket);
  }
}

// Handles the frames read from a peer: messages that are awaited, and acknowledgements of ours.
void Mesh::parse_in(int peer) {
  Peer& p = peers_[static_cast<size_t>(peer)];
  for (Frame f; p.in.size() >= sizeof f;) {
    std::memcpy(&f, p.in.data(), sizeof f);
    if (f.kind == kAck) {
      BRRR_CHECK(p.unacked > 0, "rank {} acknowledges a message that was not sent", peer);
      --p.unacked;
      p.in.erase(0, sizeof f);
      continue;
    }
    if (p.to_receive.empty()) return;  // The message belongs to a later group.
    const Message m = p.to_receive.front();
    BRRR_CHECK(f.bytes == m.bytes, "rank {} sends {} bytes, {} are received from it", peer, f.bytes,
               m.bytes);
    if (p.in.size() < sizeof f + f.bytes) return;
    std::memcpy(m.at, p.in.data() + sizeof f, m.bytes);
    p.in.erase(0, sizeof f + f.bytes);
    p.to_receive.pop_front();
    const Frame ack{kAck, 0};
    p.out.append(reinterpret_cast<const char*>(&ack), sizeof ack);
  }
}

void Mesh::write_out(Peer& p) {
  for (; !p.to_send.empty(); p.to_send.pop_front()) {
    const Frame f{kData, p.to_send.front().bytes};
    p.out.append(reinterpret_cast<const char*>(&f), sizeof f);
    p.out.append(p.to_send.front().at, f.bytes);
    ++p.unacked;
  }
  while (!p.out.empty()) {
    const ssize_t n = send(p.socket, p.out.data(), p.out.size(), MSG_NOSIGNAL);
    if (n <= 0) return;
    p.out.erase(0, static_cast<size_t>(n));
  }
}

void Mesh::progress(int peer) {
  Peer& p = peers_[static_cast<size_t>(peer)];
  write_out(p);
  char block[1 << 16];
  ssize_t n = 0;
  while ((n = read(p.socket, block, sizeof block)) > 0) p.in.append(block, static_cast<size_t>(n));
  const bool gone = n == 0 || errno != EAGAIN;
  parse_in(peer);
  BRRR_CHECK(!gone || !p.busy(), "rank {} is gone", peer);
  write_out(p);  // The acknowledgements.
}

void Mesh::exchange(const std::vector<Message>& all) {
  for (const Message& m : all) {
    Peer& p = peers_[static_cast<size_t>(m.peer)];
    (m.sends ? p.to_send : p.to_receive).push_back(m);
  }
  for (const double begin = now_s();;) {
    std::vector<pollfd> waiting;
    std::string late;
    for (int peer = 0; peer < ranks(); ++peer) {
      Peer& p = peers_[static_cast<size_t>(peer)];
      if (p.socket < 0) continue;
      if (p.busy()) progress(peer);
      if (!p.busy()) continue;
      const int events = POLLIN | (p.out.empty() ? 0 : POLLOUT);
      waiting.push_back({p.socket, static_cast<short>(events), 0});
      late += fmt::format("{}{} ({})", late.empty() ? "" : ", ", peer,
                          p.to_receive.empty() ? "has not taken what was sent" : "has not sent");
    }
    if (waiting.empty()) return;
    BRRR_CHECK(now_s() - begin < limit_s_, "waited {} s for rank {}", limit_s_, late);
    poll(waiting.data(), waiting.size(), kPauseMs);
  }
}

}  // namespace brrr::emulator
