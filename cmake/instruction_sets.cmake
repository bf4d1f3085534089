# Compiles the kernels for processors with more instructions than other code may use. The program chooses among the
# kernels when it runs. The sums of kernels may be computed in any order, which lets the compiler vectorize plain loops.
#
# Two passes of GCC are switched off, because they made loops take up to twice as long. In every round of a loop,
# partial redundancy elimination copies each of the loop's sums twice. Replacement of temporaries moves products so far
# from their sums that 16 registers cannot hold them. GCC's own AVX-512 headers leave registers undefined on purpose,
# and GCC warns about these registers (GCC bug 105593).
#
# KVANT_KERNELS=here compiles only the best instruction set of this machine. A first build then takes a quarter of the
# time for kernels. Releases and tests always have all instruction sets.
include(CheckCXXCompilerFlag)
set(KVANT_KERNELS all CACHE STRING "Instruction sets that attention is compiled for: all, or here (this machine's best)")
set(instruction_sets ${CMAKE_SOURCE_DIR}/src/device/cpu/kernels/instruction_sets.def)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${instruction_sets})
file(STRINGS ${instruction_sets} KVANT_INSTRUCTION_SETS REGEX "^KVANT_INSTRUCTION_SET")
list(TRANSFORM KVANT_INSTRUCTION_SETS REPLACE "^KVANT_INSTRUCTION_SET\\((.+)\\)$" "\\1")
if(KVANT_KERNELS STREQUAL "here" AND NOT CMAKE_CROSSCOMPILING AND EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo cpu_flags REGEX "^(flags|Features)" LIMIT_COUNT 1)
  set(needs_avx512 avx512f avx512bw avx512dq avx512vl avx512_vnni avx512vbmi avx512_vbmi2 gfni)
  set(needs_avxvnni avx2 fma f16c avx_vnni gfni)
  set(needs_avx2 avx2 fma f16c)
  set(needs_i8mm asimddp i8mm)
  set(needs_dotprod asimddp)
  set(needs_neon asimd)
  foreach(set IN LISTS KVANT_INSTRUCTION_SETS)
    set(runs_here TRUE)
    foreach(flag IN LISTS needs_${set})
      if(NOT "${cpu_flags} " MATCHES " ${flag} ")
        set(runs_here FALSE)
      endif()
    endforeach()
    if(runs_here)
      set(KVANT_INSTRUCTION_SETS ${set})
      break()
    endif()
  endforeach()
  message(STATUS "Attention kernels for ${KVANT_INSTRUCTION_SETS} alone (KVANT_KERNELS=here)")
endif()
set(kernels ${CMAKE_SOURCE_DIR}/src/device/cpu/kernels/byte_kernels)
set(any_order -fassociative-math -ffinite-math-only -fno-signed-zeros -fno-trapping-math -fno-math-errno)
# Line information of kernels is of little use and takes long to write.
set(kernel_options ${any_order} -g0)
# The address that the linker gives a kernel must not decide its speed. When scores of tcq4 no longer began at a cache
# line, `kvant bench attention` was 1 to 9 % slower.
list(APPEND kernel_options -falign-functions=64 -falign-loops=32)
# Without instrumentation, kernels compile in seconds instead of minutes.
if(KVANT_FUZZ)
  list(APPEND kernel_options -fno-sanitize=all)
# Kernels use no threads, and would take long to compile with thread checks.
elseif(KVANT_SANITIZE STREQUAL "thread")
  list(APPEND kernel_options -fno-sanitize=thread)
# Kernels have very many objects of a few bytes. AddressSanitizer would write marks wherever an object's scope begins or
# ends, and compiling the marks took most of the time: minutes a file.
elseif(KVANT_SANITIZE STREQUAL "address")
  list(APPEND kernel_options -fno-sanitize-address-use-after-scope)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND kernel_options -fno-tree-pre)
  # GCC takes lists for uninitialized if it cannot see how many of their elements are in use.
  list(APPEND kernel_options -Wno-maybe-uninitialized)
  set(few_registers -fno-tree-ter)
