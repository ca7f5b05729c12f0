// Whether the disk has room for what a run will save.
#pragma once
#include "model/gpt.h"
#include "train/corpus.h"
#include "train/run_directory.h"

namespace qkgpt {

// Free space against `last`, `best`, a temporary file and the step_* still to come of a run that goes on from `step`,
// less what they replace. Error(disk) with both numbers. Later the disk may still fill up.
void require_space(const RunDirectory& directory, const Gpt& gpt, const Corpus& corpus, Index step);

}  // namespace qkgpt
