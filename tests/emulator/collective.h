#pragma once
// Messages between the emulated devices of several processes on one machine.

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

/// Sockets to all other processes of a run, which find each other by the run's id.
class Mesh {
 public:
  /// Collective: all ranks construct it at the same time.
  Mesh(const std::string& id, int rank, int ranks);
  Mesh(const Mesh&) = delete;
  ~Mesh();
  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(peers_.size()); }
  /// Sends and receives all messages concurrently, those of one peer in order. Throws if a peer
  /// sends another size than is received here, does not receive what is sent, or is gone.
  void exchange(const std::vector<Message>& all);

 private:
  struct Frame {
    uint64_t kind, bytes;
  };
  struct Peer {
    int socket = -1;
    std::deque<Message> to_send, to_receive;
    std::string out;     // Bytes still to be written to the socket.
    std::string in;      // Bytes read from the socket and not yet parsed.
    size_t unacked = 0;  // Sent messages that the receiver has not acknowledged.
    bool busy() const {
      return !to_send.empty() || !to_receive.empty() || !out.empty() || unacked > 0;
    }
  };
  int listen_at(const std::string& id) const;
  void connect_to(int peer, const std::string& id);
  void accept_from(int listener);
  void write_out(Peer& p);
  void progress(int peer);
  void parse_in(int peer);

  int rank_;
  double limit_s_;
  std::vector<Peer> peers_;
};

}  // namespace brrr::emulator
