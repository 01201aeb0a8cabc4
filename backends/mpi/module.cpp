// The module brrr_mpi, the only part that needs MPI: messages of pieces between ranks.
#include <mpi.h>

#include <algorithm>
#include <climits>
#include <string>
#include <vector>

#include "core/transport.h"

namespace {

using brrr::Piece;

std::string failure;

struct Request {
  MPI_Request mpi = MPI_REQUEST_NULL;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  int expected = -1;  // Bytes of a receive.
};

bool check(int code) {
  if (code == MPI_SUCCESS) return true;
  char text[MPI_MAX_ERROR_STRING];
  int n = 0;
  MPI_Error_string(code, text, &n);
  failure.assign(text, static_cast<size_t>(n));
  return false;
}

// One type for all pieces, from the start of memory. Lengths are an int: long ones are split.
bool make_type(const Piece* pieces, int n, MPI_Datatype& type) {
  constexpr size_t most = size_t{1} << 30;
  std::vector<int> lengths;
  std::vector<MPI_Aint> places;
  for (int k = 0; k < n; ++k) {
    for (size_t at = 0; at < pieces[k].bytes; at += most) {
      MPI_Aint place;
      if (!check(MPI_Get_address(static_cast<char*>(pieces[k].at) + at, &place))) return false;
      places.push_back(place);
      lengths.push_back(static_cast<int>(std::min(most, pieces[k].bytes - at)));
    }
  }
  return check(MPI_Type_create_hindexed(static_cast<int>(lengths.size()), lengths.data(),
                                        places.data(), MPI_BYTE, &type)) &&
         check(MPI_Type_commit(&type));
}

template <class Post> void* prepare(const Piece* pieces, int n, const Post& post) {
  auto* r = new Request;
  const bool plain = n == 1 && pieces[0].bytes <= INT_MAX;
  const bool typed = plain || make_type(pieces, n, r->type);
  void* const at = plain ? pieces[0].at : MPI_BOTTOM;
  const int count = plain ? static_cast<int>(pieces[0].bytes) : 1;
  if (typed && check(post(at, count, plain ? MPI_BYTE : r->type, &r->mpi))) return r;
  delete r;
  return nullptr;
}

void* send(const Piece* pieces, int n, int peer, int tag) {
  return prepare(pieces, n, [&](void* at, int count, MPI_Datatype type, MPI_Request* r) {
    return MPI_Send_init(at, count, type, peer, tag, MPI_COMM_WORLD, r);
  });
}

void* receive(const Piece* pieces, int n, int peer, int tag) {
  void* const r = prepare(pieces, n, [&](void* at, int count, MPI_Datatype type, MPI_Request* r) {
    return MPI_Recv_init(at, count, type, peer, tag, MPI_COMM_WORLD, r);
  });
  size_t bytes = 0;
  for (int k = 0; k < n; ++k) bytes += pieces[k].bytes;
  if (r && bytes <= INT_MAX) static_cast<Request*>(r)->expected = static_cast<int>(bytes);
  return r;
}

bool start(void* request) { return check(MPI_Start(&static_cast<Request*>(request)->mpi)); }

void release(void* request) {
  auto* r = static_cast<Request*>(request);
  MPI_Request_free(&r->mpi);
  if (r->type != MPI_DATATYPE_NULL) MPI_Type_free(&r->type);
  delete r;
}

int test(void* request) {
  auto* r = static_cast<Request*>(request);
  int done = 0;
  MPI_Status status;
  bool good = check(MPI_Test(&r->mpi, &done, &status));
  if (good && !done) return 0;
  int got = 0;
  if (good && r->expected >= 0 && check(MPI_Get_count(&status, MPI_BYTE, &got)) &&
      got != r->expected) {
    good = false;
    failure = "it has " + std::to_string(got) + " bytes instead of " + std::to_string(r->expected);
  }
  return good ? 1 : -1;
}

void cancel(void* request) {
  auto* r = static_cast<Request*>(request);
  MPI_Cancel(&r->mpi);
  // One whose bytes are on their way already ends like any other; if that takes for ever its memory
  // must stay as it is, and nobody knows how long: the run is over anyway.
  int done = 0;
  for (int i = 0; i < 100000 && !done; ++i) MPI_Test(&r->mpi, &done, MPI_STATUS_IGNORE);
  if (done) return release(r);
  // Its memory may still be written; the rest of it stays as well.
}

const char* error() { return failure.c_str(); }
void stop(int code) { MPI_Abort(MPI_COMM_WORLD, code); }
void finish() { MPI_Finalize(); }

const char* version() {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int n = 0;
  MPI_Get_library_version(text, &n);
  *std::find(text, text + n, ',') = 0;
  return text;
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const brrr::Transport* brrr_mpi_join(const char** why) {
  static brrr::Transport t{.abi = brrr::kTransportAbi,
                           .rank = 0,
                           .size = 1,
                           .local_rank = 0,
                           .local_size = 1,
                           .version = "",
                           .send = send,
                           .receive = receive,
                           .start = start,
                           .test = test,
                           .error = error,
                           .cancel = cancel,
                           .release = release,
                           .abort = stop,
                           .finish = finish};
  int given = 0, is_up = 0;
  MPI_Initialized(&is_up);
  if (is_up) {
    *why = "this process has started MPI itself; call brrr::dist::init() instead";
    return nullptr;
  }
  MPI_Comm here = MPI_COMM_NULL;
  const bool up = check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &given)) &&
                  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)) &&
                  check(MPI_Comm_rank(MPI_COMM_WORLD, &t.rank)) &&
                  check(MPI_Comm_size(MPI_COMM_WORLD, &t.size)) &&
                  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, t.rank,
                                            MPI_INFO_NULL, &here)) &&
                  check(MPI_Comm_rank(here, &t.local_rank)) &&
                  check(MPI_Comm_size(here, &t.local_size)) && check(MPI_Comm_free(&here));
  if (!up || given < MPI_THREAD_FUNNELED) {
    if (up) failure = "this MPI serves no program of several threads";
    *why = failure.c_str();
    return nullptr;
  }
  t.version = version();
  return &t;
}
