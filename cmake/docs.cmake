# Defines the target `docs`, which generates the reference pages from the program and its registries. Also defines tests
# that the generated pages, the tables from docs/results and all links are current, and tests of names in the sources.
#
# Tests in Python start the built programs, so they are left out where the programs are for a different processor.
if(NOT CMAKE_CROSSCOMPILING)
  find_package(Python3 COMPONENTS Interpreter)
endif()

# kvant_docs() must be called after the program is defined.
function(kvant_docs)
  add_executable(registry scripts/registry.cc)
  target_link_libraries(registry PRIVATE kvant_eval nlohmann_json::nlohmann_json)
  if(NOT Python3_Interpreter_FOUND)
    message(STATUS "No Python 3 found: documentation is neither generated nor checked.")
    return()
  endif()
  set(reference ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/reference.py $<TARGET_FILE:kvant>
                $<TARGET_FILE:registry>)
  set(tables ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/tables.py ${CMAKE_SOURCE_DIR}/docs/results)
  add_custom_target(docs COMMAND ${reference} COMMAND ${tables} VERBATIM)
  add_test(NAME Docs.ReferenceIsCurrent COMMAND ${reference} --check)
  add_test(NAME Docs.TablesAreCurrent COMMAND ${tables} --check)
  add_test(NAME Docs.LinksLeadSomewhere COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check-links.py)
  add_test(NAME Docs.ScriptsDoWhatTheySay COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/pages/pages_test.py)
  add_test(NAME Docs.QualityIsMeasuredByPriority COMMAND ${Python3_EXECUTABLE}
           ${CMAKE_SOURCE_DIR}/scripts/measure_quality_test.py)
  add_test(NAME Docs.ProseIsAdvisedOn COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check_prose_test.py)
  add_test(NAME Sources.ClassesHaveNamesOfTheirOwn COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check-names.py)
  add_test(NAME Sources.FoldersIncludeInNoCircle COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check-folders.py)
  set_tests_properties(Docs.TablesAreCurrent Docs.LinksLeadSomewhere Docs.ScriptsDoWhatTheySay
                       Docs.QualityIsMeasuredByPriority Docs.ProseIsAdvisedOn
                       Sources.ClassesHaveNamesOfTheirOwn Sources.FoldersIncludeInNoCircle PROPERTIES LABELS unit)
  # Docs.ReferenceIsCurrent is slow, because it runs the program.
  set_tests_properties(Docs.ReferenceIsCurrent PROPERTIES LABELS slow)
  add_test(NAME Docs.JsonPageNamesEveryField COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/check-json.py
           $<TARGET_FILE:kvant> ${CMAKE_SOURCE_DIR}/.venv/smollm2-135m-instruct.gguf)
  set_tests_properties(Docs.JsonPageNamesEveryField PROPERTIES LABELS model)
endfunction()
