# Builds and installs the device libraries that implement include/kvant/kvant.h. This file defines the CPU's library;
# cuda.cmake defines the GPU's library.

# Installs a library for other programs, which find it by find_package(NAME) and kvant::NAME, or by pkg-config.
function(kvant_install_library name description)
  file(STRINGS ${CMAKE_SOURCE_DIR}/include/kvant/kvant.h line REGEX "^#define KVANT_VERSION [0-9]+$")
  string(REGEX MATCH "[0-9]+$" number "${line}")
  math(EXPR major "${number} / 1000")
  math(EXPR minor "${number} % 1000")
  set(version ${major}.${minor})
  set(package ${CMAKE_INSTALL_LIBDIR}/cmake/${name})
  set_target_properties(${name} PROPERTIES VERSION ${version} SOVERSION ${major})
  install(TARGETS ${name} EXPORT ${name} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(DIRECTORY include/kvant DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT ${name} FILE ${name}Config.cmake NAMESPACE kvant:: DESTINATION ${package})
  include(CMakePackageConfigHelpers)
  write_basic_package_version_file(${name}ConfigVersion.cmake VERSION ${version} COMPATIBILITY SameMajorVersion)
  # A relative prefix stays right if the installation is moved.
  file(RELATIVE_PATH prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  file(CONFIGURE OUTPUT ${name}.pc @ONLY CONTENT [[prefix=${pcfiledir}/@prefix@
Name: @name@
Description: @description@
Version: @version@
Cflags: -I${prefix}/@CMAKE_INSTALL_INCLUDEDIR@
Libs: -L${prefix}/@CMAKE_INSTALL_LIBDIR@ -l@name@
]])
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}ConfigVersion.cmake DESTINATION ${package})
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name})
endfunction()

# Installs a device library into the Python package under a single name, because wheels contain no links.
function(kvant_install_in_wheel name)
  install(TARGETS ${name} LIBRARY DESTINATION kvant/lib COMPONENT python EXCLUDE_FROM_ALL NAMELINK_SKIP)
  install(CODE "
    set(folder \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/kvant/lib)
    file(RENAME \${folder}/$<TARGET_FILE_NAME:${name}> \${folder}/lib${name}.so)
    file(REMOVE \${folder}/$<TARGET_SONAME_FILE_NAME:${name}>)" COMPONENT python EXCLUDE_FROM_ALL)
endfunction()

# Builds the CPU library from the module kvant_cpu_device. Tests of modules that use it link the module itself.
function(kvant_cpu)
  add_library(kvant_cpu SHARED $<TARGET_OBJECTS:kvant_cpu_device>)
  target_include_directories(kvant_cpu PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>)
  target_link_libraries(kvant_cpu PRIVATE kvant_cpu_kernels)
  # The threads of the CPU library sleep in its code, so the library stays loaded. macOS's linker has other options.
  if(NOT APPLE)
    target_link_options(kvant_cpu PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/kvant_cpu.map -Wl,-z,nodelete)
  endif()
  set_target_properties(kvant_cpu PROPERTIES LINKER_LANGUAGE CXX INSTALL_RPATH "\$ORIGIN")
  kvant_install_library(kvant_cpu "attention on a paged low-bit KV cache, on CPUs")
endfunction()
