#pragma once

#include <pthread.h>
#include <signal.h>

#include "core/moved.h"

namespace brrr {

/// Threads started while it lives leave the process's signals to the user's threads: a signal that
/// those block, to wait for it, would end the process in one of ours. Signals that a thread raises
/// itself, and those of profilers, are not blocked.
class SignalsBlocked : NotCopied {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGTRAP, SIGPROF})
      sigdelset(&all, own);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace brrr
