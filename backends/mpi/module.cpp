// The module brrr_mpi, the only code that needs MPI: messages between ranks, each a list of pieces.
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/transport.h"

namespace {

using brrr::Piece;

std::string failure;

// One MPI message per piece: a derived datatype of many pieces would be packed and unpacked, while
// single pieces are copied once or received from the network in place.
struct Request {
  std::vector<MPI_Request> mpi;
  std::vector<MPI_Status> status;
  std::vector<int> expected;  // Bytes of a receive.
};

bool check(int code) {
  if (code == MPI_SUCCESS) return true;
  char text[MPI_MAX_ERROR_STRING];
  int n = 0;
  MPI_Error_string(code, text, &n);
  failure.assign(text, static_cast<size_t>(n));
  return false;
}

void release(void* request) {
  auto* r = static_cast<Request*>(request);
  for (MPI_Request& m : r->mpi) MPI_Request_free(&m);
  delete r;
}

// MPI lengths are ints: pieces beyond 1 GB are split.
template <class Init>
Request* prepare(const Piece* pieces, int n, int peer, int tag, const Init& init) {
  constexpr size_t most = size_t{1} << 30;
  auto* r = new Request;
  for (int k = 0; k < n; ++k) {
    for (size_t at = 0; at < pieces[k].bytes; at += most) {
      const auto bytes = static_cast<int>(std::min(most, pieces[k].bytes - at));
      r->expected.push_back(bytes);
      if (check(init(static_cast<char*>(pieces[k].at) + at, bytes, MPI_BYTE, peer, tag,
                     MPI_COMM_WORLD, &r->mpi.emplace_back())))
        continue;
      r->mpi.pop_back();
      release(r);
      return nullptr;
    }
  }
  r->status.resize(r->mpi.size());
  return r;
}

void* send(const Piece* pieces, int n, int peer, int tag) {
  Request* const r = prepare(pieces, n, peer, tag, MPI_Send_init);
  if (r) r->expected.clear();
  return r;
}

void* receive(const Piece* pieces, int n, int peer, int tag) {
  return prepare(pieces, n, peer, tag, MPI_Recv_init);
}

bool start(void* request) {
  auto* r = static_cast<Request*>(request);
  return check(MPI_Startall(static_cast<int>(r->mpi.size()), r->mpi.data()));
}

int test(void* request) {
  auto* r = static_cast<Request*>(request);
  int done = 0;
  const int n = static_cast<int>(r->mpi.size());
  bool good = check(MPI_Testall(n, r->mpi.data(), &done, r->status.data()));
  if (good && !done) return 0;
  for (size_t k = 0; good && k < r->expected.size(); ++k) {
    int got = 0;
    good = check(MPI_Get_count(&r->status[k], MPI_BYTE, &got));
    if (!good || got == r->expected[k]) continue;
    good = false;
    failure =
        "it has " + std::to_string(got) + " bytes instead of " + std::to_string(r->expected[k]);
  }
  return good ? 1 : -1;
}

void cancel(void* request) {
  auto* r = static_cast<Request*>(request);
  for (MPI_Request& m : r->mpi) {
    MPI_Cancel(&m);
    // A transfer already under way completes normally. If it never does, its memory and the rest of
    // the request are leaked, since MPI may still write there; the run is over anyway.
    int done = 0;
    for (int i = 0; i < 100000 && !done; ++i) MPI_Test(&m, &done, MPI_STATUS_IGNORE);
    if (!done) return;
    MPI_Request_free(&m);
  }
  delete r;
}

const char* version() {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int n = 0;
  MPI_Get_library_version(text, &n);
  *std::find(text, text + n, ',') = 0;
  return text;
}

}  // namespace

// Sets local_rank and local_size: this rank's place among the ranks on this machine that have its
// affinity mask (all, if it is the machine's or a container's; one, if a launcher binds each rank).
static bool find_place(brrr::Transport& t) {
  MPI_Comm here = MPI_COMM_NULL;
  int rank = 0, size = 1;
  if (!check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, t.rank, MPI_INFO_NULL,
                                 &here)) ||
      !check(MPI_Comm_rank(here, &rank)) || !check(MPI_Comm_size(here, &size))) {
    return false;
  }
  std::vector<cpu_set_t> masks(static_cast<size_t>(size));
  cpu_set_t own;
  CPU_ZERO(&own);
  sched_getaffinity(0, sizeof own, &own);
  if (!check(MPI_Allgather(&own, sizeof own, MPI_BYTE, masks.data(), sizeof own, MPI_BYTE, here))) {
    return false;
  }
  t.local_rank = t.local_size = 0;
  for (int r = 0; r < size; ++r) {
    if (!CPU_EQUAL(&masks[static_cast<size_t>(r)], &own)) continue;
    t.local_rank += r < rank;
    ++t.local_size;
  }
  return check(MPI_Comm_free(&here));
}

static const brrr::Transport* join(const char** why) {
  static brrr::Transport t{.rank = 0,
                           .size = 1,
                           .local_rank = 0,
                           .local_size = 1,
                           .version = "",
                           .send = send,
                           .receive = receive,
                           .start = start,
                           .test = test,
                           .error = [] { return failure.c_str(); },
                           .cancel = cancel,
                           .release = release,
                           .abort = [](int code) { MPI_Abort(MPI_COMM_WORLD, code); },
                           .finish = [] { MPI_Finalize(); }};
  int given = 0, is_up = 0;
  MPI_Initialized(&is_up);
  if (is_up) {
    *why = "this process has started MPI itself; call brrr::dist::init() instead";
    return nullptr;
  }
  const bool up = check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &given)) &&
                  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)) &&
                  check(MPI_Comm_rank(MPI_COMM_WORLD, &t.rank)) &&
                  check(MPI_Comm_size(MPI_COMM_WORLD, &t.size)) && find_place(t);
  if (!up || given < MPI_THREAD_FUNNELED) {
    if (up) failure = "this MPI does not support multithreaded programs";
    *why = failure.c_str();
    return nullptr;
  }
  t.version = version();
  return &t;
}

/// The module's one exported function.
extern "C" [[gnu::visibility("default")]] const brrr::TransportModule* brrr_mpi_boundary() {
  static const brrr::TransportModule boundary{brrr::kTransportAbi, join};
  return &boundary;
}
