#include "base/signals.h"

#include <csignal>

namespace qkgpt {
namespace {

// A handler can reach nothing else.
volatile std::sig_atomic_t stop = 0;
volatile std::sig_atomic_t save = 0;

void on_stop(int signal) { stop = signal; }
void on_save(int) { save = 1; }

void handle(int signal, void (*handler)(int), int flags = 0) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void catch_signals() {
  handle(SIGINT, on_stop, static_cast<int>(SA_RESETHAND));  // the second one has its default effect
  handle(SIGTERM, on_stop);
  struct sigaction old {};
  sigaction(SIGHUP, nullptr, &old);
  if (old.sa_handler != SIG_IGN) handle(SIGHUP, on_stop);
  handle(SIGUSR1, on_save, SA_RESTART);
}

void ignore_write_signals() {
  handle(SIGPIPE, SIG_IGN);
  handle(SIGXFSZ, SIG_IGN);
}

int stop_signal() { return stop; }
void ask_to_stop(int signal) { stop = signal; }
const char* stop_signal_name() { return stop == SIGINT ? "SIGINT" : stop == SIGTERM ? "SIGTERM" : "SIGHUP"; }

bool take_save_request() {
  if (!save) return false;
  save = 0;
  return true;
}

}  // namespace qkgpt
