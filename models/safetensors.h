#pragma once
// The safetensors file format (github.com/huggingface/safetensors): the length of a JSON header in
// 8 bytes, the header, the tensors' bytes. Other tools read and write it too.

#include <map>
#include <string>

#include "models/state_dict.h"

namespace brrr {

/// String pairs that a file stores in addition to its tensors.
using Metadata = std::map<std::string, std::string>;

/// Writes the tensors (any device, any layout) to `path`. The file is written under a temporary
/// name, synced and renamed, so that a failure leaves the old file unchanged.
void save(const std::string& path, const StateDict& dict, const Metadata& metadata = {});

/// Reads a file into tensors on the CPU. Whatever the file contains, returns its tensors or throws
/// brrr::Error naming the file and the tensor; allocates memory only for bytes that the file has.
StateDict load(const std::string& path);
StateDict load(const std::string& path, Metadata& metadata);

}  // namespace brrr
