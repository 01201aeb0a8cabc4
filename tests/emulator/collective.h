#pragma once
// Bytes between the emulated devices of several processes on one machine.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace brrr::emulator {

/// One message of a group.
struct Message {
  char* at;
  size_t bytes;
  int peer;
  bool sends;
};

/// Sockets to all other processes of a run, which find each other by its id.
class Mesh {
 public:
  /// All ranks do this at the same time.
  Mesh(const std::string& id, int rank, int ranks);
  Mesh(const Mesh&) = delete;
  ~Mesh();
  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(peers_.size()); }
  /// All messages come and go side by side, those of one peer in their order. Throws if a peer
  /// sends another size than is received, does not take what is sent, or is gone.
  void exchange(const std::vector<Message>& all);

 private:
  struct Frame {
    uint64_t kind, bytes;
  };
  struct Peer {
    int socket = -1;
    std::deque<Message> to_send, to_receive;
    std::string out;        // What is to be written.
    std::string in;         // What was read and not looked at.
    size_t unanswered = 0;  // Messages whose receiver has not said that it has them.
    bool busy() const {
      return !to_send.empty() || !to_receive.empty() || !out.empty() || unanswered > 0;
    }
  };
  int listen_at(const std::string& id) const;
  void connect_to(int peer, const std::string& id);
  void accept_from(int listener);
  void put(Peer& p);
  void move(int peer);
  void take(int peer);

  int rank_;
  double limit_s_;
  std::vector<Peer> peers_;
};

}  // namespace brrr::emulator
