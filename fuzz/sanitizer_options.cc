// AddressSanitizer's defaults for fuzz targets turn off what slows executions down without finding more. To
// look at a finding, ASAN_OPTIONS=malloc_context_size=30 shows more of each allocation's stack.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "malloc_context_size=0:quarantine_size_mb=8";
}