endif()
set_source_files_properties(${kernels}_portable.cc PROPERTIES COMPILE_OPTIONS "${kernel_options}")
if(NOT portable IN_LIST KVANT_INSTRUCTION_SETS)
  set_source_files_properties(${kernels}_portable.cc PROPERTIES COMPILE_DEFINITIONS KVANT_NO_PORTABLE_KERNELS)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(gemm ${CMAKE_SOURCE_DIR}/src/base/gemm_kernel)
  set_source_files_properties(${gemm}_avx2.cc PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma" SKIP_PRECOMPILE_HEADERS ON)
  set_source_files_properties(${gemm}_avx512.cc PROPERTIES SKIP_PRECOMPILE_HEADERS ON
                              COMPILE_OPTIONS "-mavx512f;-mfma;-mprefer-vector-width=512")
  set(avx2_flags -mavx2 -mfma -mf16c)
  # GCC's own intrinsics use values that are not set, which GCC warns about.
  set(vnni_flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mprefer-vector-width=512
                 -Wno-uninitialized $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  set(avx512_flags ${avx2_flags} ${vnni_flags} -mavx512vbmi -mavx512vbmi2 -mgfni)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/base/code_gemm_avx512.cc PROPERTIES SKIP_PRECOMPILE_HEADERS ON
                              # code_gemm() checks for AVX2, FMA and the instructions of vnni_flags before it calls the
                              # file.
                              COMPILE_OPTIONS "-mavx2;-mfma;${vnni_flags}")
  check_cxx_compiler_flag(-mavx512bf16 KVANT_COMPILES_BF16)
  # gemm.cc checks for exactly these instructions before it calls this file.
  if(KVANT_COMPILES_BF16)
    set_source_files_properties(${gemm}_bf16.cc PROPERTIES COMPILE_OPTIONS "${vnni_flags};-mavx512bf16")
  endif()
  set_source_files_properties(${gemm}_bf16.cc PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  check_cxx_compiler_flag(-mavxvnni KVANT_COMPILES_AVXVNNI)
  if(KVANT_COMPILES_AVXVNNI AND avxvnni IN_LIST KVANT_INSTRUCTION_SETS)
    set_source_files_properties(${kernels}_avxvnni.cc PROPERTIES COMPILE_OPTIONS "${kernel_options};${avx2_flags};-mavxvnni;-mgfni")
  endif()
  # A file that is compiled without its options contains no kernels.
  if(avx2 IN_LIST KVANT_INSTRUCTION_SETS)
    set_source_files_properties(${kernels}_avx2.cc PROPERTIES
                                COMPILE_OPTIONS "${kernel_options};${few_registers};${avx2_flags}")
  endif()
  if(avx512 IN_LIST KVANT_INSTRUCTION_SETS)
    set_source_files_properties(${kernels}_avx512.cc PROPERTIES COMPILE_OPTIONS "${kernel_options};${avx512_flags}")
  endif()
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/format/trellis_viterbi_avx2.cc PROPERTIES
                              COMPILE_OPTIONS "-mavx2")
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/format/shaped_search_avx2.cc PROPERTIES SKIP_PRECOMPILE_HEADERS ON
                              COMPILE_OPTIONS "-fno-tree-vectorize;-mavx2")
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/format/shaped_search_avx512.cc PROPERTIES SKIP_PRECOMPILE_HEADERS ON
                              COMPILE_OPTIONS "-fno-tree-vectorize;${vnni_flags}")
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  # Before it assigns registers, GCC's scheduler moves decoding so far from its products that sums leave the registers.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND kernel_options -fno-schedule-insns)
  endif()
  set_source_files_properties(${kernels}_neon.cc PROPERTIES COMPILE_OPTIONS "${kernel_options}")
  if(NOT neon IN_LIST KVANT_INSTRUCTION_SETS)
    set_source_files_properties(${kernels}_neon.cc PROPERTIES COMPILE_DEFINITIONS KVANT_NO_NEON_KERNELS)
  endif()
  if(dotprod IN_LIST KVANT_INSTRUCTION_SETS)
    set_source_files_properties(${kernels}_dotprod.cc PROPERTIES
                                COMPILE_OPTIONS "${kernel_options};-march=armv8.2-a+dotprod")
  endif()
  if(i8mm IN_LIST KVANT_INSTRUCTION_SETS)
    set_source_files_properties(${kernels}_i8mm.cc PROPERTIES
                                COMPILE_OPTIONS "${kernel_options};-march=armv8.2-a+dotprod+i8mm")
  endif()
endif()
file(GLOB kernel_files ${kernels}_*.cc)
set_source_files_properties(${kernel_files} ${CMAKE_SOURCE_DIR}/src/format/trellis_viterbi_avx2.cc PROPERTIES
                            SKIP_PRECOMPILE_HEADERS ON)
