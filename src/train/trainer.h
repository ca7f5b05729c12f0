// Training: the loop, and what happens at its stops.
#pragma once
#include "train/start.h"

namespace qkgpt {

// Runs or resumes a training; returns the exit code: 0, or 128 + signal after a stop that saved. Errors are
// thrown.
int train(const TrainRequest& request);

// Prints parameters, memory, tokens per update and an estimate of the time; writes no file.
void dry_run(const TrainRequest& request);

}  // namespace qkgpt
