#include "train/preflight.h"

#include <algorithm>

#include "base/file.h"
#include "base/text.h"
#include "train/checkpoint.h"

namespace qkgpt {

void require_space(const RunDirectory& directory, const Gpt& gpt, const Corpus& corpus, Index step) {
  constexpr double margin = 65536.0;  // for config, metrics and samples
  const Config& c = gpt.config();
  const auto each = static_cast<double>(checkpoint_size(gpt, c, corpus.text.tokenizer, corpus.sha256));
  std::vector<std::string> names = {directory.last()};
  if (corpus.val.size() > 0) names.push_back(directory.best());
  Index files = 1;  // the temporary one
  double need = each + margin;
  for (const std::string& name : names) {
    const double there = exists(name) ? static_cast<double>(file_size(name)) : 0.0;
    files += there == 0.0;
    need += std::max(0.0, each - there);
  }
  if (c.keep_interval > 0) {
    const Index kept = std::max<Index>(0, c.max_iters / c.keep_interval - step / c.keep_interval);
    files += kept;
    need += static_cast<double>(kept) * each;
  }
  const auto have = static_cast<double>(free_bytes(directory.path()));
  if (need > have)
    throw Error(ErrorKind::disk,
                cat(directory.path(), ": ", files, " more checkpoints of ", bytes_text(each), " need ",
                    bytes_text(need), ", ", bytes_text(have), " are free; free space or choose another out_dir"));
}

}  // namespace qkgpt
