#pragma once
// What allow_tf32() says to one thread: a recorded step keeps to what held when it was recorded.

#include "core/moved.h"

namespace brrr {

class Tf32Scope : NotCopied {
 public:
  explicit Tf32Scope(bool on);
  ~Tf32Scope();

 private:
  const int before_;
};

}  // namespace brrr
