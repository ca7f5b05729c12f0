// The commands of the program: what the line of each may hold, and what it does.
#pragma once
#include <vector>

#include "cli/options.h"

namespace qkgpt {

const Command& train_command();
const Command& sample_command();
const Command& eval_command();
const Command& inspect_command();
const Command& bench_command();
const Command& export_command();
const Command& completion_command();

// All of them, in the order of the list that --help prints.
const std::vector<const Command*>& commands();

// Names the command, calls it, turns an error into a line on stderr and its exit code.
int run_program(int argc, char** argv);

}  // namespace qkgpt
