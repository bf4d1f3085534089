# The server as its clients meet it, with the default model.
function(kvant_serve_tests)
  if(NOT Python3_Interpreter_FOUND)
    return()
  endif()
  # 200 kills are for people who change how sessions are saved.
  set(AnswersTheOpenaiPackage src/serve/openai_client_test.py)
  set(AnswersMessages src/serve/messages_client_test.py)
  set(PageInABrowser src/serve/page_test.py)
  set(LosesNoSavedSession scripts/kill-test.py)
  set(options_LosesNoSavedSession --kills 3 --words 50)
  foreach(test AnswersTheOpenaiPackage AnswersMessages PageInABrowser LosesNoSavedSession)
    add_test(NAME Serve.${test}
             COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/${${test}} $<TARGET_FILE:kvant>
                     ${CMAKE_SOURCE_DIR}/.venv/smollm2-135m-instruct.gguf ${options_${test}})
    set_tests_properties(Serve.${test} PROPERTIES LABELS model TIMEOUT 900)
  endforeach()
endfunction()
