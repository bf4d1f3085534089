# Defines what `cmake --install BUILD` installs: the program, its libraries in a folder of their own, and the device
# libraries with their header (device_library.cmake). `cmake --build BUILD --target uninstall` removes what was
# installed.

# kvant_install_needed(FOLDER COMPONENT MODULES|EXECUTABLES files...) installs the shared libraries that the files need,
# except those that every Linux has.
function(kvant_install_needed folder component)
  set(options COMPONENT ${component})
  if(component STREQUAL python)
    list(APPEND options EXCLUDE_FROM_ALL)
  endif()
  install(CODE "
    file(GET_RUNTIME_DEPENDENCIES ${ARGN} RESOLVED_DEPENDENCIES_VAR needed
         POST_EXCLUDE_REGEXES \"/(ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s|stdc\\\\+\\\\+))\\\\.so[.0-9]*$\")
    foreach(library IN LISTS needed)
      get_filename_component(name \${library} NAME)  # the name that programs ask for
      file(REAL_PATH \${library} library)
      file(INSTALL \${library} DESTINATION \${CMAKE_INSTALL_PREFIX}/${folder} RENAME \${name})
    endforeach()" ${options})
endfunction()

# kvant_install() must be called after the program and the GPU library are defined.
function(kvant_install)
  # A folder of its own leaves other programs' llama.cpp untouched.
  set(libraries ${CMAKE_INSTALL_LIBDIR}/kvant)
  file(RELATIVE_PATH way /${CMAKE_INSTALL_BINDIR} /${libraries})
  # The first path serves the program in the Python package.
  set_target_properties(kvant PROPERTIES INSTALL_RPATH "\$ORIGIN/../lib;\$ORIGIN/${way}")
  install(TARGETS kvant RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
  kvant_install_needed(${libraries} program EXECUTABLES $<TARGET_FILE:kvant>)
  # ggml's CUDA backend exists only if scripts/setup.sh has built it.
  foreach(packages IN LISTS KVANT_VENV_PACKAGES)
    install(FILES ${packages}/lib/libggml-cuda.so DESTINATION ${libraries} COMPONENT program OPTIONAL)
  endforeach()
  install(FILES LICENSE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/kvant COMPONENT program)
  add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -DBUILD=${CMAKE_BINARY_DIR}
                    -P ${CMAKE_SOURCE_DIR}/cmake/uninstall.cmake VERBATIM)
  add_test(NAME Install.IsCompleteMovableAndUndone COMMAND ${CMAKE_SOURCE_DIR}/cmake/install_test.sh ${CMAKE_BINARY_DIR}
           ${PROJECT_VERSION})
  set_tests_properties(Install.IsCompleteMovableAndUndone PROPERTIES LABELS slow RESOURCE_LOCK installation)
endfunction()
