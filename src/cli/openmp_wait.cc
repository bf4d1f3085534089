// How long ggml's threads spin at the end of an operation before they sleep.
#include <cstdlib>

// ggml's barriers are OpenMP's. GNU's OpenMP spins for milliseconds before a waiting thread sleeps, which on
// a machine that does other work, too, makes a token many times slower: the thread that is waited for does
// not get the core. Sleeping at once costs a third of the speed of an idle machine. About 0.05 ms of
// spinning has neither fault. GNU's OpenMP reads the setting when it is loaded, before the program's own
// initializers: hence the array of functions that run first. A setting of the user's wins.
namespace {

void set_spin_count() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", "1000", /*overwrite=*/0);
}

[[gnu::used, gnu::section(".preinit_array")]] void (*const run_first)() = set_spin_count;

}  // namespace
