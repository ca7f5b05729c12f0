// Signals as flags: handlers store a number, the program looks when it can act.
#pragma once

namespace qkgpt {

// From now on SIGINT, SIGTERM and SIGHUP ask to stop and SIGUSR1 asks to save; a second SIGINT kills at once.
// SIGHUP stays ignored where it was (nohup).
void catch_signals();

// SIGPIPE and SIGXFSZ become errors of the calls that caused them.
void ignore_write_signals();

int stop_signal();  // number of the signal that asked to stop, or 0
const char* stop_signal_name();
void ask_to_stop(int signal);  // as if it had come
bool take_save_request();      // true once after SIGUSR1

// Thrown where long work ends early because of a stop signal.
struct Interrupted {};
inline void stop_if_asked() {
  if (stop_signal()) throw Interrupted{};
}

}  // namespace qkgpt
