#include <cstdio>
#include <exception>
#include <new>

#include "base/file.h"
#include "base/signals.h"
#include "base/text.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "kernels/simd.h"
#include "ranks/ranks.h"

namespace qkgpt {
namespace {

std::string usage() {
  std::string out =
      "qkgpt trains small character-level GPTs on CPU cores, with standard or query-key-normalised attention.\n\n"
      "usage: qkgpt COMMAND [arguments]\n\n";
  for (const Command* c : commands()) {
    std::string line = "  " + c->name;
    line.resize(14, ' ');
    out += line + c->brief + "\n";
  }
  return out + "\n`qkgpt COMMAND --help` explains a command; `qkgpt train --help` lists every config key.\n";
}

int run(const Command& command, const std::vector<std::string>& arguments) {
  ranks::start();
  Arguments parsed;
  ranks::together([&] {
    parsed = parse_arguments(command, arguments);
    if (ranks::count() > 1 && !command.many_ranks)
      throw Error(ErrorKind::usage, cat(command.name, ": runs alone; start it without the launcher"));
  });
  int code = 0;
  if (!parsed.has("help"))
    code = command.run(parsed);
  else if (ranks::first())
    write_out(folded(command_help(command)));
  ranks::finish();
  return code;
}

int dispatch(const std::vector<std::string>& arguments) {
  const std::string first = arguments.empty() ? "" : arguments[0];
  if (first == "help" && arguments.size() > 1) return dispatch({arguments[1], "--help"});
  if (first == "--help" || first == "-h" || first == "help") return write_out(folded(usage())), 0;
  if (first == "--version")
    return write_out(cat("qkgpt ", std::string_view(version()), " (", std::string_view(simd_name), ", built for ",
                         std::string_view(build_arch()), ranks::with_mpi ? ", MPI)\n" : ")\n")),
           0;
  std::vector<std::string> names;
  for (const Command* c : commands()) {
    if (first == c->name) return run(*c, {arguments.begin() + 1, arguments.end()});
    names.push_back(c->name);
  }
  if (first.empty()) throw Error(ErrorKind::usage, "qkgpt: no command; `qkgpt --help` lists them");
  const std::string near = nearest(first, names);
  throw Error(ErrorKind::usage, cat(first, ": unknown command; ",
                                    near.empty() ? "`qkgpt --help` lists them" : "did you mean " + near + "?"));
}

int complain(const std::string& message, ErrorKind kind) {
  const auto code = static_cast<int>(kind);
  if (ranks::first() || !ranks::in_step()) std::fputs((message + "\n").c_str(), stderr);
  if (!ranks::in_step()) ranks::abandon(code);
  ranks::finish();
  return code;
}

}  // namespace

const std::vector<const Command*>& commands() {
  static const std::vector<const Command*> list = {&train_command(),     &sample_command(), &eval_command(),
                                                   &inspect_command(),   &bench_command(),  &export_command(),
                                                   &completion_command()};
  return list;
}

int run_program(int argc, char** argv) {
  try {
    take_standard_descriptors();
    ignore_write_signals();
    return dispatch({argv + 1, argv + argc});
  } catch (const Error& e) {
    return complain(e.what(), e.kind());
  } catch (const std::bad_alloc&) {
    return complain("memory: not enough; a smaller model, block_size or batch_size needs less", ErrorKind::unexpected);
  } catch (const std::exception& e) {
    return complain(cat("unexpected: ", std::string_view(e.what())), ErrorKind::unexpected);
  }
}

}  // namespace qkgpt
