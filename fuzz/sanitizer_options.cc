// AddressSanitizer's defaults for fuzz targets: what makes an execution slow and finds no more. Stacks of
// allocations say more about a finding: ASAN_OPTIONS=malloc_context_size=30 when one is looked at.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "malloc_context_size=0:quarantine_size_mb=8";
}
