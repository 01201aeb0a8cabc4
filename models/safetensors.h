#pragma once
// safetensors, the published checkpoint format (github.com/huggingface/safetensors): the length of
// a JSON header in 8 bytes, the header, the tensors' bytes. Other tools read and write it too.

#include <map>
#include <string>

#include "models/state_dict.h"

namespace brrr {

/// Free text that a file carries beside its tensors.
using Metadata = std::map<std::string, std::string>;

/// Writes the tensors (any device, any layout) to `path`. The file is written under a temporary
/// name, synced and renamed, so that a failure leaves the old one as it was.
void save(const std::string& path, const StateDict& dict, const Metadata& metadata = {});

/// Reads a file into tensors on the CPU. Whatever it holds, the result is its tensors or a
/// brrr::Error naming the file and the tensor; memory is allocated for bytes that exist only.
StateDict load(const std::string& path);
StateDict load(const std::string& path, Metadata& metadata);

}  // namespace brrr
