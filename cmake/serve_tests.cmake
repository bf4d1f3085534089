# Defines tests of the server with real clients and the default model.
function(kvant_serve_tests)
  if(NOT Python3_Interpreter_FOUND)
    return()
  endif()
  set(client src/serve/openai_client_test.py)
  set(AnswersTheOpenaiPackage ${client} Chat Completions Http)
  set(AnswersManyTogether ${client} Together)
  set(KeepsSessionsAndLimits ${client} Sessions Limits)
  set(IsAsOthersAre src/serve/any_server_test.py)
  set(AnswersMessages src/serve/messages_client_test.py)
  set(GetsOnWithClients src/serve/operations_test.py Clients)
  set(HasManners src/serve/operations_test.py Manners Browsers Logs Process)
  set(TellsThoughtsApart src/serve/thoughts_client_test.py)
  set(ServesClientPackages src/serve/client_matrix_test.py)
  set(PageInABrowser src/serve/page_test.py)
  # Developers who change how sessions are saved run 200 kills instead.
  set(LosesNoSavedSession scripts/kill-test.py --kills 3 --words 50)
  foreach(test AnswersTheOpenaiPackage AnswersManyTogether KeepsSessionsAndLimits IsAsOthersAre AnswersMessages GetsOnWithClients HasManners TellsThoughtsApart ServesClientPackages PageInABrowser
               LosesNoSavedSession)
    list(POP_FRONT ${test} script)
    add_test(NAME Serve.${test}
             COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/${script} $<TARGET_FILE:kvant>
                     ${CMAKE_SOURCE_DIR}/.venv/smollm2-135m-instruct.gguf ${${test}})
    # A high COST starts the tests of the server first, because they run long.
    set_tests_properties(Serve.${test} PROPERTIES LABELS model TIMEOUT 900 COST 20)
  endforeach()
  # Serve.HoldsSchemas needs no server: another Python package checks texts that the grammars of JSON schemas allow.
  add_executable(schema_samples src/serve/testing/schema_samples.cc)
  target_link_libraries(schema_samples PRIVATE kvant_serve nlohmann_json::nlohmann_json)
  target_compile_options(schema_samples PRIVATE $<$<CONFIG:Release>:-O1>)
  add_test(NAME Serve.HoldsSchemas
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/src/serve/held_schema_test.py $<TARGET_FILE:schema_samples>)
  set_tests_properties(Serve.HoldsSchemas PROPERTIES LABELS model TIMEOUT 300)
endfunction()
