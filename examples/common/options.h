#pragma once
// Command lines that say what was expected.

#include <brrr/brrr.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace examples {

/// Validators: the value is checked, and a wrong one answered with what was expected.
CLI::Validator whole_number(int64_t least);
CLI::Validator real_number(double least, double most);
CLI::Validator one_of(std::vector<std::string> choices);
/// A file that can be written: its folder exists and it is no folder itself.
CLI::Validator output_file();

/// Parses; true if the program goes on, else `exit_code` is what main returns (0 after --help, 2
/// after a wrong option, which has been explained on stderr).
bool parse(CLI::App& app, int argc, char** argv, int& exit_code);

/// The device that --device names, "cpu" or "cuda"; throws, saying what is missing, if it is not
/// here.
brrr::Device device_of(const std::string& name);

/// The CPU threads that brrr will use; to be called before its first tensor. 0: all cores.
void use_threads(int n);

/// Writes a text file whole or not at all; throws std::runtime_error naming the file.
void write_file(const std::string& path, const std::string& text);

}  // namespace examples
