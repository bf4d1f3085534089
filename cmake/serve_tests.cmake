# The server as its clients meet it, with the default model.
function(kvant_serve_tests)
  if(NOT Python3_Interpreter_FOUND)
    return()
  endif()
  add_test(NAME Serve.AnswersTheOpenaiPackage
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/src/serve/openai_client_test.py $<TARGET_FILE:kvant>
                   ${CMAKE_SOURCE_DIR}/.venv/smollm2-135m-instruct.gguf)
  # 200 kills are for people who change how sessions are saved.
  add_test(NAME Serve.LosesNoSavedSession
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/kill-test.py $<TARGET_FILE:kvant>
                   ${CMAKE_SOURCE_DIR}/.venv/smollm2-135m-instruct.gguf --kills 3 --words 50)
  set_tests_properties(Serve.AnswersTheOpenaiPackage Serve.LosesNoSavedSession PROPERTIES LABELS model TIMEOUT 900)
endfunction()
