// The commands of the program. Each takes the arguments behind its name and returns the exit code.
#pragma once
#include <string>
#include <vector>

namespace qkgpt {

int train_command(const std::vector<std::string>& arguments);
int sample_command(const std::vector<std::string>& arguments);
int eval_command(const std::vector<std::string>& arguments);
int inspect_command(const std::vector<std::string>& arguments);
int bench_command(const std::vector<std::string>& arguments);
int export_command(const std::vector<std::string>& arguments);

// Names the command, calls it, turns an error into a line on stderr and its exit code.
int run_program(int argc, char** argv);

}  // namespace qkgpt
